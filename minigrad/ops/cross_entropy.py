"""Cross-entropy of logits against class indices, log-softmax fused."""

from typing import Any

from ..autograd import Function


class CrossEntropy(Function):
    """loss_i = -w_t log softmax(logits_i)[t], t = targets_i;  dlogits = (softmax - onehot) dloss, row by row.

    With label smoothing s, the target is (1 - s) onehot + s / classes. Rows whose target is ``ignore_index`` give 0.
    With a ``divisor``, a number or a 0-d array, the result is the sum of the losses, divided by it.
    """

    __slots__ = ("divisor", "options")
    autocast = "float32"
    options: tuple[Any, ...]
    divisor: Any

    def forward(self, logits: Any, targets: Any, *, options: tuple[Any, ...], divisor: Any = None) -> Any:
        self.options, self.divisor = options, divisor
        k = self.kernels
        losses, lse = k.cross_entropy.forward(logits, targets, *options)
        self.saved = (logits, targets, lse)
        return losses if divisor is None else k.elementwise.div(k.reduce.sum(losses, (0,), False), divisor)

    def backward(self, dlosses: Any) -> Any:
        logits, targets, lse = self.saved
        k = self.kernels
        if self.divisor is not None:
            dlosses = k.movement.expand(k.elementwise.div(dlosses, self.divisor), lse.shape)
        dlosses = k.contiguous(dlosses)
        return self.kernels.cross_entropy.backward(dlosses, logits, targets, lse, *self.options), None
