"""DLPack both ways: memory shared with NumPy, PyTorch, CuPy, JAX without a copy (the array API standard's protocol).

NumPy knows no bfloat16, and its own DLPack code refuses that dtype. Such memory passes through NumPy as uint16. The
dtype in the capsule, which is new and belongs to nobody else yet, is changed before or after.
"""

import ctypes
from typing import Any

import numpy as np

from . import capturing
from .device import CPU
from .dtypes import bfloat16
from .errors import bad_value

ON_CPU, ON_CUDA = 1, 2
"""Codes of DLDevice."""

UINT, BFLOAT = 1, 4
"""Codes of DLDataType."""

# Where a capsule of that name holds a DLTensor. A DLManagedTensor begins with it; a DLManagedTensorVersioned has a
# version, two pointers and the flags before, of eight bytes each.
TENSOR_AT = {b"dltensor": 0, b"dltensor_versioned": 32}
FLAGS_AT, READ_ONLY = 24, 1  # in a DLManagedTensorVersioned
CODE_AT = 20  # in a DLTensor: after the data pointer, the device (two int32) and the number of dimensions (int32)


def export(x: Any, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """The capsule that ``Tensor.__dlpack__`` returns."""
    if x.requires_grad:
        raise BufferError("DLPack export of a tensor that requires grad would leave the graph; use .detach() first")
    if x.device is CPU and stream is not None:
        raise bad_value(f"DLPack export from the CPU: stream={stream!r}; there are no streams, expected None")
    if x.device is CPU:
        capturing.refuse("it hands out memory to be read", capturing.ELSEWHERE)
    data = x.device.kernels.reinterpret(x.data, np.uint16) if x.dtype == bfloat16 else x.data
    capsule = data.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
    if x.dtype == bfloat16:
        _code_of(capsule).value = BFLOAT
    copied = copy or (dl_device is not None and dl_device[0] != ON_CUDA)
    if x.device is not CPU and not data.flags.writeable and not copied:  # CuPy, unlike NumPy, does not say it
        flags = _flags_of(capsule)
        if flags is None:
            why = "a capsule without a version cannot say that it is; ask for max_version=(1, 0), or use .clone()"
            raise BufferError(f"DLPack export of a read-only tensor: {why}")
        flags.value |= READ_ONLY
    return capsule


class Relay:
    """Stands for an array of another library; bfloat16 it hands on as uint16, and remembers that it did, and whether
    the array is read-only, which CuPy does not look at."""

    def __init__(self, x: Any) -> None:
        self._x = x
        self.is_bfloat16: bool = False
        self.is_read_only: bool = False

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._x.__dlpack__(**options)
        code = _code_of(capsule)
        if code.value == BFLOAT:
            code.value = UINT
            self.is_bfloat16 = True
        flags = _flags_of(capsule)
        self.is_read_only = flags is not None and bool(flags.value & READ_ONLY)
        return capsule

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()


def _code_of(capsule: Any) -> ctypes.c_uint8:
    """The code of the dtype in a capsule that nobody has consumed yet, to be read and written."""
    address, start = _content(capsule)
    return ctypes.c_uint8.from_address(address + start + CODE_AT)


def _flags_of(capsule: Any) -> ctypes.c_uint64 | None:
    """The flags in such a capsule; None if it has no version, and so none."""
    address, start = _content(capsule)
    return ctypes.c_uint64.from_address(address + FLAGS_AT) if start else None


def _content(capsule: Any) -> tuple[int, int]:
    """Where it points, and how far from there the DLTensor is."""
    python = ctypes.pythonapi
    name = _call(python.PyCapsule_GetName, ctypes.c_char_p, capsule)
    if name not in TENSOR_AT:
        raise BufferError(f"not a DLPack capsule, or one that was used: its name is {name!r}")
    return _call(python.PyCapsule_GetPointer, ctypes.c_void_p, capsule, ctypes.c_char_p(name)), TENSOR_AT[name]


def _call(function: Any, result: Any, capsule: Any, *arguments: Any) -> Any:
    function.restype = result
    return function(ctypes.py_object(capsule), *arguments)
