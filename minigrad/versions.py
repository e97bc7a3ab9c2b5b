"""Versions: how autograd notices that memory which a graph still needs was changed in place."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .grad_store import next_id

if TYPE_CHECKING:
    from .autograd import TensorCore

_lock = threading.Lock()
_latest = 0


def latest_change() -> int:
    """The number of the last change of any memory, from the counter that numbers tensors and nodes."""
    return _latest


class Version:
    """Counts the in-place changes of one piece of memory; shared by a tensor and its views."""

    # Attributes of the class: each result of an operation has a Version, and few are ever changed.
    count: int = 0
    changed_at: int = 0
    """The number of the last change."""
    memory: int = 0
    """The ``id`` of the array that owns what was changed then."""


def bump(tensors: Iterable[TensorCore]) -> None:
    """The memory of these tensors is changed in place."""
    global _latest
    with _lock:
        _latest = next_id()
        for tensor in tensors:
            version = tensor._version
            version.count += 1
            version.changed_at = _latest
            base = tensor.data.base
            version.memory = id(tensor.data if base is None else base)  # of the owner, without a call of it


def owner(array: Any) -> Any:
    """The array whose memory this one is, or is a view of."""
    return array if array.base is None else array.base
