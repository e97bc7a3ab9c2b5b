"""Where the time of any code goes: kernels by operation and module, forward and backward, memory, collectives, a trace.

It looks at four seams, and only while ``profile`` is on: the kernels of ``device.native``, calls of modules,
``backward`` at each node, and replays of captured graphs, which are one span each.
"""

import contextlib
import functools
import json
import math
import os
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from .. import engine
from ..cuda.cuda_graph import Graph
from ..device import CPU, Device
from ..dtypes import float32
from ..errors import bad_state
from ..files import durable
from ..metrics_log import moment
from ..modes import holding, of_thread
from ..nn import Module
from ..plans import recording
from .step_memory import LAYER, ModuleCalls

NO_KERNELS = "Array", "graphs", "heap", "memory", "quiet", "select", "streams", "threads"  # of a backend
SAMPLED = 0.05  # seconds from one look at the memory to the next
COLLECTIVE = "collective"
LEAST = 0.001  # the share of the time from which on a row is shown
# Additions and multiplications of the products, as if nothing were masked; attention's backward makes scores again.
FLOPS: dict[str, Callable[..., int]] = {
    "matmul.matmul": lambda a, b, *_: 2 * a.size * b.shape[-1],
    "linear.forward": lambda x, weight, *_: 2 * x.size * len(weight),
    "linear.forward_gelu": lambda x, weight, *_: 2 * x.size * len(weight),
    "linear.backward": lambda dy, x, w, needs: 2 * dy.size * sum(needs[:2]) * (w if x is None else x).shape[-1],
    "linear.backward_gelu": lambda dy, weight, *_: 2 * dy.size * weight.shape[-1],
    "linear_cross_entropy.forward": lambda x, weight, *_: 2 * x.size * len(weight) * (1 + sum(_[-1])),
    "attention.forward": lambda q, k, *_: 4 * q.size * k.shape[-2],
    "attention.backward": lambda dy, q, k, *_: 10 * dy.size * k.shape[-2],
    "attention.backward_packed": lambda dy, *_: 10 * dy.size * dy.shape[-2],
}


class Span(NamedTuple):
    """A kernel, a collective or the replay of a graph; times are of ``time.perf_counter``."""

    name: str
    begin: float
    end: float
    module: str
    way: str  # "forward", "backward" or "collective"
    bytes: int  # of the arrays that it got and made
    flops: int
    thread: str


class Profile:
    """What was seen: ``spans``, ``memory`` (time, bytes) and ``seconds`` in all; ``print`` shows it as tables.

    ``peak`` is the bytes/s of a copy and the FLOP/s of a product of matrices, measured at the end.
    """

    def __init__(self, model: Module | None = None, device: Device = CPU) -> None:
        self.spans: list[Span] = []
        self.memory: list[tuple[float, int]] = []
        self.seconds: float = 0.0
        self.peak: tuple[float, float] = (0.0, 0.0)
        named = () if model is None else model.named_modules()
        self.calls: ModuleCalls = ModuleCalls({id(m): name or type(m).__name__ for name, m in named})
        self._on, self._due, self._device = True, 0.0, device

    def _in_backward(self, run: Callable[..., None]) -> Callable[..., None]:
        """``engine._run``, in the module that has made the node."""
        place = self.calls.place

        def call(node: Any, *rest: Any) -> None:
            with holding(place, module=self.calls.of(node), way="backward"):
                run(node, *rest)

        return call

    def _timed(self, name: str, function: Callable[..., Any], wait: Callable[[], object]) -> Callable[..., Any]:
        """A kernel whose calls become spans, if need be when a GPU is done with it."""
        place, work = self.calls.place, FLOPS.get(name)

        def call(*arguments: Any, **named: Any) -> Any:
            if not self._on or of_thread.mode.graph is not None:  # a capture is not the work itself
                return function(*arguments, **named)
            begin = time.perf_counter()
            result = function(*arguments, **named)
            wait()
            end = time.perf_counter()
            arrays = *arguments, *(result if type(result) is tuple else (result,))
            size, flops = sum([getattr(x, "nbytes", 0) for x in arrays]), work(*arguments) if work and not named else 0
            thread = threading.current_thread().name
            self.spans.append(Span(name, begin, end, place.module, place.way, size, flops, thread))
            if end >= self._due:
                self.memory.append((end, moment(self._device).get("memory_bytes", 0)))
                self._due = end + SAMPLED
            return result

        return call

    def rows(self, key: str) -> dict[tuple[str, str], list[Any]]:
        """Calls, seconds, bytes and FLOPs by this field of the spans and by pass, the slowest first; alike layers as
        one.
        """
        found: dict[tuple[str, str], list[Any]] = {}
        for span in self.spans:
            row = found.setdefault((LAYER.sub("*", getattr(span, key)), span.way), [0, 0.0, 0, 0])
            row[:] = row[0] + 1, row[1] + span.end - span.begin, row[2] + span.bytes, row[3] + span.flops
        return dict(sorted(found.items(), key=lambda item: -item[1][1]))

    def __str__(self) -> str:
        if not self.seconds:
            return "a profile that is still being taken"
        lines = []
        for key in ("name", "module"):
            lines.append(f"{key:30} {'pass':8} {'calls':>7} {'ms':>9}   share      GB/s   GFLOP/s  of peak")
            for (name, way), (calls, seconds, *work) in self.rows(key).items():
                rates = [count / max(seconds, 1e-9) for count in work]
                peak = max(rate / (limit or math.inf) for rate, limit in zip(rates, self.peak))
                share, shown = seconds / self.seconds, [f"{rate / 1e9:9.1f}" for rate in rates]
                if share >= LEAST:
                    numbers = f"{calls:7} {1e3 * seconds:9.2f} {share:7.1%} {' '.join(shown)} {peak:8.0%}"
                    lines.append(f"{name or 'in no module':30} {way:8} {numbers}")
        most = max((size for _, size in self.memory), default=0) / 1e6
        peaks = "peak {:.1f} GB/s and {:.1f} GFLOP/s, measured".format(*(rate / 1e9 for rate in self.peak))
        kernels = sum(span.end - span.begin for span in self.spans if span.way != COLLECTIVE) / self.seconds
        lines.append(f"{1e3 * self.seconds:.2f} ms in all, kernels {kernels:.0%}; at most {most:.0f} MB; {peaks}")
        return "\n".join(lines)

    def trace(self, rank: int = 0) -> list[dict[str, Any]]:
        """The events for chrome://tracing and Perfetto, as JSON values; times are the wall's, so that ranks fit."""
        shift, threads = time.time() - time.perf_counter(), sorted({span.thread for span in self.spans})
        labels = [("process_name", 0, f"rank {rank}"), *(("thread_name", i, name) for i, name in enumerate(threads))]
        events = [{"ph": "M", "pid": rank, "tid": i, "name": key, "args": {"name": name}} for key, i, name in labels]
        for name, begin, end, module, way, size, flops, thread in self.spans:
            place = {"pid": rank, "tid": threads.index(thread), "ts": 1e6 * (begin + shift), "dur": 1e6 * (end - begin)}
            about = {"module": module, "bytes": size, "flops": flops}
            events.append({"ph": "X", "name": name, "cat": way, **place, "args": about})
        memory = {"ph": "C", "pid": rank, "name": "memory"}
        return events + [{**memory, "ts": 1e6 * (at + shift), "args": {"bytes": size}} for at, size in self.memory]

    def save(self, path: str | os.PathLike[str], *traces: list[dict[str, Any]]) -> None:
        """Write a trace: of this profile, or ``traces``, of each rank one."""
        events = [event for trace in traces or (self.trace(),) for event in trace]
        durable.replace_file(Path(path), [json.dumps({"traceEvents": events}).encode()])


class _Timed(ModuleType):
    """A backend, or a family of kernels, whose functions are timed."""

    def __init__(self, seen: Profile, what: Any, wait: Callable[[], object], prefix: str = "") -> None:
        super().__init__(prefix)
        self._seen, self._what, self._prefix, self._wait = seen, what, prefix, wait

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._what, name)
        if name == "graphs" and hasattr(member, "noted"):  # a capture on the CPU notes the kernels themselves
            raw, noted = self._what, member.noted
            member = SimpleNamespace(**{**vars(member), "noted": lambda _: noted(raw)})
        elif name not in NO_KERNELS and not self._prefix and isinstance(member, ModuleType | type):
            member = _Timed(self._seen, member, self._wait, f"{name}.")
        elif name not in NO_KERNELS and callable(member) and not isinstance(member, type):
            member = self._seen._timed(self._prefix + name, member, self._wait)
        setattr(self, name, member)
        return member


@contextlib.contextmanager
def profile(model: Module | None = None, communicator: Any = None) -> Iterator[Profile]:
    """Time what runs within, in all threads; modules and their backward are told apart in this one.

    ::

        with minigrad.profiler.profile(model) as seen:
            optimizer.step(model.loss(x, y).backward())
        print(seen)
        seen.save("trace.json")

    ``model`` gives modules their names, else they have those of their classes; ``communicator`` is whose collectives
    are seen. On a GPU each kernel is waited for. A captured step is one span: to look inside, profile an eager one.
    """
    if isinstance(CPU.native, _Timed):
        raise bad_state("profile: one is on already, which sees all threads of this process")
    waits: dict[Device, Callable[[], object]] = {CPU: lambda: None}
    for gpu in Device._known.values():
        if getattr(gpu, "_package", None) is not None:  # it is in use
            waits[gpu] = functools.partial(gpu.kernels_package().memory.synchronize, gpu.index)
    device = [*waits][-1]
    seen = Profile(model, device)
    collectives: list[tuple[Any, float, float, Any]] = []

    def collective(call: Any, *rest: Any) -> Any:
        begin = time.perf_counter()
        work = run(call, *rest)
        collectives.append((call, begin, time.perf_counter(), work))
        return work

    with contextlib.ExitStack() as held:
        for used, wait in waits.items():
            key = "native" if used is CPU else "_package"
            held.enter_context(holding(used, **{key: _Timed(seen, getattr(used, key), wait)}))
        if of_thread.mode.kernels is not None:  # the plain ones
            held.enter_context(holding(of_thread.mode, kernels=_Timed(seen, CPU.kernels, waits[CPU])))
        held.enter_context(holding(engine, _run=seen._in_backward(engine._run)))
        held.enter_context(holding(Graph, replay=seen._timed("captured graph", Graph.replay, waits[device])))
        if communicator is not None:
            run = communicator._run
            held.enter_context(holding(communicator, _run=collective))
        held.enter_context(recording(seen.calls))
        began = time.perf_counter()
        try:
            yield seen
        finally:
            seen.seconds, seen._on = time.perf_counter() - began, False
    shift = time.perf_counter() - time.monotonic()
    for call, begin, end, work in collectives:
        end = max(end, getattr(work, "ended_at", 0.0) + shift)  # of one that ran beside the rest
        size = getattr(call.send, "nbytes", 0)
        seen.spans.append(Span(str(call.kind), begin, end, "", COLLECTIVE, size, 0, "collectives"))
    seen.peak = _measured_peak(device, waits[device])


def _measured_peak(device: Device, wait: Callable[[], object]) -> tuple[float, float]:
    """Bytes/s of a copy, read and written, and FLOP/s of a product of float32 matrices: of four the best."""
    kernels = device.kernels
    x, flat = kernels.ones((1024, 1024), float32), kernels.ones((1 << 24,), float32)
    copying = min(timeit.repeat(lambda: (kernels.copy(flat), wait()), number=1, repeat=4))
    product = min(timeit.repeat(lambda: (kernels.linear.forward(x, x), wait()), number=1, repeat=4))
    return 2 * flat.nbytes / copying, 2 * 1024**3 / product
