"""What to say about a name that is not there: what takes the place of PyTorch's, or which name was meant."""

from __future__ import annotations

import difflib
import sys
from typing import Any

from .errors import located

CLIP_GRADS = "minigrad.optim.clip_grad_norm(grads, max_norm), with the GradStore that loss.backward() returned"
OTHER_LAYERS = "minigrad has the layers of transformers and of small networks: see minigrad.nn.__all__"
_ZERO = "there is nothing to zero: loss.backward() returns fresh gradients, in a GradStore"

HINTS: dict[str, dict[str, str]] = {
    "Tensor": {
        "grad": "gradients are not stored on tensors: grads = loss.backward(), then grads[tensor]",
        "grad_fn": "use .node, or minigrad.draw for a picture of the graph",
        "is_cuda": "use .device.type == 'cuda'",
        "type": "use .to(dtype), or .dtype",
        "astype": "use .to(dtype)",
        "retain_grad": "gradients are of leaves; cut with .detach().requires_grad_(), go on with .backward(gradient)",
    },
    "Module": {"zero_grad": _ZERO},
    "Optimizer": dict.fromkeys(("zero_grad", "zero_grads"), f"{_ZERO}; leave the call out"),
}
"""By the name of a class, or of a module (``answer_for``): what takes the place of names that are not there."""
_searched: list[str] = []
"""The modules in which a name that another module lacks may be, in the order in which they were loaded."""


def missing(kind: str, name: str, names: list[str], owner: str | None = None) -> AttributeError:
    """The error for a name that ``owner`` (default: ``kind``, a key of HINTS) has not; ``names`` are those it has."""
    message = f"{owner or kind} has no attribute {name!r}"
    hint = HINTS[kind].get(name)
    if hint is None and not name.startswith("_"):
        places = [place for place in _searched if place != kind] if kind in sys.modules else []
        found = next((place for place in places if callable(vars(sys.modules[place]).get(name))), None)
        lower = {n.lower(): n for n in names if not n.startswith("_")}
        near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.75)
        hint = f"it is {found}.{name}" if found else f"did you mean {lower[near[0]]!r}?" if near else None
    # With a name, and None as the object, Python adds no second suggestion where it prints the error.
    error = AttributeError(f"{message}; {hint}" if hint else message, name=name)
    return error if name.startswith("_") else located(error)  # protocols ask for such names all the time


class NotInMinigrad:
    """Stands in a class for an attribute that PyTorch's has: to read or to set it is an error that says what to use.

    A ``__getattr__`` could say more, of every name; but up to Python 3.11 a class that has one reads each attribute
    four times as slowly, also those that are there, and a small operation reads ten of its tensors.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name: str = name

    def __get__(self, instance: object | None, owner: type) -> Any:
        raise missing("Tensor", self.name, [], owner.__name__)

    def __set__(self, instance: object, value: Any) -> None:
        raise missing("Tensor", self.name, [], type(instance).__name__)


def defined_in(module: str) -> list[str]:
    """The public functions and classes that a module defines itself: its ``__all__``."""
    found = vars(sys.modules[module]).items()
    return [name for name, value in found if name[0] != "_" and getattr(value, "__module__", None) == module]


def list_names(module: str) -> None:
    """Give a module the ``__all__`` of what it defines itself; to type checkers, that are all names anyway."""
    vars(sys.modules[module])["__all__"] = defined_in(module)


def answer_for(module: str, instead: dict[str, str], *, searched: bool = False) -> None:
    """Give a module a ``__getattr__``, which is called for names that it has not, and of which type checkers need not
    know; ``instead`` says what to use in place of some. With ``searched``, other modules look here for a name that they
    lack.
    """
    HINTS[module] = instead
    if searched:
        _searched.append(module)

    def named(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = vars(sys.modules[module])
        raise missing(module, name, list(found.get("__all__", found)), f"module {module!r}")

    vars(sys.modules[module])["__getattr__"] = named
