"""Plans: faster ways to compute a module's method. ``minigrad.fast`` has them, and lists them in ``PLANS``.

``Module.__call__`` asks here for a plan of ``forward``, and a method decorated ``@planned`` asks for itself. Nothing
else knows that there are plans.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from .errors import bad_value
from .modes import FAST_IS_OFF, holding, of_thread

F = TypeVar("F", bound=Callable[..., Any])


class Plan:
    """A faster way to compute a method of a module.

    ``equality`` says how its results compare with those of the method. ``reasons`` and ``run`` have the method's
    arguments.
    """

    name: str
    equality: str

    def reasons(self, module: Any, *args: Any, **kwargs: Any) -> Iterator[str]:
        """Why the plan does not apply: a generator, so that a call pays for the first reason only. None: it applies."""
        raise NotImplementedError

    def run(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        """The method's result."""
        raise NotImplementedError


class CallRecorder:
    """Is told, while it is in its thread's ``Mode``, what modules are called and which plans run."""

    def entered(self, module: Any) -> None:
        """``module`` is called."""

    def left(self, module: Any) -> None:
        """The call of ``module`` returns."""

    def chose(self, module: Any, method: str, plan: Plan | None, against: dict[str, list[str]]) -> None:
        """``plan`` runs, or None of them; ``against``: by the name of each other plan that was asked, its reasons."""


PLANS: dict[Callable[..., Any], tuple[Plan, ...]] = {}
"""By a method as its class defines it, the plans for it, best first. A subclass that overrides the method has none.

Empty with ``MINIGRAD_FAST=0``: then no call comes here.
"""


def choose(method: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | None:
    """The first plan for ``method`` that applies to these arguments."""
    off, recorder = of_thread.mode.unfused, of_thread.mode.recorder
    if off is True and recorder is None:
        return None
    chosen = None
    against: dict[str, list[str]] = {}
    for plan in PLANS[method]:
        if off is True or (off and plan.name in off):
            against[plan.name] = ["plans are off: MINIGRAD_FAST=0 or unfused()"]
            continue
        reasons = _reasons(plan, module, args, kwargs)
        if (first := next(reasons, None)) is None:
            chosen = plan
            break
        if recorder is not None:  # nobody else wants to know the others
            against[plan.name] = [first, *reasons]
    if recorder is not None:
        recorder.chose(module, method.__name__.lstrip("_"), chosen, against)
    return chosen


def _reasons(plan: Plan, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
    try:
        return plan.reasons(module, *args, **kwargs)
    except TypeError:  # no line of the generator has run: the method itself says best what is wrong
        return iter(("the method has other arguments",))


def planned(method: F) -> F:
    """A method other than ``forward`` that may have plans."""
    if FAST_IS_OFF:
        return method

    @functools.wraps(method)
    def asked(module: Any, *args: Any) -> Any:
        plan = choose(asked, module, args, {})
        return method(module, *args) if plan is None else plan.run(module, *args)

    PLANS[asked] = ()
    return asked  # type: ignore[return-value]  # functools.wraps keeps the signature


@contextlib.contextmanager
def recording(recorder: CallRecorder) -> Iterator[None]:
    """Tell ``recorder`` of the calls of this thread."""
    with holding(of_thread.mode, recorder=recorder):
        yield


@contextlib.contextmanager
def unfused(*names: str) -> Iterator[None]:
    """Within it, modules compute what their methods say, in this thread: no plan of ``minigrad.fast`` runs.

    With ``names``, the plans of these names are off; ``minigrad.explain`` shows them. ``MINIGRAD_FAST=0`` in the
    environment turns all off. ValueError for an unknown name.
    """
    if not FAST_IS_OFF and (unknown := set(names) - {plan.name for plans in PLANS.values() for plan in plans}):
        raise bad_value(f"unfused: there is no plan {sorted(unknown)[0]!r}; explain shows their names")
    before = of_thread.mode.unfused
    off = True if not names or before is True else frozenset(names) | (before or frozenset())
    with holding(of_thread.mode, unfused=off):
        yield
