"""A block of GPT-2 (Radford et al. 2019) as one operation, on the CPU."""

from __future__ import annotations

from typing import Any

from ..autograd import Function


class TransformerBlock(Function):
    """x2 = x + A(N(x)) Wo^T + bo, A attention on qkv = N(x) Wqkv^T + bqkv;  y = x2 + G(N(x2) W^T + b) V^T + c, N layer
    norm, G GELU. The derivative is the chain of those of ``LayerNorm``, ``Linear``, ``PackedAttention``, ``LayerNorm``
    and ``FeedForward``, whose bits it has, and kept is what they keep.

    Inputs are x (B, T, C), then weight and bias (or None) of the first norm, Wqkv (3 C, C), Wo (C, C), the second norm,
    W (I, C) and V (C, I); ``options`` are the kernels' ``Options``. The kernels' ``takes`` says which they take. A
    gradient of x or of the first norm is wanted, or none at all; that of a matrix too, where its bias's is.
    """

    __slots__ = ("options",)
    options: Any

    def forward(self, x: Any, *weights: Any, options: Any) -> Any:
        self.options, keep = options, True in self.needs
        y, kept = self.kernels.transformer_block.forward(x, weights, options, keep)
        if keep:
            self.saved = (x, kept, *weights[::2])
        return y

    def backward(self, dy: Any) -> Any:
        x, kept, *weights = self.saved
        return self.kernels.transformer_block.backward(dy, x, weights, kept, self.options, self.needs)
