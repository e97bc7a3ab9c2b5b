"""Normalisation by channels, as layers."""

from typing import Any

from ..creation import ones, zeros
from ..device import CPU, Place
from ..errors import bad_value
from ..tensor import Tensor
from . import functional as F
from .module import Module, Parameter


class GroupNorm(Module):
    """Normalise groups of neighbouring channels of each sample, then scale and shift (weight 1, bias 0)."""

    _shown = "{num_groups}, {num_channels}, eps={eps}"

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *, dtype: Any = None,
        device: Place = CPU,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise bad_value(f"GroupNorm: num_channels={num_channels} is not a multiple of num_groups={num_groups}")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        made: dict[str, Any] = {"dtype": dtype, "device": device}
        self.weight: Parameter | None = Parameter(ones(num_channels, **made)) if affine else None
        self.bias: Parameter | None = Parameter(zeros(num_channels, **made)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, num_channels, ...) -> the same shape."""
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise bad_value(f"GroupNorm: x of shape {x.shape}; expected (N, {self.num_channels}, ...)")
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class BatchNorm1d(Module):
    """Normalise each channel of (N, C) or (N, C, L), then scale and shift (weight 1, bias 0).

    In training by the statistics of the batch, of which running averages are kept (``momentum`` is the share of the
    newest; None averages all batches equally); in evaluation by these averages. Without ``track_running_stats`` always
    by those of the batch.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, *, dtype: Any = None, device: Place = CPU,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        made: dict[str, Any] = {"dtype": dtype, "device": device}
        self.weight: Parameter | None = Parameter(ones(num_features, **made)) if affine else None
        self.bias: Parameter | None = Parameter(zeros(num_features, **made)) if affine else None
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, **made) if tracked else None)
        self.register_buffer("running_var", ones(num_features, **made) if tracked else None)
        self.register_buffer("num_batches_tracked", zeros((), dtype="int64", device=device) if tracked else None)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C) or (N, C, L) -> the same shape."""
        if x.ndim not in (2, 3) or x.shape[1] != self.num_features:
            n = self.num_features
            raise bad_value(f"BatchNorm1d: x of shape {x.shape}; expected (N, {n}) or (N, {n}, L)")
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
