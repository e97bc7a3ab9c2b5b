"""Which graph the calling thread captures, if any, and what operations need to know of it (``cuda_graph.py`` has the
graphs).
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from .modes import constant, current_graph

if TYPE_CHECKING:
    from .cuda.cuda_graph import Graph
    from .device import Device
    from .tensor import Tensor


OURS = __name__.partition(".")[0]
KERNELS = f"{OURS}.cuda_kernels.", f"{OURS}.cpu_kernels."
PLUMBING = "apply", "asked", "run", "forward", "backward", "wrapped", "__call__", "__init__"  # say less than callers
CALLS_CAPTURED = True
"""The mark of a module that calls what the program wants to be captured."""
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
    "one_hot": "pass num_classes",
}
"""What to do instead of an operation, by its name."""


def recorded() -> Graph | None:
    """The graph that what the calling thread does now becomes a part of, or None: also while the capture is paused."""
    graph = current_graph()
    return graph if graph is not None and graph._graphs.recording.current() is not None else None


def refuse(what: str, remedy: str) -> None:
    """Raise CaptureError during capture: what a launch could not do again, and what to do instead."""
    if (graph := current_graph()) is not None:
        graph._graphs.recording.refuse(what, remedy)


def explain(what: str, remedy: str) -> str:
    """Why a capture cannot go on: the operation that the program called, its line, and what to do instead."""
    frame: FrameType = sys._getframe(2)
    last, operation, named = "", "", False
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in (OURS, "numpy"):
        if "CALLS_CAPTURED" in frame.f_globals:
            named = bool(last)
        elif not named:
            last = frame.f_code.co_name
            operation = last if _says_more(frame, operation) else operation
        frame = frame.f_back
    operation = operation or last
    graph = current_graph()
    if graph is not None and remedy == graph._graphs.recording.READ[1] and operation not in READERS:
        remedy = ELSEWHERE
    told = f"{operation}() during capture: {what}, and a graph's launch could not do that again"
    return f"{told}; {INSTEAD.get(operation, remedy)}\n  at {frame.f_code.co_filename}:{frame.f_lineno}"


def _says_more(frame: FrameType, before: str) -> bool:
    """Whether a function is what the program called, rather than ``before``, which that has called."""
    name = frame.f_code.co_name
    if name in PLUMBING or name.startswith("<") or (name.startswith("_") and not name.endswith("__")):
        return False
    if str(frame.f_globals["__name__"]).startswith(KERNELS):
        return False
    of_module = hasattr(frame.f_locals.get("self"), "forward")  # of a layer or a model: what it calls says more
    return not (before and of_module)


def number(x: Any, make: type[Tensor], dtype: Any, device: Device) -> Tensor:
    """``x``, a number or an array, as a tensor; a Python number may be part of a graph, arrays of the host may not."""

    def made() -> Tensor:
        return make(x, dtype=dtype, device=device)

    return constant(made) if isinstance(x, int | float) else made()
