"""Logarithm of the sigmoid, in NumPy: y = min(x, 0) - log(1 + e^-|x|), which neither overflows nor cancels."""

from __future__ import annotations

import numpy as np

quiet: np.errstate = np.errstate(all="ignore")


@quiet
def forward(x: np.ndarray) -> np.ndarray:
    """y of the shape and (floating) dtype of x."""
    return np.asarray(np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))))


@quiet
def backward(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """dx from dy and the input of ``forward``."""
    decay = np.exp(-np.abs(x))
    return np.asarray(dy * (np.where(x > 0, decay, 1) / (decay + 1)))
