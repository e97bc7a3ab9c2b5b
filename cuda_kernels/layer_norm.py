"""Layer normalisation of the rows of x (N, C):

    mean = sum(x) / C      rstd = 1 / sqrt(sum((x - mean)^2) / C + eps)      xhat = (x - mean) rstd
    y  = xhat * weight + bias
    g  = dy * weight
    dx = rstd (g - sum(g) / C - xhat sum(g xhat) / C)      dweight = sum over rows of dy * xhat      dbias = of dy

The kernels are those of ``norm.py``. ``add_forward`` adds a residual in the same pass.

Source: Ba, Kiros & Hinton, "Layer normalization" (2016).
"""

from typing import Any

from .platform.array import Array
from .rowwise import norm

_KERNELS: dict[Any, norm.RowNormKernels] = norm.norm_kernels("layer_norm", centred=True)
_ADD: dict[Any, Any] = norm.residual_kernels("add_layer_norm", centred=True)


def forward(x: Array, weight: Array | None, bias: Array | None, eps: float) -> tuple[Array, Array, Array]:
    """x (N, C), weight and bias (C,), both or neither -> y (N, C), mean (N,), rstd (N,); all of x's dtype."""
    y, _, mean, rstd = norm.forward(_KERNELS[x.dtype], x, None, weight, bias, eps, True)
    return y, mean, rstd


def add_forward(x: Array, residual: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array, Array]:
    """h = x + residual and its norm in one pass: y (N, C), h (N, C), mean (N,), rstd (N,).

    The residual is of x's dtype, or half floats to a float32 x.
    """
    return norm.forward(_ADD[x.dtype, residual.dtype.name], x, residual, weight, bias, eps, True)


def backward(dy: Array, x: Array, weight: Array | None, mean: Array, rstd: Array) -> tuple[Array, Array, Array]:
    """dy, x (N, C), mean and rstd (N,) of forward -> dx (N, C), dweight (C,), dbias (C,)."""
    dx, (dweight, dbias) = norm.backward(_KERNELS[x.dtype], True, dy, x, weight, mean, rstd)
    return dx, dweight, dbias
