"""Attention against the plain kernels in float64: outputs, gradients, grouped heads, dropout."""

import numpy as np
import pytest
import short_set
from hypothesis import given, settings, strategies as st

from minigrad.cpu_kernels import attention
from minigrad.cpu_kernels.toolbox.jit import kernel
from minigrad.cpu_kernels.toolbox.register_tile import pointer, row_maximum, tile_columns
from minigrad.ops.attention import Options
from minigrad.plain_kernels import attention as plain

RNG = np.random.default_rng(0)
SEED, OFFSET = 2**63 + 11, 5
# Relative to the largest element of each result. float32: sums of up to 1100 products of rounded probabilities, which
# average out to some 10 roundings of 6e-8, and 2 ulp per exponential; float64: 1e-16 instead of 6e-8.
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-13}


def operands(B, H, Hkv, Tq, Tk, D, dtype):
    """dy, q, k, v as a transformer has them: (B, T, heads, D) in memory, and v a slice of a wider projection."""
    dy, q = (RNG.normal(size=(B, Tq, H, D)).astype(dtype).swapaxes(1, 2) for _ in range(2))
    k, v = (RNG.normal(size=(B, Tk, Hkv, 3 * D)).astype(dtype)[..., D : 2 * D].swapaxes(1, 2) for _ in range(2))
    return dy, q, k, v


def run(dy, q, k, v, causal, scale, p=0.0, kernels=attention):
    options = Options(causal, scale, p, SEED, OFFSET)
    y, lse = kernels.forward(q, k, v, options)
    return y, lse, *kernels.backward(dy, q, k, v, y, lse, options)


def assert_attention(dy, q, k, v, causal, scale, p=0.0):
    dtype = q.dtype.type
    size = max(1.0, scale * np.abs(q).max() * np.abs(k).max(), np.abs(v).max()) * np.abs(dy).max()
    exact = run(*(x.astype(np.float64) for x in (dy, q, k, v)), causal, scale, p, plain)
    for actual, expected in zip(run(dy, q, k, v, causal, scale, p), exact):
        assert actual.shape == expected.shape
        assert actual.dtype == dtype
        # An exact zero (the gradient of one visible score) has rounding errors of the size of the operands.
        bound = TOLERANCE[dtype] * max(np.abs(expected).max(), 0.1 * size)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)


@settings(max_examples=100)
@given(
    B=st.integers(1, 3), Hkv=st.integers(1, 3), group=st.integers(1, 3), Tq=st.integers(1, 90), Tk=st.integers(1, 90),
    D=st.integers(1, 70), causal=st.booleans(), dtype=st.sampled_from([np.float32, np.float64]),
    p=st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_any_shape(B, Hkv, group, Tq, Tk, D, causal, dtype, p):
    assert_attention(*operands(B, Hkv * group, Hkv, Tq, Tk, D, dtype), causal, D**-0.5, p)


SEVERAL_BLOCKS = [
    (2, 2, 2 * attention.KEY_BLOCK, 2 * attention.KEY_BLOCK, 0.0),
    *[(4, 2, attention.QUERY_BLOCK + 1, attention.KEY_BLOCK + 1, 0.1), (1, 1, attention.KEY_BLOCK + 70, 130, 0.0)],
    *[(6, 1, 70, 1100, 0.0), (2, 1, 1, 700, 0.0)],
]


@pytest.mark.parametrize(("causal", "dtype"), short_set.pairs([False, True], [np.float32, np.float64]))
@pytest.mark.parametrize(("H", "Hkv", "Tq", "Tk", "p"), SEVERAL_BLOCKS)
def test_several_blocks(H, Hkv, Tq, Tk, p, causal, dtype):
    assert_attention(*operands(1, H, Hkv, Tq, Tk, 32, dtype), causal, 0.2, p)


@pytest.mark.parametrize("causal", [False, True])
def test_layout_of_the_results(causal):
    y, lse, dq, dk, dv = run(*operands(2, 4, 2, 10, 12, 8, np.float32), causal, 0.3)
    for x in (y, dq, dk, dv):
        assert x.swapaxes(1, 2).flags.c_contiguous
    assert lse.flags.c_contiguous


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_strides(dtype):
    dy, q, k, v = operands(2, 2, 2, 20, 20, 16, dtype)
    expected = run(*(np.ascontiguousarray(x) for x in (dy, q, k, v)), True, 0.3)
    frozen = [np.asfortranarray(x) for x in (dy, q, k, v)]
    for x in frozen:
        x.flags.writeable = False
    backwards = [np.ascontiguousarray(x[:, ::-1, ::-1])[:, ::-1, ::-1] for x in (dy, q, k, v)]
    for arguments in ((dy, q, k, v), frozen, backwards):
        for actual, value in zip(run(*arguments, True, 0.3), expected):
            np.testing.assert_array_equal(actual, value)
    shared = np.broadcast_to(q[:, :1], q.shape)
    assert_attention(np.broadcast_to(dy[:, :, :1], dy.shape), shared, k, shared, True, 0.3)


@pytest.mark.parametrize("shape", [(0, 2, 3, 3, 4), (2, 0, 3, 3, 4), (2, 2, 0, 3, 4), (2, 2, 3, 0, 4), (2, 2, 3, 3, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_nothing_to_attend(shape, causal):
    B, H, Tq, Tk, D = shape
    dy, q, k, v = operands(B, H, H, Tq, Tk, D, np.float32)
    y, lse, dq, dk, dv = run(dy, q, k, v, causal, 0.3)
    for x, like in ((y, q), (dq, q), (dk, k), (dv, v)):
        assert x.shape == like.shape
        assert not x.any()
    visible = np.minimum(np.arange(1, Tq + 1), Tk) if causal else np.full(Tq, Tk)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(lse, np.broadcast_to(np.log(visible), lse.shape), rtol=1e-6)


@pytest.mark.parametrize("scale", [30.0, -1.0, 0.0])
@pytest.mark.parametrize("causal", [False, True])
def test_scores_of_any_size(scale, causal):
    """Scores of up to 1e5: the running maximum keeps exponentials finite, also when it grows from block to block."""
    _, q, k, v = operands(1, 1, 1, 70, 2 * attention.KEY_BLOCK, 16, np.float64)
    k *= np.linspace(1, 50, k.shape[2])[:, None]
    y, lse = plain.forward(q, k, v, Options(causal, scale))
    actual_y, actual_lse = attention.forward(q, k, v, Options(causal, scale))
    # A score of size 1e5 is rounded by 1e5 * 2e-16, and so, relatively, is its exponential, in both computations.
    np.testing.assert_allclose(actual_y, y, rtol=0, atol=1e-9)
    np.testing.assert_allclose(actual_lse, lse, rtol=1e-12)


@pytest.mark.parametrize("size", [1e4, 1e6])
def test_gradients_of_huge_scores(size):
    """The rounding of a score of 1e10 is itself a large exponent, yet a probability is never above 1."""
    _, q, k, v = operands(2, 2, 2, 40, 40, 3, np.float32)
    *_, dq, dk, dv = run(np.ones_like(v), q * np.float32(size), k * np.float32(size), v, True, 0.3)
    assert np.isfinite(dq).all()
    assert np.isfinite(dk).all()
    assert dv.min() >= 0
    assert dv.max() <= 40 * (1 + 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infinity_and_nan(dtype):
    q, k, v = np.ones((3, 1, 1, 700, 4), dtype)
    k[0, 0, :600, 0] = -np.inf  # masked by hand: the scores are -inf
    y, _ = attention.forward(q, k, v * 2, Options(False, 1.0))
    np.testing.assert_array_equal(y, 2)
    k[...] = -np.inf
    assert np.isnan(attention.forward(q, k, v, Options(False, 1.0))[0]).all()  # no key at all, as PyTorch's softmax

    k[...] = 1
    q[0, 0, 5] = np.nan
    y, lse = attention.forward(q, k, v, Options(True, 1.0))
    assert np.isnan(y[0, 0, 5]).all()
    assert np.isnan(lse[0, 0, 5])
    np.testing.assert_allclose(np.delete(y, 5, axis=2), 1, rtol=TOLERANCE[dtype])
    q[0, 0, 5], k[0, 0, 300] = 1, np.nan
    y, _ = attention.forward(q, k, v, Options(True, 1.0))
    assert np.isnan(y[0, 0, 300:]).all()
    np.testing.assert_allclose(y[0, 0, :300], 1, rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sizes", [(1, 4, 4, 16, 8, 0), (2, 6, 3, 300, 64, 277), (3, 8, 2, 40, 10, 39)])
def test_a_token_extends_a_cache(dtype, sizes, monkeypatch):
    B, H, Hkv, room, D, n = sizes
    monkeypatch.setattr("minigrad.cpu_kernels.attention.PARALLEL_CACHE", room)
    _, q, k, v = operands(B, H, Hkv, 1, 1, D, dtype)
    cache = RNG.normal(size=(2, B, Hkv, room, D)).astype(dtype)
    expected = cache.copy()
    want = plain.extend(q, k, v, expected, np.array([n]))
    found = attention.extend(q, k, v, cache, np.array([n]))
    assert found.shape == want.shape and found.swapaxes(1, 2).flags.c_contiguous and (cache == expected).all()
    np.testing.assert_allclose(found, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@kernel
def _largest(x, tiles, start):
    return row_maximum(pointer(x), tiles * tile_columns(pointer(x)), start)


@kernel
def _columns(x):
    return tile_columns(pointer(x))


@pytest.mark.parametrize("tiles", [1, 2, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_maximum_of_a_row(tiles, dtype):
    """Wherever the largest element is, with numbers of either sign, and NaN and infinities among them."""
    lowest = dtype(-np.inf)
    count = tiles * 128 // np.dtype(dtype).itemsize  # at least as many as one tile has, of the longest vectors
    for sign in (-1, 1):
        x = (sign * RNG.uniform(1, 2, count)).astype(dtype)
        used = x[: tiles * _columns(x)]
        assert _largest(x, tiles, lowest) == used.max()
        for i in range(len(used)):
            moved = x.copy()
            moved[i] = 3
            assert _largest(moved, tiles, lowest) == 3
            assert _largest(moved, tiles, dtype(4)) == 4
        x[: len(used) - 1] = np.nan
        assert _largest(x, tiles, lowest) == used[-1]
        assert _largest(np.full_like(x, np.nan), tiles, lowest) == lowest
        x[0] = np.inf
        assert _largest(x, tiles, lowest) == np.inf
