"""The loss of a linear layer's outputs, without ever having all of them."""

from typing import Any

from ..autograd import Deferred, Function
from .linear import rows_of


class LinearCrossEntropy(Function):
    """loss = sum of the cross-entropies of z = x W^T, divided by ``divisor``;  dx = dz W, dW = dz^T x. x (..., in),
    W (classes, in), targets (...).

    The kernels make the logits z in chunks of rows. Where a gradient is wanted, forward turns each chunk into dz in
    place and uses it at once. Backward only multiplies with the loss's gradient. dW adds up in float32 at least.
    On a GPU backward also divides by ``divisor``, which in a graph is an array: so the host waits for nothing.

    Source: Hsu et al., "Liger Kernel" (2024), FusedLinearCrossEntropy.
    """

    __slots__ = ("divisor", "ignore_index", "shape")
    widens = False  # half floats stay, where the products take them; the losses are float32
    shape: tuple[int, ...]
    ignore_index: int
    divisor: Any  # a number, or in a graph a 0-d array

    def forward(self, x: Any, weight: Any, targets: Any, *, ignore_index: int, divisor: Any) -> Any:
        self.ignore_index, self.divisor, self.shape = ignore_index, divisor, x.shape
        inputs, k = (rows_of(self.kernels, x), weight, targets), self.kernels
        losses, *gradients = self.compute(*inputs)
        if True in self.needs:
            self.saved = (*inputs, *gradients)
        return k.elementwise.div(k.reduce.sum(losses, (0,), False), divisor)

    def compute(self, x: Any, weight: Any, targets: Any) -> Any:
        """The losses of the rows, and the gradients of x and W, as far as they are wanted."""
        kernels = self.kernels.linear_cross_entropy
        return kernels.forward(x, weight, targets, self.ignore_index, self.divisor, self.needs[:2])

    def backward(self, dloss: Any) -> Any:
        *inputs, dx, dweight = self.saved
        # The gradients are handed over and nobody need copy them; a second backward has them computed again.
        handed_over: Any = _Recomputed(inputs)
        self.saved = handed_over
        dx, dweight = self.kernels.linear_cross_entropy.backward(dloss, inputs[0], dx, dweight, self.divisor)
        return None if dx is None else dx.reshape(self.shape), dweight, None


class _Recomputed(Deferred):
    """Stands for gradients that an earlier backward was given."""

    def __init__(self, inputs: list[Any]) -> None:
        self.inputs = inputs

    def restore(self, node: Any) -> None:
        _, *gradients = node.compute(*self.inputs)
        node.saved = (*self.inputs, *gradients)
