"""Which graph the calling thread captures, if any, and what it must not do meanwhile (``graphs.py`` has the graphs)."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np


class CaptureError(RuntimeError):
    """Something was done during the capture of a graph that a launch of the graph could not do again."""


class _Thread(threading.local):
    graph: Any = None  # of which what this thread gives its stream becomes a part (graphs.Graph)


_thread = _Thread()

PLUMBING = "apply", "forward", "backward", "wrapped", "__call__", "__init__"  # names that say less than their caller's
OURS = __name__.partition(".")[0]
KERNELS = __name__.rpartition(".")[0]
MODELS = f"{OURS}.nn.", f"{OURS}.models."  # whose operations say more, but for those of LOSSES
LOSSES = f"{OURS}.nn.functional", f"{OURS}.nn.losses"
CAPTURES = f"{OURS}.cuda_graph", f"{OURS}.capturing", f"{OURS}.distributed.captured_step"
"""Modules that call what the program wants to be captured."""
READ = "it reads a value from the GPU", "keep it as a tensor, and read it after the launch"
WRITE = "it copies from the host's memory", "pass it as an input of the graph, or make the tensor before the capture"
WAIT = "it waits for the GPU", "wait after the launch"

READERS = (
    "item", "tolist", "cpu", "numpy", "to", "equal", "allclose", "represent",
    "__bool__", "__int__", "__float__", "__index__", "__complex__", "__format__", "__contains__", "__repr__",
)  # fmt: skip
ELSEWHERE = "call it before the capture, or after the launch"
INDEXING = (
    "indices are tensors of integers with dimensions, made before the capture; instead of a boolean mask, use where or "
    "masked_fill, which keep the shape"
)
SHAPE = f"the shape of its result depends on values, so {ELSEWHERE}"
INSTEAD = {
    "__getitem__": INDEXING,
    "__setitem__": INDEXING,
    "masked_select": "use where or masked_fill, which keep the shape",
    "clip_grad_norm": "use clip_grad_norm_async, or SimpleTrainer.capture, which checks the norm on the GPU",
    "unscale_grads": "capture the whole step, by AmpTrainer.capture, which unscales on the GPU",
    **dict.fromkeys(("nonzero", "argwhere", "unique", "bincount", "repeat_interleave"), SHAPE),
    "std": "use var and sqrt, where the squares stay within float32",
    "one_hot": "pass num_classes",
}
"""What to do instead of an operation, by its name."""


def current() -> Any:
    """The graph that this thread captures, or None."""
    return _thread.graph


def begin(graph: Any) -> Any:
    """Make ``graph`` (None: none) the one that this thread captures; returns the one before."""
    before, _thread.graph = _thread.graph, graph
    return before


def refuse(what: str, remedy: str) -> None:
    """Raise CaptureError during capture, naming the operation that the program called, and its line."""
    if _thread.graph is None:
        return
    frame: FrameType = sys._getframe(1)
    last, operation, named = "", "", False
    while frame.f_back is not None and (module := str(frame.f_globals.get("__name__"))).partition(".")[0] == OURS:
        if module in CAPTURES:
            named = bool(last)
        elif not named:
            last = frame.f_code.co_name
            operation = last if _says_more(last, module, operation) else operation
        frame = frame.f_back
    operation = operation or last
    if remedy == READ[1] and operation not in READERS:
        remedy = ELSEWHERE
    raise CaptureError(
        f"{operation}() during capture: {what}, and a graph's launch could not do that again; "
        f"{INSTEAD.get(operation, remedy)}\n  at {frame.f_code.co_filename}:{frame.f_lineno}"
    )


def _says_more(name: str, module: str, before: str) -> bool:
    """Whether a function is what the program called, rather than ``before``, which that has called."""
    if name in PLUMBING or name.startswith("<") or (name.startswith("_") and not name.endswith("__")):
        return False
    if module.startswith(KERNELS):
        return False
    return not (before and module.startswith(MODELS) and module not in LOSSES)


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
