"""Methods of Tensor: another dtype or device, and new tensors of this one's.

Some are named like Python's types; apart, because in Tensor's own annotations these names mean the types.
"""

from __future__ import annotations

import builtins
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes, shapes
from ..autograd import TensorCore
from ..device import CPU, Device, Place
from ..ops import elementwise
from .combine import combine

if TYPE_CHECKING:
    from ..tensor import Tensor


class CastsMethods:
    """See the module."""

    __slots__ = ()

    def _cast(self: Tensor, dtype: np.dtype[Any]) -> Tensor:
        return self if self.data.dtype == dtype else combine(elementwise.Cast, self, dtype=dtype)

    def to(
        self: Tensor, *args: Any, dtype: Any = None, device: Place | None = None, non_blocking: builtins.bool = False
    ) -> Tensor:
        """A tensor of another dtype or device: ``to("cuda")``, ``to(minigrad.float64)``, ``to(dtype=..., device=...)``,
        or those of another tensor, ``to(other)``. Itself if nothing changes.

        With ``non_blocking`` a copy between pinned memory (``pin_memory()``) and a GPU becomes part of the stream, and
        the call does not wait for it. Until ``minigrad.cuda.synchronize()`` or a later operation of the same stream,
        the source must not change and the result must not be read.
        """
        for arg in args:
            if isinstance(arg, TensorCore):
                dtype, device = arg.data.dtype, arg.device
            elif isinstance(arg, Device) or (isinstance(arg, str) and arg.partition(":")[0] in ("cpu", "cuda")):
                device = arg
            else:
                dtype = arg
        x = self
        if dtype is not None:
            x = x._cast(dtypes.as_dtype(dtype))
        if device is not None and (target := Device(device)) is not x.device:
            return elementwise.ToDevice.apply(x, target=target, wait=not non_blocking)
        return x

    def cpu(self: Tensor) -> Tensor:
        """On the CPU."""
        return self.to(device=CPU)

    def cuda(self: Tensor, device: Place | builtins.int = "cuda", non_blocking: builtins.bool = False) -> Tensor:
        """On a GPU (default: the first), by its Device, name or index."""
        target = f"cuda:{device}" if isinstance(device, builtins.int) else device
        return self.to(device=target, non_blocking=non_blocking)

    def pin_memory(self: Tensor) -> Tensor:
        """A copy in page-locked memory of the CPU, from which ``to("cuda", non_blocking=True)`` copies beside other
        work; itself if it lies there. DeviceError without CUDA.
        """
        if self.is_pinned():
            return self
        pinned = Device("cuda").kernels_package().memory.pinned_empty(self.shape, self.dtype)
        pinned[...] = self.numpy()
        return self.wrap(pinned)

    def is_pinned(self: Tensor) -> builtins.bool:
        """Whether the tensor is in page-locked memory of the CPU."""
        memory = sys.modules.get("minigrad.cuda_kernels.platform.memory")
        return self.device is CPU and memory is not None and memory.is_pinned(self.data)

    def float(self: Tensor) -> Tensor:
        """As float32."""
        return self._cast(dtypes.float32)

    def double(self: Tensor) -> Tensor:
        """As float64."""
        return self._cast(dtypes.float64)

    def long(self: Tensor) -> Tensor:
        """As int64."""
        return self._cast(dtypes.int64)

    def int(self: Tensor) -> Tensor:
        """As int32."""
        return self._cast(dtypes.int32)

    def bool(self: Tensor) -> Tensor:
        """As bool."""
        return self._cast(dtypes.bool_)

    def half(self: Tensor) -> Tensor:
        """As float16."""
        return self.to(dtypes.float16)

    def bfloat16(self: Tensor) -> Tensor:
        """As bfloat16."""
        return self.to(dtypes.bfloat16)

    def type_as(self: Tensor, other: Tensor) -> Tensor:
        """As the dtype of ``other``."""
        return self.to(other.dtype)

    def new_empty(self: Tensor, *size: Any, dtype: Any = None) -> Tensor:
        """Uninitialised memory of the dtype (if no other is given) and device of this tensor."""
        found = self.dtype if dtype is None else dtypes.as_dtype(dtype)
        return self.wrap(self.device.kernels.empty(shapes.shape_argument(size), found), self.device)

    def new_full(self: Tensor, size: Any, fill_value: builtins.float, *, dtype: Any = None) -> Tensor:
        """``fill_value`` in the shape ``size``, of the dtype (if no other is given) and device of this tensor."""
        found = self.dtype if dtype is None else dtypes.as_dtype(dtype)
        return self.wrap(self.device.kernels.full(shapes.shape_argument((size,)), fill_value, found), self.device)

    def new_zeros(self: Tensor, *size: Any, dtype: Any = None) -> Tensor:
        """Zeros of the dtype (if no other is given) and device of this tensor."""
        return self.new_full(shapes.shape_argument(size), 0, dtype=dtype)

    def new_ones(self: Tensor, *size: Any, dtype: Any = None) -> Tensor:
        """Ones of the dtype (if no other is given) and device of this tensor."""
        return self.new_full(shapes.shape_argument(size), 1, dtype=dtype)

    def new_tensor(self: Tensor, data: Any, *, dtype: Any = None) -> Tensor:
        """``data`` of the dtype (if no other is given) and device of this tensor."""
        return self.tensor_type(data, dtype=self.dtype if dtype is None else dtype, device=self.device)
