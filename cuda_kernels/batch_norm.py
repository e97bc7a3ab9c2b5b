"""Batch normalisation of x (N, C, S) by channel:

    rstd = 1 / sqrt(var + eps)      xhat = (x - mean) rstd      y = xhat * weight + bias
    dweight = sum over N and S of dy * xhat      dbias = of dy
    dx = weight rstd dy                                                  where mean and var are given
    dx = weight rstd (dy - dbias / n - xhat dweight / n),  n = N S      where they are those of x

The variance is the two-pass one, which does not cancel. The sums over channels are those of ``channel_sums.py``.

Source: Ioffe & Szegedy, "Batch normalization" (2015).
"""

from typing import Any

from . import elementwise
from .platform.array import Array, contiguous
from .platform.language import math
from .pointwise.pointwise import Pointwise, floating
from .pointwise.rules import of_numbers, rule
from .rowwise import channel_sums
from .rowwise.fold import fold

_RSTD = Pointwise("rstd", rule(lambda real: lambda var, eps: real(1) / math.sqrt(var + eps)), floating, 2)
_Y = of_numbers(lambda x, mean, scale, shift: (x - mean) * scale + shift)
_AFFINE = Pointwise("affine", _Y, floating, 4, registers=64)
_DX = of_numbers(lambda dy, x, mean, rstd, slope, bias, scale: (dy - (x - mean) * rstd * slope - bias) * scale)
_BACKWARD = Pointwise("backward", _DX, floating, 7, width=1, registers=64)


def affine(x: Array, mean: Any, scale: Array, shift: Array, y: Array | None) -> Array:
    """(x - mean) scale + shift, x (N, C, S), the others (C, 1) or a number, into y (None: a new array)."""
    return _AFFINE(x, mean, scale, shift, out=y)


def statistics(x: Array) -> tuple[Array, Array]:
    """Mean and (biased) variance (C,) of the channels of x (N, C, S)."""
    x = contiguous(x)
    N, C, S = x.shape
    rows = x if S == 1 else fold("sum", x, N * C, S, 1, x.dtype)
    n = x.dtype.type(N * S)
    mean = elementwise.div(fold("sum", rows, 1, N, C, x.dtype), n)
    squares, _ = channel_sums.sums(False, x, x, mean, mean, 0, 1)
    return mean, elementwise.div(squares, n)


def forward(x: Array, weight: Array, bias: Array, mean: Array, var: Array, eps: float) -> tuple[Array, Array]:
    """x (N, C, S), the others (C,) -> y (N, C, S), rstd (C,); all of x's dtype."""
    rstd = _RSTD(contiguous(var), float(eps))
    mean, scale, bias = (a.reshape(-1, 1) for a in (mean, elementwise.mul(rstd, weight), bias))
    return affine(contiguous(x), mean, scale, bias, None), rstd


def backward(
    dy: Array, x: Array, weight: Array, mean: Array, rstd: Array, of_batch: bool
) -> tuple[Array, Array, Array]:
    """dy, x (N, C, S) -> dx (N, C, S), dweight (C,), dbias (C,); ``of_batch``: mean and rstd depend on x."""
    dy, x, weight, mean, rstd = (contiguous(a) for a in (dy, x, weight, mean, rstd))
    dbias, dweight = channel_sums.sums(True, dy, x, mean, rstd, 0, 1)
    if not of_batch:
        dx = elementwise.mul(elementwise.mul(dy, rstd.reshape(-1, 1)), weight.reshape(-1, 1))
        return dx, dweight, dbias
    n = x.dtype.type(x.shape[0] * x.shape[2])
    channels = mean, rstd, elementwise.div(dweight, n), elementwise.div(dbias, n), elementwise.mul(rstd, weight)
    mean, rstd, slope, bias, scale = (a.reshape(-1, 1) for a in channels)
    dx = _BACKWARD(dy, x, mean, rstd, slope, bias, scale)
    return dx, dweight, dbias
