"""The cross-entropy of z = x W^T and its gradients: x (N, C), W (M, C), targets (N,).

The logits z are made in chunks of rows of ``CHUNK_BYTES``. Where a gradient is wanted, each chunk becomes dz in place
and is used at once for dx = dz W and dW += dz^T x.

A single chunk of no more classes than rows is two launches, the first on rows that stay with one core:

    rows       z = x W^T, losses and dz in the place of z, dx = dz W
    weights    dW = dz^T x, as ``linear`` does it

The operations one by one are three to five launches, which cost more than small products do. The first calls the
kernels that ``linear`` and ``cross_entropy`` launch, at their addresses, so all bits are those of single operations.
"""

from typing import Any

import numpy as np

from . import cross_entropy, grad_norm, linear
from .linear import _PAIRS, _product_rows
from .matmul import NO_BIAS
from .toolbox.product_loops import PARALLEL_WORK, THIN_ROWS
from .toolbox.threads import call_at, shares, task_kernel

CHUNK_BYTES = 256 << 20  # of logits that exist at a time
_fused_rows = cross_entropy._fused_rows


@task_kernel
def _divide(task, tasks, dlosses, divisor):
    count = np.float64(divisor[0])
    share = 1 / count if count != 0 else np.nan
    for i in range(dlosses.shape[0]):
        dlosses[i] = share


@task_kernel
def _rows(
    task, tasks, addresses, ignore_index, x, weight, targets, dlosses, losses, lse, dlogits, dx, none, no_bias,
    no_weights, pairs,
):  # fmt: skip
    product, fused = addresses
    products = product, none, no_bias, pairs
    r, t = task * x.shape[0] // tasks, (task + 1) * x.shape[0] // tasks
    z, rows = dlogits[r:t], dx[r:t]
    failed = _product_rows(products, x[r:t], weight, True, z)
    failed += call_at(
        fused, _fused_rows, (dlosses[r:t], z, targets[r:t], ignore_index, 0.0, no_weights, losses[r:t], lse[r:t])
    )
    failed += _product_rows(products, z, weight, False, rows)
    if failed:
        raise MemoryError("no memory for the kernel's workspace")


# ---------------------------------------------------------------- launchers


def forward(
    x: np.ndarray, weight: np.ndarray, targets: np.ndarray, ignore_index: int, divisor: Any, needs: tuple[bool, bool]
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """x (N, C), weight (M, C), targets (N,) int64 (checked), N > 0 -> the losses (N,), and the gradients of their sum /
    ``divisor``: dx (N, C) and dweight (M, C), None for what ``needs`` does not ask for. Half floats count as float32.
    """
    if x.dtype.itemsize == 2:
        x, weight = x.astype(np.float32), weight.astype(np.float32)
    rows, dlosses = len(x), np.empty(len(x), x.dtype)
    _divide.launch(x.dtype, 1, dlosses, np.asarray(divisor, x.dtype).reshape(1))
    step = max(1, CHUNK_BYTES // max(1, len(weight) * x.itemsize))
    step = -(-rows // -(-rows // step))  # chunks of like sizes
    if all(needs) and rows <= step and _in_one_launch(x, weight):
        return _in_two_steps(x, weight, targets, ignore_index, dlosses)
    options = ignore_index, 0.0, None
    losses: list[np.ndarray] = []
    parts: list[Any] = []
    dweight: np.ndarray | None = None
    for start in range(0, rows, step):
        here = slice(start, start + step)
        part, labels = x[here], targets[here]
        logits = linear.forward(part, weight)
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


def _in_one_launch(x: np.ndarray, weight: np.ndarray) -> bool:
    """Whether `_in_two_steps` is for x (N, C) and weight (M, C): contiguous floats, no more classes than rows."""
    N, M = len(x), len(weight)
    return N >= M > THIN_ROWS and weight.shape[1] > THIN_ROWS and linear._plain(x, weight)


def _in_two_steps(
    x: np.ndarray, weight: np.ndarray, targets: np.ndarray, ignore_index: int, dlosses: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """x (N, C), weight (M, C), targets (N,) int64 (checked) -> losses (N,), dx (N, C), dweight (M, C): two launches.

    ``dlosses`` (N,) are the gradients of the rows' losses.
    """
    (N, C), M, dtype = x.shape, len(weight), x.dtype
    count = min(shares(N * M * C * 3, PARALLEL_WORK), N // (THIN_ROWS + 1)) or 1  # no thin product
    losses, lse, dlogits, dx = np.empty(N, dtype), np.empty(N, dtype), np.empty((N, M), dtype), np.empty((N, C), dtype)
    addresses = linear.PRODUCTS.address(dtype), cross_entropy.FUSED_ROWS.address(dtype)
    _rows.launch(
        dtype, count, addresses, int(ignore_index), x, weight, np.ascontiguousarray(targets), dlosses, losses, lse,
        dlogits, dx, linear.EMPTY[dtype.char], NO_BIAS[dtype.char], np.empty(0, dtype), _PAIRS,
    )  # fmt: skip
    return losses, dx, linear.backward(dlogits, x, None, (False, True, False))[1]
