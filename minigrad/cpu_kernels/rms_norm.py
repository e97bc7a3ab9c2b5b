"""Root-mean-square normalisation of the rows of x (N, C):

    rstd = 1 / sqrt(sum(x^2) / C + eps)      xhat = x rstd      y = xhat * weight
    g  = dy * weight
    dx = rstd (g - xhat sum(g xhat) / C)      dweight = sum over rows of dy * xhat

By the kernels of ``layer_norm``, without a mean.

Source: Zhang & Sennrich, "Root mean square layer normalization" (2019).
"""

import numpy as np

from . import layer_norm

_RMS = layer_norm.kernels("rms_norm", centred=False)


def forward(x: np.ndarray, weight: np.ndarray, eps: float) -> tuple[np.ndarray, ...]:
    """x (N, C), weight (C,) -> y (N, C), rstd (N,); all of x's dtype. Inputs that are not contiguous are copied."""
    return layer_norm.normalised(_RMS, x, weight, weight, eps)[::2]


def backward(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, rstd: np.ndarray) -> tuple[np.ndarray, ...]:
    """dy, x (N, C) and rstd (N,) of forward -> dx (N, C), dweight (C,)."""
    return layer_norm.gradients(_RMS, dy, x, weight, rstd, rstd)
