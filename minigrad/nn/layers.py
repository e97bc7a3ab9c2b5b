"""The layers of transformers: functions of ``nn.functional`` with their weights."""

import math
from typing import Any

from ..autograd import no_grad
from ..creation import empty, ones, zeros
from ..device import CPU, Place
from ..errors import check_choice, expect
from ..shapes import Sizes, shape_argument
from ..tensor import Tensor
from . import functional as F, init
from .module import Module, Parameter


class Linear(Module):
    """y = x W^T + b: (..., in_features) -> (..., out_features). Weight (out, in); initialised as in PyTorch, uniform
    in +-1 / sqrt(in_features)."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = None, device: Place = CPU
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight: Parameter = Parameter(empty(out_features, in_features, dtype=dtype, device=device))
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        self.bias: Parameter | None = None
        if bias:
            bound = 1 / math.sqrt(max(in_features, 1))
            self.bias = Parameter(init.uniform_(empty(out_features, dtype=dtype, device=device), -bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Embedding(Module):
    """A table of vectors: integer indices of any shape -> (*shape, embedding_dim). Initialised standard normal.

    Row ``padding_idx`` begins as zeros and gets no gradient.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, dtype: Any = None,
        device: Place = CPU,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.weight: Parameter = Parameter(empty(num_embeddings, embedding_dim, dtype=dtype, device=device))
        init.normal_(self.weight)
        self.padding_idx: int | None = None if padding_idx is None else F.padding_row(padding_idx, num_embeddings)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0.0

    def forward(self, indices: Tensor) -> Tensor:
        """Indices -> their vectors."""
        return F.embedding(indices, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """Sizes."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class LayerNorm(Module):
    """Normalise over the last dimensions, of sizes ``normalized_shape``, then scale and shift (weight 1, bias 0).

    ``elementwise_affine=False`` neither scales nor shifts, ``bias=False`` scales only.
    """

    _shown = "{normalized_shape}, eps={eps}"

    def __init__(
        self, normalized_shape: Sizes, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True, *,
        dtype: Any = None, device: Place = CPU,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape: tuple[int, ...] = shape_argument((normalized_shape,))
        shape = self.normalized_shape
        self.eps = eps
        made: dict[str, Any] = {"dtype": dtype, "device": device}
        self.weight: Parameter | None = Parameter(ones(shape, **made)) if elementwise_affine else None
        self.bias: Parameter | None = Parameter(zeros(shape, **made)) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) -> the same shape."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Divide by the root mean square over the last dimensions, of sizes ``normalized_shape``, then scale (weight 1)."""

    _shown = "{normalized_shape}, eps={eps}"

    def __init__(
        self, normalized_shape: Sizes, eps: float | None = None, elementwise_affine: bool = True, *, dtype: Any = None,
        device: Place = CPU,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape: tuple[int, ...] = shape_argument((normalized_shape,))
        self.eps = eps
        weight = ones(self.normalized_shape, dtype=dtype, device=device)
        self.weight: Parameter | None = Parameter(weight) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) -> the same shape."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class Dropout(Module):
    """In training, zero each element with probability p and scale the rest by 1 / (1 - p).

    ``inplace`` is PyTorch's: here the result is always a new tensor.
    """

    _shown = "p={p}"

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        expect(0 <= p <= 1, "Dropout: p", p, "a probability")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.dropout(x, self.p, self.training)


class GELU(Module):
    """x Phi(x); ``approximate="tanh"`` is GPT-2's form."""

    _shown = "approximate={approximate!r}"

    def __init__(self, approximate: str = "none") -> None:
        check_choice("GELU", "approximate", approximate, ("none", "tanh"))
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.gelu(x, self.approximate)
