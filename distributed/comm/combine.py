"""Combining the arrays of several ranks, for the engines that do it themselves: in host memory, or on GPUs that one
process has, without NCCL.

One place decides the arithmetic: ranks are combined in order of rank, one after the other; float16 and bfloat16 are
combined in float32 and rounded once; an average is the sum, divided; integers wrap as NumPy's do; MIN and MAX pass NaN
on.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigrad.dtypes import is_floating

from .calls import Call, CallKind, ReduceOp
from .place import device_of, is_on_host

DEVICE_BLOCK_BYTES = 1 << 25  # what is combined at once on a GPU: the size of the copies that it needs

# NumPy's function, and the name of the kernels'.
_FUNCTIONS: dict[ReduceOp, tuple[np.ufunc, str]] = {
    ReduceOp.SUM: (np.add, "add"),
    ReduceOp.AVG: (np.add, "add"),
    ReduceOp.PROD: (np.multiply, "mul"),
    ReduceOp.MIN: (np.minimum, "minimum"),
    ReduceOp.MAX: (np.maximum, "maximum"),
}


def combine(op: ReduceOp | None, sources: Sequence[Any], outs: Sequence[Any]) -> None:
    """Write the combination of ``sources`` (one 1-D array per rank, in order of rank) into each of ``outs``.

    All have the same length and dtype. Each of ``outs`` may be one of the sources. A single source is copied as it is;
    ``op`` may then be None. Arrays of devices are contiguous, and nothing has still to write or to read them.
    """
    if not is_on_host(outs[0]):
        _combine_on_devices(op, sources, outs)
        return
    result = outs[0]
    if op is None or len(sources) == 1:
        result[...] = sources[0]
    else:
        with np.errstate(all="ignore"):  # an overflow is a value here, as on any other engine
            if is_floating(result.dtype) and result.dtype.itemsize == 2:
                wide = [source.astype(np.float32) for source in sources]
                result[...] = _reduce(op, wide, np.empty(result.shape, np.float32))
            else:
                # The first two sources are used up, element by element, when the result is written.
                last = [x.copy() if np.may_share_memory(x, result) else x for x in sources[2:]]
                _reduce(op, [*sources[:2], *last], result)
    for out in outs[1:]:
        out[...] = result


def _reduce(op: ReduceOp, sources: Sequence[Any], result: Any) -> Any:
    ufunc = _FUNCTIONS[op][0]
    ufunc(sources[0], sources[1], out=result)
    for source in sources[2:]:
        ufunc(result, source, out=result)
    if op is ReduceOp.AVG:
        np.divide(result, len(sources), out=result)
    return result


_streams = threading.local()
"""Each thread's own, by device, so that what it does runs beside the ranks' kernels."""


def _combine_on_devices(op: ReduceOp | None, sources: Sequence[Any], outs: Sequence[Any]) -> None:
    """Copy each source to the device of ``outs[0]``, combine them there by the library's own kernels, and copy the
    result to the others. The driver copies, directly where the cards can reach each other. No value reaches the memory
    of the host, unless the driver takes that way between two cards.
    """
    home = outs[0].device
    kernels = device_of(outs[0]).kernels_package()
    stream = vars(_streams).get(str(home)) or kernels.streams.Stream(home)
    vars(_streams)[str(home)] = stream
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
    function = getattr(kernels.elementwise, _FUNCTIONS[op][1])
    if is_floating(parts[0].dtype) and parts[0].dtype.itemsize == 2:
        parts = [kernels.elementwise.cast(part, np.float32) for part in parts]
    total = function(parts[0], parts[1])
    for part in parts[2:]:
        total = function(total, part)
    return kernels.elementwise.div(total, len(parts)) if op is ReduceOp.AVG else total


def units(call: Call, sent: Mapping[int, Any], received: Mapping[int, Any]) -> list[tuple[list[Any], list[Any]]]:
    """An operation as pairs (sources, outs) of 1-D arrays: the sources combined go to each of the outs.

    ``sent`` has the arrays that ranks contribute, by rank, ``received`` those that are to be written here; ``call`` is
    any rank's.
    """
    kind = call.kind
    src = {rank: sent[rank].reshape(-1) for rank in sorted(sent)}
    dst = {rank: received[rank].reshape(-1) for rank in sorted(received)}
    if kind is CallKind.ALL_REDUCE or call.between_two:
        return [([*src.values()], [*dst.values()])]
    if kind is CallKind.BROADCAST:
        outs = [out for rank, out in dst.items() if rank != call.peer]
        return [([source], outs) for rank, source in src.items() if rank == call.peer and outs]
    n = len(src)
    if kind is CallKind.REDUCE_SCATTER:
        return [([_part(x, to, n) for x in src.values()], [out]) for to, out in dst.items()]
    if kind is CallKind.ALL_TO_ALL:
        return [([_part(x, to, n)], [_part(out, by, n)]) for by, x in src.items() for to, out in dst.items()]
    # all_gather and split; a barrier has no arrays
    return [([x], [_part(out, by, n) for out in dst.values()]) for by, x in src.items()]


def _part(array: Any, number: int, count: int) -> Any:
    """Part ``number`` of ``count`` equal ones."""
    size = array.size // count
    return array[number * size : (number + 1) * size]
