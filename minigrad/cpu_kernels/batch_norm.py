"""Batch normalisation of x (N, C, S) by channel, with NumPy's reductions:

    rstd = 1 / sqrt(var + eps)      xhat = (x - mean) rstd      y = xhat * weight + bias
    dweight = sum over N and S of dy * xhat      dbias = of dy
    dx = weight rstd dy                                                  where mean and var are given
    dx = weight rstd (dy - dbias / n - xhat dweight / n),  n = N S      where they are those of x

The variance is the two-pass one, which does not cancel.

Source: Ioffe & Szegedy, "Batch normalization" (2015).
"""

from __future__ import annotations

import numpy as np

from . import reduce

AXES = (0, 2)


def statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and (biased) variance (C,) of the channels of x (N, C, S)."""
    mean = reduce.mean(x, AXES, False)
    return mean, reduce.mean(np.square(x - mean[:, None]), AXES, False)


def forward(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, mean: np.ndarray, var: np.ndarray, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """x (N, C, S), the others (C,) -> y (N, C, S), rstd (C,); all of x's dtype."""
    rstd = 1 / np.sqrt(var + x.dtype.type(eps))
    y = x - mean[:, None]
    y *= (rstd * weight)[:, None]
    y += bias[:, None]
    return y, rstd


def backward(
    dy: np.ndarray, x: np.ndarray, weight: np.ndarray, mean: np.ndarray, rstd: np.ndarray, of_batch: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """dy, x (N, C, S) -> dx (N, C, S), dweight (C,), dbias (C,); ``of_batch``: mean and rstd depend on x."""
    xhat = x - mean[:, None]
    xhat *= rstd[:, None]
    dweight, dbias = reduce.sum(dy * xhat, AXES, False), reduce.sum(dy, AXES, False)
    if not of_batch:
        return dy * (rstd * weight)[:, None], dweight, dbias
    n = x.dtype.type(max(x.shape[0] * x.shape[2], 1))
    xhat *= (dweight / n)[:, None]
    dx = dy - xhat
    dx -= (dbias / n)[:, None]
    dx *= (rstd * weight)[:, None]
    return dx, dweight, dbias
