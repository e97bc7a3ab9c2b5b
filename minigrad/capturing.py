"""Which graph the calling thread captures, if any, and what operations need to know of it (``cuda_graph.py`` has the
graphs).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cuda_graph import Graph
    from .device import Device
    from .tensor import Tensor


class _Thread(threading.local):
    graph: Graph | None = None


_thread = _Thread()


def current() -> Graph | None:
    """The graph that the calling thread captures, or None."""
    return _thread.graph


def recorded() -> Graph | None:
    """The graph that what the calling thread does now becomes a part of, or None: also while the capture is paused."""
    graph = _thread.graph
    return graph if graph is not None and graph._graphs.recording.current() is not None else None


def refuse(what: str, remedy: str) -> None:
    """Raise CaptureError during capture: what a launch could not do again, and what to do instead."""
    if _thread.graph is not None:
        _thread.graph._graphs.recording.refuse(what, remedy)


@contextlib.contextmanager
def by(graph: Graph) -> Iterator[None]:
    """The calling thread captures ``graph``."""
    _thread.graph = graph
    try:
        yield
    finally:
        _thread.graph = None


def constant(make: Callable[[], Tensor]) -> Tensor:
    """``make()``; during capture a copy of what it gives then, for data from the host that numbers alone decide."""
    graph = current()
    if graph is None:
        return make()
    with graph.paused():
        found = make()
    graph.raw.keep.append(found)
    return found.clone()


def number(x: Any, make: type[Tensor], dtype: Any, device: Device) -> Tensor:
    """``x``, a number or an array, as a tensor; a Python number may be part of a graph, arrays of the host may not."""

    def made() -> Tensor:
        return make(x, dtype=dtype, device=device)

    return constant(made) if isinstance(x, int | float) else made()
