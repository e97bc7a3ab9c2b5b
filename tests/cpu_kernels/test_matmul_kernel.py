"""The matrix product against NumPy in float64: every size, stride, batch and bias, on any number of threads."""

import platform

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import python
from refusals import raises

from minigrad.cpu_kernels import linear
from minigrad.cpu_kernels.matmul import matmul
from minigrad.cpu_kernels.toolbox import product_loops, register_tile

DTYPES = [np.float32, np.float64]
RNG = np.random.default_rng(0)


def assert_product(y, a, b, bias=None):
    """Each element is a sum of k products: its error is at most about k roundings of the sum of their magnitudes.

    (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1; + 2 for the bias and NumPy's own float64.)
    """
    wide = [x.astype(np.float64) for x in (a, b)]
    expected, magnitude = np.matmul(*wide), np.matmul(*map(np.abs, wide))
    if bias is not None:
        expected, magnitude = expected + bias, magnitude + np.abs(bias)
    assert y.shape == expected.shape
    assert y.dtype == a.dtype
    assert y.flags.c_contiguous
    bound = (a.shape[-1] + 2) * np.finfo(a.dtype).eps * magnitude
    assert np.all(np.abs(y - expected) <= bound)


def contiguous(x):
    return x


def transposed(x):
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def stepped(x):
    return np.repeat(np.repeat(x, 2, axis=-2), 3, axis=-1)[..., ::2, ::3]


def reversed_(x):
    return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]


def one_row(x):
    return np.broadcast_to(x[..., :1, :], x.shape)


def one_column(x):
    return np.broadcast_to(x[..., :1], x.shape)


def unaligned(x):
    buffer = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    buffer[...] = x
    return buffer


LAYOUTS = [contiguous, transposed, stepped, reversed_, one_row, one_column, unaligned]
SIZE = st.one_of(st.integers(0, 10), st.integers(0, 100))


@settings(max_examples=300)
@given(SIZE, SIZE, SIZE, st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), st.sampled_from(DTYPES), st.booleans())
def test_any_shape_and_strides(m, n, k, layout_a, layout_b, dtype, has_bias):
    a, b = layout_a(RNG.normal(size=(m, k)).astype(dtype)), layout_b(RNG.normal(size=(k, n)).astype(dtype))
    bias = RNG.normal(size=n).astype(dtype) if has_bias else None
    before = a.copy(), b.copy()
    assert_product(matmul(a, b, bias), a, b, bias)
    np.testing.assert_array_equal(a, before[0])
    np.testing.assert_array_equal(b, before[1])


SEVERAL_BLOCKS = [
    (product_loops.ROW_BLOCK + 1, product_loops.COLUMN_BLOCK_TRANSPOSED + 1, product_loops.DEPTH_BLOCK + 1),
    (2 * product_loops.ROW_BLOCK, 2 * product_loops.COLUMN_BLOCK, 2 * product_loops.DEPTH_BLOCK),
    (2, 2 * product_loops.THIN_COLUMN_BLOCK + 5, 600),
    (900, 2, 600),
    (1, 5000, 300),
    (5000, 1, 300),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), SEVERAL_BLOCKS)
def test_shapes_of_several_blocks(m, n, k, dtype):
    a, b, bias = (RNG.normal(size=shape).astype(dtype) for shape in ((m, k), (k, n), (n,)))
    for layout_a in (contiguous, transposed):
        for layout_b in (contiguous, transposed):
            assert_product(matmul(layout_a(a), layout_b(b), bias), a, b, bias)


BATCHES = [
    *[((3, 4, 5), (5, 6)), ((4, 5), (3, 5, 6)), ((2, 1, 7, 40), (3, 40, 33)), ((2, 3, 1, 40), (2, 1, 40, 90))],
    *[((2, 3, 90, 40), (3, 40, 2)), ((1, 2, 8, 8), (5, 1, 8, 8)), ((0, 4, 5), (5, 6)), ((3, 0, 5), (3, 5, 6))],
    *[((3, 4, 0), (3, 0, 6)), ((500, 3, 9), (500, 9, 3))],
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("a_shape", "b_shape"), BATCHES)
def test_batches(a_shape, b_shape, dtype):
    a, b = RNG.normal(size=a_shape).astype(dtype), RNG.normal(size=b_shape).astype(dtype)
    for layout_a in (contiguous, transposed, stepped):
        for layout_b in (contiguous, transposed):
            assert_product(matmul(layout_a(a), layout_b(b)), a, b)
    if len(b_shape) == 2:
        bias = RNG.normal(size=b_shape[-1]).astype(dtype)
        assert_product(matmul(a, b, bias), a, b, bias)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_are_views(dtype):
    """Attention without a fused kernel: q and k are slices of one projection, transposed to (B, H, T, D)."""
    q, k = RNG.normal(size=(2, 33, 2, 3, 20)).astype(dtype).transpose(2, 0, 3, 1, 4)
    assert_product(matmul(q, k.swapaxes(-1, -2)), q, k.swapaxes(-1, -2))
    frozen = q.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(matmul(frozen, k.swapaxes(-1, -2)), matmul(q, k.swapaxes(-1, -2)))


def test_bits_of_a_row_do_not_depend_on_its_neighbours():
    a, b = RNG.normal(size=(90, 700)).astype(np.float32), RNG.normal(size=(700, 65)).astype(np.float32)
    y = matmul(a, b)
    np.testing.assert_array_equal(matmul(a[11:30], b), y[11:30])
    np.testing.assert_array_equal(matmul(a, b[:, 3:]), y[:, 3:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_propagate(dtype):
    a, b = np.ones((20, 40), dtype), np.ones((40, 50), dtype)
    a[3, 5], a[4, 6], a[5, 7] = np.nan, np.inf, 0
    b[7, 8] = np.inf
    with np.errstate(invalid="ignore"):
        expected = a @ b
    np.testing.assert_array_equal(matmul(a, b), expected)
    np.testing.assert_array_equal(matmul(a[3:6], b), expected[3:6])


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64", "float16", ">f4"])
def test_other_dtypes_are_numpys(dtype):
    a, b = RNG.integers(0, 2, (3, 4)).astype(dtype), RNG.integers(0, 2, (4, 5)).astype(dtype)
    y = matmul(a, b)
    np.testing.assert_array_equal(y, a @ b)
    assert y.dtype == (a @ b).dtype


def test_operands_of_two_dtypes_are_numpys():
    a, b, bias = np.ones((3, 4), np.float32), np.ones((4, 5)), np.ones(5)
    y = matmul(a, b, bias)
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, a @ b + 1)


@pytest.mark.parametrize(
    ("a", "b", "bias", "message"),
    [((2, 3), (4, 5), None, "same K"), ((3,), (3, 4), None, r"\(M|\.\.\., M"), ((2, 3), (3, 4), (3,), "one value per")],
)
def test_shapes_that_do_not_fit(a, b, bias, message):
    raises(ValueError, message, lambda: matmul(np.ones(a), np.ones(b), None if bias is None else np.ones(bias)))


def test_batches_that_do_not_broadcast():
    raises(ValueError, "broadcast", lambda: matmul(np.ones((2, 3, 4)), np.ones((3, 4, 5))))


OTHER_VECTORS = """
import numpy as np
from minigrad.cpu_kernels import attention, matmul
from minigrad.cpu_kernels.toolbox import register_tile
from minigrad.ops.attention import Options
rng = np.random.default_rng(0)
for m, n, k in ((1, 1, 1), (7, 9, 5), (50, 70, 90), (2, 300, 40)):
    a, b = rng.normal(size=(m, k)).astype(np.float32), rng.normal(size=(k, n)).astype(np.float32)
    for x in (a, np.asfortranarray(a)):
        for y in (b, np.asfortranarray(b)):
            np.testing.assert_allclose(matmul.matmul(x, y), a @ b, atol=1e-4)
q, k, v, dy = rng.normal(size=(4, 1, 2, 45, 11)).astype(np.float32)
y, lse = attention.forward(q, k, v, Options(True, 0.3))
gradients = attention.backward(dy, q, k, v, y, lse, Options(True, 0.3))
p = np.exp(np.where(np.tri(45, dtype=bool), 0.3 * q @ k.swapaxes(2, 3), -np.inf) - lse[..., None])
ds = p * (dy @ v.swapaxes(2, 3) - (dy * y).sum(-1, keepdims=True)) * 0.3
for actual, expected in zip((y, *gradients), (p @ v, ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dy)):
    np.testing.assert_allclose(actual, expected, atol=1e-4)
print(register_tile.VECTOR_BYTES)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("cpu", "features", "vector_bytes"),
    [("generic", "", 16), ("haswell", "+avx,+avx2,+fma,+sse4.2,+popcnt,+bmi,+bmi2", 32)],
)
def test_other_vector_widths(cpu, features, vector_bytes):
    """Compiled for an x86 CPU with shorter vectors."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("the other CPUs of this test are x86")
    if vector_bytes > register_tile.VECTOR_BYTES:
        pytest.skip("this CPU has no AVX2")
    result = python("-c", OTHER_VECTORS, env={"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features})
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == vector_bytes


ROWS = [
    *((rows, 33, 20) for rows in (127, 128, 129, 254, 1023, 1024, 1025)),
    (1023, 600, 513),
    (1024, 65, 600),
    (600, 2100, 513),
]


@pytest.mark.parametrize(("rows", "outputs", "inputs"), ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_gradient_of_any_number_of_rows(rows, outputs, inputs, dtype):
    shapes = (rows, outputs), (rows, inputs), (outputs, inputs)
    dy, x, weight = (RNG.normal(size=shape).astype(dtype) for shape in shapes)
    _, dweight, dbias = linear.backward(dy, x, weight, (True, True, True))
    total = np.ones_like(weight)
    linear.add_weight_gradient(total, dy, x)
    assert_product(dweight, dy.T, x, None)
    np.testing.assert_allclose(total - 1, dweight, rtol=0, atol=100 * np.finfo(dtype).eps * np.sqrt(rows))
    np.testing.assert_allclose(dbias, dy.sum(0, dtype=np.float64), rtol=0, atol=100 * np.finfo(dtype).eps * rows)
