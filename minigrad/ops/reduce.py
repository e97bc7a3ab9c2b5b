"""Reductions. ``axes`` arrives normalised: a tuple of distinct non-negative ints."""

import math
from typing import Any, ClassVar

from ..autograd import Function
from ..dtypes import float32, float64, is_half


class Reduction(Function):
    """Remembers the input's shape, so that the output's gradient can be spread over it again."""

    __slots__ = ("axes", "shape")
    half_kernels: ClassVar[str | None] = "reduce"
    folds = True

    axes: tuple[int, ...]
    shape: tuple[int, ...]

    def remember(self, axes: tuple[int, ...], x: Any) -> None:
        """Called by ``forward``, for ``spread``."""
        self.axes, self.shape = axes, x.shape

    def spread(self, dy: Any) -> Any:
        """``dy`` with the reduced axes back as size 1, broadcast to the input's shape (a view)."""
        return self.kernels.movement.expand(self.kept(dy), self.shape)

    def kept(self, dy: Any) -> Any:
        """``dy`` with the reduced axes back as size 1."""
        return dy.reshape(tuple([1 if i in self.axes else n for i, n in enumerate(self.shape)]))


class Sum(Reduction):
    """y = sum of x over the axes;  dx = dy, spread. Integers and bool are summed as int64."""

    autocast: ClassVar[str | None] = "float32"

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        self.remember(axes, x)
        return self.kernels.reduce.sum(x, axes, keepdim, None if x.dtype.kind in "fV" else "int64")

    def backward(self, dy: Any) -> Any:
        return self.spread(dy)


class NanSum(Sum):
    """y = sum over the axes of the x that are not NaN;  dx = dy, spread, times whether x is not NaN."""

    autocast = None  # PyTorch's stays in its dtype

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        self.remember(axes, x)
        self.saved = (x,)
        return self.kernels.reduce.nansum(x, axes, keepdim)

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.mul(self.spread(dy), self.kernels.comparison.eq(*self.saved, *self.saved))


class Mean(Reduction):
    """y = mean of x over the axes (n values each);  dx = dy / n, spread."""

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        self.remember(axes, x)
        return self.kernels.reduce.mean(x, axes, keepdim)

    def backward(self, dy: Any) -> Any:
        count = math.prod(self.shape[axis] for axis in self.axes)
        return self.spread(self.kernels.elementwise.div(dy, count) if count else dy)


class AMax(Reduction):
    """y = largest value over the axes;  dx = dy / (number of ties) where x = y."""

    largest: ClassVar[bool] = True

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        self.remember(axes, x)
        k = self.kernels.reduce
        y = (k.max if self.largest else k.min)(x, axes, keepdim)
        self.saved = (x, y)
        return y

    def backward(self, dy: Any) -> Any:
        (x, y), k = self.saved, self.kernels
        attained = k.comparison.eq(x, self.kept(y))
        ties = k.reduce.sum(attained, self.axes, True, y.dtype)
        return k.elementwise.mul(k.elementwise.div(self.kept(dy), ties), attained)  # y = NaN has no ties: dx is NaN


class AMin(AMax):
    """y = smallest value over the axes;  dx = dy / (number of ties) where x = y."""

    largest = False


class Max(AMax):
    """y = the largest value;  dx = dy / (number of ties) where x = y or both are NaN (AMax has NaN everywhere)."""

    def backward(self, dy: Any) -> Any:
        (x, y), k = self.saved, self.kernels
        attained = k.elementwise.fused(_attained, x, self.kept(y))
        ties = k.reduce.sum(attained, self.axes, True, y.dtype)
        return k.elementwise.select(attained, k.elementwise.div(self.kept(dy), ties))


def _attained(k: Any, x: Any, y: Any) -> Any:
    return k.logical_or(k.eq(x, y), k.logical_and(k.isnan(x), k.isnan(y)))


class Min(Max):
    """y = the smallest value;  dx = dy / (number of ties) where x = y or both are NaN."""

    largest = False


class Median(Max):
    """y = the value in the middle, of an even number the lower one;  dx = dy / (number of ties) where x = y.

    NaN if there is one, and of no values.
    """

    half_kernels = None

    def forward(self, x: Any) -> Any:  # type: ignore[override]  # always of all values
        self.remember(tuple(range(x.ndim)), x)
        y = self.kernels.reduce.median(x)
        self.saved = (x, y)
        return y


class ArgMax(Function):
    """Index of the first largest value; no gradient."""

    differentiable = False
    half_kernels = "reduce"
    largest: ClassVar[bool] = True

    def forward(self, x: Any, *, axis: int | None, keepdim: bool) -> Any:
        k = self.kernels.reduce
        return (k.argmax if self.largest else k.argmin)(x, axis, keepdim)


class ArgMin(ArgMax):
    """Index of the first smallest value; no gradient."""

    largest = False


class AnyOf(Function):
    """Whether any value over the axes is true; no gradient. bool, but uint8 for uint8, which PyTorch had as masks."""

    differentiable = False
    every: ClassVar[bool] = False

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        k = self.kernels.reduce
        y = (k.all if self.every else k.any)(x, axes, keepdim)
        return self.kernels.elementwise.cast(y, x.dtype) if x.dtype.kind == "u" else y


class AllOf(AnyOf):
    """Whether all values over the axes are true; no gradient."""

    every = True


class Var(Reduction):
    """y = sum((x - mean)^2) / (n - correction);  dx = 2 (x - mean) dy / (n - correction)."""

    sums: Any = None  # their dtype; x's

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool, correction: float) -> Any:
        self.remember(axes, x)
        divisor = max(math.prod(x.shape[axis] for axis in axes) - correction, 0)
        k = self.kernels
        mean, total = k.reduce.moments(x, axes, self.sums)
        self.saved = (x, mean, divisor)
        if not keepdim:
            total = total.reshape([n for axis, n in enumerate(x.shape) if axis not in axes])
        return k.elementwise.div(total, divisor) if divisor else k.full(total.shape, float("nan"), total.dtype)

    def backward(self, dy: Any) -> Any:
        x, mean, divisor, *_ = self.saved
        slope = 2 / divisor if divisor else float("nan")
        return self.kernels.elementwise.fused(_of_var, x, mean, slope, self.spread(dy))


def _of_var(k: Any, x: Any, mean: Any, slope: float, dy: Any) -> Any:
    return k.mul(k.mul(k.sub(x, mean), slope), dy)


class Std(Var):
    """y = sqrt(var);  dx = (x - mean) dy / ((n - correction) y), 0 where y = 0."""

    sums = float64  # float32 may not hold the squares of what it holds

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool, correction: float) -> Any:
        k, var = self.kernels.elementwise, super().forward(x, axes=axes, keepdim=keepdim, correction=correction)
        y = k.cast(k.sqrt(var), self.saved[1].dtype)
        self.saved = (*self.saved, y)
        return y

    def backward(self, dy: Any) -> Any:
        (*_, y), k = self.saved, self.kernels.elementwise
        dvar = k.div(dy, k.mul(y, 2))
        return super().backward(k.select(self.kernels.comparison.ne(y, 0), dvar))


class Norm(Reduction):
    """y = (sum |x|^p)^(1/p) over the axes, for p = 2 the root;  dx = sign(x) (|x| / y)^(p-1) dy, 0 where y = 0.

    For infinite p the largest (smallest) |x|, whose ties share dy evenly; NaNs take part. For p = 0 the number of
    x that are not 0;  dx = 0. Which factors are formed first is PyTorch's choice: it decides where the result is NaN.
    """

    half: Any
    autocast = "float32"

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool, p: float = 2, wide: bool = False) -> Any:
        self.remember(axes, x)
        if wide:
            self.half = None  # what is in float32 stays so
        k, reduce = self.kernels.elementwise, self.kernels.reduce
        if is_half(x.dtype) and p not in (0, 1, 2, math.inf, -math.inf):  # whose powers would be rounded
            x = k.cast(x, float32)
        if p == 2:
            y = k.sqrt(reduce.sum_of_squares(x, axes, keepdim))
        elif p == 0:
            y = reduce.sum(self.kernels.comparison.ne(x, 0), axes, keepdim, float64 if x.dtype == float64 else float32)
        elif math.isinf(p):
            y = (reduce.max if p > 0 else reduce.min)(k.abs(x), axes, keepdim)
        elif p == 1:
            y = reduce.sum(k.abs(x), axes, keepdim)
        else:
            y = k.pow(reduce.sum(k.pow(k.abs(x), p), axes, keepdim), 1 / p)
        self.saved = (x, y, p)
        return y

    def backward(self, dy: Any) -> Any:
        x, y, p = self.saved
        k, c = self.kernels.elementwise, self.kernels.comparison
        y, dy = self.kept(y), self.kept(dy)
        if p == 2:
            return k.mul(dy, k.select(c.ne(y, 0), k.div(x, y)))
        if p == 0:
            return self.kernels.full(x.shape, 0, x.dtype)
        if p == 1:
            return k.mul(k.sign(x), dy)
        size = k.abs(x)
        if math.isinf(p):
            attained = c.logical_or(c.eq(size, y), c.isnan(x))
            ties = self.kernels.reduce.sum(attained, self.axes, True, y.dtype)
            return k.mul(k.sign(x), k.mul(k.div(dy, ties), attained))
        if p < 1:
            slope = k.mul(k.sign(x), k.select(c.ne(x, 0), k.pow(size, p - 1)))
            return k.mul(k.mul(slope, dy), k.pow(y, 1 - p))
        slope = k.mul(k.sign(x), k.pow(size, p - 1)) if p < 2 else k.mul(x, k.pow(size, p - 2))
        return k.mul(slope, k.select(c.ne(y, 0), k.div(dy, k.pow(y, p - 1))))


class LogSumExp(Reduction):
    """y = log(sum(e^x));  dx = e^(x-y) dy."""

    autocast = "float32"
    floats = True

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        self.remember(axes, x)
        y = self.kernels.reduce.logsumexp(x, axes, keepdim)
        self.saved = (x, y)
        return y

    def backward(self, dy: Any) -> Any:
        x, y = self.saved
        return self.kernels.elementwise.fused(_of_logsumexp, x, self.spread(y), self.spread(dy))


def _of_logsumexp(k: Any, x: Any, y: Any, dy: Any) -> Any:
    return k.mul(k.exp(k.sub(x, y)), dy)


class CumSum(Function):
    """y_i = x_1 + ... + x_i along an axis;  dx_i = dy_i + ... + dy_n."""

    __slots__ = ("axis",)
    autocast = "float32"
    half_kernels = "reduce"

    def forward(self, x: Any, *, axis: int) -> Any:
        self.axis = axis
        return self.kernels.reduce.cumsum(x, axis)

    def backward(self, dy: Any) -> Any:
        return self.kernels.reduce.reverse_cumsum(dy, self.axis)


class Prod(Reduction):
    """y = x_1 x_2 ... x_n along an axis;  dx_i = dy times the product of the other x. Integers and bool: in int64.

    As in PyTorch that product is y / x_i if no x is 0, which differs where values are infinite or NaN.
    """

    autocast = "float32"
    whole: ClassVar[bool] = False

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        self.remember(axes, x)
        y = self.kernels.reduce.prod(x, axes, keepdim, None if x.dtype.kind in "fV" else "int64")
        self.saved = (x, y)
        return y

    def backward(self, dy: Any) -> Any:
        (x, y), k = self.saved, self.kernels
        zeros = int(k.to_host(k.reduce.sum(k.comparison.eq(x, 0), tuple(range(x.ndim)), False, "int64")))
        if self.whole and zeros > 1:
            return k.full(x.shape, 0, x.dtype)
        x = k.elementwise.cast(x, y.dtype)
        rows = k.movement.reshape(x, (x.size,)) if self.whole else x
        others = k.reduce.prod_of_others(rows, self.axes[0]).reshape(x.shape) if zeros else None
        return k.elementwise.mul(self.spread(dy), k.elementwise.div(self.spread(y), x) if others is None else others)


class ProdOfAll(Prod):
    """y = x_1 x_2 ... x_n;  dx_i = dy times the product of the other x, and 0 everywhere for two that are 0."""

    whole = True


class CumProd(Function):
    """y_i = x_1 ... x_i along an axis;  dx_i = sum over j >= i of dy_j times the product of x_1 ... x_j without x_i."""

    autocast = "float32"

    def forward(self, x: Any, *, axis: int) -> Any:
        y = self.kernels.reduce.cumprod(x, axis)
        self.saved = (x, y, axis)
        return y

    def backward(self, dy: Any) -> Any:
        """As PyTorch does, in time n: before the first 0 dx_i is a sum of dy_j y_j, divided by x_i; at it one of dy_j
        times the product without it, up to the next 0; behind it 0.
        """
        x, y, axis = self.saved
        if x.shape[axis] == 1:
            return dy
        k, c, fused = self.kernels.reduce, self.kernels.comparison, self.kernels.elementwise.fused
        zero = c.eq(x, 0)
        zeros = k.cumsum(self.kernels.elementwise.cast(zero, "int64"), axis)  # so far
        none, one = c.eq(zeros, 0), c.eq(zeros, 1)
        first = c.logical_and(zero, one)
        total = k.reverse_cumsum(fused(_products, none, dy, y), axis)
        others = k.cumprod(self.kernels.elementwise.where(first, 1, x), axis)
        until = c.logical_or(one, c.logical_and(zero, c.eq(zeros, 2)))
        at_first = k.sum(fused(_products, until, dy, others), (axis,), True)
        return fused(_of_cumprod, first, at_first, none, total, x)


def _products(k: Any, where: Any, dy: Any, y: Any) -> Any:
    return k.select(where, k.mul(dy, y))


def _of_cumprod(k: Any, first: Any, at_first: Any, none: Any, total: Any, x: Any) -> Any:
    return k.where(first, at_first, k.select(none, k.div(total, x)))
