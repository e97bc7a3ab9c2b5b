"""Group normalisation of x (N, C, S): the channels are G groups of neighbours. The C / G * S values of each group
of each sample are a row that ``layer_norm``'s kernels normalise to xhat. Then y = xhat * weight + bias by channel.

    dx: layer_norm's, for g = dy * weight      dweight = sum over N and S of dy * xhat      dbias = of dy

Source: Wu & He, "Group normalization" (2018).
"""

import numpy as np

from . import layer_norm
from .reduce import reduce


def forward(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, groups: int, eps: float) -> tuple[np.ndarray, ...]:
    """x (N, C, S), weight and bias (C,) -> y (N, C, S), mean and rstd (N * groups,); all of x's dtype."""
    N, C, S = x.shape
    y, mean, rstd = layer_norm.forward(x.reshape(N * groups, C // groups * S), None, None, eps)
    y = y.reshape(x.shape)
    y *= weight[:, None]
    y += bias[:, None]
    return y, mean, rstd


def backward(
    dy: np.ndarray, x: np.ndarray, weight: np.ndarray, mean: np.ndarray, rstd: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """dy, x (N, C, S) and mean, rstd of ``forward`` -> dx (N, C, S), dweight (C,), dbias (C,)."""
    rows = x.reshape(mean.size, x.size // max(mean.size, 1))
    g = (dy * weight[:, None]).reshape(rows.shape)
    dx = layer_norm.backward(g, rows, None, mean, rstd)[0]
    xhat = (rows - mean[:, None]) * rstd[:, None]
    xhat *= dy.reshape(rows.shape)
    return dx.reshape(x.shape), reduce.sum(xhat.reshape(x.shape), (0, 2), False), reduce.sum(dy, (0, 2), False)
