"""Shapes and order: reshape, permute, expand are views where memory allows."""

from operator import attrgetter
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
    """dx is of dy what y is of x: ``moved``, a function of the kernels, with the options that move ``back``."""

    __slots__ = ("options",)
    widens = False
    options: tuple[Any, ...]
    moved: ClassVar["attrgetter[Any]"]

    def forward(self, x: Any, **options: Any) -> Any:
        self.options = tuple(options.values())
        return self.moved(self.kernels)(x, *self.options)

    def backward(self, dy: Any) -> Any:
        return self.moved(self.kernels)(dy, *self.back(*self.options))

    def back(self, *options: Any) -> tuple[Any, ...]:
        return options


class Flip(_OfGradient):
    """y = x with the order along the axes reversed;  dx = dy reversed."""

    moved = attrgetter("movement.flip")


class Tril(_OfGradient):
    """y = lower triangle of the last two axes, zeros above the diagonal;  dx = the same of dy."""

    moved = attrgetter("movement.tril")


class Triu(_OfGradient):
    """y = upper triangle of the last two axes, zeros below the diagonal;  dx = the same of dy."""

    moved = attrgetter("movement.triu")


class Roll(_OfGradient):
    """y = x moved on by the shifts along the axes, around the end;  dx = dy moved back."""

    moved = attrgetter("movement.roll")

    def back(self, *options: Any) -> tuple[Any, ...]:
        shifts, axes = options
        return tuple(-s for s in shifts), axes


class Tile(Function):
    """y = copies of x side by side along each axis;  dx = sum of dy over the copies."""

    __slots__ = ("repeats", "shape")
    widens = False
    repeats: tuple[int, ...]
    shape: Any

    def forward(self, x: Any, *, repeats: tuple[int, ...]) -> Any:
        self.repeats, self.shape = repeats, x.shape
        return self.kernels.movement.tile(x, repeats)

    def backward(self, dy: Any) -> Any:
        sizes = (1,) * (len(self.repeats) - len(self.shape)) + self.shape
        wide = self.kernels.elementwise.cast(dy, float32) if is_half(dy.dtype) else dy
        copies = wide.reshape([m for pair in zip(self.repeats, sizes) for m in pair])
        return self.kernels.reduce.sum(copies, tuple(range(0, copies.ndim, 2)), False).reshape(self.shape)


class Pad(_OfGradient):
    """y = x with borders of a constant;  dx = dy without the borders (where a border is negative: with zeros)."""

    moved = attrgetter("movement.pad")

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
