"""The cross-entropy of z = x W^T and its gradients: x (N, C), W (M, C), targets (N,).

The logits z are made in chunks of rows of ``CHUNK_BYTES``. Where a gradient is wanted, each chunk becomes dz in place.
It is used at once for dx = dz W and dW += dz^T x, in float32 at least. Backward divides by the number of targets: so
the host need not know it, and a step can be captured. float16 is rounded after the scale of the loss.
"""

from typing import Any

import numpy as np

from . import cross_entropy, elementwise, linear, matmul, movement
from .platform.array import Array, full
from .products.choose import HALVES

CHUNK_BYTES = 512 << 20  # of logits that exist at a time; each chunk reads and writes all of dW once more
FLOAT16_FACTOR = 64.0  # dz of float16 are so many times as large: that of an improbable class stays a normal number


def forward(
    x: Array, weight: Array, targets: Array, ignore_index: int, divisor: Any, needs: tuple[bool, bool]
) -> tuple[Array, Array | None, Array | None]:
    """x (N, C), weight (M, C), targets (N,) int64 (checked), N > 0 -> the losses (N,), and what ``backward`` makes both
    gradients of. These are dx (N, C) and dweight (M, C); None stands for what ``needs`` does not ask for.
    """
    cast, half = elementwise.cast, x.dtype if x.dtype.name in HALVES else None
    if half is not None and not matmul.supports_half(x):
        x, weight, half = cast(x, np.dtype(np.float32)), cast(weight, np.dtype(np.float32)), None
    real, (rows, classes) = np.dtype(np.float32) if half is not None else x.dtype, (x.shape[0], weight.shape[0])
    step = max(1, CHUNK_BYTES // max(1, classes * real.itemsize))
    step = -(-rows // -(-rows // step))  # chunks of like sizes
    options = ignore_index, 0.0, None
    losses: list[Array] = []
    parts: list[Any] = []
    dweight = full(weight.shape, 0.0, real) if needs[1] and half is not None else None
    for start in range(0, rows, step):
        part, labels = (x, targets) if rows <= step else (x[start : start + step], targets[start : start + step])
        logits = linear.forward(part, weight)
        logits = logits if half is None else cast(logits, real)
        if True not in needs:
            losses.append(cross_entropy.forward(logits, labels, options)[0])
            continue
        dlosses = full((part.shape[0],), _unit(half), real)
        found, _, dlogits = cross_entropy.forward_backward(dlosses, logits, labels, options, dlogits=logits)
        losses.append(found)
        del logits
        dlogits = dlogits if half is None else cast(dlogits, half)
        dpart, first, _ = linear.backward(dlogits, part, weight, (needs[0], needs[1] and dweight is None, False))
        if needs[1] and dweight is not None:
            linear.add_weight_gradient(dweight, dlogits, part)
        dweight = dweight if first is None else first
        parts.append(dpart)
        del dlogits  # before the next chunk's
    return _joined(losses), _joined(parts) if needs[0] else None, dweight


def backward(
    dloss: Array, x: Array, dx: Array | None, dweight: Array | None, divisor: Any
) -> tuple[Array | None, Array | None]:
    """What ``forward`` made of x, times dloss () and divided by ``divisor``: dx and dweight."""
    unit = _unit(x.dtype if matmul.supports_half(x) else None)
    divisor = max(divisor, 1.0) if isinstance(divisor, float) else elementwise.maximum(divisor, 1.0)  # 0: dz is 0
    factor = elementwise.div(elementwise.div(dloss, unit), divisor)
    return _times(dx, factor), _times(dweight, factor)


def _unit(half: Any) -> float:
    """The gradient of each row's loss, as dz of this half dtype, or None, has it."""
    return FLOAT16_FACTOR if half == np.float16 else 1.0


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else movement.cat(tuple(parts), 0)


def _times(x: Array | None, factor: Array) -> Array | None:
    if x is None:
        return None
    return elementwise.mul(x if x.dtype == factor.dtype else elementwise.cast(x, factor.dtype), factor)
