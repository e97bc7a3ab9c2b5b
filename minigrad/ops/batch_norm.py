"""Batch and group normalisation (Ioffe, Szegedy 2015; Wu, He 2018)."""

from typing import Any, ClassVar

from ..autograd import Function
from ..dtypes import is_half


def _scale(k: Any, squares: Any, n: float, eps: float) -> Any:
    return k.rsqrt(k.add(k.div(squares, n), eps))


def _affine(k: Any, x: Any, mean: Any, rstd: Any, weight: Any, bias: Any) -> Any:
    return k.add(k.mul(k.mul(k.sub(x, mean), rstd), weight), bias)


def _products(k: Any, dy: Any, x: Any, mean: Any) -> Any:
    return k.mul(dy, k.sub(x, mean))


def _gradient(k: Any, dy: Any, x: Any, mean: Any, rstd: Any, weight: Any, *sums: Any) -> Any:
    found = k.add(sums[0], k.mul(k.mul(k.sub(x, mean), rstd), sums[1]))
    return k.mul(k.sub(k.mul(dy, weight), k.mul(found, sums[2])), rstd)


def _cast(k: Any, expression: Any, dtype: Any, *inputs: Any) -> Any:
    return k.cast(expression(k, *inputs), dtype)


class BatchNorm(Function):
    """y = n w + b with n = (x - mean) rstd, rstd = 1 / sqrt(var + eps), where x is (N, groups, channels, S).

    dw = sum of dy n and db = sum of dy over N and S;  dx = rstd dy w where mean and var are ``given``. Where they are
    those of x over ``axes``, and mean and n var go to ``found``, dx = rstd (g - mean(g) - n mean(g n)) with g = dy w.
    """

    promotes = True
    half: Any
    half_kernels: ClassVar[str | None] = "reduce"
    folds = True
    axes: ClassVar[tuple[int, ...]] = (0, 2, 3)

    def forward(self, x: Any, w: Any, b: Any, *, groups: int, eps: float, given: Any = None, found: Any = ()) -> Any:
        k, fused, (N, C, *_), shape = self.kernels, self.kernels.elementwise.fused, x.shape, x.shape
        x = k.contiguous(x).reshape(N, groups, C // max(groups, 1), x.size // max(N * C, 1))
        w, b = (a.reshape(*x.shape[1:3], 1) for a in (w, b))
        mean, squares = given or k.reduce.moments(x, self.axes)
        n = 1 if given else max(x.size // max(mean.size, 1), 1)
        rstd = fused(_scale, squares, float(n), eps)
        self.saved = (x, w, mean, rstd, n, given, shape)
        found += mean, squares
        return self._in_dtype_of(x, _affine, x, mean, rstd, w, b).reshape(shape)

    def backward(self, dy: Any) -> Any:
        x, weight, mean, rstd, n, given, shape = self.saved
        k, mul, total = self.kernels, self.kernels.elementwise.mul, self.kernels.reduce.sum
        dy, over = k.contiguous(dy).reshape(x.shape), (0, 3) if 0 in self.axes else (3,)
        sums = total(dy, over, True), mul(total(k.elementwise.fused(_products, dy, x, mean), over, True), rstd)
        db, dw = (total(a, (0,), False).reshape(shape[1]) for a in sums)
        if given:
            return mul(dy, mul(rstd, weight)).reshape(shape), dw, db
        g, gn = (total(mul(a, weight), (2,), True) for a in sums)
        return self._in_dtype_of(x, _gradient, dy, x, mean, rstd, weight, g, gn, 1 / n).reshape(shape), dw, db

    def _in_dtype_of(self, x: Any, expression: Any, *inputs: Any) -> Any:
        if not is_half(x.dtype):
            return self.kernels.elementwise.fused(expression, *inputs)
        self.half = None  # gradients come as they are, too
        return self.kernels.elementwise.fused(_cast, expression, x.dtype, *inputs)


class GroupNorm(BatchNorm):
    """``BatchNorm`` with mean and variance of a group of channels of one sample."""

    autocast = "float32"
    axes = (2, 3)
