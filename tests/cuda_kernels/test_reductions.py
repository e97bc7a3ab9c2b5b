"""Reductions, softmax, norms and cross-entropy on raw arrays: long rows, parts, shuffled threads, the same bits."""

from types import SimpleNamespace

import numpy as np
import pytest
from simulated import ordered

from minigrad import plain_kernels as plain
from minigrad.cuda_kernels import cross_entropy, layer_norm, reduce, rms_norm, simulated, softmax
from minigrad.cuda_kernels.ladders import ladder_reduction, ladder_softmax
from minigrad.cuda_kernels.platform.array import from_host, to_host
from minigrad.cuda_kernels.rowwise import fold, scan
from minigrad.dtypes import as_dtype


def same(found, expected, rtol=2e-5, atol=2e-6):
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(to_host(a), b, rtol=rtol, atol=atol)


def normal(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def test_parts_of_long_rows_and_columns(monkeypatch, order):
    """Where a block takes a part, the parts' results are folded again; here parts are short."""
    monkeypatch.setattr(fold, "ROW_PART", 256)
    monkeypatch.setattr(fold, "COLUMN_PART", 2)
    monkeypatch.setattr(scan, "PART", 100)
    for shape, axis in (((1, 1537), 1), ((3, 1028), 1), ((600, 3), 0)):
        x = normal(*shape)
        y = from_host(x)
        same([reduce.sum(y, (axis,), False)], [x.astype(np.float64).sum(axis).astype("float32")], rtol=1e-6, atol=1e-5)
        same([reduce.max(y, (axis,), False)], [x.max(axis)])
        same([reduce.argmin(y, axis, False)], [x.argmin(axis)])
        same([reduce.logsumexp(y, (axis,), False)], [plain.reduce.logsumexp(x, (axis,), False)])
        same([reduce.reverse_cumsum(y, axis)], [plain.reduce.reverse_cumsum(x, axis)], atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "part"), [((2, 33), 4096), ((2, 70, 3), 64), ((1, 600), 300), ((1, 530), 16)], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_products_and_extrema_of_long_rows_and_columns(dtype, shape, part, monkeypatch, order):
    """By a block, in one part and in several. Exact: powers of two, that leave float32 and come back; modulo 2^64."""
    monkeypatch.setattr(scan, "PART", part)
    rng = np.random.default_rng(0)
    if dtype == "int64":
        x, wide = 2 * rng.integers(-3, 4, shape) + 1, np.int64
    else:
        x, wide = np.exp2(rng.integers(-1, 2, shape)) * rng.choice([-1, 1], shape), np.float64
        x[:, 10:14], x[:, -14:-10] = 2.0**50, 2.0**-50
    x = x.astype(dtype)
    with np.errstate(over="ignore"):
        same([reduce.cumprod(from_host(x), 1)], [np.cumprod(x, 1, wide).astype(dtype)], 0, 0)
    for largest in (True, False):
        same(reduce.extremes(from_host(x), 1, largest, True), plain.reduce.extremes(x, 1, largest, True), 0, 0)


def test_nan_is_the_extremum_and_its_first_place_the_index():
    x = normal(2, 70)
    x[0, 40] = x[0, 3] = np.nan
    y = from_host(x)
    same([reduce.max(y, (1,), False), reduce.min(y, (1,), False)], [x.max(1), x.min(1)])
    same([reduce.argmax(y, 1, False), reduce.argmin(y, 1, False)], [x.argmax(1), x.argmin(1)])
    assert np.isnan(to_host(reduce.median(y)))


def test_sums_keep_small_values_beside_a_large_total():
    """Each of 2^13 ones counts, though one after the other onto 2^24 none would."""
    x = np.ones((1, 8193), np.float32)
    x[0, 0] = 2**24
    assert to_host(reduce.sum(from_host(x), (1,), False))[0] == np.float32(2**24 + 8192)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "uint8"])
def test_median_is_the_middle_value(dtype):
    for n in (1, 2, 33):
        x = (normal(n, seed=n) * 60).astype(dtype)
        assert to_host(reduce.median(from_host(x))) == np.sort(x)[(n - 1) // 2]


def check_softmax(shape, dtype):
    """Both functions along dimension 1 and their gradients, where scores are -inf too."""
    x, dy = 3 * normal(*shape, dtype=dtype), normal(*shape, seed=1, dtype=dtype)
    x[0, : (shape[1] + 1) // 2] = -np.inf
    rtol = 2e-5 if dtype == "float32" else 1e-12
    for forward, backward in (("forward", "backward"), ("log_forward", "log_backward")):
        y = getattr(plain.softmax, forward)(x, 1)
        same([getattr(softmax, forward)(from_host(x), 1)], [y], rtol, rtol / 2)
        dx = getattr(plain.softmax, backward)(dy, y, 1)
        same([getattr(softmax, backward)(from_host(dy), from_host(y), 1)], [dx], 10 * rtol, rtol / 2)


def check_softmax_of_bad_rows(C, dtype="float32"):
    x = normal(3, C, dtype=dtype)
    x[0, 1], x[1, C - 1], x[2] = np.nan, np.inf, -np.inf
    for forward in (softmax.forward, softmax.log_forward):
        assert np.isnan(to_host(forward(from_host(x), 1))).all()


@pytest.mark.parametrize("shape", [(3, 5), (3, 20), (2, 516), (1, 1029), (2, 40, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_in_registers_and_along_another_axis(dtype, shape, order):
    check_softmax(shape, dtype)


@pytest.mark.parametrize("C", [17, 1029, 4100])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_of_rows_that_a_block_goes_over(monkeypatch, dtype, C, order):
    """Several turns, with and without 128-bit accesses; NaN, infinities and parts of -inf as in short rows."""
    monkeypatch.setattr(softmax, "LONG_THREADS", 64)
    for table in (softmax._FORWARD, softmax._BACKWARD):  # as if registers held 16 elements
        for real, ((_, _, long), accesses) in table.items():
            small = SimpleNamespace(threads=(0, 1))
            monkeypatch.setitem(table, real, ((small, small, long), accesses))
    check_softmax((2, C), dtype)
    check_softmax_of_bad_rows(C, dtype)


@pytest.mark.parametrize("C", [5, 20])
def test_softmax_of_rows_with_nan_or_infinity(C):
    check_softmax_of_bad_rows(C)


def check_norms(N, C, dtype, residual):
    """Both norms of x + r, alone and with the sum in the same pass, which is rounded once, and their gradients."""
    x, r, dy, w, b = (1 + normal(*s, seed=i, dtype=dtype) for i, s in enumerate(((N, C),) * 3 + ((C,),) * 2))
    r = r.astype(as_dtype(residual))
    h = x + r.astype(dtype)
    dx, dr, ddy, dw, db, dh = (from_host(a) for a in (x, r, dy, w, b, h))
    rtol = 1e-4 if dtype == "float32" else 1e-9
    y, mean, rstd = plain.layer_norm.forward(h, w, b, 1e-5)
    same(layer_norm.add_forward(dx, dr, dw, db, 1e-5), (y, h, mean, rstd), rtol, rtol / 5)
    same(layer_norm.forward(dh, dw, db, 1e-5), (y, mean, rstd), rtol, rtol / 5)
    found = layer_norm.backward(ddy, dh, dw, from_host(mean), from_host(rstd))
    same(found, plain.layer_norm.backward(dy, h, w, mean, rstd), rtol, rtol)
    y, rstd = plain.rms_norm.forward(h, w, 1e-5)
    same(rms_norm.add_forward(dx, dr, dw, 1e-5), (y, h, rstd), rtol, rtol / 5)
    same(rms_norm.forward(dh, dw, 1e-5), (y, rstd), rtol, rtol / 5)
    same(rms_norm.backward(ddy, dh, dw, from_host(rstd)), plain.rms_norm.backward(dy, h, w, rstd), rtol, rtol)


@pytest.mark.parametrize(("N", "C"), [(1, 1), (9, 8), (5, 130), (2, 516)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms_and_their_sums_with_a_residual(dtype, N, C, order):
    check_norms(N, C, dtype, dtype)


@pytest.mark.parametrize(("N", "C"), [(5, 12), (2, 133), (1, 516), (1, 9000), (1, 16400)])
@pytest.mark.parametrize("residual", ["bfloat16", "float16"])
def test_norms_with_a_residual_of_half_floats(N, C, residual):
    """Rows in a warp, in a block, and too long for one."""
    check_norms(N, C, "float32", residual)


@pytest.mark.parametrize(("dtype", "C"), [("float64", 8200), ("float32", 16400)])
def test_rows_longer_than_the_registers(dtype, C):
    """Read twice by softmax, in steps by the norms."""
    check_norms(1, C, dtype, dtype)
    check_softmax((1, C), dtype)


def check_cross_entropy(x, dlosses, targets, smoothing=0.0, w=None):
    """Loss and gradient at once, over the logits themselves too: the results of the plain kernels, which it returns."""
    losses, lse = plain.cross_entropy.forward(x, targets, (-100, smoothing, w))
    expected = losses, lse, plain.cross_entropy.backward(dlosses, x, targets, lse, (-100, smoothing, w))
    options = -100, smoothing, None if w is None else from_host(w)
    close = (2e-5, 2e-6) if x.dtype == np.float32 else (1e-12, 1e-12)
    d, logits, t = map(from_host, (dlosses, x, targets))
    same(cross_entropy.forward_backward(d, logits, t, options), expected, *close)
    *_, found = cross_entropy.forward_backward(d, logits, t, options, dlogits=logits)
    assert found is logits
    same([logits], expected[2:], *close)
    return expected


LONG_ROWS = [("float32", 4100, 96), ("float32", 25_000, 200), ("float32", 51_300, 0)]
LONG_ROWS += [("float64", 2100, 96), ("float64", 12_500, 200), ("float64", 25_700, 0)]


@pytest.mark.parametrize(("dtype", "C", "nbytes"), LONG_ROWS)
def test_cross_entropy_of_rows_in_more_shared_memory(dtype, C, nbytes, monkeypatch):
    """Those of GPT-2's 50,304 classes need 200 KiB; longer ones are read twice."""
    x, dlosses, targets = 3 * normal(1, C, dtype=dtype), normal(1, seed=1, dtype=dtype), np.array([C - 3])
    used, fused = [], cross_entropy._FUSED[x.dtype]
    for size, kernel in fused.items():
        one = SimpleNamespace(launch=lambda *a, k=kernel, n=size, **o: (used.append(n >> 10), k.launch(*a, **o)))
        monkeypatch.setitem(fused, size, one)
    check_cross_entropy(x, dlosses, targets, 0.1)
    assert used == [nbytes] * 2


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("N", "C"), [(5, 8), (4, 131), (1, 1032)])
def test_cross_entropy_in_one_pass_and_in_two(N, C, smoothing, weighted, order):
    x, dlosses = 3 * normal(N, C), normal(N, seed=1)
    targets = np.random.default_rng(2).integers(0, C, N)
    if N > 1:
        targets[1], x[1, 0], x[2, 1], x[3, 2] = -100, np.nan, -np.inf, np.inf
    w = 1 + normal(C, seed=3) ** 2 if weighted else None
    losses, lse, dx = check_cross_entropy(x, dlosses, targets, smoothing, w)
    t, options = from_host(targets), (-100, smoothing, None if w is None else from_host(w))
    same(cross_entropy.forward(from_host(x), t, options), (losses, lse))
    same([cross_entropy.backward(from_host(dlosses), from_host(x), t, from_host(lse), options)], [dx])


def test_a_row_too_long_for_shared_memory_is_read_twice(monkeypatch):
    monkeypatch.setattr(cross_entropy.memory, "attribute", lambda which, device: 0)
    check_cross_entropy(normal(2, 12), np.ones(2, np.float32), np.array([3, 11]))


def test_the_first_bad_target_is_found():
    for n in (0, 1, 5, 600):
        targets = np.arange(n) % 7
        assert cross_entropy.check_targets(from_host(targets), 7, -100) == -1
        if n > 2:
            targets[1], targets[n - 2], targets[n - 1] = -100, 7, -1
            assert cross_entropy.check_targets(from_host(targets), 7, -100) == n - 2


def test_the_same_bits_at_each_run_in_any_order_of_threads():
    if not simulated():
        pytest.skip("the threads' order is the simulator's to choose")
    x, w = normal(40, 130), normal(130, seed=1)
    found = []
    for seed in (None, 1, 2):
        with ordered(seed):
            d = [from_host(a) for a in (x, x, w, x[:, 0].copy(), x[:, 1].copy())]
            arrays = reduce.sum(d[0], (0,), False), reduce.sum(d[0], (0, 1), False), *layer_norm.backward(*d)
            found.append([to_host(a).tobytes() for a in arrays])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_ladder_of_the_sum(step, order):
    for n in (1, 255, 1027, 2100):
        x = normal(n)
        found = to_host(ladder_reduction.reduce(step, from_host(x)))
        np.testing.assert_allclose(found, [x.astype(np.float64).sum()], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_ladder_of_softmax(step, order):
    for shape in ((3, 5), (2, 140)):
        x = normal(*shape)
        same([ladder_softmax.softmax(step, from_host(x))], [plain.softmax.forward(x, 1)])
