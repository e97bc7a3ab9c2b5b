"""The same values in another dtype, in new memory, or on another device."""

from typing import TYPE_CHECKING, Any

from ...autograd import Function
from ...device import Device
from ...modes import of_thread

if TYPE_CHECKING:
    from ...tensor import Tensor


class _Copy(Function):
    """dx = dy, in the dtype of x (autograd casts it)."""

    widens = False

    def backward(self, dy: Any) -> Any:
        return dy


class Cast(_Copy):
    """y = x in another dtype;  dx = dy in the dtype of x."""

    def forward(self, x: Any, *, dtype: Any) -> Any:
        return self.kernels.elementwise.cast(x, dtype)


class Clone(_Copy):
    """y = x in new, contiguous memory;  dx = dy."""

    def forward(self, x: Any) -> Any:
        return self.kernels.copy(x)


class ToDevice(Function):
    """y = x on another device;  dx = dy on the device of x. The one operation of two devices."""

    __slots__ = ("source",)
    source: Device

    @classmethod
    def apply(cls, *inputs: Any, **params: Any) -> "Tensor":
        """``x, target=device, wait=bool``: without ``wait`` the copy is part of the stream (see ``Tensor.to``)."""
        (x,), target = inputs, params["target"]
        node = cls()
        node.source, node.device, node.kernels = x.device, target, x.device.kernels
        node.saved, node.half = (), None
        node.needs = (x.requires_grad,)
        mode = of_thread.mode
        out = _transferred(x.data, x.device, target, params["wait"])
        return node._output(out, None, inputs, mode, [x.node or x] if x.requires_grad and mode.enabled else None)

    def backward(self, dy: Any) -> Any:
        return _transferred(dy, self.device, self.source, True)


def _transferred(array: Any, source: Device, target: Device, wait: bool) -> Any:
    """A copy of the array on the device ``target``."""
    if source.type == "cpu":
        return target.kernels.from_host(array, wait=wait)
    if target.type == "cpu":
        return source.kernels.to_host(array, wait=wait)
    return target.kernels.from_device(array, target.index)
