"""GradStore: the gradients that one ``backward`` computed, by tensor id."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping
from typing import TYPE_CHECKING, Any

from .errors import bad_type, located
from .grad_arithmetic import GradArithmetic, warn_of_unread

if TYPE_CHECKING:
    from .tensor import Tensor

# One counter numbers tensors and graph nodes of the process, so ids also tell the order of creation.
next_id: Callable[[], int] = itertools.count(1).__next__


class TensorId(int):
    """Identity of a tensor: unique in the process, counted from 1, never reused (boostr's ``TensorId``)."""

    __slots__ = ()

    @classmethod
    def new(cls) -> TensorId:
        """An id that no tensor has."""
        return cls(next_id())

    @classmethod
    def from_raw(cls, value: int) -> TensorId:
        """The id with this number, for example one read back from a file."""
        return cls(value)

    def raw(self) -> int:
        """The number itself."""
        return int(self)

    def __repr__(self) -> str:
        return f"TensorId({int(self)})"


class NoGradientError(KeyError):
    """The KeyError of ``grads[tensor]``; its text is the message, which Python would show in quotes."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class GradStore(GradArithmetic):
    """A mapping from tensor (or TensorId) to its gradient, a Tensor of the same shape, dtype and device.

    ``loss.backward()`` returns one. It holds the gradients of the leaves that require grad, and of nothing else. Each
    gradient has contiguous memory that it shares with no other tensor, so it may be changed in place.
    """

    __slots__ = ("_grads", "_line")

    def __init__(self, numbered: dict[int, Tensor] | None = None) -> None:
        self._grads: dict[int, Tensor] = {} if numbered is None else numbered

    @staticmethod
    def _key(key: Tensor | TensorId) -> int:
        try:
            return key._id  # type: ignore[union-attr]  # a TensorId has none: the rarer case
        except AttributeError:
            if isinstance(key, TensorId):
                return key
            found = f"not by {type(key).__name__}; for example grads[model.weight]"
            raise bad_type(f"a GradStore is indexed by a Tensor or a TensorId, {found}") from None

    def __getitem__(self, key: Tensor | TensorId) -> Tensor:
        """The gradient of a tensor; NoGradientError, a KeyError, with the likely reason, if there is none."""
        grad = self._grads.get(self._key(key))
        if grad is None:
            why = "it does not require grad, is not a leaf, or the loss does not depend on it (use .get to test)"
            raise located(NoGradientError(f"no gradient for tensor {int(self._key(key))}: {why}"))
        return grad

    def get(self, key: Tensor | TensorId) -> Tensor | None:
        """The gradient of a tensor, or None."""
        try:  # a tensor is the usual case; this is asked for each parameter, several times in a step
            return self._grads.get(key._id)  # type: ignore[union-attr]
        except AttributeError:
            return self._grads.get(self._key(key))

    def insert(self, key: Tensor | TensorId, grad: Tensor) -> None:
        """Set the gradient of a tensor, replacing the one it had."""
        try:  # as in get
            self._grads[key._id] = grad  # type: ignore[union-attr]
        except AttributeError:
            self._grads[self._key(key)] = grad

    def select(self, numbers: Iterable[int]) -> dict[int, Tensor]:
        """Those of the gradients of the tensors with these ids' numbers that there are, in the order asked for."""
        grads = self._grads
        return {number: grads[number] for number in numbers if number in grads}

    def take(self, numbers: Iterable[int]) -> dict[int, Tensor]:
        """``select``, out of the store."""
        grads = self._grads
        return {number: grads.pop(number) for number in numbers if number in grads}

    def update(self, other: GradStore | Mapping[Any, Tensor]) -> None:
        """Insert all gradients of another store, or of a dict whose keys are tensors or their ids."""
        plain = other._grads if isinstance(other, GradStore) else {self._key(key): g for key, g in other.items()}
        self._grads.update(plain)

    def remove(self, key: Tensor | TensorId) -> Tensor | None:
        """Take the gradient of a tensor out of the store and return it, or None."""
        return self._grads.pop(self._key(key), None)

    def pop(self, key: Tensor | TensorId, *default: Any) -> Any:
        """``remove``; without a ``default``, NoGradientError where there is none."""
        grad = self.remove(key)
        return grad if grad is not None else default[0] if default else self[key]

    def accumulate(
        self, key: Tensor | TensorId, grad: Tensor, add: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> None:
        """Add to the gradient of a tensor, or insert it. ``add(old, new)`` replaces plain addition; if it raises, the
        store is unchanged. Neither ``grad`` nor the stored gradient is written to."""
        number = self._key(key)
        old = self._grads.get(number)
        self._grads[number] = grad if old is None else (add(old, grad) if add else old + grad)

    def contains(self, key: Tensor | TensorId) -> bool:
        """Whether the tensor has a gradient here."""
        return self._key(key) in self._grads

    __contains__, __setitem__ = contains, insert

    def keys(self) -> list[TensorId]:
        """The ids that have gradients, in the order in which the gradients became final."""
        return [TensorId(number) for number in self._grads]

    def values(self) -> list[Tensor]:
        """The gradients, in the order of ``keys``."""
        return list(self._grads.values())

    def items(self) -> list[tuple[TensorId, Tensor]]:
        """Pairs of id and gradient, in the order of ``keys``."""
        return list(zip(self.keys(), self.values(), strict=True))

    def numbered(self) -> ItemsView[int, Tensor]:
        """``items`` with the plain numbers of the ids, without making a TensorId of each."""
        return self._grads.items()

    def numbers(self) -> KeysView[int]:
        """``keys`` as plain numbers."""
        return self._grads.keys()

    def __iter__(self) -> Iterator[TensorId]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._grads)

    def is_empty(self) -> bool:
        """Whether there is no gradient at all."""
        return not self._grads

    def clear(self) -> None:
        """Drop all gradients."""
        self._grads.clear()

    def __repr__(self) -> str:
        return f"GradStore({len(self)} gradients)"


class UnreadGradStore(GradStore):
    """A store as ``backward`` returns it: the first use makes it a plain one, and to drop it before is a mistake."""

    __slots__ = ()

    @property
    def _grads(self) -> dict[int, Tensor]:  # type: ignore[override]  # what all methods ask for first
        self.__class__ = GradStore  # type: ignore[assignment]
        return self._grads

    def __del__(self) -> None:
        warn_of_unread(*self._line)


def unread(grads: GradStore) -> GradStore:
    """The store, which warns if it is dropped as it is; its line is that of the call that led into minigrad."""
    frame: Any = sys._getframe(2)
    while frame and frame.f_globals.get("__name__", "")[:9] == "minigrad.":
        frame = frame.f_back
    if frame and grads._grads:
        grads._line = frame.f_code.co_filename, frame.f_lineno
        grads.__class__ = UnreadGradStore
    return grads


def check_grads(name: str, grads: Any, usage: str = "grads = loss.backward(); optimizer.step(grads)") -> GradStore:
    """``grads``, if it is a GradStore; else TypeError, naming the function that was called with it, and ``usage``."""
    if not isinstance(grads, GradStore):
        found = "None" if grads is None else type(grads).__name__
        remedy = f"gradients are not stored on the parameters: {usage}"
        raise bad_type(f"{name} takes the GradStore that loss.backward() returned, not {found}; {remedy}")
    return grads
