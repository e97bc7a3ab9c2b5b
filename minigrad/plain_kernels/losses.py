"""The loss of a classifier and of a language model."""

import math

import numpy as np

from .elementwise import quiet
from .transformer import linear

Options = tuple[int, float, np.ndarray | None]  # ignore_index, label_smoothing, class_weight (C,)


class cross_entropy:
    """Of logits x (N, C) and class indices t (N,). With p = softmax(x), lse = log(sum(exp(x))), class weights w (1
    without), a = label_smoothing, and q = (1 - a) w_t [c = t] + a w_c / C, for each row:

        loss = sum_c q_c (lse - x_c)      dx_c = dloss (p_c sum(q) - q_c)

    Rows whose target is ``ignore_index`` have loss 0 and gradient 0 (0 also where the logits are NaN). The reductions
    (mean divides by the sum of w_t) are the caller's. Label smoothing: Szegedy et al. (2016).
    """

    def check_targets(targets: np.ndarray, classes: int, ignore_index: int) -> int:
        """The first position whose target is neither in 0..classes - 1 nor ``ignore_index``, else -1."""
        bad = ((targets < 0) | (targets >= classes)) & (targets != ignore_index)
        return int(bad.argmax()) if bad.any() else -1

    @quiet
    def forward(logits: np.ndarray, targets: np.ndarray, options: Options) -> tuple[np.ndarray, np.ndarray]:
        """logits (N, C) float32 or float64, targets (N,) int64 (checked) -> losses and lse (N,)."""
        top = logits.max(1, initial=-np.inf)
        lse = top + np.log(np.exp(logits - top[:, None]).sum(1))
        wanted = _wanted(logits, targets, options)
        # 0 * infinity is 0 here: a class that nothing asks for adds nothing.
        losses = np.where(wanted == 0, 0, wanted * (lse[:, None] - logits)).sum(1, dtype=logits.dtype)
        return losses, lse

    @quiet
    def backward(
        dlosses: np.ndarray, logits: np.ndarray, targets: np.ndarray, lse: np.ndarray, options: Options
    ) -> np.ndarray:
        """dlosses (N,), the gradient of each row's loss, and the inputs and lse of ``forward`` -> dlogits (N, C)."""
        wanted = _wanted(logits, targets, options)
        p = np.exp(logits - lse[:, None])
        dx = dlosses[:, None] * (p * wanted.sum(1, keepdims=True) - wanted)
        return np.where((targets == options[0])[:, None], 0, dx).astype(logits.dtype, copy=False)

    def forward_backward(
        dlosses: np.ndarray,
        logits: np.ndarray,
        targets: np.ndarray,
        options: Options,
        dlogits: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Both -> losses (N,), lse (N,), dlogits (N, C), which is written to ``dlogits`` if given."""
        losses, lse = cross_entropy.forward(logits, targets, options)
        dx = cross_entropy.backward(dlosses, logits, targets, lse, options)
        if dlogits is None:
            return losses, lse, dx
        if dlogits.shape != dx.shape or dlogits.dtype != dx.dtype or not dlogits.flags.c_contiguous:
            found = f"{dlogits.dtype} {dlogits.shape}"
            raise ValueError(f"dlogits must be a contiguous {dx.dtype} array of shape {dx.shape}, got {found}")
        dlogits[...] = dx
        return losses, lse, dlogits


def _wanted(logits: np.ndarray, targets: np.ndarray, options: Options) -> np.ndarray:
    """q of the formulas, (N, C)."""
    C, (ignore_index, smoothing, class_weight) = logits.shape[1], options
    weights = np.ones(C, logits.dtype) if class_weight is None else class_weight
    on_target = (np.arange(C) == targets[:, None]).astype(logits.dtype)
    q = weights * ((1 - smoothing) * on_target + smoothing / max(C, 1))
    return np.where((targets == ignore_index)[:, None], 0, q).astype(logits.dtype, copy=False)


class linear_cross_entropy:
    """The cross-entropy of z = x W^T:  dx = dz W, dW = dz^T x. x (N, C), W (M, C), targets (N,)."""

    def forward(
        x: np.ndarray,
        weight: np.ndarray,
        targets: np.ndarray,
        ignore_index: int,
        divisor: float,
        needs: tuple[bool, bool],
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """The losses (N,), and the gradients of their sum / ``divisor``: dx (N, C) and dweight (M, C), None for what
        ``needs`` does not ask for.

        Half floats count as float32.
        """
        if x.dtype.itemsize == 2:
            x, weight = x.astype(np.float32), weight.astype(np.float32)
        logits, of_loss = linear.forward(x, weight), 1 / divisor if divisor else math.nan
        losses, lse = cross_entropy.forward(logits, targets, (ignore_index, 0.0, None))
        if True not in needs:
            return losses, None, None
        dlosses = np.full(len(x), of_loss, x.dtype)
        dlogits = cross_entropy.backward(dlosses, logits, targets, lse, (ignore_index, 0.0, None))
        dx, dweight, _ = linear.backward(dlogits, x, weight, (*needs, False))
        return losses, dx, dweight

    def backward(
        dloss: np.ndarray, x: np.ndarray, dx: np.ndarray | None, dweight: np.ndarray | None, divisor: float
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The gradients of ``forward``, which divided by ``divisor``, times dloss ()."""
        factor = float(dloss)
        return None if dx is None else dx * factor, None if dweight is None else dweight * factor
