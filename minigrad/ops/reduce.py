"""Reductions. ``axes`` arrives normalised: a tuple of distinct non-negative ints."""

from __future__ import annotations

from typing import Any

from ..autograd import Function


class Reduction(Function):
    """Remembers the input's shape, so that the output's gradient can be spread over it again."""

    __slots__ = ("axes", "shape")

    axes: tuple[int, ...]
    shape: tuple[int, ...]

    def remember(self, axes: tuple[int, ...], x: Any) -> None:
        """Called by ``forward``, for ``spread``."""
        self.axes = axes
        self.shape = x.shape

    def spread(self, dy: Any) -> Any:
        """``dy`` with the reduced axes back as size 1, broadcast to the input's shape (a view)."""
        kept = tuple(1 if i in self.axes else n for i, n in enumerate(self.shape))
        return self.kernels.movement.expand(dy.reshape(kept), self.shape)


class Sum(Reduction):
    """y = sum of x over the axes;  dx = dy, spread. Integers and bool are summed as int64."""

    __slots__ = ()

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        self.remember(axes, x)
        return self.kernels.reduce.sum(x, axes, keepdim, None if x.dtype.kind in "fV" else "int64")

    def backward(self, dy: Any) -> Any:
        return self.spread(dy)


class Mean(Reduction):
    """y = mean of x over the axes (n values each);  dx = dy / n, spread."""

    __slots__ = ()

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        self.remember(axes, x)
        return self.kernels.reduce.mean(x, axes, keepdim)

    def backward(self, dy: Any) -> Any:
        count = 1
        for axis in self.axes:
            count *= self.shape[axis]
        return self.spread(self.kernels.elementwise.div(dy, count) if count else dy)


class _Extremum(Reduction):
    """dy is divided evenly among the positions that attain the extremum."""

    __slots__ = ()

    def backward(self, dy: Any) -> Any:
        x, y = self.saved
        k = self.kernels
        attained = k.comparison.eq(x, self.spread(y))
        ties = k.reduce.sum(attained, self.axes, True, x.dtype)
        return k.elementwise.mul(k.elementwise.div(self.spread(dy), ties), attained)  # y = NaN has no ties: dx is NaN


class AMax(_Extremum):
    """y = largest value over the axes;  dx = dy / (number of ties) where x = y."""

    __slots__ = ()

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        self.remember(axes, x)
        y = self.kernels.reduce.max(x, axes, keepdim)
        self.saved = (x, y)
        return y


class AMin(_Extremum):
    """y = smallest value over the axes;  dx = dy / (number of ties) where x = y."""

    __slots__ = ()

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        self.remember(axes, x)
        y = self.kernels.reduce.min(x, axes, keepdim)
        self.saved = (x, y)
        return y


class ArgMax(Function):
    """Index of the first largest value; no gradient."""

    __slots__ = ()
    differentiable = False

    def forward(self, x: Any, *, axis: int | None, keepdim: bool) -> Any:
        return self.kernels.reduce.argmax(x, axis, keepdim)


class ArgMin(Function):
    """Index of the first smallest value; no gradient."""

    __slots__ = ()
    differentiable = False

    def forward(self, x: Any, *, axis: int | None, keepdim: bool) -> Any:
        return self.kernels.reduce.argmin(x, axis, keepdim)


def _truth(kernels: Any, y: Any, x: Any) -> Any:
    """bool, but uint8 for uint8, as in PyTorch, where that was the dtype of masks."""
    return kernels.elementwise.cast(y, x.dtype) if x.dtype.kind == "u" else y


class AnyOf(Function):
    """Whether any value over the axes is true; no gradient."""

    __slots__ = ()
    differentiable = False

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        return _truth(self.kernels, self.kernels.reduce.any(x, axes, keepdim), x)


class AllOf(Function):
    """Whether all values over the axes are true; no gradient."""

    __slots__ = ()
    differentiable = False

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        return _truth(self.kernels, self.kernels.reduce.all(x, axes, keepdim), x)


class Var(Reduction):
    """y = sum((x - mean)^2) / (n - correction);  dx = 2 (x - mean) dy / (n - correction)."""

    __slots__ = ("divisor",)
    divisor: Any

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool, correction: float) -> Any:
        self.remember(axes, x)
        count = 1
        for axis in axes:
            count *= x.shape[axis]
        self.divisor = max(count - correction, 0)
        k = self.kernels
        centred = k.elementwise.sub(x, k.reduce.mean(x, axes, True))
        self.saved = (centred,)
        total = k.reduce.sum(k.elementwise.square(centred), axes, keepdim)
        if self.divisor:
            return k.elementwise.div(total, self.divisor)
        return k.full(total.shape, float("nan"), x.dtype)

    def backward(self, dy: Any) -> Any:
        (centred,) = self.saved
        return self.through(centred, dy)

    def through(self, centred: Any, dy: Any) -> Any:
        """dx from the gradient of the variance."""
        k = self.kernels
        slope = k.elementwise.mul(centred, 2 / self.divisor if self.divisor else float("nan"))
        return k.elementwise.mul(slope, self.spread(dy))


class Std(Var):
    """y = sqrt(var);  dx = (x - mean) dy / ((n - correction) y), 0 where y = 0."""

    __slots__ = ()

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool, correction: float) -> Any:
        y = self.kernels.elementwise.sqrt(super().forward(x, axes=axes, keepdim=keepdim, correction=correction))
        self.saved = (*self.saved, y)
        return y

    def backward(self, dy: Any) -> Any:
        centred, y = self.saved
        k = self.kernels
        dvar = k.elementwise.div(dy, k.elementwise.mul(y, 2))
        return self.through(centred, k.elementwise.select(k.comparison.ne(y, 0), dvar))


class Norm(Reduction):
    """y = sqrt(sum(x^2)) over the axes;  dx = x dy / y, 0 where y = 0."""

    __slots__ = ()

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        self.remember(axes, x)
        k = self.kernels
        y = k.elementwise.sqrt(k.reduce.sum(k.elementwise.square(x), axes, keepdim))
        self.saved = (x, y)
        return y

    def backward(self, dy: Any) -> Any:
        x, y = self.saved
        k = self.kernels
        slope = k.elementwise.select(k.comparison.ne(y, 0), k.elementwise.div(dy, y))
        return k.elementwise.mul(x, self.spread(slope))


class LogSumExp(Reduction):
    """y = log(sum(e^x));  dx = e^(x-y) dy."""

    __slots__ = ()
    floats = True

    def forward(self, x: Any, *, axes: tuple[int, ...], keepdim: bool) -> Any:
        self.remember(axes, x)
        y = self.kernels.reduce.logsumexp(x, axes, keepdim)
        self.saved = (x, y)
        return y

    def backward(self, dy: Any) -> Any:
        x, y = self.saved
        k = self.kernels.elementwise
        return k.mul(k.exp(k.sub(x, self.spread(y))), self.spread(dy))


class CumSum(Function):
    """y_i = x_1 + ... + x_i along an axis;  dx_i = dy_i + ... + dy_n."""

    __slots__ = ("axis",)
    axis: int

    def forward(self, x: Any, *, axis: int) -> Any:
        self.axis = axis
        return self.kernels.reduce.cumsum(x, axis)

    def backward(self, dy: Any) -> Any:
        return self.kernels.reduce.reverse_cumsum(dy, self.axis)


class Prod(Reduction):
    """y = x_1 x_2 ... x_n along an axis;  dx_i = dy times the product of the other x. Integers and bool: in int64."""

    __slots__ = ()

    def forward(self, x: Any, *, axis: int, keepdim: bool) -> Any:
        self.remember((axis,), x)
        self.saved = (x,)
        return self.kernels.reduce.prod(x, axis, keepdim, x.dtype if x.dtype.kind in "fV" else "int64")

    def backward(self, dy: Any) -> Any:
        others = self.kernels.reduce.prod_of_others(self.saved[0], self.axes[0])
        return self.kernels.elementwise.mul(self.spread(dy), others)


class CumProd(Function):
    """y_i = x_1 ... x_i along an axis;  dx_i = sum over j >= i of dy_j times the product of x_1 ... x_j without x_i."""

    __slots__ = ("axis",)
    axis: int

    def forward(self, x: Any, *, axis: int) -> Any:
        self.axis = axis
        self.saved = (x,)
        return self.kernels.reduce.cumprod(x, axis)

    def backward(self, dy: Any) -> Any:
        return self.kernels.reduce.cumprod_backward(dy, self.saved[0], self.axis)
