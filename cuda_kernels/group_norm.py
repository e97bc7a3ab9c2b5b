"""Group normalisation of x (N, C, S): the channels are G groups of neighbours. The C / G * S values of each group of
each sample are a row, which ``layer_norm``'s kernels normalise to xhat. Then y = xhat * weight + bias by channel.

    dx: layer_norm's, for g = dy * weight      dweight = sum over N and S of dy * xhat      dbias = of dy

Source: Wu & He, "Group normalization" (2018).
"""

from . import batch_norm, elementwise, layer_norm
from .platform.array import Array, contiguous
from .rowwise.norm import AFFINE


def forward(x: Array, weight: Array, bias: Array, groups: int, eps: float) -> tuple[Array, Array, Array]:
    """x (N, C, S), weight and bias (C,) -> y (N, C, S), mean and rstd (N * groups,); all of x's dtype."""
    N, C, S = x.shape
    rows = contiguous(x).reshape(N * groups, C // groups * S)
    y, mean, rstd = layer_norm.forward(rows, None, None, eps)
    y = y.reshape(x.shape)
    return AFFINE(y, 0.0, weight.reshape(C, 1), bias.reshape(C, 1), out=y), mean, rstd


def backward(dy: Array, x: Array, weight: Array, mean: Array, rstd: Array) -> tuple[Array, Array, Array]:
    """dy, x (N, C, S) and mean, rstd of ``forward`` -> dx (N, C, S), dweight (C,), dbias (C,)."""
    C = x.shape[1]
    dy, x = contiguous(dy), contiguous(x)
    rows = (mean.size, x.size // max(mean.size, 1))
    g = elementwise.mul(dy, weight.reshape(C, 1)).reshape(rows)
    dx = layer_norm.backward(g, x.reshape(rows), None, mean, rstd)[0]
    statistics = mean.reshape(-1, 1), rstd.reshape(-1, 1)
    dweight, dbias = batch_norm.parameter_gradients(dy.reshape(rows), x.reshape(rows), *statistics, x.shape)
    return dx.reshape(x.shape), dweight, dbias
