"""Cross-entropy of logits x (N, C) and class indices t (N,), log-softmax and negative log-likelihood in one pass.

With p = softmax(x), lse = log(sum(exp(x))), class weights w (1 without), a = label_smoothing, W = sum(w), for each row:

    loss  = (1 - a) w_t (lse - x_t) + a / C sum_c w_c (lse - x_c)
    dx_c  = dloss (((1 - a) w_t + a W / C) p_c - a w_c / C - (1 - a) w_t [c = t])

Rows whose target is ``ignore_index`` have loss 0 and gradient 0 (0 also where the logits are NaN). Other rows treat NaN
and infinities as PyTorch does. Forward reads the logits once (with smoothing a second time, mostly from the cache),
backward reads and writes them once. ``forward_backward`` does all of it in one pass: the row stays in shared memory
between the sum and the gradient, where it fits.

Sources: torch.nn.functional.cross_entropy; Szegedy et al., "Rethinking the Inception architecture for computer vision"
(2016) for label smoothing; Liger kernel for the gradient in the forward pass.
"""

from typing import Any

import numpy as np

from . import elementwise
from .platform import libcuda, memory
from .platform.toolbox import THREADS, Array, Kernel, contiguous, cuda, empty, kernel, math
from .rowwise.cross_entropy_row import row_passes
from .rowwise.fold import fold
from .rowwise.index_arrays import find_outside, harmless
from .rowwise.rows import aligned, ceil_div, power_of_two

Options = tuple[int, float, Array | None]  # ignore_index, label_smoothing, class_weight (C,)
LONG_ROW_THREADS = 1024  # threads for a row of more than LONG_ROW elements
LONG_ROW = 16384
SHARED = (16 << 10, 96 << 10, 200 << 10)  # bytes for a row: many blocks, two blocks, one block on a multiprocessor


def _kernel(real: Any, name: str, nbytes: int = 0, with_loss: bool = True, with_gradient: bool = True) -> Kernel:
    """``nbytes``: of shared memory for the row; 0: the gradient reads it again. Without the loss it takes lse."""
    word, passes = real.__name__, row_passes(real, nbytes > 0)
    exponentials, smoothing, gradient = passes.exponentials, passes.smoothing, passes.gradient

    @kernel(
        f"{word}* x2, int64*, {word}* x5, int64 x3, {word}, int32 x2",
        threads=LONG_ROW_THREADS, registers=64, vector_loads=True, shared_bytes=nbytes,
        resident=int(with_loss and with_gradient), name=f"{name}_{word}",
    )  # fmt: skip
    def cross_entropy(
        dlosses, x, targets, w, total_weight, loss_of, lse, dx, N, C, ignore_index, smooth, vectors, weighted
    ):
        """A warp or a block for each row; dx may be x. Without the gradient dlosses, total_weight and dx are unused."""
        partial = cuda.shared.array(32, real), cuda.shared.array(32, real)
        cache = cuda.shared.array(0, real, alignment=16)
        row = np.int64(cuda.blockIdx.x) * cuda.blockDim.y + cuda.threadIdx.y
        stop, target = np.int64(0), np.int64(-1)
        if row < N:
            stop = C
            if targets[row] != ignore_index:
                target = targets[row]
        weight, log_sum = real(1), real(0)
        if target >= 0 and weighted:
            weight = w[target]
        if with_loss:
            on_logit = x[row * C + target] if target >= 0 else real(0)  # before dx is written
            m, s = exponentials(x, row * C, stop, vectors, cache, partial)
            log_s = math.log(s)
            loss = (m - on_logit + log_s) * weight
            if smooth > real(0):
                spread = smoothing(x, row * C, stop, w, weighted, m, log_s, partial)
                loss = (real(1) - smooth) * loss + smooth / real(C) * spread
            log_sum = m + log_s
            if row < N and cuda.threadIdx.x == 0:
                loss_of[row] = loss if target >= 0 else real(0)
                lse[row] = log_sum
        elif row < N:
            log_sum = lse[row]
        if with_gradient and row < N:
            share = dlosses[row] * (smooth / real(C))
            on_target = dlosses[row] * (real(1) - smooth) * weight
            scale = on_target + share * (total_weight[0] if weighted else real(C))
            by_weight = weighted and smooth > real(0)
            gradient(x, row * C, cache, dx, C, vectors, w, log_sum, scale, share, target, on_target, by_weight)

    return cross_entropy


_REALS = (np.float32, np.float64)
_FORWARD: dict[Any, Kernel] = {np.dtype(real): _kernel(real, "forward", with_gradient=False) for real in _REALS}
_BACKWARD: dict[Any, Kernel] = {np.dtype(real): _kernel(real, "backward", with_loss=False) for real in _REALS}
_FUSED: dict[Any, dict[int, Kernel]] = {
    np.dtype(real): {nbytes: _kernel(real, f"fused_{nbytes >> 10}k", nbytes) for nbytes in (*SHARED, 0)}
    for real in _REALS
}


def check_targets(targets: Array, classes: int, ignore_index: int) -> int:
    """The first position whose target is neither in 0..classes - 1 nor ``ignore_index``, else -1; targets (N,) int64.

    ``forward`` and ``backward`` index with the targets unchecked: call this first. One number is copied to the host.
    """
    return find_outside(contiguous(targets), 0, classes, ignore_index)


def _block(N: int, C: int) -> tuple[int, int]:
    if C <= 1024:
        return 32, min(4, power_of_two(N))
    return (THREADS if C <= LONG_ROW else LONG_ROW_THREADS), 1


def _weights(class_weight: Array | None, x: Array) -> tuple[Array, Array, int]:
    """The class weights in x's dtype, their sum, and 1; x, x and 0 where there are none."""
    if class_weight is None:
        return x, x, 0
    if class_weight.dtype != x.dtype:
        class_weight = elementwise.cast(class_weight, x.dtype)
    weight = contiguous(class_weight)
    return weight, fold("sum", weight, 1, weight.size, 1, x.dtype), 1


def forward(logits: Array, targets: Array, options: Options) -> tuple[Array, Array]:
    """logits (N, C) float32 or float64, targets (N,) int64 (checked) -> losses (N,), lse (N,)."""
    x = contiguous(logits)
    outputs = empty(len(x), x.dtype, x.device), empty(len(x), x.dtype, x.device)
    _launch(_FORWARD[x.dtype], _block(*x.shape), x, x, targets, outputs, x, options)
    return outputs


def _launch(
    chosen: Kernel, threads: tuple[int, int], dlosses: Array, x: Array, targets: Array,
    outputs: tuple[Array, Array], dx: Array, options: Options,
) -> None:  # fmt: skip
    """Start one of the kernels. ``outputs``: losses, which the gradient alone does not need, and lse."""
    (N, C), (ignore_index, label_smoothing, class_weight) = x.shape, options
    weight, total, weighted = _weights(class_weight, x)
    pointers = dlosses, x, harmless(contiguous(targets), 0, C, ignore_index), weight, total, *outputs, dx
    numbers = int(ignore_index), float(label_smoothing), aligned(16 // x.itemsize, C, x, dx), weighted
    chosen.launch(ceil_div(N, threads[1]), *pointers, N, C, *numbers, threads=threads)


def backward(dlosses: Array, logits: Array, targets: Array, lse: Array, options: Options) -> Array:
    """dlosses (N,), the gradient of each row's loss, and the inputs and lse of ``forward`` -> dlogits (N, C)."""
    x = contiguous(logits)
    dx = empty(x.shape, x.dtype, x.device)
    _launch(_BACKWARD[x.dtype], _block(*x.shape), contiguous(dlosses), x, targets, (lse, lse), dx, options)
    return dx


def forward_backward(
    dlosses: Array, logits: Array, targets: Array, options: Options, dlogits: Array | None = None
) -> tuple[Array, Array, Array]:
    """``forward`` and ``backward`` in one pass over the logits -> losses (N,), lse (N,), dlogits (N, C).

    ``dlosses`` (N,) must be known before: 1 for the sum, 1 / N for the mean. ``dlogits`` (contiguous, of logits' shape
    and dtype) receives the gradient; it may be ``logits``.
    """
    x, C = contiguous(logits), logits.shape[1]
    dx = empty(x.shape, x.dtype, x.device) if dlogits is None else dlogits
    if dx.shape != x.shape or dx.dtype != x.dtype or not dx.contiguous:
        raise ValueError(f"dlogits must be a contiguous {x.dtype} array of shape {x.shape}, got {dx}")
    limit = memory.attribute(libcuda.SHARED_PER_BLOCK, x.device) - 1024  # the kernel has some of its own
    chosen = _FUSED[x.dtype][next((n for n in SHARED if C * x.itemsize <= n <= limit), 0)]
    outputs = empty(len(x), x.dtype, x.device), empty(len(x), x.dtype, x.device)
    _launch(chosen, _block(1, C), contiguous(dlosses), x, targets, outputs, dx, options)
    return *outputs, dx
