"""Rows made comparable: softmax, and the norms of layers, groups and batches."""

from __future__ import annotations

import numpy as np

from .elementwise import quiet
from .reduce import reduce

Norm = tuple[np.ndarray, np.ndarray, np.ndarray]


class softmax:
    """y = e^(x - m) / sum(e^(x - m)), m = max(x);  dx = y (dy - sum(dy y)).

    log y = x - m - log(sum(e^(x - m)));  dx = dy - e^(log y) sum(dy).
    """

    @staticmethod
    @quiet
    def forward(x: np.ndarray, axis: int) -> np.ndarray:
        """softmax(x) along ``axis``; x float32 or float64, any shape."""
        e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
        return np.asarray(e / e.sum(axis, keepdims=True))

    @staticmethod
    @quiet
    def backward(dy: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        """dx from dy and the result y of ``forward``."""
        return y * (dy - (dy * y).sum(axis, keepdims=True))

    @staticmethod
    @quiet
    def log_forward(x: np.ndarray, axis: int) -> np.ndarray:
        """log(softmax(x)) along ``axis``."""
        below = x - x.max(axis, keepdims=True, initial=-np.inf)
        return np.asarray(below - np.log(np.exp(below).sum(axis, keepdims=True)))

    @staticmethod
    @quiet
    def log_backward(dy: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        """dx from dy and the result y of ``log_forward``."""
        return dy - np.exp(y) * dy.sum(axis, keepdims=True)


class layer_norm:
    """Rows of x (N, C) (Ba, Kiros & Hinton 2016), with g = dy * weight, and means over a row:

    xhat = (x - mean(x)) rstd      rstd = 1 / sqrt(mean((x - mean(x))^2) + eps)      y = xhat * weight + bias
    dx = rstd (g - mean(g) - xhat mean(g xhat))      dweight = sum over rows of dy * xhat      dbias = of dy
    """

    @staticmethod
    @quiet
    def forward(x: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, eps: float) -> Norm:
        """x (N, C), weight and bias (C,), None for 1 and 0 -> y (N, C), mean (N,), rstd (N,); all of x's dtype."""
        mean = reduce.mean(x, (1,), False)
        rstd = 1 / np.sqrt(reduce.mean(np.square(x - mean[:, None]), (1,), False) + x.dtype.type(eps))
        y = (x - mean[:, None]) * rstd[:, None]
        y = y if weight is None else y * weight
        return y if bias is None else y + bias, mean, rstd

    @staticmethod
    @quiet
    def backward(dy: np.ndarray, x: np.ndarray, weight: np.ndarray | None, mean: np.ndarray, rstd: np.ndarray) -> Norm:
        """dy, x (N, C), mean and rstd (N,) of forward -> dx (N, C), dweight (C,), dbias (C,)."""
        xhat = (x - mean[:, None]) * rstd[:, None]
        g = dy if weight is None else dy * weight
        dx = rstd[:, None] * (g - reduce.mean(g, (1,), True) - xhat * reduce.mean(g * xhat, (1,), True))
        return dx, (dy * xhat).sum(0), dy.sum(0)


class rms_norm:
    """Rows of x (N, C) by their root mean square (Zhang & Sennrich 2019), with g = dy * weight, and means over a row:

    xhat = x rstd      rstd = 1 / sqrt(mean(x^2) + eps)      y = xhat * weight
    dx = rstd (g - xhat mean(g xhat))      dweight = sum over rows of dy * xhat
    """

    @staticmethod
    @quiet
    def forward(x: np.ndarray, weight: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
        """x (N, C), weight (C,) -> y (N, C), rstd (N,); all of x's dtype."""
        rstd = 1 / np.sqrt(reduce.mean(np.square(x), (1,), False) + x.dtype.type(eps))
        return x * rstd[:, None] * weight, rstd

    @staticmethod
    @quiet
    def backward(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, rstd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """dy, x (N, C) and rstd (N,) of forward -> dx (N, C), dweight (C,)."""
        xhat, g = x * rstd[:, None], dy * weight
        return rstd[:, None] * (g - xhat * reduce.mean(g * xhat, (1,), True)), (dy * xhat).sum(0)


class group_norm:
    """x (N, C, S): the channels are G groups of neighbours, and the C / G * S values of each group of each sample are a
    row that ``layer_norm`` makes xhat (Wu & He 2018). Then y = xhat * weight + bias by channel.

    dx: layer_norm's, for g = dy * weight      dweight = sum over N and S of dy * xhat      dbias = of dy
    """

    @staticmethod
    def forward(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, groups: int, eps: float) -> Norm:
        """x (N, C, S), weight and bias (C,) -> y (N, C, S), mean and rstd (N * groups,); all of x's dtype."""
        N, C, S = x.shape
        y, mean, rstd = layer_norm.forward(x.reshape(N * groups, C // groups * S), None, None, eps)
        return y.reshape(x.shape) * weight[:, None] + bias[:, None], mean, rstd

    @staticmethod
    def backward(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, mean: np.ndarray, rstd: np.ndarray) -> Norm:
        """dy, x (N, C, S) and mean, rstd of ``forward`` -> dx (N, C, S), dweight (C,), dbias (C,)."""
        rows = x.reshape(mean.size, x.size // max(mean.size, 1))
        dx, _, _ = layer_norm.backward((dy * weight[:, None]).reshape(rows.shape), rows, None, mean, rstd)
        xhat = ((rows - mean[:, None]) * rstd[:, None]).reshape(x.shape)
        return dx.reshape(x.shape), (dy * xhat).sum((0, 2)), dy.sum((0, 2))


class batch_norm:
    """x (N, C, S) by channel (Ioffe & Szegedy 2015). The variance is the two-pass one, which does not cancel.

    rstd = 1 / sqrt(var + eps)      xhat = (x - mean) rstd      y = xhat * weight + bias
    dweight = sum over N and S of dy * xhat      dbias = of dy
    dx = weight rstd dy                                                  where mean and var are given
    dx = weight rstd (dy - dbias / n - xhat dweight / n),  n = N S      where they are those of x
    """

    @staticmethod
    def statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and (biased) variance (C,) of the channels of x (N, C, S)."""
        mean = reduce.mean(x, (0, 2), False)
        return mean, reduce.mean(np.square(x - mean[:, None]), (0, 2), False)

    @staticmethod
    def forward(
        x: np.ndarray, weight: np.ndarray, bias: np.ndarray, mean: np.ndarray, var: np.ndarray, eps: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """x (N, C, S), the others (C,) -> y (N, C, S), rstd (C,); all of x's dtype."""
        rstd = 1 / np.sqrt(var + x.dtype.type(eps))
        y = x - mean[:, None]
        y *= (rstd * weight)[:, None]
        y += bias[:, None]
        return y, rstd

    @staticmethod
    def backward(
        dy: np.ndarray, x: np.ndarray, weight: np.ndarray, mean: np.ndarray, rstd: np.ndarray, of_batch: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """dy, x (N, C, S) -> dx (N, C, S), dweight (C,), dbias (C,); ``of_batch``: mean and rstd depend on x."""
        xhat = x - mean[:, None]
        xhat *= rstd[:, None]
        dweight, dbias = reduce.sum(dy * xhat, (0, 2), False), reduce.sum(dy, (0, 2), False)
        if not of_batch:
            return dy * (rstd * weight)[:, None], dweight, dbias
        n = x.dtype.type(max(x.shape[0] * x.shape[2], 1))
        xhat *= (dweight / n)[:, None]
        dx = dy - xhat
        dx -= (dbias / n)[:, None]
        dx *= (rstd * weight)[:, None]
        return dx, dweight, dbias
