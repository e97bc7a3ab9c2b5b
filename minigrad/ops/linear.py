"""Linear layers, and what runs in one pass with them: a residual, the GELU between two layers, a loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..autograd import Deferred, Function
from ..dtypes import float16, float32, is_half

CHUNK_BYTES = 256 << 20  # of logits that exist at a time
DEVICE_CHUNK_BYTES = 512 << 20  # on a GPU, where each chunk reads and writes all of dW once more
FLOAT16_FACTOR = 64.0  # dz of float16 are so many times as large: that of an improbable class stays a normal number


def _rows(x: Any) -> Any:
    """(..., C) as a matrix."""
    return x if len(x.shape) == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])  # no -1: a size may be 0


class Linear(Function):
    """y = x W^T + b (+ r), W of shape (out, in);  dx = dy W, dW = dy^T x, db = sum of dy over the rows, dr = dy.

    Inputs are x, W, then b or None, then r; the last ones may be left out.
    """

    __slots__ = ("shape",)
    autocast = "half"
    half_kernels = "matmul"
    promotes = True
    shape: tuple[int, ...]

    def forward(self, x: Any, weight: Any, bias: Any = None, residual: Any = None) -> Any:
        self.shape = x.shape
        rows, needs = _rows(x), self.needs
        self.saved = (rows if needs[1] else None, weight if needs[0] else None)
        linear = self.kernels.linear
        if residual is None:
            y = linear.forward(rows, weight, bias)
        else:
            y = linear.forward(rows, weight, bias, _rows(residual))
        return y if len(x.shape) == 2 else y.reshape(*x.shape[:-1], weight.shape[0])

    def backward(self, dy: Any) -> Any:
        rows, weight = self.saved
        needs = self.needs
        dx, dweight, dbias = self.kernels.linear.backward(
            _rows(dy), rows, weight, (needs[0], needs[1], len(needs) > 2 and needs[2])
        )
        if dx is not None and len(self.shape) != 2:
            dx = dx.reshape(self.shape)
        return (dx, dweight, dbias, dy if len(needs) == 4 and needs[3] else None)[: len(needs)]


class FeedForward(Function):
    """y = g V^T + c (+ r) with g = gelu(h), h = x W^T + b;  dg = dy V, dV = dy^T g, dc = sum of dy over the rows,
    dh = dg gelu'(h), and dx, dW, db from dh as in ``Linear``; dr = dy.

    Of the two matrices of the hidden size only h is kept: backward has g from the exponential that gelu' needs.
    """

    __slots__ = ("approximate", "shape")
    autocast = "half"
    half_kernels = "matmul"
    promotes = True
    approximate: str
    shape: tuple[int, ...]

    def forward(
        self, x: Any, weight: Any, bias: Any, weight2: Any, bias2: Any, residual: Any = None, *, approximate: str
    ) -> Any:
        self.approximate, self.shape = approximate, x.shape
        linear, rows = self.kernels.linear, _rows(x)
        if True in self.needs:
            activation, before = linear.forward_gelu(rows, weight, bias, approximate)
            self.saved = (rows, weight, before, weight2)
        else:
            activation, _ = linear.forward_gelu(rows, weight, bias, approximate)
        y = linear.forward(activation, weight2, bias2, None if residual is None else _rows(residual))
        return y.reshape(*x.shape[:-1], weight2.shape[0])

    def backward(self, dy: Any) -> Any:
        rows, weight, before, weight2 = self.saved
        needs, linear = self.needs, self.kernels.linear
        dy_rows = _rows(dy)
        dbefore, activation = linear.backward_gelu(dy_rows, weight2, before, self.approximate)
        _, dweight2, dbias2 = linear.backward(dy_rows, activation, None, (False, needs[3], needs[4]))
        dx, dweight, dbias = linear.backward(dbefore, rows, weight, needs[:3])
        dx = None if dx is None else dx.reshape(self.shape)
        return (dx, dweight, dbias, dweight2, dbias2, dy)[: len(needs)]


class LinearCrossEntropy(Function):
    """loss = sum of the cross-entropies of z = x W^T, divided by ``divisor``;  dx = dz W, dW = dz^T x. x (..., in),
    W (classes, in), targets (...).

    The logits z are made in chunks of rows. Where a gradient is wanted, forward turns each chunk into dz in place and
    uses it at once, so no more than a chunk of either exists, and backward only multiplies with the loss's gradient.
    dW adds up in float32 at least. On the CPU dz is divided by ``divisor``; on a GPU backward does it, by values that
    the host does not wait for, so that it can be captured, and float16 is rounded after the scale of the loss.

    Source: Hsu et al., "Liger Kernel" (2024), FusedLinearCrossEntropy.
    """

    __slots__ = ("divisor", "ignore_index", "shape", "unit")
    widens = False  # half floats stay, where the products take them; the losses are float32
    shape: tuple[int, ...]
    ignore_index: int
    divisor: Any  # a number, or on a GPU also a 0-d array
    unit: float  # on a GPU: the gradient of each row's loss, as dz has it

    def forward(self, x: Any, weight: Any, targets: Any, *, ignore_index: int, divisor: Any) -> Any:
        self.ignore_index, self.divisor, self.shape = ignore_index, divisor, x.shape
        x, targets = _rows(x), targets.reshape(-1)
        loss, *gradients = self.compute(x, weight, targets)
        if True in self.needs:
            self.saved = (x, weight, targets, *gradients)
        return loss

    def compute(self, x: Any, weight: Any, targets: Any) -> tuple[Any, Any, Any]:
        """The loss, and its gradients of x and W, as far as they are wanted."""
        k, (of_x, of_weight, _) = self.kernels, self.needs
        cast, on_host = k.elementwise.cast, isinstance(x, np.ndarray)
        half = x.dtype if is_half(x.dtype) else None
        if half is not None and not k.matmul.takes_halves(x):
            x, weight, half = cast(x, float32), cast(weight, float32), None
        rows, classes = x.shape[0], weight.shape[0]
        real = float32 if half is not None else x.dtype
        self.unit = FLOAT16_FACTOR if half == float16 else 1.0
        of_loss = self.unit
        if on_host:
            of_loss = 1 / self.divisor if self.divisor else math.nan
        step = max(1, (CHUNK_BYTES if on_host else DEVICE_CHUNK_BYTES) // max(1, classes * real.itemsize))
        if rows > step:
            step = -(-rows // -(-rows // step))  # chunks of like sizes
        if on_host and of_x and of_weight and rows <= step and k.linear_cross_entropy.takes(x, weight):
            found, dx, dweight = k.linear_cross_entropy.forward_backward(x, weight, targets, self.ignore_index, of_loss)
            return k.elementwise.div(k.reduce.sum(found, (0,), False), self.divisor), dx, dweight
        options = (self.ignore_index, 0.0, None)
        losses: list[Any] = []
        parts: list[Any] = []
        dweight = k.full(weight.shape, 0.0, real) if of_weight and half is not None else None
        for start in range(0, rows, step):
            part, labels = (x, targets) if rows <= step else (x[start : start + step], targets[start : start + step])
            logits = k.linear.forward(part, weight)
            logits = logits if half is None else cast(logits, real)
            if not (of_x or of_weight):
                losses.append(k.cross_entropy.forward(logits, labels, *options)[0])
                continue
            dlosses = k.full((part.shape[0],), of_loss, real)
            found, _, dlogits = k.cross_entropy.forward_backward(dlosses, logits, labels, *options, dlogits=logits)
            losses.append(found)
            del logits
            dlogits = dlogits if half is None else cast(dlogits, half)
            dpart, first, _ = k.linear.backward(dlogits, part, weight, (of_x, of_weight and dweight is None, False))
            if of_weight and dweight is not None:
                k.linear.add_weight_gradient(dweight, dlogits, part)
            dweight = dweight if first is None else first
            parts.append(dpart)
            del dlogits
        total = k.reduce.sum(losses[0] if len(losses) == 1 else k.movement.cat(tuple(losses), 0), (0,), False)
        dx = parts[0] if len(parts) == 1 else k.movement.cat(tuple(parts), 0) if of_x and parts else None
        return k.elementwise.div(total, self.divisor), dx, dweight

    def backward(self, dloss: Any) -> Any:
        *inputs, dx, dweight = self.saved
        k = self.kernels
        if not isinstance(dloss, np.ndarray):
            divisor = self.divisor  # 0 where no row counts, and dz is 0
            divisor = max(divisor, 1.0) if isinstance(divisor, float) else k.elementwise.maximum(divisor, 1.0)
            factor = k.elementwise.div(k.elementwise.div(dloss, self.unit), divisor)
            return self._shaped(self._times(dx, factor)), self._times(dweight, factor), None
        # The gradients are handed over and nobody need copy them; a second backward has them computed again.
        handed_over: Any = _Recomputed(inputs)
        self.saved = handed_over
        factor = float(dloss)
        if factor != 1:
            k.grad_norm.scale_([x for x in (dx, dweight) if x is not None], factor)
        return self._shaped(dx), dweight, None

    def _shaped(self, dx: Any) -> Any:
        return dx if dx is None or len(self.shape) == 2 else dx.reshape(self.shape)

    def _times(self, x: Any, factor: Any) -> Any:
        if x is None:
            return None
        k = self.kernels
        return k.elementwise.mul(x if x.dtype == factor.dtype else k.elementwise.cast(x, factor.dtype), factor)


class _Recomputed(Deferred):
    """Stands for gradients that an earlier backward was given."""

    def __init__(self, inputs: list[Any]) -> None:
        self.inputs = inputs

    def restore(self, node: Any) -> None:
        _, *gradients = node.compute(*self.inputs)
        node.saved = (*self.inputs, *gradients)
