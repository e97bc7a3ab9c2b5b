"""What a trainer is told, and what it reports: TrainingConfig, TrainingMetrics, NonFiniteLossError."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

from minigrad.errors import NonNegative, NonNegativeInt, PositiveInt, check_bool, check_fields
from minigrad.optim import GradAccumulator

from .tree import TreeAccumulator


class NonFiniteLossError(RuntimeError):
    """The loss is infinite or NaN; nothing was changed. ``step`` is the number of the step that it belongs to."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step

    @classmethod
    def of(cls, loss: float | str, step: int, rank: int | None = None) -> NonFiniteLossError:
        """The error for this loss of a step, on this rank if there are several."""
        where = "" if rank is None else f" on rank {rank}"
        return cls(f"the loss of step {step} is {loss}{where}; no weight was changed", step)


def check_kind(trainer: object, name: str, value: object, kind: type, example: str) -> None:
    """Raise TypeError, with what would work, if an argument of a trainer's constructor is of another kind."""
    if not isinstance(value, kind):
        got = value.__name__ if isinstance(value, type) else f"of type {type(value).__name__}"
        own = type(trainer).__name__
        raise TypeError(f"{own}: {name} is {got}, expected a {kind.__name__}: {own}({example}) would work")


def check_limit(name: str, value: Any) -> None:
    """ValueError for what is no limit of the gradients' global norm."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} is {value!r}, expected a number > 0, or None for no clipping")


GradLimit: TypeAlias = Annotated[float, check_limit]
Flag: TypeAlias = Annotated[bool, check_bool]


@dataclass(frozen=True)
class TrainingConfig:
    """How a trainer steps. ``max_grad_norm`` None turns clipping off.

    ``reproducible``: weights, moments, losses, norms and dropout do not depend on the number of ranks, to the bit. Rank
    r makes the micro-batches r * grad_accum_steps and on of a step; a last rank that has fewer passes empty ones, of
    weight 0. They are added up by a fixed tree (tree.py), which also numbers the default generator's draws. Their seed
    is the one that the generator has when the trainer is made.

    ``compare_every``: after so many steps several ranks compare the hashes of their weights and of what the optimizer
    keeps of them; where they differ, all raise ReplicaMismatchError. 0: only before a save.

    ``recheck``: keep what computes the losses of a step, and compute it again where the gradient's norm is ten times
    the usual one (recheck.py); a RuntimeWarning says whether the fault is transient or persistent.

    ``learning_rate`` and ``weight_decay`` are those of the AdamW that the trainer makes; they are not used with an
    optimizer of your own. Raises ValueError for values out of range.
    """

    learning_rate: NonNegative = 1e-3
    weight_decay: NonNegative = 0.01
    max_grad_norm: GradLimit | None = 1.0
    grad_accum_steps: PositiveInt = 1
    reproducible: Flag = False
    compare_every: NonNegativeInt = 100
    recheck: Flag = False

    def __post_init__(self) -> None:
        check_fields(self)
        self.accumulator()

    def accumulator(self, rank: int = 0) -> GradAccumulator:
        """What adds up the micro-batches of a rank."""
        steps = self.grad_accum_steps
        return TreeAccumulator(steps, rank) if self.reproducible else GradAccumulator(steps)

    def with_lr(self, learning_rate: float) -> TrainingConfig:
        """A copy with another learning rate."""
        return replace(self, learning_rate=learning_rate)

    def with_weight_decay(self, weight_decay: float) -> TrainingConfig:
        """A copy with another weight decay."""
        return replace(self, weight_decay=weight_decay)

    def with_max_grad_norm(self, max_grad_norm: float | None) -> TrainingConfig:
        """A copy with another limit of the gradients' global norm."""
        return replace(self, max_grad_norm=max_grad_norm)

    def with_grad_accum_steps(self, grad_accum_steps: int) -> TrainingConfig:
        """A copy with another number of micro-batches per step."""
        return replace(self, grad_accum_steps=grad_accum_steps)


@dataclass(frozen=True)
class TrainingMetrics:
    """What one optimizer step did.

    ``step`` counts from 1; ``loss`` is the mean over the window's micro-batches (and over all ranks); ``grad_norm`` the
    global norm before clipping, None if clipping is off; ``lr`` the learning rate that was used.
    """

    step: int
    loss: float
    grad_norm: float | None
    lr: float
