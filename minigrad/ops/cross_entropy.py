"""Cross-entropy of logits against class indices, log-softmax fused."""

from __future__ import annotations

from typing import Any

from ..autograd import Function


class CrossEntropy(Function):
    """loss_i = -w_t log softmax(logits_i)[t], t = targets_i;  dlogits = (softmax - onehot) dloss, row by row.

    With label smoothing s, the target is (1 - s) onehot + s / classes. Rows whose target is ``ignore_index`` give 0.
    """

    __slots__ = ("options",)
    options: tuple[Any, ...]

    def forward(self, logits: Any, targets: Any, *, options: tuple[Any, ...]) -> Any:
        self.options = options
        losses, lse = self.kernels.cross_entropy.forward(logits, targets, *options)
        self.saved = (logits, targets, lse)
        return losses

    def backward(self, dlosses: Any) -> Any:
        logits, targets, lse = self.saved
        dlosses = self.kernels.contiguous(dlosses)
        return self.kernels.cross_entropy.backward(dlosses, logits, targets, lse, *self.options), None
