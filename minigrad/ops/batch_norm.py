"""Batch normalisation (Ioffe, Szegedy 2015)."""

import math
from typing import Any, ClassVar

from ..autograd import Function


def statistics(kernels: Any, x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """Mean and (biased) variance over the axes, which stay."""
    mean, squares = kernels.reduce.moments(x, axes)
    return mean, kernels.elementwise.div(squares, x.size // max(mean.size, 1) or 1)


class BatchNorm(Function):
    """y = n w + b with n = (x - mean) rstd, rstd = 1 / sqrt(var + eps), where x is (N, groups, channels, S).

    dw = sum of dy n and db = sum of dy over N and S;  dx = rstd dy w, and where mean and var are those of x itself over
    ``axes``, and not ``given``, dx = rstd (g - mean(g) - n mean(g n)) with g = dy w.
    """

    promotes = True
    half_kernels: ClassVar[str | None] = "reduce"
    folds = True
    axes: ClassVar[tuple[int, ...]] = (0, 2, 3)

    def forward(self, x: Any, weight: Any, bias: Any, *, groups: int, eps: float, given: Any, fixed: bool) -> Any:
        """``given``: mean and variance; ``fixed``: they do not depend on x."""
        k, (N, C, *_), shape = self.kernels, x.shape, x.shape
        x = k.contiguous(x).reshape(N, groups, C // max(groups, 1), x.size // max(N * C, 1))
        weight, bias = (a.reshape(*x.shape[1:3], 1) for a in (weight, bias))
        mean, var = given or statistics(k, x, self.axes)
        rstd = k.batch_norm.scale(var, eps)
        slope = k.elementwise.mul(rstd, weight)
        self.saved = (x, weight, mean, rstd, slope, fixed, shape)
        return k.batch_norm.affine(x, mean, slope, bias).reshape(shape)

    def backward(self, dy: Any) -> Any:
        x, weight, mean, rstd, slope, fixed, shape = self.saved
        k, mul, total = self.kernels, self.kernels.elementwise.mul, self.kernels.reduce.sum
        dy, over = k.contiguous(dy).reshape(x.shape), (0, 3) if 0 in self.axes else (3,)
        sums = total(dy, over, True), mul(total(k.batch_norm.products(dy, x, mean), over, True), rstd)
        db, dw = (total(a, (0,), False).reshape(shape[1]) for a in sums)
        if fixed:
            return mul(dy, slope).reshape(shape), dw, db
        share = k.elementwise.div(rstd, math.prod(x.shape[axis] for axis in self.axes) or 1)
        shift, factor = (mul(total(mul(a, weight), (2,), True), share) for a in sums)
        return k.batch_norm.gradient(dy, x, mean, slope, mul(factor, rstd), shift).reshape(shape), dw, db
