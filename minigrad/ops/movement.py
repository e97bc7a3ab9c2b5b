"""Shapes and order: reshape, permute, expand are views where memory allows."""

from typing import Any, ClassVar

from ..autograd import Function
from ..dtypes import float32, is_half


class Reshape(Function):
    """y = x in another shape;  dx = dy in the shape of x."""

    __slots__ = ("shape",)
    widens = False
    is_view = True
    shape: Any

    def forward(self, x: Any, *, shape: tuple[int, ...]) -> Any:
        self.shape = x.shape
        return self.kernels.movement.reshape(x, shape)

    def backward(self, dy: Any) -> Any:
        return self.kernels.movement.reshape(dy, self.shape)


class Permute(Function):
    """y = x with its axes in another order;  dx = dy in the inverse order."""

    __slots__ = ("inverse",)
    widens = False
    is_view = True
    inverse: tuple[int, ...]

    def forward(self, x: Any, *, order: tuple[int, ...]) -> Any:
        self.inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
        return self.kernels.movement.permute(x, order)

    def backward(self, dy: Any) -> Any:
        return self.kernels.movement.permute(dy, self.inverse)


class Expand(Function):
    """y = x repeated along axes of size 1 and new leading axes, as a view;  dx = dy summed over them (autograd
    does).
    """

    widens = False
    is_view = True

    def forward(self, x: Any, *, shape: tuple[int, ...]) -> Any:
        return self.kernels.movement.expand(x, shape)

    def backward(self, dy: Any) -> Any:
        return dy


class Cat(Function):
    """y = the inputs one after the other along an axis, which may be a new one;  each dx = its part of dy."""

    __slots__ = ("axis", "new", "sizes")
    widens = False
    promotes = True
    axis: int
    new: bool
    sizes: tuple[Any, ...]

    def forward(self, *inputs: Any, axis: int, new: bool = False) -> Any:
        self.axis, self.new, shape = axis, new, inputs[0].shape
        last = new and axis == len(shape)  # else the new axis divides one along which they lie in the same order
        y = self.kernels.movement.cat([x.reshape((*shape, 1)) for x in inputs] if last else inputs, axis)
        if True in self.needs:
            self.sizes = (1,) * len(inputs) if new else tuple([x.shape[axis] for x in inputs])
        return y.reshape((*shape[:axis], len(inputs), *shape[axis:])) if new and not last else y

    def backward(self, dy: Any) -> Any:
        parts, shape = self.kernels.movement.split(dy, self.sizes, self.axis), dy.shape
        return tuple(x.reshape((*shape[: self.axis], *shape[self.axis + 1 :])) if self.new else x for x in parts)


class _OfGradient(Function):
    """dx is of dy what y is of x: ``moved``, of the kernels, it and options, those that move ``back``."""

    __slots__ = ("options",)
    widens = False
    options: tuple[Any, ...]
    moved: ClassVar[Any]

    def forward(self, x: Any, **options: Any) -> Any:
        self.options = tuple(options.values())
        return self.moved(self.kernels, x, *self.options)

    def backward(self, dy: Any) -> Any:
        return self.moved(self.kernels, dy, *self.back(*self.options))

    def back(self, *options: Any) -> tuple[Any, ...]:
        return options


def _flipped(kernels: Any, x: Any, axes: tuple[int, ...]) -> Any:
    places = tuple([slice(None, None, -1 if i in axes else 1) for i in range(x.ndim)])
    return kernels.copy(x[places] if axes else x)


class Flip(_OfGradient):
    """y = x with the order along the axes reversed;  dx = dy reversed."""

    moved = staticmethod(_flipped)


class Tril(_OfGradient):
    """y = lower triangle of the last two axes, zeros above the diagonal;  dx = the same of dy."""

    moved = staticmethod(lambda kernels, x, diagonal: kernels.movement.tril(x, diagonal))


class Triu(_OfGradient):
    """y = upper triangle of the last two axes, zeros below the diagonal;  dx = the same of dy."""

    moved = staticmethod(lambda kernels, x, diagonal: kernels.movement.triu(x, diagonal))


def _rolled(kernels: Any, x: Any, shifts: tuple[int, ...], axes: tuple[int, ...] | None) -> Any:
    y = flat = x if axes is not None else kernels.movement.reshape(x, (-1,))
    for axis, shift in zip((0,) if axes is None else axes, shifts, strict=True):
        along, at = (slice(None),) * axis, -shift % max(y.shape[axis], 1)
        if at:
            y = kernels.movement.cat([y[(*along, slice(at, None))], y[(*along, slice(at))]], axis)
    return kernels.copy(x) if y is flat else y.reshape(x.shape)


class Roll(_OfGradient):
    """y = x moved on by the shifts along the axes, around the end;  dx = dy moved back. No axes: it is flattened."""

    moved = staticmethod(_rolled)

    def back(self, *options: Any) -> tuple[Any, ...]:
        shifts, axes = options
        return tuple(-s for s in shifts), axes


class Tile(Function):
    """y = ``repeats`` copies of x side by side along each axis, of elements that come ``each`` so often in a row;  dx =
    sum of dy over the copies.
    """

    __slots__ = ("shape", "wide")
    widens = False
    shape: tuple[int, ...]
    wide: list[int]

    def forward(self, x: Any, *, repeats: tuple[int, ...], each: tuple[int, ...] = ()) -> Any:
        sizes, self.shape = (1,) * (len(repeats) - x.ndim) + x.shape, x.shape
        three = [*zip(repeats, sizes, each or (1,) * len(sizes), strict=True)]
        self.wide = [n for sizes_of_axis in three for n in sizes_of_axis]
        apart = x.reshape([n for size in sizes for n in (1, size, 1)])
        return self.kernels.copy(self.kernels.movement.expand(apart, self.wide)).reshape(
            [a * n * b for a, n, b in three]
        )

    def backward(self, dy: Any) -> Any:
        wide = self.kernels.elementwise.cast(dy, float32) if is_half(dy.dtype) else dy
        copies = tuple([i for i, n in enumerate(self.wide) if i % 3 != 1 and n != 1])
        return self.kernels.reduce.sum(wide.reshape(self.wide), copies, False).reshape(self.shape)


def _differences(kernels: Any, x: Any, axis: int, back: bool) -> Any:
    x = kernels.movement.pad(x, tuple([(int(i == axis),) * 2 for i in range(x.ndim)]), 0) if back else x
    before, subtract = (slice(None),) * axis, kernels.comparison.ne if x.dtype.kind == "b" else kernels.elementwise.sub
    later, earlier = x[(*before, slice(1, None))], x[(*before, slice(-1))]
    return subtract(earlier, later) if back else subtract(later, earlier)


class Diff(_OfGradient):
    """y_i = x_(i+1) - x_i along an axis, of bool whether they differ;  dx_i = dy_(i-1) - dy_i."""

    widens, half_kernels = True, "elementwise"
    moved = staticmethod(_differences)

    def back(self, *options: Any) -> tuple[Any, ...]:
        return options[0], True


class Pad(_OfGradient):
    """y = x with borders of a constant;  dx = dy without the borders (where a border is negative: with zeros)."""

    moved = staticmethod(lambda kernels, x, widths, value: kernels.movement.pad(x, widths, value))

    def back(self, *options: Any) -> tuple[Any, ...]:
        widths, _ = options
        return tuple((-before, -after) for before, after in widths), 0


class Diagonal(Function):
    """y_i = x_(i, i + offset) of two axes, as a view;  dx_(i, i + offset) += dy_i."""

    __slots__ = ("places",)
    widens = False
    is_view = True
    adds_in_place = True
    places: tuple[int, int, int]

    def forward(self, x: Any, *, offset: int, axis1: int, axis2: int) -> Any:
        self.places = (offset, axis1, axis2)
        return self.kernels.movement.diagonal(x, *self.places)

    def backward_into(self, dy: Any, dx: Any) -> None:
        self.kernels.elementwise.add_into(self.kernels.movement.diagonal(dx, *self.places), dy)


class DiagEmbed(Function):
    """y_(i, i + offset) = x_i of a vector, zeros elsewhere;  dx_i = dy_(i, i + offset)."""

    __slots__ = ("places",)
    widens = False
    places: tuple[int, int, int]

    def forward(self, x: Any, *, offset: int) -> Any:
        self.places, n = (offset, 0, 1), x.size + abs(offset)
        y = self.kernels.zeros((n, n), x.dtype)
        self.kernels.elementwise.assign(self.kernels.movement.diagonal(y, *self.places), x)
        return y

    def backward(self, dy: Any) -> Any:
        return self.kernels.movement.diagonal(dy, *self.places)
