"""Learning-rate schedules: pure functions of the step, so there is nothing to save and nothing to resume.

``schedule.get_lr(step)`` takes the number of optimizer steps already made: 0 for the first. A warmup of ``w`` steps
multiplies the rate by (step + 1) / w. So the first step already learns, and step w - 1 has the full rate.
Schedules that end stay at ``min_lr`` afterwards. The names and fields are those of boostr.
"""

import enum
import functools
import math
import numbers
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from .. import hints
from ..errors import NonNegative, NonNegativeInt, PositiveInt, bad_type, bad_value, check_fields, check_int


class LrSchedule(ABC):
    """Base of all schedules; a subclass gives ``_lr`` for a valid step."""

    def get_lr(self, step: int) -> float:
        """The learning rate of the optimizer step number ``step``, counted from 0.

        Raises TypeError if ``step`` is not an integer, ValueError if it is negative.
        """
        try:
            number = operator.index(step)
        except TypeError:
            raise bad_type(f"get_lr({step!r}): the step is an integer, counted from 0") from None
        if number < 0:
            raise bad_value(f"get_lr({step}): steps are counted from 0")
        return self._lr(number)

    @abstractmethod
    def _lr(self, step: int) -> float:
        raise NotImplementedError


def _check_share(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0.0 < float(value) <= 1.0:
        raise bad_value(f"{name} is {value!r}, expected a number in (0, 1]")


Share: TypeAlias = Annotated[float, _check_share]  # in (0, 1]
Cycle: TypeAlias = Annotated[int, functools.partial(check_int, least=2)]


class _Checked(LrSchedule):
    """A dataclass whose fields are checked by what their types are annotated with, and ``min_lr`` is the least rate."""

    def __post_init__(self) -> None:
        check_fields(self, f"{type(self).__name__}: ")
        if hasattr(self, "min_lr"):
            _check_order(self, "min_lr", "base_lr" if hasattr(self, "base_lr") else "max_lr")


@dataclass(frozen=True)
class Constant(_Checked):
    """``lr`` at every step."""

    lr: NonNegative

    def _lr(self, step: int) -> float:
        return self.lr


@dataclass(frozen=True)
class LinearWarmup(_Checked):
    """base_lr * min(1, (step + 1) / warmup_steps); ``warmup_steps`` 0 is no warmup."""

    base_lr: NonNegative
    warmup_steps: NonNegativeInt

    def _lr(self, step: int) -> float:
        return self.base_lr * _warmup(step, self.warmup_steps)


class DecayShape(enum.Enum):
    """How WSD goes from ``base_lr`` to ``min_lr`` over its decay, u in [0, 1]: the share of the way still to go."""

    Linear = "linear"
    """1 - u"""
    Cosine = "cosine"
    """(1 + cos(pi * u)) / 2"""
    Sqrt = "sqrt"
    """1 - sqrt(u)"""

    def remaining(self, u: float) -> float:
        """The formula at ``u``."""
        if self is DecayShape.Linear:
            return 1.0 - u
        return _half_cosine(u) if self is DecayShape.Cosine else 1.0 - math.sqrt(u)


@dataclass(frozen=True)
class _Decaying(_Checked):
    base_lr: NonNegative
    min_lr: NonNegative
    warmup_steps: NonNegativeInt

    def _stable_then_decay(self, step: int, stable_steps: int, decay_steps: int, shape: DecayShape) -> float:
        """Linear warmup to ``base_lr``, the stable steps there, and the decay to ``min_lr``."""
        decayed = step - self.warmup_steps - stable_steps
        if decayed < 0:
            return self.base_lr * _warmup(step, self.warmup_steps)
        if decayed >= decay_steps:
            return self.min_lr
        return _between(self.min_lr, self.base_lr, shape.remaining(decayed / decay_steps))


@dataclass(frozen=True)
class CosineAnnealing(_Decaying):
    """Linear warmup to ``base_lr``, then half a cosine down to ``min_lr`` at ``total_steps``, then ``min_lr``.

    min_lr + (base_lr - min_lr) * (1 + cos(pi * u)) / 2,  u = (step - warmup_steps) / (total_steps - warmup_steps)

    ``total_steps`` includes the warmup. Source: Loshchilov & Hutter, "SGDR" (2017), one period.
    """

    total_steps: PositiveInt

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_order(self, "warmup_steps", "total_steps")

    def _lr(self, step: int) -> float:
        return self._stable_then_decay(step, 0, self.total_steps - self.warmup_steps, DecayShape.Cosine)


@dataclass(frozen=True)
class Wsd(_Decaying):
    """Warmup, stable, decay: linear warmup, ``stable_steps`` at ``base_lr``, ``decay_steps`` down to ``min_lr``.

    In the decay: min_lr + (base_lr - min_lr) * decay_shape(u),  u = (step - warmup_steps - stable_steps) / decay_steps

    ``decay_shape`` is a DecayShape or its name in lower case. Source: Hu et al., "MiniCPM" (2024).
    """

    stable_steps: NonNegativeInt
    decay_steps: NonNegativeInt
    decay_shape: DecayShape | str = DecayShape.Linear

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            object.__setattr__(self, "decay_shape", DecayShape(self.decay_shape))
        except ValueError:
            known = ", ".join(repr(shape.value) for shape in DecayShape)
            shape = self.decay_shape
            raise bad_value(f"Wsd: decay_shape is {shape!r}, expected a DecayShape or one of {known}") from None

    def _lr(self, step: int) -> float:
        return self._stable_then_decay(step, self.stable_steps, self.decay_steps, DecayShape(self.decay_shape))


@dataclass(frozen=True)
class StepDecay(_Checked):
    """initial_lr * decay_factor ** (step // decay_steps)"""

    initial_lr: NonNegative
    decay_factor: Share
    decay_steps: PositiveInt

    def _lr(self, step: int) -> float:
        return self.initial_lr * self.decay_factor ** (step // self.decay_steps)


@dataclass(frozen=True)
class ExponentialDecay(_Checked):
    """initial_lr * exp(-decay_rate * step)"""

    initial_lr: NonNegative
    decay_rate: NonNegative

    def _lr(self, step: int) -> float:
        return self.initial_lr * math.exp(-self.decay_rate * step)


@dataclass(frozen=True)
class CyclicalLr(_Checked):
    """A triangular wave: ``min_lr`` at step 0, ``max_lr`` after cycle_length // 2 steps, then down again to ``min_lr``.

    Source: Smith, "Cyclical learning rates for training neural networks" (2017), the policy "triangular".
    """

    min_lr: NonNegative
    max_lr: NonNegative
    cycle_length: Cycle

    def _lr(self, step: int) -> float:
        position, rise = step % self.cycle_length, self.cycle_length // 2
        if position <= rise:
            return _between(self.min_lr, self.max_lr, position / rise)
        return _between(self.min_lr, self.max_lr, (self.cycle_length - position) / (self.cycle_length - rise))


@dataclass(frozen=True)
class WarmRestarts(_Checked):
    """Half cosines down to ``min_lr``, one after the other, each beginning anew at the top.

    Period k has floor(first_period * period_mult**k) steps and the top max(min_lr, base_lr * lr_decay**k); within it
    min_lr + (top - min_lr) * (1 + cos(pi * u)) / 2,  u = steps since the restart / steps of the period.

    Source: Loshchilov & Hutter, "SGDR: Stochastic gradient descent with warm restarts" (2017).
    """

    base_lr: NonNegative
    min_lr: NonNegative
    first_period: PositiveInt
    period_mult: NonNegative = 1.0
    lr_decay: Share = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        mult = self.period_mult
        if mult < 1:
            raise bad_value(f"WarmRestarts: period_mult is {mult}, expected at least 1: periods never shrink")

    def _lr(self, step: int) -> float:
        if self.period_mult == 1:
            k, since = divmod(step, self.first_period)
            period = self.first_period
        else:
            k, since, period = 0, step, self.first_period
            while since >= period:
                since -= period
                k += 1
                period = int(self.first_period * self.period_mult**k)
        top = max(self.min_lr, self.base_lr * self.lr_decay**k)
        return _between(self.min_lr, top, _half_cosine(since / period))


@dataclass(frozen=True)
class InverseSqrt(_Checked):
    """base_lr * min((step + 1) / warmup_steps, sqrt(warmup_steps / (step + 1)))

    The peak, where the warmup ends, is base_lr. Source: Vaswani et al., "Attention is all you need" (2017), section
    5.3; there base_lr is 1 / sqrt(d_model * warmup_steps).
    """

    base_lr: NonNegative
    warmup_steps: PositiveInt

    def _lr(self, step: int) -> float:
        ratio = (step + 1) / self.warmup_steps
        return self.base_lr * min(ratio, math.sqrt(1.0 / ratio))


@dataclass(frozen=True)
class Lambda(LrSchedule):
    """``fn(step)``, a function of your own; a result that is no finite rate >= 0 raises ValueError."""

    fn: Callable[[int], float]

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise bad_type(f"Lambda: fn is {self.fn!r}, expected a function from step to learning rate")

    def _lr(self, step: int) -> float:
        lr = float(self.fn(step))
        if not 0.0 <= lr < math.inf:
            raise bad_value(f"Lambda: fn({step}) returned {lr}, expected a finite learning rate >= 0")
        return lr


def _warmup(step: int, warmup_steps: int) -> float:
    return (step + 1) / warmup_steps if step < warmup_steps else 1.0


def _half_cosine(u: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * u))


def _between(low: float, high: float, share: float) -> float:
    # Not low + (high - low) * share, which misses ``high`` by a rounding at share 1.
    return low * (1.0 - share) + high * share


def _check_order(schedule: LrSchedule, low: str, high: str) -> None:
    a, b = getattr(schedule, low), getattr(schedule, high)
    if a > b:
        raise bad_value(f"{type(schedule).__name__}: {low} is {a}, more than {high}, {b}")


hints.list_names(__name__)
