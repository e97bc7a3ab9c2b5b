"""Layers: functions of ``nn.functional`` with their weights."""

from __future__ import annotations

import math
from typing import Any

from ..autograd import no_grad
from ..creation import empty, ones, zeros
from ..errors import located
from ..shapes import shape_argument
from ..tensor import Tensor
from . import functional as F
from . import init
from .module import Module, Parameter


class Linear(Module):
    """y = x W^T + b: (..., in_features) -> (..., out_features). Weight (out, in); initialised as in PyTorch, uniform
    in +-1 / sqrt(in_features)."""

    in_features: int
    out_features: int
    weight: Parameter

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
    """A table of vectors: integer indices of any shape -> (*shape, embedding_dim). Initialised standard normal.

    Row ``padding_idx`` begins as zeros and gets no gradient.
    """

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None
    weight: Parameter

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = Parameter(empty(num_embeddings, embedding_dim, dtype=dtype))
        init.normal_(self.weight)
        self.padding_idx = None if padding_idx is None else F.padding_row(padding_idx, num_embeddings)
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

    normalized_shape: tuple[int, ...]
    eps: float
    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = shape_argument((normalized_shape,)), eps
        self.weight = Parameter(ones(self.normalized_shape, dtype=dtype)) if elementwise_affine else None
        self.bias = Parameter(zeros(self.normalized_shape, dtype=dtype)) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) -> the same shape."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.normalized_shape}, eps={self.eps}"


class RMSNorm(Module):
    """Divide by the root mean square over the last dimensions, of sizes ``normalized_shape``, then scale (weight 1)."""

    normalized_shape: tuple[int, ...]
    eps: float | None
    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = shape_argument((normalized_shape,)), eps
        self.weight = Parameter(ones(self.normalized_shape, dtype=dtype)) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) -> the same shape."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.normalized_shape}, eps={self.eps}"


class GroupNorm(Module):
    """Normalise groups of neighbouring channels of each sample, then scale and shift (weight 1, bias 0)."""

    num_groups: int
    num_channels: int
    eps: float
    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *, dtype: Any = None
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise located(
                ValueError(f"GroupNorm: num_channels={num_channels} is not a multiple of num_groups={num_groups}")
            )
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = Parameter(ones(num_channels, dtype=dtype)) if affine else None
        self.bias = Parameter(zeros(num_channels, dtype=dtype)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, num_channels, ...) -> the same shape."""
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise located(ValueError(f"GroupNorm: x of shape {x.shape}; expected (N, {self.num_channels}, ...)"))
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


class BatchNorm1d(Module):
    """Normalise each channel of (N, C) or (N, C, L), then scale and shift (weight 1, bias 0).

    In training by the statistics of the batch, of which running averages are kept (``momentum`` is the share of the
    newest; None averages all batches equally); in evaluation by these averages. Without ``track_running_stats`` always
    by those of the batch.
    """

    num_features: int
    eps: float
    momentum: float | None
    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = Parameter(ones(num_features, dtype=dtype)) if affine else None
        self.bias = Parameter(zeros(num_features, dtype=dtype)) if affine else None
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, dtype=dtype) if tracked else None)
        self.register_buffer("running_var", ones(num_features, dtype=dtype) if tracked else None)
        self.register_buffer("num_batches_tracked", zeros((), dtype="int64") if tracked else None)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C) or (N, C, L) -> the same shape."""
        if x.ndim not in (2, 3) or x.shape[1] != self.num_features:
            n = self.num_features
            raise located(ValueError(f"BatchNorm1d: x of shape {x.shape}; expected (N, {n}) or (N, {n}, L)"))
        momentum = self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            momentum = 1 / self.num_batches_tracked.item() if momentum is None else momentum
        running = (self.running_mean, self.running_var)
        of_batch = self.training or self.running_mean is None
        return F.batch_norm(x, *running, self.weight, self.bias, of_batch, momentum or 0.0, self.eps)

    def extra_repr(self) -> str:
        """Sizes and options."""
        options = f"affine={self.weight is not None}, track_running_stats={self.running_mean is not None}"
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, {options}"


class Dropout(Module):
    """In training, zero each element with probability p and scale the rest by 1 / (1 - p)."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise located(ValueError(f"Dropout: p={p}; expected a probability"))
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """The probability."""
        return f"p={self.p}"


class Identity(Module):
    """x itself: where a layer is expected and none is wanted."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same tensor."""
        return x


class Flatten(Module):
    """Dimensions ``start_dim`` to ``end_dim`` as one; by default all but the first."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Tensor) -> Tensor:
        """(N, *) -> (N, product of *)."""
        return x.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """The dimensions."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Dimension ``dim`` as several of the given sizes, one of which may be -1."""

    dim: int
    unflattened_size: tuple[int, ...]

    def __init__(self, dim: int, unflattened_size: tuple[int, ...]) -> None:
        super().__init__()
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        """(N, product) -> (N, *unflattened_size), for dim 1."""
        return x.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        """The dimension and its sizes."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
