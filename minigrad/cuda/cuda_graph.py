"""Graphs of tensor programs: ``minigrad.cuda.Graph`` (PyTorch's ``torch.cuda.CUDAGraph``), of a GPU or of the CPU.

A graph repeats kernels with the addresses and numbers of its capture. The framework itself changes some numbers from
step to step: counts of optimizers and random generators, and learning rates. The host computes these before each
launch, and the kernels read them from the device. So a launch does to the last bit what the program would have done.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from .. import capturing, mixed_precision, random
from ..device import CPU, Device
from ..errors import bad_index, bad_type, bad_value, check_int
from ..modes import holding, of_thread
from ..tensor import Tensor

CALLS_CAPTURED = True  # for capturing.explain
ON_DEVICE = 1 << 63  # in a draw's offset: the seed is an address (cuda_kernels/random.py)


class Graph:
    """Work of a device (default: the current GPU), captured once and launched as a whole.

    ::

        graph = minigrad.cuda.Graph()
        with graph.capture():
            y = model(x)              # on a GPU nothing is computed yet
        x.copy_(batch)                # the inputs are the tensors of the capture, and so are the outputs
        graph.replay()                # y is the output for what x holds now

    What is captured is what the thread gives the device: no Python runs in ``replay``. Optimizers' steps and random
    draws may be in it: their counts go on with each replay as if the program had run. A value that is read, and data
    that come from the host, raise CaptureError in the capture. So does an optimizer without a kernel for all its
    parameters (``Muon``). Tensors that were made in the capture keep their memory for the next replay; nobody else is
    given it until the graph is closed or garbage.

    An index or class target out of range, which an operation would refuse, is found by ``check``. On the CPU the rest
    of that launch is left out, and some operations raise at once.
    """

    def __init__(self, device: Device | str | int | None = None) -> None:
        name = device if isinstance(device, Device | str) else f"cuda:{device}" if device is not None else "cuda"
        found = Device(name)
        package = found.kernels_package()
        if found.type == "cpu" and of_thread.mode.kernels == "plain":
            raise bad_value("a graph on the CPU is of the compiled kernels, and the plain ones are chosen here")
        self._graphs: Any = package.graphs
        self.raw: Any = self._graphs.RecordedGraph(found.index if device is not None else None)
        self.raw.explain = capturing.explain
        self.device: Device = CPU
        self._kernels: Any = None
        if found.type == "cuda":
            self.device = Device(f"cuda:{self.raw.device}")
        else:
            self.raw.error = importlib.import_module("minigrad.cuda").CaptureError
            self._kernels = self._graphs.noted(package)
        self._before: list[Callable[[], None]] = []
        self._counts: list[Callable[[int], None]] = []
        self._valid: list[Callable[[], bool]] = []
        self.stopped: Any = None
        """int32 (1,) of the device, or None: what ``stop`` sets."""
        self._draws: dict[random.Generator, tuple[Any, int]] = {}

    def __repr__(self) -> str:
        return repr(self.raw)

    # ------------------------------------------------------------------ the capture

    @contextlib.contextmanager
    def capture(self) -> "Iterator[Graph]":
        """Capture what is within. Raises CaptureError where a replay could not do it again; the device is then as
        before, and the graph closed.
        """
        drawing = random.drawing_by(self._draw, self._graphs.recording.refuse)
        copies = mixed_precision.with_new_copies()  # else weights would be those that were cast before
        with self.raw.capture(), drawing, copies, holding(of_thread.mode, graph=self, kernels=self._kernels):
            yield self

    def before(self, function: Callable[[], None]) -> None:
        """Call ``function`` before each replay."""
        self._before.append(function)

    def count(self, function: Callable[[int], None]) -> None:
        """Call ``function(1)`` after each replay has begun, and ``function(-1)`` if it turns out to be left out."""
        self._counts.append(function)

    def valid_while(self, function: Callable[[], bool]) -> None:
        """``is_valid`` asks this: whether memory that the nodes use is still what the program uses."""
        self._valid.append(function)

    def is_valid(self) -> bool:
        """Whether a replay would still work on the program's own parameters and states."""
        return all(function() for function in self._valid)

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """What is within is computed at once, in memory that is not the graph's."""
        return self.raw.paused()

    def check_nodes(self, nodes: Iterable[Any]) -> None:
        """Raise CaptureError if one of them would call kernels that do not note it, as those from before a capture."""
        if self._kernels is not None and any(n.device is CPU and n.kernels is not self._kernels for n in nodes):
            self._graphs.recording.refuse(
                "a part of what it goes through was computed before any capture", "compute the loss in the capture"
            )

    def check_function(self, function: type[Any]) -> None:
        """Raise CaptureError for an operation that may compute by other means than kernels that note it."""
        ours = function.__module__.partition(".")[0] == capturing.OURS
        if self._kernels is not None and not ours and not getattr(function, "captured", False):
            what = f"{function.__name__} is the program's own, and may compute without self.kernels"
            self._graphs.recording.refuse(what, "if it computes by them alone, captured = True in the class says so")

    def number(self, now: Callable[[], np.ndarray]) -> Tensor:
        """A tensor of numbers that ``now()`` gives anew before each replay."""
        return Tensor.wrap(self.raw.number(self.varying(now)), self.device)

    def varying(self, now: Callable[[], np.ndarray]) -> np.ndarray:
        """Scalars for a kernel that takes NumPy arrays of them, computed by ``now()`` before each replay."""
        return self._graphs.recording.varying(now)

    def _draw(self, generator: random.Generator) -> tuple[int, int]:
        known = self._draws.get(generator)
        if known is None:
            known = self.raw.number(self.varying(functools.partial(_state_of, generator))), 0
            self.count(functools.partial(self._advance, generator))
        words, number = known
        self._draws[generator] = words, number + 1
        return self._graphs.state_address(words), ON_DEVICE | number

    def _advance(self, generator: random.Generator, made: int) -> None:
        if made > 0:  # draws of a launch that is left out are draws all the same
            generator.advance(self._draws[generator][1])

    # ------------------------------------------------------------------ replays

    def replay(self) -> None:
        """Do again what was captured, as part of the current stream; the host does not wait."""
        for function in self._before:
            function()
        self.raw.launch()
        for count in self._counts:
            count(1)

    def uncount(self) -> None:
        """Take back one replay's counts: the device has left its updates out."""
        for count in self._counts:
            count(-1)

    def check(self) -> None:
        """Wait, and raise IndexError if an index was out of range in a replay since the last call."""
        flag = self.raw.outside_range
        if flag is not None and self.device.kernels.to_host(flag).any():
            self._graphs.clear(flag)
            raise bad_index("an index or a class target was out of range in a replay of the graph")

    def raise_at_once(self) -> None:
        """On the CPU, where a launch is over: ``check``, and take back the counts of a launch that was left out."""
        flag = self.raw.outside_range
        if self._kernels is not None and flag is not None and flag.any():
            self.uncount()
            self.check()

    def stop(self) -> None:
        """Set ``stopped`` beside what the device does now: what is under way and looks at it leaves its updates out."""
        if self.stopped is not None:
            self.raw.write_beside(self.stopped, np.ones(1, np.int32))

    @property
    def pool_bytes(self) -> int:
        """Bytes of the memory that only this graph uses."""
        return int(self.raw.pool.nbytes)

    def close(self) -> None:
        """Give the graph's memory back, once the device is done with it."""
        self.raw.close()


def _state_of(generator: random.Generator) -> np.ndarray:
    return np.array([generator.seed, generator.offset], np.uint64)


def graph(cuda_graph: Graph) -> contextlib.AbstractContextManager[Graph]:
    """``with minigrad.cuda.graph(g):`` is ``with g.capture():`` (``torch.cuda.graph``)."""
    return cuda_graph.capture()


# Functions of tensors -------------------------------------------------------------------------------------------------


class Static:
    """One graph of a function, and the tensors that its inputs are copied into."""

    def __init__(self, function: Callable[..., Any], inputs: tuple[Tensor, ...], device: Device) -> None:
        self.inputs: list[Tensor] = [Tensor.wrap(device.kernels.empty(x.shape, x.dtype), device) for x in inputs]
        for static, x in zip(self.inputs, inputs):
            _copy_into(static, x)
        self.graph: Graph = Graph(device)
        with self.graph.capture():
            self.outputs: Any = function(*self.inputs)

    def __call__(self, inputs: tuple[Tensor, ...]) -> Any:
        if len(inputs) != len(self.inputs):
            raise bad_type(f"the graph has {len(self.inputs)} inputs, {len(inputs)} were given")
        for static, x in zip(self.inputs, inputs):
            if x.shape != static.shape or x.dtype != static.dtype:
                raise bad_value(f"an input is {x.dtype} {x.shape}, that of the graph {static.dtype} {static.shape}")
            _copy_into(static, x)
        self.graph.replay()
        return self.outputs


def _copy_into(static: Tensor, x: Tensor) -> None:
    kernels = static.device.kernels
    if x.device is not static.device:
        kernels.array.upload(static.data, x.data)
    else:
        kernels.elementwise.assign(static.data, x.data)


class Graphed:
    """What ``graphed`` returns: a function of tensors, with a graph for each combination of their shapes."""

    def __init__(self, function: Callable[..., Any], device: Device | None, max_graphs: int) -> None:
        self.function = function
        self.device = device
        self.max_graphs: int = check_int("max_graphs", max_graphs, 1)
        self._seen: set[Any] = set()
        self._graphs: dict[Any, Static] = {}

    @property
    def graphs(self) -> int:
        """How many graphs there are now."""
        return len(self._graphs)

    def clear(self) -> None:
        """Close all graphs; the next call of each shape runs eagerly again."""
        for static in self._graphs.values():
            static.outputs = None
            static.graph.close()
        self._graphs.clear()
        self._seen.clear()

    def static(self, inputs: tuple[Any, ...], settle: Callable[[], None] = lambda: None) -> Static | None:
        """The graph for these inputs, captured if it is their second time; None where the call runs eagerly.

        ``settle()`` is called before a graph is captured or closed, which waits for its last launch.
        """
        for i, x in enumerate(inputs):
            if not isinstance(x, Tensor):
                raise bad_type(f"input {i} is a {type(x).__name__}; a graph's inputs are tensors")
        device = self.device or next((x.device for x in inputs if x.device.type == "cuda"), CPU)
        if device is CPU and of_thread.mode.kernels == "plain":
            return None
        mode = of_thread.mode
        halves = () if mode.autocast is None else tuple(sorted(mode.autocast.dtypes.items(), key=str))
        key = device, mode.enabled, halves, *((x.shape, x.dtype) for x in inputs)
        found = self._graphs.pop(key, None)
        if found is not None and not found.graph.is_valid():
            settle()
            found.graph.close()
            found = None
        if key not in self._seen:
            self._seen.add(key)
            return None
        if found is None:
            settle()
            while len(self._graphs) >= self.max_graphs:  # the one that was used longest ago
                self._graphs.pop(next(iter(self._graphs))).graph.close()
            found = Static(self.function, inputs, device)
        self._graphs[key] = found
        return found

    def __call__(self, *inputs: Any) -> Any:
        """The function's result; its tensors are overwritten by the next call with inputs of the same shapes."""
        static = self.static(inputs)
        if static is None:
            return self.function(*inputs)
        outputs = static(inputs)
        static.graph.raise_at_once()
        return outputs


def graphed(function: Callable[..., Any], *, max_graphs: int = 8) -> Graphed:
    """``function`` of tensors, launched as a graph (``torch.cuda.make_graphed_callables``, but of whole steps:
    ``backward`` and the optimizer's step may be in the function).

    The first call with inputs of some shapes and dtypes runs the function as it is, and so do all calls of plain
    kernels. The second captures it; from then on the inputs are copied into the graph's own tensors and the graph is
    launched. What it returns is the graph's own, too, and written over by the next launch: keep ``y.clone()`` or
    ``y.item()``. The ``max_graphs`` graphs used last are kept. Raises TypeError for inputs that are not tensors.
    """
    return Graphed(function, None, max_graphs)
