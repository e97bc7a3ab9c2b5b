"""Combining the arrays of several ranks in host memory, for the engines that do it themselves.

One place decides the arithmetic: ranks are combined in order of rank, one after the other; float16 and bfloat16 are
combined in float32 and rounded once; an average is the sum, divided; integers wrap as NumPy's do; MIN and MAX pass NaN
on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigrad.dtypes import is_floating

from .calls import Call, CallKind, ReduceOp

_UFUNCS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


def combine(op: ReduceOp | None, sources: Sequence[Any], outs: Sequence[Any]) -> None:
    """Write the combination of ``sources`` (one 1-D array per rank, in order of rank) into each of ``outs``.

    All have the same length and dtype. ``outs[0]`` may be ``sources[0]``; each other ``outs[i]`` may be one of the
    sources too. A single source is copied as it is; ``op`` may then be None.
    """
    result = outs[0]
    if op is None or len(sources) == 1:
        result[...] = sources[0]
    else:
        with np.errstate(all="ignore"):  # an overflow is a value here, as on any other engine
            if is_floating(result.dtype) and result.dtype.itemsize == 2:
                wide = [source.astype(np.float32) for source in sources]
                result[...] = _reduce(op, wide, np.empty(result.shape, np.float32))
            else:
                _reduce(op, sources, result)
    for out in outs[1:]:
        out[...] = result


def _reduce(op: ReduceOp, sources: Sequence[Any], result: Any) -> Any:
    ufunc = _UFUNCS[op]
    ufunc(sources[0], sources[1], out=result)
    for source in sources[2:]:
        ufunc(result, source, out=result)
    if op is ReduceOp.AVG:
        np.divide(result, len(sources), out=result)
    return result


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
