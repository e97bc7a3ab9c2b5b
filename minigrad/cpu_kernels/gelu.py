"""GELU: y = x Phi(x), Phi the distribution function of the standard normal.

    approximate="none": Phi(x) = (1 + erf(x / sqrt 2)) / 2              dy/dx = Phi(x) + x phi(x)
    approximate="tanh": Phi(x) ~ s = sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
                        dy/dx = s + 2 x s (1 - s) du/dx                 as (1 + tanh u) / 2 = sigmoid(2u)

One pass over x (and dy), parallel over fixed chunks.

Source: Hendrycks & Gimpel, "Gaussian error linear units" (2016).
"""

import numpy as np

from ..plain_kernels.elementwise import GELU_CUBIC, GELU_SLOPE, NORMAL_DENSITY
from .toolbox.threads import TaskKernel, task_kernel, tasks_of
from .toolbox.vector_math import GELU_EXPONENT, exp2_fast, exp_nonpositive, normal_cdf

CHUNK = 16384  # elements of one task


@task_kernel
def _forward_tanh(task, tasks, x, y):
    x, y = x[task * CHUNK : (task + 1) * CHUNK], y[task * CHUNK : (task + 1) * CHUNK]
    real = x.dtype.type
    one, linear, cubic = real(1), real(GELU_EXPONENT), real(GELU_EXPONENT * GELU_CUBIC)
    for i in range(x.shape[0]):
        xi = x[i]
        y[i] = xi / (one + exp2_fast(xi * (linear + cubic * (xi * xi))))


@task_kernel
def _forward_erf(task, tasks, x, y):
    x, y = x[task * CHUNK : (task + 1) * CHUNK], y[task * CHUNK : (task + 1) * CHUNK]
    real = x.dtype.type
    half = real(0.5)
    for i in range(x.shape[0]):
        xi = x[i]
        y[i] = xi * normal_cdf(xi, exp_nonpositive(-half * xi * xi))


@task_kernel
def _backward_tanh(task, tasks, dy, x, dx):
    a, b = task * CHUNK, (task + 1) * CHUNK
    dy, x, dx = dy[a:b], x[a:b], dx[a:b]
    real = x.dtype.type
    one, linear, cubic = real(1), real(GELU_EXPONENT), real(GELU_EXPONENT * GELU_CUBIC)
    slope, slope3 = real(GELU_SLOPE), real(3 * GELU_SLOPE * GELU_CUBIC)
    for i in range(x.shape[0]):
        xi = x[i]
        square = xi * xi
        s = one / (one + exp2_fast(xi * (linear + cubic * square)))
        dx[i] = dy[i] * (s + xi * s * (one - s) * (slope + slope3 * square))


@task_kernel
def _backward_erf(task, tasks, dy, x, dx):
    a, b = task * CHUNK, (task + 1) * CHUNK
    dy, x, dx = dy[a:b], x[a:b], dx[a:b]
    real = x.dtype.type
    half, density = real(0.5), real(NORMAL_DENSITY)
    for i in range(x.shape[0]):
        xi = x[i]
        gaussian = exp_nonpositive(-half * xi * xi)
        dx[i] = dy[i] * (normal_cdf(xi, gaussian) + xi * density * gaussian)


_FORWARD = {"tanh": _forward_tanh, "none": _forward_erf}
_BACKWARD = {"tanh": _backward_tanh, "none": _backward_erf}


def _launch(kernels: dict[str, TaskKernel], approximate: str, *arrays: np.ndarray) -> None:
    if approximate not in kernels:
        raise ValueError(f"approximate={approximate!r}: expected 'none' (erf) or 'tanh'")
    flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    kernels[approximate].launch(tuple(x.dtype for x in flat), tasks_of(flat[0].size, CHUNK), *flat)


def forward(x: np.ndarray, approximate: str) -> np.ndarray:
    """x float32 or float64, any shape (copied if not contiguous) -> y of the same shape."""
    y = np.empty(x.shape, x.dtype)
    _launch(_FORWARD, approximate, x, y)
    return y


def backward(dy: np.ndarray, x: np.ndarray, approximate: str) -> np.ndarray:
    """dx = dy * dy/dx(x), shapes all equal."""
    dx = np.empty(x.shape, x.dtype)
    _launch(_BACKWARD, approximate, dy, x, dx)
    return dx
