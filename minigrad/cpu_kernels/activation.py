"""Piecewise activations by NumPy: leaky ReLU, ELU, softplus. NaN goes through.

The exponentials see only arguments that cannot overflow, so no branch that is thrown away raises a warning or costs
digits.
"""

from __future__ import annotations

import numpy as np

quiet: np.errstate = np.errstate(all="ignore")


def leaky_relu(x: np.ndarray, slope: float) -> np.ndarray:
    """x where x > 0, else slope * x."""
    return np.where(x > 0, x, x * x.dtype.type(slope))


def leaky_relu_backward(dy: np.ndarray, x: np.ndarray, slope: float) -> np.ndarray:
    """dy where x > 0, else slope * dy."""
    return np.where(x > 0, dy, dy * dy.dtype.type(slope))


def elu(x: np.ndarray, alpha: float) -> np.ndarray:
    """x where x > 0, else alpha * (exp(x) - 1)."""
    return np.where(x > 0, x, x.dtype.type(alpha) * np.expm1(np.minimum(x, 0)))


def elu_backward(dy: np.ndarray, x: np.ndarray, alpha: float) -> np.ndarray:
    """dy where x > 0, else alpha * exp(x) * dy."""
    return dy * np.where(x > 0, 1, x.dtype.type(alpha) * np.exp(np.minimum(x, 0)))


@quiet
def softplus(x: np.ndarray, beta: float, threshold: float) -> np.ndarray:
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""
    z = x * x.dtype.type(beta)
    y = (np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))) / x.dtype.type(beta)
    return np.where(z > threshold, x, y)


@quiet
def softplus_backward(dy: np.ndarray, x: np.ndarray, beta: float, threshold: float) -> np.ndarray:
    """dy * sigmoid(beta x); dy itself where beta x > threshold."""
    z = x * x.dtype.type(beta)
    decay = np.exp(-np.abs(z))
    return np.where(z > threshold, dy, dy * (np.where(z < 0, decay, 1) / (decay + 1)))
