"""GELU kernels against the plain ones in float64."""

import numpy as np
import pytest

from minigrad.cpu_kernels import gelu
from minigrad.plain_kernels import gelu as plain

LARGE = gelu.CHUNK * 2 + 3
APPROXIMATE = pytest.mark.parametrize("approximate", ["none", "tanh"])
# exp, erf and sigmoid are within 2e-7; x and its slope (at most 1.13) multiply that, and rounding adds one unit.
TOLERANCE = {np.float32: {"rtol": 1e-6, "atol": 5e-7}, np.float64: {"rtol": 1e-13, "atol": 1e-14}}


@APPROXIMATE
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (7, 9), (LARGE,)])
def test_forward(shape, dtype, approximate):
    x = np.asarray(np.random.default_rng(0).normal(0, 3, shape), dtype)
    y = gelu.forward(x, approximate)
    assert y.shape == shape
    assert y.dtype == dtype
    np.testing.assert_allclose(y, plain.forward(x.astype(np.float64), approximate), **TOLERANCE[dtype])


@APPROXIMATE
@pytest.mark.parametrize("n", [0, 5, LARGE])
def test_backward(n, approximate):
    rng = np.random.default_rng(1)
    x, dy = rng.normal(0, 2, n), rng.normal(size=n)
    expected = plain.backward(dy, x, approximate)
    np.testing.assert_allclose(gelu.backward(dy, x, approximate), expected, rtol=1e-12, atol=1e-13)
    dx = gelu.backward(dy.astype(np.float32), x.astype(np.float32), approximate)
    assert dx.dtype == np.float32
    np.testing.assert_allclose(dx, expected, rtol=2e-6, atol=2e-6)


def test_unknown_form():
    with pytest.raises(ValueError, match="'none'"):
        gelu.forward(np.ones(2, np.float32), "sigmoid")


@APPROXIMATE
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values(dtype, approximate):
    """At infinity as the formula x Phi(x) has it: -inf times 0 is NaN."""
    x = np.array([np.nan, 0.0, -0.5, 3.0, -6.0, 80.0, -80.0, 1e-30, np.inf, -np.inf], dtype)
    with np.errstate(invalid="ignore"):
        expected = plain.forward(x.astype(np.float64), approximate)
        slope = plain.backward(np.ones(8), x[:8].astype(np.float64), approximate)
    assert expected[-2] == np.inf and np.isnan(expected[-1])
    np.testing.assert_allclose(gelu.forward(x, approximate), expected, rtol=2e-6, atol=5e-7)
    np.testing.assert_allclose(gelu.backward(np.ones(8, dtype), x[:8], approximate), slope, rtol=2e-6, atol=5e-7)
