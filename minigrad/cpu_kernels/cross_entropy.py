"""Cross-entropy of logits x (N, C) and class indices t (N,), log-softmax and negative log-likelihood in one pass.

With p = softmax(x), lse = log(sum(exp(x))), class weights w (1 without), a = label_smoothing, W = sum(w), for each row:

    loss  = (1 - a) w_t (lse - x_t) + a / C sum_c w_c (lse - x_c)
    dx_c  = dloss (((1 - a) w_t + a W / C) p_c - a w_c / C - (1 - a) w_t [c = t])

Rows whose target is ``ignore_index`` have loss 0 and gradient 0 (0 also where the logits are NaN). Other rows treat NaN
and infinities as PyTorch does. Backward computes the probabilities again from lse; nothing of size (N, C) is stored.
``forward_backward`` is both in one pass, for losses whose gradient is known before.
The reductions (mean divides by the sum of w_t) are the caller's.

Sources: torch.nn.functional.cross_entropy; Szegedy et al., "Rethinking the Inception architecture for computer vision"
(2016) for label smoothing.
"""

import math

import numpy as np

from ..plain_kernels.losses import Options, cross_entropy as plain
from .embedding import check_indices
from .softmax import row_max
from .toolbox.jit import inline
from .toolbox.register_tile import whole_vectors
from .toolbox.threads import shares, task_kernel, tasks_of_rows
from .toolbox.vector_math import POWERS, SUM_BLOCK, exp_nonpositive, folded

TASK_ELEMENTS = 16384  # rows of about this many elements are one task
# Rows of so many elements get their maxima in a loop of its own: short rows overlap in the processor instead of waiting
# for their maximum, and are still in the L1 cache when their exponentials follow.
MAXIMA_TOGETHER = 4096


@inline
def _spread(x, top, class_weight):
    """The sums over all classes of w_c, and of w_c (top - x_c)."""
    total, below = x.dtype.type(x.shape[0]), x.dtype.type(0)
    if class_weight.shape[0] > 0:
        total = x.dtype.type(0)
        for j in range(x.shape[0]):
            total += class_weight[j]
            below += class_weight[j] * (top - x[j])
    else:
        for j in range(x.shape[0]):
            below += top - x[j]
    return total, below


@task_kernel
def _forward(task, tasks, x, targets, ignore_index, smoothing, class_weight, losses, lse):
    """class_weight (C,), or (0,) for none."""
    real = x.dtype.type
    a, b = task * x.shape[0] // tasks, (task + 1) * x.shape[0] // tasks
    x, targets, losses, lse = x[a:b], targets[a:b], losses[a:b], lse[a:b]
    N, C = x.shape
    weighted = class_weight.shape[0] > 0
    for i in range(N):  # a loop of its own: short rows overlap in the processor instead of waiting for their maximum
        lse[i] = row_max(x[i])
    for i in range(N):
        xi = x[i]
        m = lse[i]
        log_s = real(math.log(folded(POWERS, xi, xi, m)))
        lse[i] = m + log_s
        target = targets[i]
        if target == ignore_index:
            losses[i] = real(0)
            continue
        loss = m - xi[target] + log_s
        if weighted:
            loss *= class_weight[target]
        if smoothing > 0:
            total_weight, below = _spread(xi, m, class_weight)
            spread = below + total_weight * log_s
            loss = (real(1) - real(smoothing)) * loss + real(smoothing) / real(C) * spread
        losses[i] = loss


@task_kernel
def _backward(task, tasks, dlosses, x, lse, targets, ignore_index, smoothing, class_weight, dx):
    real = x.dtype.type
    N, C = x.shape
    weighted = class_weight.shape[0] > 0
    share = real(smoothing) / real(C)
    total_weight = real(0)
    for i in range(task * N // tasks, (task + 1) * N // tasks):
        xi, dxi = x[i], dx[i]
        target = targets[i]
        if target == ignore_index:
            dxi[:] = real(0)
            continue
        on_target = dlosses[i] * (real(1) - real(smoothing))
        if weighted:
            on_target *= class_weight[target]
        spread = dlosses[i] * share
        if smoothing > 0:
            total_weight, _ = _spread(xi, real(0), class_weight)
        scale = on_target + spread * total_weight
        log_sum = lse[i]
        if weighted and smoothing > 0:
            for j in range(C):
                dxi[j] = scale * exp_nonpositive(xi[j] - log_sum) - spread * class_weight[j]
        else:
            for j in range(C):
                dxi[j] = scale * exp_nonpositive(xi[j] - log_sum) - spread
        dxi[target] -= on_target


@task_kernel
def _fused(task, tasks, dlosses, logits, x, targets, ignore_index, smoothing, class_weight, losses, lse):
    """Forward and backward with one exponential for each logit; x, a copy of them if it is not they, their gradient.

    Of two arrays that may be the same loops would check for overlap when they run, and be scalar then.
    """
    whole_vectors()
    real = x.dtype.type
    a, b = task * x.shape[0] // tasks, (task + 1) * x.shape[0] // tasks
    if logits.ctypes.data != x.ctypes.data:
        for i in range(a, b):
            source, copy = logits[i], x[i]
            for j in range(source.shape[0]):
                copy[j] = source[j]
    dlosses, x, targets, losses, lse = dlosses[a:b], x[a:b], targets[a:b], losses[a:b], lse[a:b]
    N, C = x.shape
    weighted = class_weight.shape[0] > 0
    share = real(smoothing) / real(C)
    total_weight, spread_below = real(0), real(0)
    together = max(1, MAXIMA_TOGETHER // C)
    for i in range(N):
        if i % together == 0:
            for k in range(i, min(N, i + together)):
                lse[k] = row_max(x[k])
        xi, m, target = x[i], lse[i], targets[i]
        kept = target != ignore_index
        below = m - xi[target] if kept else real(0)
        if smoothing > 0:
            total_weight, spread_below = _spread(xi, m, class_weight)
        s = real(0)
        for start in range(0, C, SUM_BLOCK):
            block, part = xi[start : start + SUM_BLOCK], real(0)
            for j in range(block.shape[0]):
                e = exp_nonpositive(block[j] - m)
                block[j] = e
                part += e
            s += part
        log_s = real(math.log(s))
        lse[i] = m + log_s
        if not kept:
            losses[i] = real(0)
            xi[:] = real(0)
            continue
        on_target = real(1) - real(smoothing)
        if weighted:
            on_target *= class_weight[target]
        losses[i] = on_target * (below + log_s)
        if smoothing > 0:
            losses[i] += share * (spread_below + total_weight * log_s)
        on_target *= dlosses[i]
        spread = dlosses[i] * share
        scale = (on_target + spread * total_weight) / s
        if weighted and smoothing > 0:
            for j in range(C):
                xi[j] = scale * xi[j] - spread * class_weight[j]
        else:
            for j in range(C):
                xi[j] = scale * xi[j] - spread
        xi[target] -= on_target


def check_targets(targets: np.ndarray, classes: int, ignore_index: int) -> int:
    """The first position whose target is neither in 0..classes - 1 nor ``ignore_index``, else -1; targets (N,) int64.

    ``forward`` and ``backward`` index with the targets unchecked: call this first.
    """
    return -1 if check_indices(targets, classes) < 0 else plain.check_targets(targets, classes, ignore_index)


def _arguments(targets: np.ndarray, options: Options, dtype: np.dtype) -> tuple[np.ndarray, int, float, np.ndarray]:
    ignore_index, label_smoothing, class_weight = options
    weight = np.empty(0, dtype) if class_weight is None else np.ascontiguousarray(class_weight, dtype)
    return np.ascontiguousarray(targets), int(ignore_index), float(label_smoothing), weight


def forward(logits: np.ndarray, targets: np.ndarray, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """logits (N, C) float32 or float64, targets (N,) int64 (checked) -> losses (N,), lse (N,)."""
    N, C = logits.shape
    losses, lse = np.empty(N, logits.dtype), np.empty(N, logits.dtype)
    given = np.ascontiguousarray(logits), *_arguments(targets, options, logits.dtype), losses, lse
    _forward.launch(logits.dtype, tasks_of_rows(N, C, TASK_ELEMENTS), *given)
    return losses, lse


def backward(
    dlosses: np.ndarray, logits: np.ndarray, targets: np.ndarray, lse: np.ndarray, options: Options
) -> np.ndarray:
    """dlosses (N,), the gradient of each row's loss, and the inputs and lse of ``forward`` -> dlogits (N, C)."""
    N, C = logits.shape
    dlogits = np.empty((N, C), logits.dtype)
    rows = (np.ascontiguousarray(x, logits.dtype) for x in (dlosses, logits, lse))
    given = *rows, *_arguments(targets, options, logits.dtype), dlogits
    _backward.launch(logits.dtype, tasks_of_rows(N, C, TASK_ELEMENTS), *given)
    return dlogits


def forward_backward(
    dlosses: np.ndarray, logits: np.ndarray, targets: np.ndarray, options: Options, dlogits: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``forward`` and ``backward`` in one pass over the logits -> losses (N,), lse (N,), dlogits (N, C).

    ``dlosses`` (N,) must be known before: 1 for the sum, 1 / N for the mean. ``dlogits`` (contiguous, of logits' shape
    and dtype) receives the gradient; it may be ``logits``.
    """
    N, C = logits.shape
    losses, lse = np.empty(N, logits.dtype), np.empty(N, logits.dtype)
    dx = np.empty((N, C), logits.dtype) if dlogits is None else dlogits
    if dx.shape != logits.shape or dx.dtype != logits.dtype or not dx.flags.c_contiguous:
        raise ValueError(
            f"dlogits must be a contiguous {logits.dtype} array of shape {logits.shape}, got {dx.dtype} {dx.shape}"
        )
    dlosses, logits = np.ascontiguousarray(dlosses), np.ascontiguousarray(logits)
    given = dlosses, logits, dx, *_arguments(targets, options, logits.dtype), losses, lse
    _fused.launch(dx.dtype, min(N, shares(dx.size)), *given)
    return losses, lse, dx
