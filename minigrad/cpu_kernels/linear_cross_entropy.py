"""The cross-entropy of z = x W^T and its gradients: x (N, C), W (M, C), targets (N,).

The logits z are made in chunks of rows of ``CHUNK_BYTES``. Where a gradient is wanted, each chunk becomes dz in place
and is used at once for dx = dz W and dW += dz^T x.
"""

from typing import Any

import numpy as np

from . import cross_entropy, grad_norm, linear
from .elementwise import cast
from .matmul import product, supports_half
from .toolbox.formula import as_launches
from .toolbox.threads import task_kernel
from .toolbox.tracing import FLOAT32

CHUNK_BYTES = 256 << 20  # of logits that exist at a time


@task_kernel
def _divide(task, tasks, dlosses, divisor):
    count = np.float64(divisor[0])
    share = 1 / count if count != 0 else np.nan
    for i in range(dlosses.shape[0]):
        dlosses[i] = share


# ---------------------------------------------------------------- launchers


def forward(
    x: np.ndarray, weight: np.ndarray, targets: np.ndarray, ignore_index: int, divisor: Any, needs: tuple[bool, bool]
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """x (N, C), weight (M, C), targets (N,) int64 (checked), N > 0 -> the losses (N,), and the gradients of their sum /
    ``divisor``: dx (N, C) and dweight (M, C), None for what ``needs`` does not ask for. Half floats count as float32.
    """
    half = supports_half(x) and weight.dtype == x.dtype
    x, weight = (as_launches(cast)(a, FLOAT32) if a.itemsize == 2 else a for a in (x, weight))
    rows, dlosses = len(x), np.empty(len(x), x.dtype)
    _divide.launch(x.dtype, 1, dlosses, np.asarray(divisor, x.dtype).reshape(1))
    step = max(1, CHUNK_BYTES // max(1, len(weight) * x.itemsize))
    step = -(-rows // -(-rows // step))  # chunks of like sizes
    options = ignore_index, 0.0, None
    losses: list[np.ndarray] = []
    parts: list[Any] = []
    dweight: np.ndarray | None = None
    for start in range(0, rows, step):
        here = slice(start, start + step)
        part, labels = x[here], targets[here]
        logits = product(part, weight.T, None, True) if half else linear.forward(part, weight)
        if True not in needs:
            losses.append(cross_entropy.forward(logits, labels, options)[0])
            continue
        found, _, dlogits = cross_entropy.forward_backward(dlosses[here], logits, labels, options, dlogits=logits)
        dpart, first, _ = linear.backward(dlogits, part, weight, (needs[0], needs[1] and dweight is None, False))
        if dweight is not None:
            linear.add_weight_gradient(dweight, dlogits, part)
        dweight = dweight if first is None else first
        losses.append(found)
        parts.append(dpart)
        del logits, dlogits  # before the next chunk's
    return _joined(losses), _joined(parts) if needs[0] else None, dweight


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def backward(
    dloss: np.ndarray, x: np.ndarray, dx: np.ndarray | None, dweight: np.ndarray | None, divisor: float
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The gradients of ``forward``, which divided by ``divisor``, times dloss (): in place."""
    factor = float(dloss)
    if factor != 1:
        grad_norm.scale_([gradient for gradient in (dx, dweight) if gradient is not None], factor)
    return dx, dweight
