"""The cross-entropy of z = x W^T and its gradients, on rows that stay with one core:

    rows       z = x W^T, losses and dz in the place of z, dx = dz W
    weights    dW = dz^T x

One launch with one wait, where the operations one by one are three to five launches, which costs more than small
products do. Each stage calls the kernel that ``linear`` and ``cross_entropy`` launch, at its address, so it is the same
machine code, and all bits are those of the single operations.
"""

from __future__ import annotations

import numpy as np

from . import cross_entropy, linear, threads
from .linear import _PAIRS, _product_rows, _weight_gradient
from .matmul import NO_BIAS
from .product_loops import PARALLEL_WORK, THIN_ROWS, grid_of
from .register_tile import TILE_BYTES
from .task_pool import call_at, step_of, task_kernel

_fused_rows = cross_entropy._fused_rows


@task_kernel
def _steps(
    task, tasks, addresses, ignore_index, x, weight, targets, dlosses, losses, lse, dlogits, dx, dweight, longest, grid,
    none, no_bias, no_weights, pairs,
):  # fmt: skip
    product, fused = addresses
    step, task = step_of(task)
    failed, N = 0, x.shape[0]
    if step == 0:
        r, t = task * N // tasks, (task + 1) * N // tasks
        z = dlogits[r:t]
        failed += _product_rows(product, x[r:t], weight, True, no_bias, False, z, z, z, 0, none, no_bias, pairs)
        failed += call_at(
            fused, _fused_rows, (dlosses[r:t], z, targets[r:t], ignore_index, 0.0, no_weights, losses[r:t], lse[r:t])
        )
        rows = dx[r:t]
        failed += _product_rows(product, z, weight, False, no_bias, False, rows, rows, rows, 0, none, no_bias, pairs)
    else:
        failed += _weight_gradient(
            product, task, tasks, dlogits, x, dweight, no_bias, False, longest, grid, none, no_bias, pairs
        )
    if failed:
        raise MemoryError("no memory for the kernel's workspace")


# ---------------------------------------------------------------- launchers


def takes(x: np.ndarray, weight: np.ndarray) -> bool:
    """Whether `forward_backward` is for x (N, C) and weight (M, C): contiguous floats, no more classes than rows."""
    N, M = len(x), len(weight)
    return N >= M > THIN_ROWS and weight.shape[1] > THIN_ROWS and linear._plain(x, weight)


def forward_backward(
    x: np.ndarray, weight: np.ndarray, targets: np.ndarray, ignore_index: int, of_loss: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x (N, C), weight (M, C), targets (N,) int64 (checked) -> losses (N,), dx (N, C) and dweight (M, C).

    ``of_loss`` is the gradient of each row's loss.
    """
    (N, C), M, dtype = x.shape, len(weight), x.dtype
    count = threads.get_num_threads()
    if N * M * C * 3 < PARALLEL_WORK or N // count <= THIN_ROWS:
        count = 1
    grid = _PAIRS[1] if count == 1 else grid_of(1, M, C, TILE_BYTES // dtype.itemsize, count)
    losses, lse, dlosses = np.empty(N, dtype), np.empty(N, dtype), np.empty(N, dtype)
    dlosses.fill(of_loss)
    dlogits, dx, dweight = np.empty((N, M), dtype), np.empty((N, C), dtype), np.empty((M, C), dtype)
    no_bias, none = NO_BIAS[dtype.char], linear.EMPTY[dtype.char]
    product = linear._products.address(
        dtype,
        (x, weight, True, no_bias, False, dlogits, dlogits, dlogits, 0, grid, none, none, no_bias, False, False, 1,
         grid),
    )  # fmt: skip
    bound = _steps.bind(
        dtype, (product, cross_entropy._fused_address(dtype)), int(ignore_index), x, weight,
        np.ascontiguousarray(targets), dlosses, losses, lse, dlogits, dx, dweight, linear._depth_block(N, M, C), grid,
        none, no_bias, np.empty(0, dtype), _PAIRS,
    )  # fmt: skip
    bound.run(np.array((count, count)), count > 1)
    return losses, dx, dweight
