"""A matrix product as all engines take it: the record ``Problem``.

``choose.py`` picks the engine. It computes ``y = a b`` and the epilogue. For each element s of the product, the
epilogue's steps come in this order, with one array ``other`` for all but the first:

    BIAS   s += bias[column]
    GELU   other = s;  s = gelu(s), the one of "tanh"
    SLOPE  s *= gelu'(other)
    ADD    s += other, which may be y itself

A product has at most one of the last three steps.
"""

from typing import NamedTuple

import numpy as np

from ..platform.array import Array, expand, merged

BIAS, ADD, GELU, SLOPE = 1, 2, 4, 8  # bits of an epilogue


class Problem(NamedTuple):
    """Arrays with the same leading dimensions: a (..., M, K), b (..., K, N) of any strides, y (..., M, N) C-contiguous.

    bias (N,) and other, of y's shape and dtype, are C-contiguous. ``sizes`` is (M, N, K), ``matrices`` how many there
    are, ``batch`` their leading dimensions, merged. ``words`` is what all product kernels take after the arrays.
    It is right for two leading dimensions at most; ``choose.py`` takes products of more apart.
    """

    y: Array
    a: Array
    b: Array
    bias: Array | None
    other: Array | None
    epilogue: int
    sizes: tuple[int, int, int]
    matrices: int
    batch: list[tuple[int, ...]]  # size, step of a, step of b
    words: tuple[int, ...]

    def part(self, index: int | slice) -> "Problem":
        """The product at an index of the first leading dimension; of rows, where there is none."""
        y, a, b, bias, other, epilogue, *_ = self
        b = b if y.ndim == 2 else b[index]
        return problem(y[index], a[index], b, bias, None if other is None else other[index], epilogue)


def problem(
    y: Array, a: Array, b: Array, bias: Array | None = None, other: Array | None = None, epilogue: int = 0
) -> Problem:
    """The record of a product. Where one matrix b is for all rows of a, and these follow on one another, y, a and b
    have no leading dimensions.
    """
    if y.ndim > 2 and y.size and not any(step for n, step in zip(b.shape[:-2], b.steps) if n > 1):
        rows = merged(zip(y.shape[:-1], a.steps))
        if len(rows) < 2:
            count, step = rows[0] if rows else (1, a.shape[-1])
            y, other = (x if x is None else x.reshape(count, y.shape[-1]) for x in (y, other))  # type: ignore[assignment]
            a = a.view((count, a.shape[-1]), (step * a.itemsize, a.strides[-1]))
            b = b.view(b.shape[-2:], b.strides[-2:])
    M, N = y.shape[-2:]
    batch = merged(zip(y.shape[:-2], a.steps, b.steps)) if y.ndim > 2 else []
    _, *outer = batch[-2] if len(batch) == 2 else (1, 0, 0)
    inner, *steps = batch[-1] if batch else (1, 0, 0)
    sizes, matrices = (M, N, a.shape[-1]), y.size // max(1, M * N)
    words = *sizes, *a.steps[-2:], *b.steps[-2:], inner, outer[0], steps[0], outer[1], steps[1]
    return Problem(y, a, b, bias, other, epilogue, sizes, matrices, batch, words)


def broadcast(a: Array, b: Array) -> tuple[Array, Array, tuple[int, ...]]:
    """a and b with the same leading dimensions, and the shape of their product. ValueError if they have none."""
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        expected = "(..., M, K) and (..., K, N) with the same K and broadcastable leading dimensions"
        raise ValueError(f"matmul of {a.shape} and {b.shape}: expected {expected}")
    if a.ndim + b.ndim == 4:
        return a, b, (a.shape[0], b.shape[1])
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (x if x.shape[:-2] == batch else expand(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return a, b, (*batch, a.shape[-2], b.shape[-1])
