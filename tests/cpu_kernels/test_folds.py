"""Sums, extrema, products and scans of large arrays over neighbouring axes, against NumPy in float64."""

import itertools

import numpy as np
import pytest

import minigrad as mg
from minigrad import cpu_kernels, plain_kernels
from minigrad.cpu_kernels import elementwise, layer_norm, rms_norm, softmax

SHAPES = {
    "rows": ((100, 65), (1,)), "rows of a few": ((2000, 3), (1,)), "all": ((70, 71, 2), (0, 1, 2)),
    "two axes": ((7, 3, 1000), (1, 2)), "rows of many blocks": ((3, 50_000), (1,)),
    "nothing to fold": ((5000, 1), (1,)), "in the middle": ((7, 300, 70), (1,)),
}  # fmt: skip


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("shape", SHAPES)
def test_folds(shape: str, name: str, set_threads) -> None:
    (sizes, axes), kernel, by_numpy = SHAPES[shape], getattr(cpu_kernels.reduce, name), getattr(np, name)
    for dtype, rtol in ((np.float32, 3e-6), (np.float64, 1e-14)):
        for sign in (1, -1):
            x = sign * np.random.default_rng(0).uniform(0.5, 1.5, sizes).astype(dtype)
            expected = by_numpy(x.astype(np.float64), axes, keepdims=True)
            set_threads(2)
            y = kernel(x, axes, True)
            assert (y.shape, y.dtype) == (expected.shape, x.dtype)
            np.testing.assert_allclose(y, expected, rtol)
            set_threads(1)
            np.testing.assert_array_equal(kernel(x, axes, False), y.reshape(kernel(x, axes, False).shape))
            for half in (x.astype(np.float16), x.astype(mg.bfloat16))[: 2 * (name != "min")]:  # in float32
                np.testing.assert_allclose(kernel(half, axes, True), kernel(half.astype("f"), axes, True), 1e-6)
        for special in (np.inf, -np.inf, np.nan):
            x.reshape(-1)[[0, -1]] = special
            np.testing.assert_allclose(kernel(x, axes, False), by_numpy(x.astype(np.float64), axes), rtol)


@pytest.mark.parametrize("shape", [(100, 65), (3, 50_000), (20_000,), (20_000, 1)])
def test_products_and_scans(shape: tuple[int, ...]) -> None:
    k, plain, last = cpu_kernels.reduce, plain_kernels.reduce, len(shape) - 1
    for dtype, rtol in ((np.float32, 2e-5), (np.float64, 1e-12)):
        x = np.random.default_rng(0).uniform(0.99, 1.01, shape).astype(dtype)
        for special in (1, np.inf, np.nan):
            x.reshape(-1)[5] = special
            wide = x.astype(np.float64)
            np.testing.assert_allclose(k.prod(x, (last,), False, x.dtype), wide.prod(-1), rtol)
            np.testing.assert_allclose(k.logsumexp(x, (last,), False), plain.logsumexp(wide, (last,), False), rtol)
            for order in (x, np.asfortranarray(x)):
                np.testing.assert_allclose(k.cumsum(order, last), wide.cumsum(-1), rtol)
                np.testing.assert_allclose(k.cumprod(order, last), wide.cumprod(-1), rtol)
                backward = np.flip(np.flip(wide, -1).cumsum(-1), -1)
                np.testing.assert_allclose(k.reverse_cumsum(order, last), backward, rtol)


@pytest.mark.long(but=3)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16", "bfloat16", "uint8"])
def test_extrema_and_their_places(dtype: str) -> None:
    k, plain, rng = cpu_kernels.reduce, plain_kernels.reduce, np.random.default_rng(0)
    for shape in [(3, 5), (1, 70, 130), (2, 1100, 3), (4, 1, 2), (7,)]:
        x = rng.integers(0, 4, shape).astype("f")
        x.reshape(-1)[:: max(1, x.size // 3)] = np.nan if "float" in dtype else 9
        x = x.astype(getattr(mg, dtype))
        for axis, largest, running in itertools.product(range(len(shape)), (True, False), (True, False)):
            found = k.extremes(np.asfortranarray(x), axis, largest, running)
            for y, expected in zip(found, plain.extremes(x, axis, largest, running), strict=True):
                np.testing.assert_array_equal(y.astype("d"), expected.astype("d"), f"{shape}, {axis}")


def test_moments_and_nansum() -> None:
    k, x, axes = cpu_kernels.reduce, np.random.default_rng(0).normal(1e3, 1, (70, 3, 90)).astype("f"), (0, 2)
    mean, squares = k.moments(x, axes)
    np.testing.assert_allclose(squares, x.size / mean.size * x.var(axes, "d", keepdims=True), 1e-4)
    assert not k.moments(np.full_like(x, 0.1), axes)[1].any()
    x[::7] = np.nan
    np.testing.assert_allclose(k.nansum(x, axes, False), np.nansum(x, axes, "d"), 1e-6)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_integers(dtype: str) -> None:
    k, plain = cpu_kernels.reduce, plain_kernels.reduce
    for sizes, axes in SHAPES.values():
        x = np.random.default_rng(0).integers(0, 200, sizes).astype(dtype)
        np.testing.assert_array_equal(k.sum(x, axes, True, "int64"), plain.sum(x, axes, True, "int64"), strict=True)
        np.testing.assert_array_equal(k.prod(x, (1,), False, "int64"), plain.prod(x, (1,), False, "int64"), strict=True)
        np.testing.assert_array_equal(k.cumsum(x, x.ndim - 1), plain.cumsum(x, x.ndim - 1), strict=True)


def test_a_graph_folds_what_may_not_be_written() -> None:
    """As it does an array of the same kind that may be: a view that repeats nothing is read-only."""
    both = mg.cuda.graphed(lambda x: ((x * 1).sum(), (x * 1).expand(8192).sum()))
    for seed in range(3):
        x = mg.tensor(np.random.default_rng(seed).standard_normal(8192).astype(np.float32))
        with mg.no_grad():
            own, view = (y.item() for y in both(x))
        assert own == view == x.sum().item()


@pytest.mark.long
@pytest.mark.parametrize("half", [mg.bfloat16, np.dtype(np.float16)])
def test_rows_of_half_floats_are_those_of_float32_rounded_once(half: np.dtype) -> None:
    def same(got, exact):
        for y, wide in zip(got, exact, strict=True):
            assert y.tobytes() == elementwise.cast(wide, y.dtype).tobytes()

    wide = np.random.default_rng(0).standard_normal((2, 20, 1100)).astype("f")
    wide[0, :5, 3] = np.nan, np.inf, -np.inf, 1e30, 1e-41
    x, dy = elementwise.cast(wide, half)
    x32, dy32 = (elementwise.cast(a, np.dtype("f")) for a in (x, dy))
    for axis in (0, 1):
        y = softmax.forward(x, axis), softmax.log_forward(x, axis)
        same(y, (softmax.forward(x32, axis), softmax.log_forward(x32, axis)))
        y32 = elementwise.cast(y[1], np.dtype("f"))
        same((softmax.log_backward(dy, y[1], axis),), (softmax.log_backward(dy32, y32, axis),))
    for norm, n in ((layer_norm, 2), (rms_norm, 1)):
        y, *of_rows = norm.forward(x, *dy[:n], 1e-5)
        same((y, *of_rows), norm.forward(x32, *dy32[:n], 1e-5))
        same(norm.backward(dy, x, dy[0], *of_rows), norm.backward(dy32, x32, dy32[0], *of_rows))


@pytest.mark.parametrize("name", ["var", "logsumexp", "cummax"])
def test_folds_of_numbers_at_odd_addresses(name):
    x = np.zeros(97, np.uint8)[1:].view(np.float32).reshape(4, 6)
    x[:] = np.random.default_rng(0).normal(size=(4, 6))
    found, expected = (getattr(mg.from_numpy(a), name)(0) for a in (x, x.copy()))
    assert found[0].tolist() == expected[0].tolist()
