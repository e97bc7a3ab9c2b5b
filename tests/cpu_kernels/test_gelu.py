"""GELU kernels against the plain ones in float64, and PyTorch."""

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


@APPROXIMATE
def test_strided_inputs(approximate):
    x = np.random.default_rng(2).normal(size=(6, 8)).astype(np.float32)
    np.testing.assert_array_equal(gelu.forward(x.T, approximate), gelu.forward(x, approximate).T)
    np.testing.assert_array_equal(gelu.backward(x.T, x.T, approximate), gelu.backward(x, x, approximate).T)


def test_unknown_form():
    with pytest.raises(ValueError, match="'none'"):
        gelu.forward(np.ones(2, np.float32), "sigmoid")


@APPROXIMATE
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_as_pytorch(dtype, approximate):
    torch = pytest.importorskip("torch", reason="the reference is PyTorch")
    x = np.array([np.nan, 0.0, -0.5, 3.0, -6.0, 80.0, -80.0, 1e-30], dtype)
    leaf = torch.tensor(x, requires_grad=True)
    y = torch.nn.functional.gelu(leaf, approximate=approximate)
    y.sum().backward()
    np.testing.assert_allclose(gelu.forward(x, approximate), y.detach().numpy(), rtol=2e-6, atol=5e-7)
    dx = gelu.backward(np.ones_like(x), x, approximate)
    np.testing.assert_allclose(dx, leaf.grad.numpy(), rtol=2e-6, atol=5e-7)


@APPROXIMATE
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infinity(dtype, approximate):
    # As the formula x Phi(x) has it. PyTorch agrees in its scalar code and gives NaN for +inf in its vector code.
    y = gelu.forward(np.array([np.inf, -np.inf], dtype), approximate)
    assert y[0] == np.inf
    assert np.isnan(y[1])
