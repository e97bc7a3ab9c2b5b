"""Softmax kernels against the plain ones in float64, and PyTorch, along any axis."""

import numpy as np
import pytest

from minigrad.cpu_kernels import softmax
from minigrad.plain_kernels import softmax as plain

CASES = [
    ((), 0),
    ((5,), -1),
    ((0, 4), 1),
    ((4, 0), 1),
    ((3, 7), 0),
    ((2, 3, 5), 1),
    ((2, 30, 5, 130), 1),
    ((90, 300), 1),
    ((2, 33_000), -1),
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


@pytest.mark.parametrize(("forward", "backward"), FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values_go_down_columns_as_along_rows(forward, backward, dtype):
    x = special_rows(dtype)
    with np.errstate(all="ignore"):
        y = forward(x, 1)
        np.testing.assert_allclose(forward(np.ascontiguousarray(x.T), 0), y.T, rtol=2e-6)
        np.testing.assert_allclose(
            backward(np.ones_like(x.T), np.ascontiguousarray(y.T), 0), backward(np.ones_like(x), y, 1).T, atol=1e-5
        )


def special_rows(dtype):
    x = np.random.default_rng(0).normal(size=(7, 40)).astype(dtype)
    x[0, 3] = np.nan
    x[1, 4] = np.inf
    x[2] = -np.inf
    x[3, ::2] = -np.inf
    x[4, 0] = 1e30
    x[5, :39] = -np.inf
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("log", [False, True])
def test_special_rows_as_pytorch(dtype, log):
    torch = pytest.importorskip("torch", reason="the reference is PyTorch")
    x, dy = special_rows(dtype), np.random.default_rng(1).normal(size=(7, 40)).astype(dtype)
    leaf = torch.tensor(x, requires_grad=True)
    expected = (torch.log_softmax if log else torch.softmax)(leaf, 1)
    expected.backward(torch.tensor(dy))
    forward, backward = FUNCTIONS[log]
    y = forward(x, 1)
    np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(backward(dy, y, 1), leaf.grad.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_rows(dtype):
    y = softmax.forward(special_rows(dtype), 1)
    assert np.isnan(y[:3]).all()
    assert (y[3, ::2] == 0).all()
    assert y[4, 0] == 1
    assert y[5, 39] == 1
    np.testing.assert_allclose(y[3:].sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize(("forward", "backward"), FUNCTIONS)
def test_strided_inputs(forward, backward):
    x = np.random.default_rng(0).normal(size=(200, 151)).astype(np.float32)
    y = forward(x, 1)
    dx = backward(x, y, 1)
    wide = np.repeat(x, 2, axis=1)
    np.testing.assert_array_equal(forward(wide[:, ::2], 1), y)
    np.testing.assert_array_equal(backward(wide[:, ::2], y, 1), dx)
    down, dx_down = forward(x.T, 0), backward(x.T, y.T, 0)  # columns are summed in another order than rows
    np.testing.assert_allclose(down, y.T, rtol=2e-6)
    np.testing.assert_allclose(dx_down, dx.T, rtol=2e-5, atol=2e-6)
