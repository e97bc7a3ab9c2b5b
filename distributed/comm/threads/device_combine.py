"""Combining the arrays of several ranks where they are: on GPUs that one process has, without NCCL.

The part of each rank is copied to the GPU of the first ``out`` (by the driver, directly where the cards can reach each
other), combined there by the library's own kernels, and copied to the others. The arithmetic is that of ``combine``, in
the same order. No value reaches the memory of the host, unless the driver takes that way between two cards.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.dtypes import is_floating

from ..calls import ReduceOp
from ..place import device_of

BLOCK_BYTES = 1 << 25  # what is combined at once: the size of the copies that it needs
_FUNCTIONS = {
    ReduceOp.SUM: "add",
    ReduceOp.AVG: "add",
    ReduceOp.PROD: "mul",
    ReduceOp.MIN: "minimum",
    ReduceOp.MAX: "maximum",
}


class _Streams(threading.local):
    """Each thread's own, by device, so that what it does runs beside the ranks' kernels."""

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}


_streams = _Streams()


def combine_on_devices(op: ReduceOp | None, sources: Sequence[Any], outs: Sequence[Any]) -> None:
    """As ``combine``, of contiguous device arrays that nothing has still to write or to read; returns when it is done.

    An out may be one of the sources. All arithmetic is on the device of ``outs[0]``.
    """
    home = outs[0].device
    kernels = device_of(outs[0]).kernels_package()
    if home not in _streams.known:
        _streams.known[home] = kernels.streams.Stream(home)
    stream = _streams.known[home]
    with stream:
        parts = [_fetched(kernels, source, home) for source in sources]  # kept until the stream has used them
        total = parts[0] if op is None or len(parts) == 1 else _reduced(kernels, op, parts)
        for out in outs:
            if total.dtype != out.dtype:
                total = kernels.elementwise.cast(total, out.dtype)
            kernels.memory.copy_across(out.pointer, total.pointer, out.nbytes)
        stream.synchronize()


def _fetched(kernels: Any, source: Any, home: int) -> Any:
    if source.device == home:
        return source
    part = kernels.empty(source.shape, source.dtype, home)
    kernels.memory.copy_across(part.pointer, source.pointer, source.nbytes)
    return part


def _reduced(kernels: Any, op: ReduceOp, parts: Sequence[Any]) -> Any:
    """A new array; of float16 and bfloat16 in float32."""
    function = getattr(kernels.elementwise, _FUNCTIONS[op])
    if is_floating(parts[0].dtype) and parts[0].dtype.itemsize == 2:
        parts = [kernels.elementwise.cast(part, np.float32) for part in parts]
    total = function(parts[0], parts[1])
    for part in parts[2:]:
        total = function(total, part)
    return kernels.elementwise.div(total, len(parts)) if op is ReduceOp.AVG else total
