"""TensorCore: what autograd knows of a tensor, and how it notices changes in place that would make gradients wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from .device import Device
from .grad_store import next_id

if TYPE_CHECKING:
    from .autograd import Function
    from .tensor import Tensor

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


class TensorCore:
    """What autograd knows of a tensor. ``minigrad.Tensor`` adds the operations."""

    __slots__ = ("__weakref__", "_id", "_version", "data", "device", "node", "requires_grad")

    tensor_type: ClassVar[type[Tensor]]  # the class of what ops return: Tensor, which minigrad.tensor puts here

    data: Any
    device: Device
    requires_grad: bool
    node: Function | None
    _id: int
    _version: Version

    def _init(self, data: Any, device: Device, version: Version | None = None) -> None:
        self.data = data
        self.device = device
        self.requires_grad = False
        self.node = None
        self._id = next_id()
        self._version = version or Version()

    def bump_version(self) -> None:
        """Tell autograd that this tensor's memory was changed in place."""
        bump((self,))
