"""TensorCore: what autograd knows of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .device import Device
from .grad_store import next_id
from .versions import Version, bump

if TYPE_CHECKING:
    from .autograd import Function
    from .tensor import Tensor


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
