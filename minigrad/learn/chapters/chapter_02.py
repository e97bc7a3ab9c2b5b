"""Chapter 2: gradients. Reverse mode on numbers, then on tensors, and a store for what comes out."""

import itertools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .chapter_01 import unbroadcast

Array: TypeAlias = npt.NDArray[Any]
COUNT = itertools.count()  # numbers everything in the order in which it was made


class Number:
    """A number that remembers what it was computed from.

    ``inputs`` are pairs: a number that went in, and the derivative of this number by that one.
    """

    def __init__(self, value: float, *inputs: tuple["Number", float]) -> None:
        self.value = value
        self.inputs: tuple[tuple[Number, float], ...] = inputs
        self.number: int = next(COUNT)

    def parents(self) -> list["Number"]:
        """The numbers that went in."""
        return [parent for parent, _ in self.inputs]

    def __add__(self, other: "Number") -> "Number":
        """z = x + y: the derivative of z by x is 1, and by y is 1."""
        return Number(self.value + other.value, (self, 1.0), (other, 1.0))

    def __mul__(self, other: "Number") -> "Number":
        """z = x y: a Number with both inputs, each with the derivative of z by it."""
        return Number(self.value * other.value, (self, other.value), (other, self.value))

    def tanh(self) -> "Number":
        """z = tanh x, whose derivative is 1 - z². ``math.tanh`` computes it."""
        z = math.tanh(self.value)
        return Number(z, (self, 1.0 - z * z))


def newest_first(end: Any) -> list[Any]:
    """``end`` and everything below it (its parents, their parents, ...), each once, the highest ``number`` first.

    It works for everything that has ``parents()`` and ``number``. It uses a list of what is still to be visited, and no
    function that calls itself: a chain may be longer than Python's stack.
    """
    found = {end.number: end}  # given
    waiting = [end]  # given
    while waiting:
        for parent in waiting.pop().parents():
            if parent.number not in found:
                found[parent.number] = parent
                waiting.append(parent)
    return [found[number] for number in sorted(found, reverse=True)]


def derivatives(end: Number) -> dict[Number, float]:
    """The derivative of ``end`` by every number below it, and by itself, which is 1.0."""
    found = dict.fromkeys(newest_first(end), 0.0)  # given
    found[end] = 1.0  # given
    for vertex in found:
        for parent, slope in vertex.inputs:
            found[parent] += slope * found[vertex]
    return found  # given


class Tensor:
    """An array, and the operation that made it, if it needs gradients."""

    def __init__(self, data: Any, requires_grad: bool = False, node: "Op | None" = None) -> None:
        self.data: Array = np.asarray(data)
        self.requires_grad = requires_grad
        self.node = node
        self.number: int = next(COUNT)

    def parents(self) -> list["Tensor"]:
        """The tensors that went into the operation and need gradients."""
        return [] if self.node is None else [x for x in self.node.inputs if x.requires_grad]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.data.shape

    def __add__(self, other: Any) -> "Tensor":
        return Add()(self, other)

    def __mul__(self, other: Any) -> "Tensor":
        return Mul()(self, other)

    def __matmul__(self, other: Any) -> "Tensor":
        return MatMul()(self, other)

    def __sub__(self, other: Any) -> "Tensor":
        return self + (other if isinstance(other, Tensor) else Tensor(other)) * -1.0

    def sum(self, axis: int | None = None, keepdims: bool = False) -> "Tensor":
        """The sum over an axis, or over all."""
        return Sum(axis, keepdims)(self)

    def mean(self) -> "Tensor":
        """The mean of all elements."""
        return self.sum() * (1.0 / self.data.size)

    def tanh(self) -> "Tensor":
        """tanh of each element."""
        return Tanh()(self)

    def reshape(self, *shape: int) -> "Tensor":
        """The same elements in another shape."""
        return Reshape(shape)(self)

    def transpose(self, *axes: int) -> "Tensor":
        """The axes in another order."""
        return Transpose(axes)(self)


class Op:
    """An operation, and its place in the graph: ``inputs`` are the tensors that it was called with.

    ``forward`` takes arrays and returns one. ``backward`` takes the gradient of that result, and returns the gradients
    of the inputs: an array, or a tuple with one for each input.
    """

    inputs: tuple[Tensor, ...] = ()

    forward: Callable[..., Array]
    backward: Callable[..., Any]

    def __call__(self, *inputs: Any) -> Tensor:
        """Compute, and remember this call if an input needs gradients."""
        dtype = next(x.data.dtype for x in inputs if isinstance(x, Tensor))
        tensors = [x if isinstance(x, Tensor) else Tensor(np.asarray(x, dtype)) for x in inputs]
        result = Tensor(self.forward(*[x.data for x in tensors]))
        if any(x.requires_grad for x in tensors):
            self.inputs = tuple(tensors)
            result.node, result.requires_grad = self, True
        return result


class Add(Op):
    """z = x + y."""

    def forward(self, x: Array, y: Array) -> Array:
        return x + y

    def backward(self, dz: Array) -> tuple[Array, Array]:
        return dz, dz


class Mul(Op):
    """z = x y, element by element."""

    def forward(self, x: Array, y: Array) -> Array:
        """The product. Keep in ``self`` what ``backward`` needs."""
        self.x, self.y = x, y
        return x * y  # given

    def backward(self, dz: Array) -> tuple[Array, Array]:
        """dx and dy for operands of one shape. What was broadcast is summed later, by ``backward`` below."""
        return self.y * dz, self.x * dz


class Sum(Op):
    """z = the sum of x over an axis, or over all elements if ``axis`` is None."""

    def __init__(self, axis: int | None, keepdims: bool) -> None:
        self.axis, self.keepdims = axis, keepdims

    def forward(self, x: Array) -> Array:
        """The sum; with ``keepdims``, the axis stays with length 1."""
        self.shape = x.shape
        return np.asarray(x.sum(axis=self.axis, keepdims=self.keepdims))

    def backward(self, dz: Array) -> Array:
        """dx: every element went into one sum, with weight 1, so it gets the gradient of that sum."""
        if self.axis is not None and not self.keepdims:
            dz = np.expand_dims(dz, self.axis)
        return np.broadcast_to(dz, self.shape)


class MatMul(Op):
    """z = x @ y for matrices, or for stacks of matrices: shapes (..., m, k) and (..., k, n)."""

    def forward(self, x: Array, y: Array) -> Array:
        """The product. Keep in ``self`` what ``backward`` needs."""
        self.x, self.y = x, y
        return x @ y  # given

    def backward(self, dz: Array) -> tuple[Array, Array]:
        """dx = dz yᵀ and dy = xᵀ dz, where ᵀ exchanges the last two axes."""
        return dz @ self.y.swapaxes(-1, -2), self.x.swapaxes(-1, -2) @ dz


class Tanh(Op):
    """z = tanh x."""

    def forward(self, x: Array) -> Array:
        """tanh of each element: ``np.tanh``. Keep z in ``self``."""
        self.z = np.tanh(x)
        return self.z  # given

    def backward(self, dz: Array) -> Array:
        """dx: tanh has the slope 1 - z²."""
        return (1.0 - self.z * self.z) * dz


class Reshape(Op):
    """z = the elements of x in another shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.new = shape

    def forward(self, x: Array) -> Array:
        self.old = x.shape
        return x.reshape(self.new)

    def backward(self, dz: Array) -> Array:
        return dz.reshape(self.old)


class Transpose(Op):
    """z = x with its axes in another order."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        self.axes = axes

    def forward(self, x: Array) -> Array:
        return x.transpose(self.axes)

    def backward(self, dz: Array) -> Array:
        return dz.transpose(np.argsort(self.axes))


class GradStore:
    """Gradients, by tensor: ``grads[weight]`` is an array of the shape of ``weight``."""

    def __init__(self) -> None:
        self.grads: dict[int, Array] = {}

    def __getitem__(self, tensor: Tensor) -> Array:
        return self.grads[tensor.number]

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.number in self.grads

    def pop(self, tensor: Tensor) -> Array:
        """Take a gradient out. KeyError if there is none."""
        if tensor not in self:
            raise KeyError(f"tensor {tensor.number} has no gradient: it comes before what was made from it, or twice")
        return self.grads.pop(tensor.number)

    def add(self, tensor: Tensor, grad: Array) -> None:
        """Add to the gradient of a tensor.

        The first one is copied, so that the store shares memory with nobody. (Use ``np.array``, which also makes an
        array of a single number.) Later ones are added to it in place.
        ValueError if ``grad`` has not the shape of the tensor.
        """
        if grad.shape != tensor.shape:  # given
            raise ValueError(f"a gradient of shape {grad.shape} for a tensor of shape {tensor.shape}")  # given
        first = self.grads.get(tensor.number)
        if first is None:
            self.grads[tensor.number] = np.array(grad)
        else:
            first += grad


def backward(loss: Tensor) -> GradStore:
    """The gradients of a loss, a tensor of shape ``()``, by the leaves below it: the tensors that no operation made.

    ``newest_first`` gives the order, a GradStore the sums. An operation's ``backward`` may return one array or a tuple.
    A gradient that is larger than its tensor, because the tensor was broadcast, is summed by ``unbroadcast``.
    ValueError if the loss has another shape.
    """
    if loss.shape != ():  # given
        raise ValueError(f"backward starts at a single number, not at a tensor of shape {loss.shape}")  # given
    flowing, leaves = GradStore(), GradStore()  # given
    flowing.add(loss, np.ones_like(loss.data))  # given
    for tensor in newest_first(loss):
        grad = flowing.pop(tensor)
        if tensor.node is None:
            leaves.add(tensor, grad)
            continue
        found = tensor.node.backward(grad)
        for x, dx in zip(tensor.node.inputs, found if isinstance(found, tuple) else (found,)):
            if x.requires_grad:
                flowing.add(x, unbroadcast(dx, x.shape))
    return leaves  # given
