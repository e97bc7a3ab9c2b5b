"""Functions as modules: activations, losses and changes of shape, with their options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

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


O = TypeVar("O", bound="_OfFunction")


@dataclass_transform(eq_default=False)
class _OfFunction(Module):
    """A function of tensors and of options: the fields of a dataclass, in the order in which the function takes them.

    An option that may be a tensor is a buffer. ``inplace`` is PyTorch's: here the result is always a new tensor.
    """

    _function: ClassVar[Callable[..., Tensor]]
    _names: ClassVar[tuple[str, ...]]  # of the options

    def __init_subclass__(cls, function: Callable[..., Tensor] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if function is not None:
            cls._function = function
            dataclasses.dataclass(eq=False, repr=False)(cls)
            cls._names = tuple(field.name for field in dataclasses.fields(cls) if field.name != "inplace")  # type: ignore[arg-type]  # it is one now
            cls._shown = cls._shown or ", ".join(f"{name}={{{name}!r}}" for name in cls._names)

    def __new__(cls: type[O], *_: Any, **options: Any) -> O:
        """An initialised module, whose options a dataclass's ``__init__`` then sets."""
        self = super().__new__(cls)
        Module.__init__(self)
        return self

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # each subclass is a dataclass
            if field.type == "Tensor | None":
                self._write_attribute(field.name, getattr(self, field.name), self._buffers)

    def _options(self) -> list[Any]:
        return [getattr(self, name) for name in self._names]


class _OfOne(_OfFunction):
    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same, unless the function changes it (``GLU``: (..., 2 n, ...) -> (..., n, ...))."""
        return type(self)._function(x, *self._options())


@dataclasses.dataclass(eq=False, repr=False)
class _OfOneInPlace(_OfOne):
    """One that PyTorch can compute in place, without other options."""

    inplace: bool = False


# Activations ----------------------------------------------------------------------------------------------------------


class ReLU(_OfOneInPlace, function=F.relu):
    """max(x, 0)."""


class Tanh(_OfOne, function=F.tanh):
    """Hyperbolic tangent."""


class LeakyReLU(_OfOne, function=F.leaky_relu):
    """x where x > 0, else negative_slope * x."""

    negative_slope: float = 0.01
    inplace: bool = False


class SiLU(_OfOneInPlace, function=F.silu):
    """x sigmoid(x)."""


class Sigmoid(_OfOne, function=F.sigmoid):
    """1 / (1 + exp(-x))."""


class Softmax(_OfOne, function=F.softmax):
    """exp(x) along ``dim``, divided by its sum."""

    dim: int


class LogSoftmax(_OfOne, function=F.log_softmax):
    """log of the softmax along ``dim``."""

    dim: int


class ELU(_OfOne, function=F.elu):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    alpha: float = 1.0
    inplace: bool = False


class Softplus(_OfOne, function=F.softplus):
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""

    beta: float = 1.0
    threshold: float = 20.0


class SELU(_OfOneInPlace, function=F.selu):
    """``ELU`` scaled so that mean 0 and variance 1 are kept (Klambauer et al. 2017)."""


class Mish(_OfOneInPlace, function=F.mish):
    """x tanh(softplus(x)) (Misra 2019)."""


class LogSigmoid(_OfOne, function=F.logsigmoid):
    """log(sigmoid(x)), computed without overflow."""


class ReLU6(_OfOneInPlace, function=F.relu6):
    """x limited to [0, 6]."""


class Hardswish(_OfOneInPlace, function=F.hardswish):
    """x relu6(x + 3) / 6."""


class Hardtanh(_OfOne, function=F.hardtanh):
    """x limited to [min_val, max_val]."""

    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False


class GLU(_OfOne, function=F.glu):
    """The first half of ``dim`` times the sigmoid of the second (Dauphin et al. 2017)."""

    dim: int = -1


# Shapes ---------------------------------------------------------------------------------------------------------------


class Identity(Module):
    """x itself: where a layer is expected and none is wanted."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same tensor."""
        return x


class Flatten(_OfOne, function=Tensor.flatten):
    """Dimensions ``start_dim`` to ``end_dim`` as one; by default all but the first: (N, *) -> (N, product of *)."""

    start_dim: int = 1
    end_dim: int = -1


class Unflatten(_OfOne, function=Tensor.unflatten):
    """Dimension ``dim`` as several of the given sizes, one of which may be -1: (N, product) -> (N, *unflattened_size),
    for dim 1.
    """

    dim: int
    unflattened_size: tuple[int, ...]

    def __post_init__(self) -> None:
        self.unflattened_size = tuple(self.unflattened_size)


# Losses ---------------------------------------------------------------------------------------------------------------


class _Loss(_OfFunction):
    """A loss with a ``reduction``: "mean", "sum" or "none"."""

    _reductions: ClassVar[tuple[str, ...]] = REDUCTIONS
    _shown = "reduction={reduction!r}"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(type(self).__name__, "reduction", self.reduction, self._reductions)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors, of the shapes that the function takes -> the loss."""
        return type(self)._function(input, target, *self._options())


class CrossEntropyLoss(_Loss, function=F.cross_entropy):
    """``F.cross_entropy``: logits (N, C) and class indices (N,), or probabilities (N, C)."""

    weight: Tensor | None = None
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0


class NLLLoss(_Loss, function=F.nll_loss):
    """``F.nll_loss``: log-probabilities (N, C) and class indices (N,)."""

    weight: Tensor | None = None
    ignore_index: int = -100
    reduction: str = "mean"


class MSELoss(_Loss, function=F.mse_loss):
    """``F.mse_loss``: (input - target)^2."""

    reduction: str = "mean"


class L1Loss(_Loss, function=F.l1_loss):
    """``F.l1_loss``: |input - target|."""

    reduction: str = "mean"


class SmoothL1Loss(_Loss, function=F.smooth_l1_loss):
    """``F.smooth_l1_loss``: curved up to a distance of ``beta``."""

    reduction: str = "mean"
    beta: float = 1.0


class HuberLoss(_Loss, function=F.huber_loss):
    """``F.huber_loss``: curved up to a distance of ``delta``."""

    reduction: str = "mean"
    delta: float = 1.0


class BCELoss(_Loss, function=F.binary_cross_entropy):
    """``F.binary_cross_entropy`` of probabilities; ``BCEWithLogitsLoss`` is more exact."""

    weight: Tensor | None = None
    reduction: str = "mean"


class BCEWithLogitsLoss(_Loss, function=F.binary_cross_entropy_with_logits):
    """``F.binary_cross_entropy_with_logits``."""

    weight: Tensor | None = None
    reduction: str = "mean"
    pos_weight: Tensor | None = None


class KLDivLoss(_Loss, function=F.kl_div):
    """``F.kl_div``: log-probabilities and probabilities; "batchmean" is the divergence's mean over the batch."""

    reduction: str = "mean"
    log_target: bool = False
    _reductions = ("mean", "batchmean", "sum", "none")
    _shown = "reduction={reduction!r}, log_target={log_target}"


hints.list_names(__name__)
