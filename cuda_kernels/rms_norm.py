"""Root-mean-square normalisation of the rows of x (N, C):

    rstd = 1 / sqrt(sum(x^2) / C + eps)      xhat = x rstd      y = xhat * weight
    g  = dy * weight
    dx = rstd (g - xhat sum(g xhat) / C)      dweight = sum over rows of dy * xhat

The kernels are those of ``norm.py``. ``add_forward`` adds a residual in the same pass.

Source: Zhang & Sennrich, "Root mean square layer normalization" (2019).
"""

from typing import Any

from .platform.array import Array
from .rowwise import norm

_KERNELS: dict[Any, norm.RowNormKernels] = norm.norm_kernels("rms_norm", centred=False)
_ADD: dict[Any, Any] = norm.residual_kernels("add_rms_norm", centred=False)


def forward(x: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    """x (N, C), weight (C,) -> y (N, C), rstd (N,); all of x's dtype. Inputs that are not contiguous are copied."""
    y, _, _, rstd = norm.forward(_KERNELS[x.dtype], x, None, weight, None, eps, False)
    return y, rstd


def add_forward(x: Array, residual: Array, weight: Array, eps: float) -> tuple[Array, Array, Array]:
    """h = x + residual and its norm in one pass: y (N, C), h (N, C), rstd (N,).

    The residual is of x's dtype, or half floats to a float32 x.
    """
    y, h, _, rstd = norm.forward(_ADD[x.dtype, residual.dtype.name], x, residual, weight, None, eps, False)
    return y, h, rstd


def backward(dy: Array, x: Array, weight: Array, rstd: Array) -> tuple[Array, Array]:
    """dy, x (N, C) and rstd (N,) of forward -> dx (N, C), dweight (C,)."""
    dx, (dweight,) = norm.backward(_KERNELS[x.dtype], False, dy, x, weight, rstd, rstd)
    return dx, dweight
