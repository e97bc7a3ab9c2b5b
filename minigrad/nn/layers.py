"""Layers: functions of ``nn.functional`` with their weights."""

from __future__ import annotations

import math
from typing import Any

from ..creation import empty, ones, zeros
from ..shapes import shape_argument
from ..tensor import Tensor
from . import functional as F
from . import init
from .module import Module, Parameter


class Linear(Module):
    """y = x W^T + b: (..., in_features) -> (..., out_features). Weight (out, in); initialised as in PyTorch, uniform
    in +-1 / sqrt(in_features)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, dtype=dtype))
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        self.bias: Parameter | None = None
        if bias:
            bound = 1 / math.sqrt(max(in_features, 1))
            self.bias = Parameter(init.uniform_(empty(out_features, dtype=dtype), -bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Embedding(Module):
    """A table of vectors: integer indices of any shape -> (*shape, embedding_dim). Initialised standard normal."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *, dtype: Any = None) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = Parameter(empty(num_embeddings, embedding_dim, dtype=dtype))
        init.normal_(self.weight)

    def forward(self, indices: Tensor) -> Tensor:
        """Indices -> their vectors."""
        return F.embedding(indices, self.weight)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.num_embeddings}, {self.embedding_dim}"


class LayerNorm(Module):
    """Normalise over the last dimensions, of sizes ``normalized_shape``, then scale and shift (weight 1, bias 0)."""

    def __init__(
        self, normalized_shape: int | tuple[int, ...], eps: float = 1e-5, bias: bool = True, *, dtype: Any = None
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = shape_argument((normalized_shape,)), eps
        self.weight = Parameter(ones(self.normalized_shape, dtype=dtype))
        self.bias = Parameter(zeros(self.normalized_shape, dtype=dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) -> the same shape."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.normalized_shape}, eps={self.eps}"


class Dropout(Module):
    """In training, zero each element with probability p and scale the rest by 1 / (1 - p)."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p={p}; expected a probability")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """The probability."""
        return f"p={self.p}"


class GELU(Module):
    """x Phi(x); ``approximate="tanh"`` is GPT-2's form."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        """The form."""
        return f"approximate={self.approximate!r}"


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.relu(x)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.tanh(x)
