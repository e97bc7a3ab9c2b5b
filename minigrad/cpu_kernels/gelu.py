"""GELU: y = x Phi(x), Phi the distribution function of the standard normal.

    approximate="none": Phi(x) = (1 + erf(x / sqrt 2)) / 2              dy/dx = Phi(x) + x phi(x)
    approximate="tanh": Phi(x) ~ s = sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
                        dy/dx = s + 2 x s (1 - s) du/dx                 as (1 + tanh u) / 2 = sigmoid(2u)

One pass over x (and dy), parallel over fixed chunks.

Source: Hendrycks & Gimpel, "Gaussian error linear units" (2016).
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from .jit import kernel, parallel_kernel
from .vector_math import exp2_fast, exp_nonpositive, normal_cdf

CHUNK = 16384  # elements of one task
SLOPE = 2 * math.sqrt(2 / math.pi)
CUBIC = 0.044715
EXPONENT = -SLOPE / math.log(2)  # e^-2u = 2^(EXPONENT (x + CUBIC x^3))
NORMAL_DENSITY = 1 / math.sqrt(2 * math.pi)  # phi(0)


@kernel
def _forward_tanh(x, y):
    real = x.dtype.type
    one, linear, cubic = real(1), real(EXPONENT), real(EXPONENT * CUBIC)
    for i in range(x.shape[0]):
        xi = x[i]
        y[i] = xi / (one + exp2_fast(xi * (linear + cubic * (xi * xi))))


@kernel
def _forward_erf(x, y):
    real = x.dtype.type
    half = real(0.5)
    for i in range(x.shape[0]):
        xi = x[i]
        y[i] = xi * normal_cdf(xi, exp_nonpositive(-half * xi * xi))


@kernel
def _backward_tanh(dy, x, dx):
    real = x.dtype.type
    one, linear, cubic = real(1), real(EXPONENT), real(EXPONENT * CUBIC)
    slope, slope3 = real(SLOPE), real(3 * SLOPE * CUBIC)
    for i in range(x.shape[0]):
        xi = x[i]
        square = xi * xi
        s = one / (one + exp2_fast(xi * (linear + cubic * square)))
        dx[i] = dy[i] * (s + xi * s * (one - s) * (slope + slope3 * square))


@kernel
def _backward_erf(dy, x, dx):
    real = x.dtype.type
    half, density = real(0.5), real(NORMAL_DENSITY)
    for i in range(x.shape[0]):
        xi = x[i]
        gaussian = exp_nonpositive(-half * xi * xi)
        dx[i] = dy[i] * (normal_cdf(xi, gaussian) + xi * density * gaussian)


@parallel_kernel
def _forward_tanh_parallel(x, y):
    for chunk in numba.prange((x.shape[0] + CHUNK - 1) // CHUNK):
        _forward_tanh(x[chunk * CHUNK : (chunk + 1) * CHUNK], y[chunk * CHUNK : (chunk + 1) * CHUNK])


@parallel_kernel
def _forward_erf_parallel(x, y):
    for chunk in numba.prange((x.shape[0] + CHUNK - 1) // CHUNK):
        _forward_erf(x[chunk * CHUNK : (chunk + 1) * CHUNK], y[chunk * CHUNK : (chunk + 1) * CHUNK])


@parallel_kernel
def _backward_tanh_parallel(dy, x, dx):
    for chunk in numba.prange((x.shape[0] + CHUNK - 1) // CHUNK):
        a, b = chunk * CHUNK, (chunk + 1) * CHUNK
        _backward_tanh(dy[a:b], x[a:b], dx[a:b])


@parallel_kernel
def _backward_erf_parallel(dy, x, dx):
    for chunk in numba.prange((x.shape[0] + CHUNK - 1) // CHUNK):
        a, b = chunk * CHUNK, (chunk + 1) * CHUNK
        _backward_erf(dy[a:b], x[a:b], dx[a:b])


_FORWARD = {"tanh": (_forward_tanh, _forward_tanh_parallel), "none": (_forward_erf, _forward_erf_parallel)}
_BACKWARD = {"tanh": (_backward_tanh, _backward_tanh_parallel), "none": (_backward_erf, _backward_erf_parallel)}


def _select(kernels: dict[str, tuple[Any, Any]], approximate: str, size: int) -> Any:
    if approximate not in kernels:
        raise ValueError(f"approximate={approximate!r}: expected 'none' (erf) or 'tanh'")
    serial, parallel = kernels[approximate]
    return serial if size <= CHUNK else parallel


def forward(x: np.ndarray, approximate: str) -> np.ndarray:
    """x float32 or float64, any shape (copied if not contiguous) -> y of the same shape."""
    y = np.empty(x.shape, x.dtype)
    _select(_FORWARD, approximate, x.size)(np.ascontiguousarray(x).reshape(-1), y.reshape(-1))
    return y


def backward(dy: np.ndarray, x: np.ndarray, approximate: str) -> np.ndarray:
    """dx = dy * dy/dx(x), shapes all equal."""
    dx = np.empty(x.shape, x.dtype)
    run = _select(_BACKWARD, approximate, x.size)
    run(np.ascontiguousarray(dy).reshape(-1), np.ascontiguousarray(x).reshape(-1), dx.reshape(-1))
    return dx
