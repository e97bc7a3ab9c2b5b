"""Losses as modules: functions of ``nn.functional`` with their options, and with weights as buffers."""

from __future__ import annotations

from ..tensor import Tensor
from . import functional as F
from .losses import check_reduction
from .module import Module


class _Loss(Module):
    """A loss with a ``reduction``: "mean", "sum" or "none"."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        check_reduction(type(self).__name__, reduction)
        self.reduction = reduction

    def extra_repr(self) -> str:
        """The reduction."""
        return f"reduction={self.reduction!r}"


class CrossEntropyLoss(_Loss):
    """``F.cross_entropy``: logits (N, C) and class indices (N,), or probabilities (N, C)."""

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Logits and targets -> the loss."""
        return F.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, label_smoothing=self.label_smoothing
        )


class NLLLoss(_Loss):
    """``F.nll_loss``: log-probabilities (N, C) and class indices (N,)."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Log-probabilities and targets -> the loss."""
        return F.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class MSELoss(_Loss):
    """``F.mse_loss``: (input - target)^2."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape -> the loss."""
        return F.mse_loss(input, target, self.reduction)


class L1Loss(_Loss):
    """``F.l1_loss``: |input - target|."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape -> the loss."""
        return F.l1_loss(input, target, self.reduction)


class SmoothL1Loss(_Loss):
    """``F.smooth_l1_loss``: curved up to a distance of ``beta``."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape -> the loss."""
        return F.smooth_l1_loss(input, target, self.reduction, self.beta)


class HuberLoss(_Loss):
    """``F.huber_loss``: curved up to a distance of ``delta``."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape -> the loss."""
        return F.huber_loss(input, target, self.reduction, self.delta)


class BCELoss(_Loss):
    """``F.binary_cross_entropy`` of probabilities; ``BCEWithLogitsLoss`` is more exact."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Probabilities and targets of one shape -> the loss."""
        return F.binary_cross_entropy(input, target, self.weight, self.reduction)


class BCEWithLogitsLoss(_Loss):
    """``F.binary_cross_entropy_with_logits``."""

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Logits and targets of one shape -> the loss."""
        return F.binary_cross_entropy_with_logits(input, target, self.weight, self.reduction, self.pos_weight)


class KLDivLoss(Module):
    """``F.kl_div``: log-probabilities and probabilities; "batchmean" is the divergence's mean over the batch."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__()
        check_reduction("KLDivLoss", reduction, ("mean", "batchmean", "sum", "none"))
        self.reduction = reduction
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Log-probabilities and probabilities of one shape -> the loss."""
        return F.kl_div(input, target, self.reduction, self.log_target)

    def extra_repr(self) -> str:
        """The options."""
        return f"reduction={self.reduction!r}, log_target={self.log_target}"
