"""Layer norm kernels against the plain ones in float64."""

import numpy as np
import pytest

from minigrad.cpu_kernels import layer_norm
from minigrad.plain_kernels import layer_norm as plain

EPS = 1e-5
SHAPES = [(1, 1), (3, 7), (40, 33), (70, 384), (1200, 17), (2, 20_001)]


def inputs(N, C, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(0.3, 2, s).astype(dtype) for s in ((N, C), C, C, (N, C))]


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-5), (np.float64, 1e-12)])
@pytest.mark.parametrize("shape", SHAPES)
def test_formulas(shape, dtype, tolerance):
    # tolerance: a sum of up to 20,001 terms of size 1 in the dtype, divided by a deviation of 2
    x, weight, bias, dy = inputs(*shape, dtype)
    y, mean, rstd = layer_norm.forward(x, weight, bias, EPS)
    wide = [a.astype(np.float64) for a in (dy, x, weight, bias)]
    expected = plain.forward(*wide[1:], EPS)
    for ours, exact in zip((y, mean, rstd), expected, strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, exact, rtol=tolerance, atol=tolerance)
    gradients = layer_norm.backward(dy, x, weight, mean, rstd)
    for ours, exact in zip(gradients, plain.backward(*wide[:3], *expected[1:]), strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, exact, rtol=10 * tolerance, atol=tolerance * (1 + np.abs(exact).max()))


def test_without_weight_and_bias():
    x, _, _, dy = inputs(40, 33, np.float32)
    ones, zeros = np.ones(33, np.float32), np.zeros(33, np.float32)
    y, mean, rstd = layer_norm.forward(x, None, None, EPS)
    np.testing.assert_array_equal(y, layer_norm.forward(x, ones, zeros, EPS)[0])
    for a, b in zip(
        layer_norm.backward(dy, x, None, mean, rstd), layer_norm.backward(dy, x, ones, mean, rstd), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_no_rows_gives_zero_parameter_gradients():
    x, weight, bias, dy = inputs(0, 5, np.float32)
    y, mean, rstd = layer_norm.forward(x, weight, bias, EPS)
    assert y.shape == (0, 5)
    dx, dweight, dbias = layer_norm.backward(dy, x, weight, mean, rstd)
    assert dx.shape == (0, 5)
    np.testing.assert_array_equal([dweight, dbias], np.zeros((2, 5)))


def test_nan_and_infinite_rows_stay_in_their_row():
    x, weight, bias, dy = inputs(20, 40, np.float32)
    x[3, 5], x[7, 0] = np.nan, np.inf
    y, mean, rstd = layer_norm.forward(x, weight, bias, EPS)
    dx, dweight, _ = layer_norm.backward(dy, x, weight, mean, rstd)
    bad = np.isin(np.arange(20), (3, 7))
    for array in (y, dx):
        np.testing.assert_array_equal(np.isnan(array).all(1), bad)
        np.testing.assert_array_equal(np.isnan(array).any(1), bad)
    assert np.isnan(dweight).all()
