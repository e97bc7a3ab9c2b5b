"""PyTorch's schedulers: each sets the learning rates of an optimizer's groups, anew with every ``step()``.

The values are PyTorch's, each a formula of the count of steps and of the rate that it begins from. Where the program,
or another scheduler, has set a rate since the last ``step()``, the scheduler goes on from there, as PyTorch's do: the
base moves with it, so that two schedulers of one optimizer multiply. ``LambdaLR``, ``OneCycleLR`` and
``CosineAnnealingWarmRestarts`` set their own rate again instead, from the one that the optimizer had at first.

``lr_schedule.py`` has this library's own, functions of the step without a state.
"""

import bisect
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import bad_type, bad_value, check_int, check_option, expect
from .optimizer import Optimizer

__all__ = [
    "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "ExponentialLR", "LRScheduler", "LambdaLR",
    "LinearLR", "OneCycleLR", "SequentialLR", "StepLR",
]  # fmt: skip

Formula: TypeAlias = Callable[[float, int, int], float]

_initial: weakref.WeakKeyDictionary[Optimizer, list[float]] = weakref.WeakKeyDictionary()


class LRScheduler:
    """Base of the schedulers: ``formula(base, step, group)`` is the rate of a group after ``step`` steps. It
    ``follows`` the rates that others set, if it is linear in the base. One that rises again after a factor near 0
    does not follow a rate there that would make the base more than ten times as large.
    """

    def __init__(self, optimizer: Optimizer, formula: Formula, follows: bool = False) -> None:
        if not isinstance(optimizer, Optimizer):
            raise bad_type(f"{type(self).__name__} takes an optimizer first, not a {type(optimizer).__name__}")
        self.optimizer = optimizer
        self.formula = formula
        initial = _initial.setdefault(optimizer, [])
        initial += [float(group["lr"]) for group in optimizer.param_groups[len(initial) :]]
        self.follows: bool = follows
        self.base_lrs: list[float] = [float(group["lr"]) for group in optimizer.param_groups] if follows else [*initial]
        self.last_epoch: int = 0
        """Calls of ``step`` so far."""
        self._set()

    def _set(self, rates: Sequence[float] = ()) -> None:
        self._last = [float(self.formula(base, self.last_epoch, i)) for i, base in enumerate(self.base_lrs)]
        for group, rate in zip(self.optimizer.param_groups, rates or self._last):
            group["lr"] = rate

    def _follow(self) -> list[float]:
        """The rates of all groups, after the bases have moved to those that others have set, or of new groups."""
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        wanted = f"{len(self.base_lrs)}; make another {type(self).__name__} after add_param_group"
        expect(self.follows or len(rates) == len(self.base_lrs), "groups of the optimizer", len(rates), wanted)
        for i, rate in enumerate(rates if self.follows else ()):
            if [rate] != self._last[i : i + 1]:
                low, high = (float(self.formula(base, self.last_epoch, i)) for base in (0.0, 1.0))
                old = [*self.base_lrs, rate][i]
                base = (rate - low) / (high - low) if high != low else old
                lost = high - low < 1e-3 and abs(base) > 10 * abs(old)
                if lost and isinstance(self, CosineAnnealingLR | SequentialLR):
                    base = old
                self._last[i : i + 1], self.base_lrs[i : i + 1] = [rate], [base]
        return rates

    def step(self) -> None:
        """Set the rates of the next step; call it after ``optimizer.step(grads)``."""
        self._follow()
        self.last_epoch += 1
        self._set()

    def get_last_lr(self) -> list[float]:
        """The rates of the groups, as this scheduler set them last, or has taken them over in ``state_dict``."""
        return [*self._last]

    def state_dict(self) -> dict[str, Any]:
        """The count of steps, the rates, and those that they begin from; JSON values. All else is the program's."""
        return {"last_epoch": self.last_epoch, "lrs": self._follow(), "base_lrs": [*self.base_lrs]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where ``state_dict`` was called. ValueError if it is none, or of another number of groups."""
        bases = state.get("base_lrs") if isinstance(state, Mapping) else None
        count = len(self.optimizer.param_groups)
        if not isinstance(bases, list) or len(bases) != count:
            raise bad_value(f"this is not the state of a {type(self).__name__} of {count} groups")
        self.last_epoch, self.base_lrs = check_int("last_epoch", state.get("last_epoch"), 0), [*bases]
        self._set(state.get("lrs", ()))  # of another scheduler, if that was the last to set them


def _each(name: str, value: Any, optimizer: Optimizer) -> list[Any]:
    """One value for each group."""
    count = len(optimizer.param_groups)
    values = list(value) if isinstance(value, Sequence) else [value] * count
    expect(len(values) == count, name, value, f"one for all groups, or one for each of {count}")
    return values


class LambdaLR(LRScheduler):
    """base * lr_lambda(step); a list of functions has one for each group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Any]) -> None:
        functions = _each("lr_lambda", lr_lambda, optimizer)
        super().__init__(optimizer, lambda base, step, group: base * float(functions[group](step)))


class StepLR(LRScheduler):
    """base * gamma ** (step // step_size)"""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        check_int("step_size", step_size, 1)
        super().__init__(optimizer, lambda base, step, _: base * gamma ** (step // step_size), follows=True)


class ExponentialLR(LRScheduler):
    """base * gamma ** step"""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        super().__init__(optimizer, lambda base, step, _: base * gamma**step, follows=True)


class LinearLR(LRScheduler):
    """base times a factor that goes from ``start_factor`` to ``end_factor`` in ``total_iters`` steps, and stays."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5
    ) -> None:
        check_int("total_iters", total_iters, 1)

        def formula(base: float, step: int, group: int) -> float:
            return base * _line(start_factor, end_factor, min(step, total_iters) / total_iters)

        super().__init__(optimizer, formula, follows=True)


class CosineAnnealingLR(LRScheduler):
    """eta_min + (base - eta_min) (1 + cos(pi step / T_max)) / 2; after T_max it rises again.

    Source: Loshchilov & Hutter, "SGDR" (2017), without restarts.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        check_int("T_max", T_max, 1)
        super().__init__(optimizer, lambda base, step, _: _cosine(base, eta_min, step / T_max), follows=True)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half cosines from base to ``eta_min``, each ``T_mult`` times as long as the one before; the first has ``T_0``."""

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0) -> None:
        check_int("T_0", T_0, 1)
        check_int("T_mult", T_mult, 1)

        def formula(base: float, step: int, group: int) -> float:
            length = T_0
            while step >= length:
                step, length = step - length, length * T_mult
            return _cosine(base, eta_min, step / length)

        super().__init__(optimizer, formula)


class OneCycleLR(LRScheduler):
    """From max_lr / div_factor up to ``max_lr`` within ``pct_start`` of ``total_steps``, then down to
    max_lr / div_factor / final_div_factor. Momentum, or the first beta, goes the other way, from ``max_momentum`` to
    ``base_momentum`` and back, unless ``cycle_momentum`` is False. Without ``total_steps``, the steps are ``epochs``
    times ``steps_per_epoch``.

    Source: Smith & Topin, "Super-convergence" (2018).
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None,
        epochs: int | None = None, steps_per_epoch: int | None = None, *, pct_start: float = 0.3,
        anneal_strategy: str = "cos", cycle_momentum: bool = True, base_momentum: float = 0.85,
        max_momentum: float = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
    ) -> None:  # fmt: skip
        check_option("anneal_strategy", anneal_strategy, ("cos", "linear"))
        if total_steps is None:
            expect(None not in (epochs, steps_per_epoch), "total_steps", None, "one, or epochs and steps_per_epoch")
            total_steps = check_int("epochs", epochs, 1) * check_int("steps_per_epoch", steps_per_epoch, 1)
        steps = check_int("total_steps", total_steps, 1)
        peaks = _each("max_lr", max_lr, optimizer)
        if cycle_momentum and optimizer.defaults.keys().isdisjoint(("betas", "momentum")):
            raise bad_value(f"{type(optimizer).__name__} has neither betas nor momentum: pass cycle_momentum=False")
        anneal = _cosine if anneal_strategy == "cos" else _line
        up, last = pct_start * steps - 1, steps - 1

        def between(step: int, start: float, peak: float, end: float) -> float:
            return anneal(start, peak, step / up) if step <= up else anneal(peak, end, (step - up) / (last - up))

        def formula(base: float, step: int, group: int) -> float:
            expect(step <= steps, "total_steps", steps, f"at least {step}, the steps so far")
            options = self.optimizer.param_groups[group]
            momentum = between(step, max_momentum, base_momentum, max_momentum)
            if cycle_momentum:
                pair = (momentum, options["betas"][1]) if "betas" in options else None
                options.update({"betas": pair} if pair else {"momentum": momentum})
            start = peaks[group] / div_factor
            return between(step, start, peaks[group], start / final_div_factor)

        super().__init__(optimizer, formula)


class SequentialLR(LRScheduler):
    """One scheduler after the other: the next begins, as after no steps, when its milestone is reached."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]) -> None:
        expect(len(milestones) == len(schedulers) - 1, "milestones", milestones, "one fewer than schedulers")
        starts = [0, *milestones]

        def formula(base: float, step: int, group: int) -> float:
            index = bisect.bisect_right(milestones, step)
            return schedulers[index].formula(base, step - starts[index], group)

        super().__init__(optimizer, formula)  # from the optimizer's first rates; the schedulers' first steps are undone
        self.follows: bool = all(scheduler.follows for scheduler in schedulers)


def _cosine(start: float, end: float, u: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * u)) / 2


def _line(start: float, end: float, u: float) -> float:
    return start + (end - start) * u
