"""Chapter 1: arrays. One row of memory, and the numbers that make it a matrix, a slice, a picture that is turned."""

import itertools
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Shape: TypeAlias = tuple[int, ...]


def row_major(shape: Shape) -> Shape:
    """The strides of an array that lies in memory row by row, in elements: the last axis has stride 1.

    ``row_major((2, 3))`` is ``(3, 1)``: one row further is 3 elements further.
    """
    strides: list[int] = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


@dataclass(frozen=True)
class View:
    """An array that owns nothing: a row of memory, and how to walk through it.

    Element ``(i, j)`` stands at ``memory[start + i * strides[0] + j * strides[1]]``.
    """

    memory: list[Any]
    shape: Shape
    strides: Shape
    start: int = 0

    def tolist(self) -> Any:
        """The elements as nested lists, one level for each axis; without axes, the one element.

        ``View(list("abcdef"), (2, 3), (3, 1)).tolist()`` is ``[["a", "b", "c"], ["d", "e", "f"]]``.
        """
        if not self.shape:
            return self.memory[self.start]
        starts = [self.start + i * self.strides[0] for i in range(self.shape[0])]
        return [View(self.memory, self.shape[1:], self.strides[1:], start).tolist() for start in starts]


def at(view: View, index: Shape) -> Any:
    """The element at an index with one number for each axis. A negative number counts from the end of its axis.

    IndexError if a number is outside of its axis.
    """
    place = view.start
    for i, length, stride in zip(index, view.shape, view.strides):
        if not -length <= i < length:
            raise IndexError(f"{i} is outside of an axis of length {length}")
        place += (i % length) * stride
    return view.memory[place]


def transposed(view: View, axes: Shape) -> View:
    """The view with its axes in another order: axis k of the result is axis ``axes[k]`` of the view. Nothing moves."""
    return replace(view, shape=tuple(view.shape[a] for a in axes), strides=tuple(view.strides[a] for a in axes))


def sliced(view: View, axis: int, first: int, step: int) -> View:
    """Every ``step``-th place along an axis, beginning at ``first``: NumPy's ``x[first::step]`` for that axis.

    ``step`` may be negative: then it walks backwards, as far as place 0. ``first`` is from 0 to the length minus 1.
    """
    length = view.shape[axis] - first if step > 0 else first + 1
    shape, strides = list(view.shape), list(view.strides)
    shape[axis] = -(-length // abs(step))
    strides[axis] *= step
    return View(view.memory, tuple(shape), tuple(strides), view.start + first * view.strides[axis])


def broadcast_shape(a: Shape, b: Shape) -> Shape:
    """The shape of the result of an operation on arrays of shapes ``a`` and ``b``.

    The shapes are compared from the right; a missing axis counts as length 1. Two lengths fit if they are equal, or one
    of them is 1: then the result has the other. ValueError if they do not fit.
    """
    found = []
    for x, y in itertools.zip_longest(reversed(a), reversed(b), fillvalue=1):
        if x != y and 1 not in (x, y):
            raise ValueError(f"shapes {a} and {b} do not fit: {x} and {y}")
        found.append(y if x == 1 else x)
    return tuple(reversed(found))


def broadcast(view: View, shape: Shape) -> View:
    """The view, repeated so that it has the larger shape, without a copy: a repeated axis has stride 0.

    ValueError if the view cannot be repeated to that shape.
    """
    if broadcast_shape(view.shape, shape) != shape:
        raise ValueError(f"{view.shape} cannot be broadcast to {shape}")
    missing = len(shape) - len(view.shape)
    strides = [0] * missing + [s if n == m else 0 for s, n, m in zip(view.strides, view.shape, shape[missing:])]
    return View(view.memory, shape, tuple(strides), view.start)


def unbroadcast(gradient: Array, shape: Shape) -> Array:
    """The way back from a broadcast, for gradients: sum a NumPy array over all axes that were repeated.

    ``shape`` is the shape before the broadcast, and the shape of the result. An element that was used many times gets
    the sum over all its uses.
    """
    missing = gradient.ndim - len(shape)
    repeated = [k for k in range(gradient.ndim) if k < missing or shape[k - missing] != gradient.shape[k]]
    return gradient.sum(axis=tuple(repeated)).reshape(shape)
