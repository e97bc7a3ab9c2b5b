"""Which graph the calling thread captures, if any, and what it must not do meanwhile (``graphs.py`` has the graphs)."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


class CaptureError(RuntimeError):
    """Something was done during the capture of a graph that a launch of the graph could not do again."""


class _Thread(threading.local):
    graph: Any = None  # of which what this thread gives its stream becomes a part (graphs.RecordedGraph)


_thread = _Thread()

READ = "it reads a value from the GPU", "keep it as a tensor, and read it after the launch"
WRITE = "it copies from the host's memory", "pass it as an input of the graph, or make the tensor before the capture"
WAIT = "it waits for the GPU", "wait after the launch"


def current() -> Any:
    """The graph that this thread captures, or None."""
    return _thread.graph


def begin(graph: Any) -> Any:
    """Make ``graph`` (None: none) the one that this thread captures; returns the one before."""
    before, _thread.graph = _thread.graph, graph
    return before


def simulate(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function of the simulator's: now, or, during capture, in each launch of the graph."""
    if _thread.graph is None:
        function(*arguments)
    else:
        _thread.graph.add(function, *arguments)


def refuse(what: str, remedy: str) -> None:
    """Raise CaptureError during capture; who captures knows how to say it (``Graph.explain``)."""
    if _thread.graph is not None:
        raise CaptureError(_thread.graph.explain(what, remedy))


@contextlib.contextmanager
def outside() -> Iterator[Any]:
    """What is within is done at once, in memory that is not the graph's; yields the graph that is captured, or None.

    For what a graph needs and its launches do not change: lists of addresses, an optimizer's moments.
    """
    graph = _thread.graph
    if graph is None:
        yield None
        return
    with graph.paused():
        yield graph


class Varying(np.ndarray):
    """Numbers that the host computes anew before each launch of the graph that is captured: ``now()``."""

    now: Callable[[], np.ndarray]


def varying(now: Callable[[], np.ndarray]) -> np.ndarray:
    """During capture, numbers that ``now()`` gives before each launch; else what it gives."""
    if _thread.graph is None:
        return now()
    numbers = np.array(now()).view(Varying)
    numbers.now = now
    return numbers


def mapped(numbers: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """``function(numbers)``, which varies if they do."""
    now = getattr(numbers, "now", None)
    return function(numbers) if now is None else varying(lambda: function(now()))
