"""A matrix product as all engines take it: ``Product``, its leading dimensions, and where its operands lie.

An engine computes ``y = a b`` and the epilogue, for each element s of the product in this order:

    BIAS   s += bias[column]
    GELU   before = s;  s = gelu(s), the one of "tanh"
    SLOPE  s *= gelu'(before)
    ADD    s += residual, which may be y itself
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .array import DeviceArray

Merged = list[tuple[int, int, int]]  # of leading dimensions: size, step of a, step of b


class Product(NamedTuple):
    """Arrays with the same leading dimensions: a (..., M, K), b (..., K, N) of any strides, y (..., M, N) C-contiguous.

    ``epilogue`` has a bit for each step; bias (N,), residual and before (of y's shape and dtype) are None where no step
    needs them, and C-contiguous.
    """

    y: DeviceArray
    a: DeviceArray
    b: DeviceArray
    bias: DeviceArray | None = None
    residual: DeviceArray | None = None
    before: DeviceArray | None = None
    epilogue: int = 0

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(M, N, K)."""
        return self.y.shape[-2], self.y.shape[-1], self.a.shape[-1]

    def part(self, index: int | slice) -> Product:
        """The product at an index of the first leading dimension; of rows, where there is none."""
        y, a, b, bias, residual, before, epilogue = self
        return Product(
            y[index],
            a[index],
            b if y.ndim == 2 else b[index],
            bias,
            None if residual is None else residual[index],
            None if before is None else before[index],
            epilogue,
        )

    def needs(self, epilogue: int) -> bool:
        """Whether any of these steps is one of the epilogue's."""
        return self.epilogue & epilogue != 0


def broadcast(a: DeviceArray, b: DeviceArray) -> tuple[DeviceArray, DeviceArray, tuple[int, ...]]:
    """a and b with the same leading dimensions, and the shape of their product. ValueError if they have none."""
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul of {a.shape} and {b.shape}: expected (..., M, K) and (..., K, N) with the same K and "
            "broadcastable leading dimensions"
        )
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) if a.ndim + b.ndim > 4 else ()
    return expand(a, batch), expand(b, batch), (*batch, a.shape[-2], b.shape[-1])


def expand(x: DeviceArray, batch: tuple[int, ...]) -> DeviceArray:
    """A view with these leading dimensions, the steps of repeated ones 0."""
    leading = x.shape[:-2]
    if leading == batch:
        return x
    strides = [0 if n == 1 else stride for n, stride in zip(leading, x.strides)]
    padding = (0,) * (len(batch) - len(leading))
    return x.view((*batch, *x.shape[-2:]), (*padding, *strides, *x.strides[-2:]))


def flatten(p: Product) -> Product:
    """The leading dimensions as rows, where one matrix b is for all of them and the rows of a follow on one another."""
    y, a, b = p.y, p.a, p.b
    if y.ndim == 2 or any(step for n, step in zip(b.shape[:-2], b.steps) if n > 1):
        return p
    rows = merge(y.shape[:-1], a.steps, (0,) * (y.ndim - 1))
    if len(rows) > 1:
        return p
    count, step, _ = rows[0] if rows else (1, a.shape[-1], 0)
    shape = count, y.shape[-1]
    return p._replace(
        y=y.reshape(shape),
        a=a.view((count, a.shape[-1]), (step * a.itemsize, a.strides[-1])),
        b=b.view(b.shape[-2:], b.strides[-2:]),
        residual=None if p.residual is None else p.residual.reshape(shape),
        before=None if p.before is None else p.before.reshape(shape),
    )


def merge(shape: tuple[int, ...], a_steps: tuple[int, ...], b_steps: tuple[int, ...]) -> Merged:
    """Dimensions as few: neighbours of which the outer continues the inner are one; those of size 1 are none."""
    merged: Merged = []
    for n, a_step, b_step in zip(shape, a_steps, b_steps):
        if n == 1:
            continue
        if merged and merged[-1][1] == n * a_step and merged[-1][2] == n * b_step:
            merged[-1] = (merged[-1][0] * n, a_step, b_step)
        else:
            merged.append((n, a_step, b_step))
    return merged


def batches(p: Product, dimensions: int) -> Iterator[tuple[Product, Merged]]:
    """The product in parts whose leading dimensions merge to at most so many."""
    batch = merge(p.y.shape[:-2], p.a.steps, p.b.steps)
    if len(batch) <= dimensions:
        yield p, batch
    else:  # rare: leading dimensions that the operands share in no order
        for i in range(p.y.shape[0]):
            yield from batches(p.part(i), dimensions)


def arguments(p: Product, batch: Merged, epilogue: int) -> tuple[int, ...]:
    """What all product kernels take after the arrays; the batch of at most two dimensions."""
    _, a_outer, b_outer = batch[-2] if len(batch) == 2 else (1, 0, 0)
    inner, a_inner, b_inner = batch[-1] if batch else (1, 0, 0)
    return (*p.sizes, *p.a.steps[-2:], *p.b.steps[-2:], inner, a_outer, a_inner, b_outer, b_inner, epilogue)
