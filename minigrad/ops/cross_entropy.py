"""Cross-entropy of logits against class indices, log-softmax fused."""

from typing import Any

from ..autograd import Function


class CrossEntropy(Function):
    """loss_i = -w_t log softmax(logits_i)[t], t = targets_i;  dlogits = (softmax - onehot) dloss, row by row.

    With label smoothing s, the target is (1 - s) onehot + s / classes. Rows whose target is ``ignore_index`` give 0.
    With a ``divisor``, a number or a 0-d array, the result is the sum of the losses, divided by it.
    """

    autocast = "float32"

    def forward(self, logits: Any, targets: Any, *, options: tuple[Any, ...], divisor: Any = None) -> Any:
        k = self.kernels
        losses, lse = k.cross_entropy.forward(logits, targets, options)
        self.saved = (logits, targets, lse, options, divisor)
        return losses if divisor is None else k.elementwise.div(k.reduce.sum(losses, (0,), False), divisor)

    def backward(self, dlosses: Any) -> Any:
        logits, targets, lse, options, divisor = self.saved
        k = self.kernels
        if divisor is not None:
            dlosses = k.movement.expand(k.elementwise.div(dlosses, divisor), lse.shape)
        return k.cross_entropy.backward(k.contiguous(dlosses), logits, targets, lse, options), None
