"""Where the memory of a training step goes: what is counted in a recorded graph, each buffer once.

``memory_report`` counts a step of any model; ``minigrad.models.gpt2_memory`` predicts one of GPT-2 that need not fit.
"""

from __future__ import annotations

import bisect
import contextlib
import re
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..autograd import Deferred, Function, TensorCore
from ..dtypes import is_half
from ..engine import reachable
from ..errors import bad_type
from ..grad_store import next_id
from ..nn import Module
from ..plans import CallRecorder, recording, unfused

if TYPE_CHECKING:
    from ..optim import Optimizer
    from ..tensor import Tensor

LAYER = re.compile(r"(?<![^.])\d+(?![^.])")  # a layer's number in a module's name


@dataclass
class MemoryReport:
    """Bytes of a training step, by kind.

    ``weight_copies`` are the weights in the half dtype of autocast. ``activations`` is what is kept for ``backward``,
    by operation, ``modules`` the same by module ("" for what no module made). ``temporary`` is what backward held, at
    its peak, beyond the activations: results and gradients on their way; ``gradients`` those of all trained weights.
    ``offloaded`` is what an optimizer has in host memory, of a model on a GPU: no part of ``peak``.
    """

    weights: int = 0
    buffers: int = 0
    optimizer: int = 0
    gradients: int = 0
    weight_copies: int = 0
    activations: dict[str, int] = field(default_factory=dict)
    modules: dict[str, int] = field(default_factory=dict)
    temporary: int = 0
    offloaded: int = 0

    @property
    def kept(self) -> int:
        """All activations, between forward and backward."""
        return sum(self.activations.values())

    @property
    def peak(self) -> int:
        """The most that a step holds at once: at backward's peak, or when all gradients are there."""
        standing = self.weights + self.buffers + self.optimizer
        return standing + max(self.weight_copies + self.kept + self.temporary, self.gradients)

    def __str__(self) -> str:
        rows = [
            ("weights", self.weights),
            ("buffers", self.buffers),
            ("optimizer", self.optimizer),
            ("gradients (after backward)", self.gradients),
            ("half copies of weights", self.weight_copies),
            ("activations", self.kept),
            *((f"  by {name}", size) for name, size in _falling(self.activations)),
            *((f"  in {name or 'no module'}", size) for name, size in _falling(_alike(self.modules))),
            ("temporary, at backward's peak", self.temporary),
            ("peak of the step", self.peak),
            ("offloaded to the host", self.offloaded),
        ]
        rows = [row for row in rows if row[1] or row[0] in ("activations", "peak of the step")]
        width = max(len(name) for name, _ in rows)
        unit, scale = ("GiB", 2**30) if self.peak >= 2**30 else ("MiB", 2**20) if self.peak >= 2**20 else ("KiB", 2**10)
        return "\n".join(f"{name:{width}}  {size / scale:10,.2f} {unit}" for name, size in rows)


def memory_report(
    module: Module, compute_loss: Callable[[], Tensor], optimizer: Optimizer | None = None, more: Sequence[Tensor] = ()
) -> MemoryReport:
    """Count the memory of one forward and backward pass of ``module``, on the CPU or a GPU.

    ::

        print(minigrad.memory_report(model, lambda: model.loss(x, y), optimizer))

    ``compute_loss`` is called once and its result's ``backward`` once; no weight changes. What is kept for backward is
    found by walking the graph. The memory under each saved array is counted once, for the operation that saved it first
    and the innermost module in whose forward it did. Weights that operations save are not counted again, nor are those
    of ``more``, such as a rank's share. With ``checkpoint`` the inputs count. The optimizer's state counts as
    it is: nothing before the first step.

    A transformer block is counted, and its temporary part measured, without the plan ``sums in products``. So each sum
    is a node of its own. It keeps the same memory.

    The temporary part is measured. On a GPU the counters of ``minigrad.cuda`` do it, and their peak is reset. On the
    CPU ``tracemalloc`` does, which sees NumPy's arrays but not what compiled kernels take for themselves. Threads that
    measure at the same time measure what all of them do.

    Raises TypeError if the loss is no tensor, or is not computed from anything that requires grad.
    """
    names = {id(m): name for name, m in module.named_modules()}
    calls = ModuleCalls(names)
    parameters = list(module.parameters())
    report = MemoryReport()
    owned = {}
    for kind, tensors in (("weights", [*parameters, *more]), ("buffers", [b for _, b in module.named_buffers()])):
        bases = {id(base): base for base in (_base(t.data) for t in tensors)}
        setattr(report, kind, sum(base.nbytes for base in bases.values()))
        owned.update(bases)
    report.gradients = sum(p.data.nbytes for p in parameters if p.requires_grad)
    if optimizer is not None:
        devices = {p.device for p in parameters}
        for state in optimizer.state.values():
            kind = "optimizer" if state.device in devices else "offloaded"
            setattr(report, kind, getattr(report, kind) + sum(array.nbytes for array in state.arrays.values()))

    with _meter(parameters) as meter, unfused("sums in products"):
        with recording(calls):
            loss = compute_loss()
        if not isinstance(loss, TensorCore) or not loss.requires_grad:
            got = f"{'a tensor' if isinstance(loss, TensorCore) else repr(loss)} that nothing can be learned from"
            expected = "a loss that is computed from the module's parameters"
            raise bad_type(f"memory_report: compute_loss returned {got}; expected {expected}")
        _count(report, loss, owned, calls, names)
        loss.backward().values()  # read: nothing warns that they are dropped
        report.temporary = max(0, meter() - report.kept - report.weight_copies)
    return report


class ModulePlace(threading.local):
    """Where a thread is."""

    module: str = ""
    way: str = "forward"


class ModuleCalls(CallRecorder):
    """In which module a thread is, and in which one each node was made: the innermost with a name.

    Without ``names``, by id, modules have those of their classes.
    """

    def __init__(self, names: dict[int, str]) -> None:
        self.place: ModulePlace = ModulePlace()
        self._names, self._outer = names, [""]
        self._ids, self._modules = [0], [""]  # from which node on there is which module

    def entered(self, module: Module) -> None:
        self._outer.append(self.place.module)
        self._move(self._names.get(id(module), self.place.module if self._names else type(module).__name__))

    def left(self, module: Module) -> None:
        self._move(self._outer.pop())

    def _move(self, module: str) -> None:
        self.place.module = module
        self._ids.append(next_id())
        self._modules.append(module)

    def of(self, node: Function) -> str:
        """The module that has made a node."""
        return self._modules[bisect.bisect(self._ids, node.order) - 1]


def _count(
    report: MemoryReport, loss: TensorCore, owned: dict[int, Any], calls: ModuleCalls, names: dict[int, str]
) -> None:
    """Add what the graph of ``loss`` keeps, oldest node first; ``owned`` are bases that are not counted."""
    counted = dict(owned)  # which keeps them: an id is that of one object while that lives
    seen: set[int] = set()
    for node in reachable(loss.node)[0]:
        saved: Any = node.saved
        if isinstance(saved, Deferred):
            if id(saved) in seen:
                continue
            seen.add(id(saved))
            # Inputs, and sums by which ``checkpoint`` compares results.
            arrays, name, copies = _arrays(vars(saved), node.kernels.Array), "checkpoint", set()
        else:
            arrays, name, copies = _arrays(saved, node.kernels.Array), type(node).__name__, _copied_weights(node)
        for array in arrays:
            base = _base(array)
            if id(base) in counted:
                continue
            counted[id(base)] = base
            if is_half(base.dtype) and id(array) in copies:
                report.weight_copies += base.nbytes
                continue
            report.activations[name] = report.activations.get(name, 0) + base.nbytes
            where = names.get(id(getattr(saved, "fn", None)), calls.of(node))  # a checkpoint's module, or the node's
            report.modules[where] = report.modules.get(where, 0) + base.nbytes


def _copied_weights(node: Function) -> set[int]:
    """The ids of saved arrays that are inputs cast from leaves, which autocast makes of weights."""
    copies = set()
    for source, array in zip(node.edges, node.saved):  # products save their inputs in order
        if isinstance(source, Function) and type(source).__name__ == "Cast":
            leaf = source.edges[0]
            if isinstance(leaf, TensorCore) and getattr(array, "shape", None) == leaf.data.shape:
                copies.add(id(array))
    return copies


def _arrays(held: Any, kind: type) -> list[Any]:
    """The arrays in tuples, lists and dicts, and those of tensors."""
    arrays, values = [], [held]
    for value in values:  # grows while it is walked
        if isinstance(value, TensorCore):
            arrays.append(value.data)
        elif isinstance(value, kind):
            arrays.append(value)
        elif isinstance(value, tuple | list | dict):
            values += value.values() if isinstance(value, dict) else value
    return arrays


def _base(array: Any) -> Any:
    """The array whose memory it is."""
    while isinstance(getattr(array, "base", None), type(array)):
        array = array.base
    return array


_meters: list[bool] = []  # of the threads that measure now, whether they began to trace: the last one ends it


@contextlib.contextmanager
def _meter(parameters: list[Any]) -> Iterator[Callable[[], int]]:
    """Yields what tells the most bytes that were allocated within, above those before."""
    device = parameters[0].device if parameters else None
    if device is not None and device.type == "cuda":
        memory = device.kernels_package().memory
        before = memory.memory_allocated(device.index)
        memory.reset_peak_memory_stats(device.index)
        yield lambda: int(memory.max_memory_allocated(device.index) - before)
        return
    if running := tracemalloc.is_tracing():
        tracemalloc.reset_peak()
    else:
        tracemalloc.start()
    _meters.append(not running)
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[1] - before
    finally:
        begun = any(_meters)
        _meters.pop()
        if begun and not _meters:
            tracemalloc.stop()


def _alike(modules: dict[str, int]) -> dict[str, int]:
    """With the numbers of layers as stars: ``h.0.attn`` and ``h.1.attn`` are one."""
    found: Counter[str] = Counter()
    for name, size in modules.items():
        found[LAYER.sub("*", name)] += size
    return found


def _falling(sizes: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
