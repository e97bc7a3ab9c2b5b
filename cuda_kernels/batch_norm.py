"""Batch normalisation of x (N, C, S) by channel:

    rstd = 1 / sqrt(var + eps)      xhat = (x - mean) rstd      y = xhat * weight + bias
    dweight = sum over N and S of dy * xhat      dbias = of dy
    dx = weight rstd dy                                                  where mean and var are given
    dx = weight rstd (dy - dbias / n - xhat dweight / n),  n = N S      where they are those of x

The variance is the two-pass one, which does not cancel. The elementwise steps are those of ``norm.py``.

Source: Ioffe & Szegedy, "Batch normalization" (2015).
"""

from . import elementwise, reduce
from .platform.array import Array, contiguous
from .rowwise.norm import AFFINE, GRADIENT, RSTD, SQUARE, TIMES_XHAT


def statistics(x: Array) -> tuple[Array, Array]:
    """Mean and (biased) variance (C,) of the channels of x (N, C, S)."""
    mean = reduce.mean(x, (0, 2), False)
    return mean, reduce.mean(SQUARE(x, mean.reshape(-1, 1)), (0, 2), False)


def forward(x: Array, weight: Array, bias: Array, mean: Array, var: Array, eps: float) -> tuple[Array, Array]:
    """x (N, C, S), the others (C,) -> y (N, C, S), rstd (C,); all of x's dtype."""
    rstd = RSTD(contiguous(var), float(eps))
    return AFFINE(contiguous(x), *(a.reshape(-1, 1) for a in (mean, elementwise.mul(rstd, weight), bias))), rstd


def parameter_gradients(dy: Array, x: Array, mean: Array, rstd: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """dweight and dbias (C,): the sums over N and S of dy xhat and of dy, seen as ``shape`` (N, C, S)."""
    dweight, dbias = (reduce.sum(a.reshape(shape), (0, 2), False) for a in (TIMES_XHAT(dy, x, mean, rstd), dy))
    return dweight, dbias


def backward(
    dy: Array, x: Array, weight: Array, mean: Array, rstd: Array, of_batch: bool
) -> tuple[Array, Array, Array]:
    """dy, x (N, C, S) -> dx (N, C, S), dweight (C,), dbias (C,); ``of_batch``: mean and rstd depend on x."""
    dy, x, mean, rstd, weight = contiguous(dy), contiguous(x), *(a.reshape(-1, 1) for a in (mean, rstd, weight))
    dweight, dbias = parameter_gradients(dy, x, mean, rstd, x.shape)
    if not of_batch:
        return elementwise.mul(elementwise.mul(dy, rstd), weight), dweight, dbias
    n = x.dtype.type(x.shape[0] * x.shape[2])
    slope, shift = (elementwise.div(a, n).reshape(-1, 1) for a in (dweight, dbias))
    return GRADIENT(dy, x, mean, rstd, slope, shift, elementwise.mul(rstd, weight)), dweight, dbias
