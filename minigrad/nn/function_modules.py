"""Functions as modules: activations, losses and changes of shape, with their options."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from .. import hints
from ..errors import check_choice
from ..tensor import Tensor
from . import functional as F
from .losses import REDUCTIONS
from .module import Module

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: bool) -> Callable[[type], type]:
        """What tells type checkers that subclasses are dataclasses; Python has it from 3.11 on."""
        return lambda cls: cls


@dataclass_transform(eq_default=False)
class _OfFunction(Module):
    """A function of tensors and of options: the fields of a dataclass, in the order in which the function takes them.

    An option that may be a tensor is a buffer.
    """

    _function: ClassVar[Callable[..., Tensor]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__ == __name__:
            dataclasses.dataclass(eq=False, repr=False)(cls)
            set_options: Any = cls.__init__

            @functools.wraps(set_options)
            def initialise(self: _OfFunction, *args: Any, **kwargs: Any) -> None:
                Module.__init__(self)
                set_options(self, *args, **kwargs)

            cls.__init__ = initialise  # type: ignore[assignment]  # of the same signature

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # each subclass is a dataclass
            if field.type == "Tensor | None":
                self._write_attribute(field.name, getattr(self, field.name), self._buffers)

    def _options(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        """The options."""
        return ", ".join(f"{name}={value!r}" for name, value in self._options().items())


class _OfOne(_OfFunction):
    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same, unless the function changes it (``GLU``: (..., 2 n, ...) -> (..., n, ...))."""
        return type(self)._function(x, *self._options().values())


# Activations ----------------------------------------------------------------------------------------------------------


class ReLU(_OfOne):
    """max(x, 0)."""

    _function = F.relu


class Tanh(_OfOne):
    """Hyperbolic tangent."""

    _function = F.tanh


class LeakyReLU(_OfOne):
    """x where x > 0, else negative_slope * x."""

    negative_slope: float = 0.01
    _function = F.leaky_relu


class SiLU(_OfOne):
    """x sigmoid(x)."""

    _function = F.silu


class Sigmoid(_OfOne):
    """1 / (1 + exp(-x))."""

    _function = F.sigmoid


class Softmax(_OfOne):
    """exp(x) along ``dim``, divided by its sum."""

    dim: int
    _function = F.softmax


class LogSoftmax(_OfOne):
    """log of the softmax along ``dim``."""

    dim: int
    _function = F.log_softmax


class ELU(_OfOne):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    alpha: float = 1.0
    _function = F.elu


class Softplus(_OfOne):
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""

    beta: float = 1.0
    threshold: float = 20.0
    _function = F.softplus


class SELU(_OfOne):
    """``ELU`` scaled so that mean 0 and variance 1 are kept (Klambauer et al. 2017)."""

    _function = F.selu


class Mish(_OfOne):
    """x tanh(softplus(x)) (Misra 2019)."""

    _function = F.mish


class LogSigmoid(_OfOne):
    """log(sigmoid(x)), computed without overflow."""

    _function = F.logsigmoid


class ReLU6(_OfOne):
    """x limited to [0, 6]."""

    _function = F.relu6


class Hardswish(_OfOne):
    """x relu6(x + 3) / 6."""

    _function = F.hardswish


class Hardtanh(_OfOne):
    """x limited to [min_val, max_val]."""

    min_val: float = -1.0
    max_val: float = 1.0
    _function = F.hardtanh


class GLU(_OfOne):
    """The first half of ``dim`` times the sigmoid of the second (Dauphin et al. 2017)."""

    dim: int = -1
    _function = F.glu


# Shapes ---------------------------------------------------------------------------------------------------------------


class Identity(Module):
    """x itself: where a layer is expected and none is wanted."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same tensor."""
        return x


class Flatten(_OfOne):
    """Dimensions ``start_dim`` to ``end_dim`` as one; by default all but the first: (N, *) -> (N, product of *)."""

    start_dim: int = 1
    end_dim: int = -1
    _function = Tensor.flatten


class Unflatten(_OfOne):
    """Dimension ``dim`` as several of the given sizes, one of which may be -1: (N, product) -> (N, *unflattened_size),
    for dim 1.
    """

    dim: int
    unflattened_size: tuple[int, ...]
    _function = Tensor.unflatten

    def __post_init__(self) -> None:
        self.unflattened_size = tuple(self.unflattened_size)


# Losses ---------------------------------------------------------------------------------------------------------------


class _Loss(_OfFunction):
    """A loss with a ``reduction``: "mean", "sum" or "none"."""

    _reductions: ClassVar[tuple[str, ...]] = REDUCTIONS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(type(self).__name__, "reduction", self.reduction, self._reductions)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors, of the shapes that the function takes -> the loss."""
        return type(self)._function(input, target, *self._options().values())

    def extra_repr(self) -> str:
        """The reduction."""
        return f"reduction={self.reduction!r}"


class CrossEntropyLoss(_Loss):
    """``F.cross_entropy``: logits (N, C) and class indices (N,), or probabilities (N, C)."""

    weight: Tensor | None = None
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0
    _function = F.cross_entropy


class NLLLoss(_Loss):
    """``F.nll_loss``: log-probabilities (N, C) and class indices (N,)."""

    weight: Tensor | None = None
    ignore_index: int = -100
    reduction: str = "mean"
    _function = F.nll_loss


class MSELoss(_Loss):
    """``F.mse_loss``: (input - target)^2."""

    reduction: str = "mean"
    _function = F.mse_loss


class L1Loss(_Loss):
    """``F.l1_loss``: |input - target|."""

    reduction: str = "mean"
    _function = F.l1_loss


class SmoothL1Loss(_Loss):
    """``F.smooth_l1_loss``: curved up to a distance of ``beta``."""

    reduction: str = "mean"
    beta: float = 1.0
    _function = F.smooth_l1_loss


class HuberLoss(_Loss):
    """``F.huber_loss``: curved up to a distance of ``delta``."""

    reduction: str = "mean"
    delta: float = 1.0
    _function = F.huber_loss


class BCELoss(_Loss):
    """``F.binary_cross_entropy`` of probabilities; ``BCEWithLogitsLoss`` is more exact."""

    weight: Tensor | None = None
    reduction: str = "mean"
    _function = F.binary_cross_entropy


class BCEWithLogitsLoss(_Loss):
    """``F.binary_cross_entropy_with_logits``."""

    weight: Tensor | None = None
    reduction: str = "mean"
    pos_weight: Tensor | None = None
    _function = F.binary_cross_entropy_with_logits


class KLDivLoss(_Loss):
    """``F.kl_div``: log-probabilities and probabilities; "batchmean" is the divergence's mean over the batch."""

    reduction: str = "mean"
    log_target: bool = False
    _function = F.kl_div
    _reductions = ("mean", "batchmean", "sum", "none")

    def extra_repr(self) -> str:
        """The options."""
        return f"reduction={self.reduction!r}, log_target={self.log_target}"


if not TYPE_CHECKING:
    __all__ = hints.defined_in(__name__)
