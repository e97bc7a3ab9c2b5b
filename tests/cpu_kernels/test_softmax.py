"""Softmax kernels against the plain ones in float64, along any axis."""

import numpy as np
import pytest

from minigrad.cpu_kernels import softmax
from minigrad.plain_kernels import softmax as plain

CASES = [
    *[((), 0), ((5,), -1), ((0, 4), 1), ((4, 0), 1), ((3, 7), 0), ((2, 3, 5), 1)],
    *[((2, 30, 5, 130), 1), ((90, 300), 1), ((2, 33_000), -1)],
]
FUNCTIONS, PLAIN = (
    [(kernels.forward, kernels.backward), (kernels.log_forward, kernels.log_backward)] for kernels in (softmax, plain)
)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-13)])
@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.parametrize("log", [False, True])
def test_formulas(shape, axis, dtype, tolerance, log):
    rng = np.random.default_rng(0)
    x, dy = (np.asarray(rng.normal(0, 5, shape), dtype) for _ in range(2))
    forward, backward = FUNCTIONS[log]
    y, exact = forward(x, axis), PLAIN[log][0](x.astype(np.float64), axis)
    assert y.shape == shape
    assert y.dtype == dtype
    assert y.flags.c_contiguous
    np.testing.assert_allclose(y, exact, rtol=tolerance, atol=tolerance)
    dx = backward(dy, y, axis)
    assert dx.shape == shape
    assert dx.dtype == dtype
    expected = PLAIN[log][1](dy.astype(np.float64), exact, axis)
    np.testing.assert_allclose(dx, expected, rtol=100 * tolerance, atol=100 * tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("log", [False, True])
def test_special_values_along_rows_and_columns(dtype, log):
    x = np.random.default_rng(0).normal(size=(7, 40)).astype(dtype)
    x[0, 3], x[1, 4], x[2], x[3, ::2], x[4, 0], x[5, :39] = np.nan, np.inf, -np.inf, -np.inf, 1e30, -np.inf
    dy = np.random.default_rng(1).normal(size=(7, 40)).astype(dtype)
    forward, backward = FUNCTIONS[log]
    with np.errstate(all="ignore"):
        exact = PLAIN[log][0](x.astype(np.float64), 1)
        expected = PLAIN[log][1](dy.astype(np.float64), exact, 1)
        assert np.isnan(exact[:3]).all() and np.isfinite(exact[6]).all()
        for turn in (np.asarray, np.transpose):
            axis = 1 if turn is np.asarray else 0
            y = forward(np.ascontiguousarray(turn(x)), axis)
            np.testing.assert_allclose(turn(y), exact, rtol=1e-5, atol=1e-6)
            dx = backward(np.ascontiguousarray(turn(dy)), y, axis)
            np.testing.assert_allclose(turn(dx), expected, rtol=1e-5, atol=1e-5)
