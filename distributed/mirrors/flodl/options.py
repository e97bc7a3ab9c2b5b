"""Checks of what the classes of this folder are given, made when it is given and not in a replica's thread."""

import enum
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from minigrad.errors import check_float, check_int
from minigrad.nn import Module
from minigrad.optim import Optimizer

E = TypeVar("E", bound=enum.Enum)


def member_of(name: str, kind: type[E], value: Any) -> E:
    """A member of an enumeration, given itself or by its name in any case. ValueError for anything else."""
    found = kind.__members__.get(value.upper()) if isinstance(value, str) else value
    if not isinstance(found, kind):
        choices = " or ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise ValueError(f"{name} is {value!r}, expected {choices}, or such a name")
    return found


def takes(function: Callable[..., Any], *arguments: str) -> bool:
    """Whether a function can be called with these arguments; True for those in C that do not say."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)
    return True


def check_function(name: str, value: Any, *arguments: str) -> None:
    """TypeError unless ``value`` is a function that can be called with these arguments."""
    if not callable(value) or not takes(value, *arguments):
        raise TypeError(f"{name} is {value!r}, expected a function of ({', '.join(arguments)})")


def called_with(*arguments: str) -> Callable[[str, Any], None]:
    """``check_function`` for these arguments."""
    return lambda name, value: check_function(name, value, *arguments)


def check_speed_hint(name: str, hint: Any) -> tuple[int, float]:
    """(slowest rank, ratio) as an integer >= 0 and a number >= 1; ValueError for anything else."""
    try:
        rank, ratio = hint
        return check_int(name, rank, 0), check_float(name, ratio, 1.0)
    except (TypeError, ValueError):
        expected = "(slowest rank, ratio >= 1): how many times as fast the others are"
        raise ValueError(f"{name} is {hint!r}, expected {expected}") from None


def clamped_overhead(name: str, target: Any) -> float:
    """A share of the time, 0 to 1, clamped to 0.01 ... 0.5; ValueError for anything else."""
    return min(max(check_float(name, target, 0.0, 1.0), 0.01), 0.5)


SpeedHint = Annotated[tuple[int, float], check_speed_hint]
Overhead = Annotated[float, clamped_overhead]


def made_optimizer(name: str, factory: Callable[[Any], Optimizer], model: Module, lr_scale: float) -> Optimizer:
    """What ``factory`` (called ``name``) makes of the pairs (name, parameter) that require grad, its learning rates
    times ``lr_scale``. TypeError for anything else than an Optimizer."""
    made = factory([(name, p) for name, p in model.named_parameters() if p.requires_grad])
    if not isinstance(made, Optimizer):
        raise TypeError(f"{name}(params) returned {type(made).__name__}, expected an Optimizer")
    for group in made.param_groups:
        group["lr"] *= lr_scale
    return made
