"""A short way for arithmetic of two tensors: most operations of small tensors are such, and their cost is Python's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...autograd import Function, TensorCore
from ...device import CPU
from ...dtypes import float32, float64
from ...errors import user_line
from ...grad_store import next_id
from ...modes import of_thread
from ...tensor_core import Version

if TYPE_CHECKING:
    from ...tensor import Tensor

_new: Callable[..., Any] = object.__new__


class _Unrecorded(Function):
    """Stands for the instance in a ``forward`` on the CPU that is not recorded: it keeps nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        self.device, self.needs = CPU, (False, False)

    if not TYPE_CHECKING:
        saved = property(None, lambda self, arrays: None)


_unrecorded = _Unrecorded()


def combine(op: type[Function], x: TensorCore, y: TensorCore) -> Tensor:
    """``op.apply(x, y)`` of arithmetic, at half the cost where both are float32 or float64 on one device.

    Nothing is called here that need not be: for small tensors that is what an operation costs.
    """
    a, b = x.data, y.data
    dtype, device, mode = a.dtype, x.device, of_thread.mode
    if (
        (dtype is not float32 and dtype is not float64)
        or b.dtype is not dtype
        or y.device is not device
        or mode.autocast is not None
        or mode.kernels is not None
    ):
        return op.apply(x, y)
    need_x, need_y = x.requires_grad, y.requires_grad
    needed = (need_x or need_y) and mode.enabled and op.differentiable
    if not needed and device is not CPU:
        return op.apply(x, y)
    node = op() if needed else _unrecorded
    node.kernels = kernels = device.native
    if needed:
        node.needs = (need_x, need_y)
        node.saved = ()
    try:
        out = op.forward(node, a, b)
    except ValueError:
        return op.apply(x, y)  # which explains it
    if not isinstance(out, kernels.Array):
        out = kernels.as_array(out)
    z: Tensor = _new(TensorCore.tensor_type)
    z.data = out
    z.device = device
    z._id = number = next_id()
    z._version = version = Version()
    if needed:
        source_x, source_y = x.node or x, y.node or y
        node.edges = (source_x if need_x else None, source_y if need_y else None)
        node.device = device
        node.half = None
        node.order = number
        node.out_shape = out.shape
        node.out_dtype = out.dtype
        if node.saved:
            node.saved_at = number
            node.versions = (x._version, y._version, version)
        if mode.anomaly:
            node.line = user_line()
        z.node = node
        z.requires_grad = True
    else:
        z.node = None
        z.requires_grad = False
    return z
