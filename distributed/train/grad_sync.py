"""What every data-parallel trainer shares: agreeing on parameters and windows, broadcasting, comparing replicas, and
how the gradients of several ranks become one.

Ranks must never guess what the others hold. They compare their lists of parameters by hash before the first step, and
in each window exchange one small record: its loss, its weight, and which parameters have a gradient.

All ranks start from the same weights, and reduce the gradients of a window once, in buckets, after backward or beside
it. They make the same update, so their weights stay equal to the last bit. A mean over ranks is taken over samples: the
mean of the ranks' means would be another number wherever they do not have equally many.
"""

import contextlib
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minigrad import GradStore, Tensor, TensorId
from minigrad.device import CPU
from minigrad.errors import check_int
from minigrad.optim import GradAccumulator, Optimizer
from minigrad.optim.grad_accumulator import check_weight
from minigrad.optim.optimizer_state import options_of

from ..comm.comm_errors import CollectiveMismatchError, CommError
from ..comm.communicator import Communicator, all_gather_bytes, all_gather_json, all_gather_rows
from ..comm.place import bytes_of, on_host
from .buckets import DEFAULT_BUCKET_BYTES, CommHook, GradientBucketManager, all_reduce_hook
from .config import NonFiniteLossError
from .step import Named, Params, Reducer, Step, has_float16, merged, named_params, no_weight, power_of_two

FACTORS = np.frombuffer(hashlib.shake_128(b"replicas").digest(8 * 1024), np.uint64) | np.uint64(1)
AT_FIRST = "call broadcast_params before the first step, and change weights on all ranks alike"
LATER = (
    "unless the program changed it on one rank alone, its memory or processor is at fault; go on from a "
    "checkpoint of before"
)


class ReplicaMismatchError(RuntimeError):
    """The ranks' copies of a tensor differ. ``name`` is the first such tensor, ``ranks`` those in the minority,
    or all where there is no majority."""

    def __init__(self, message: str, name: str, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.name = name
        self.ranks: tuple[int, ...] = tuple(ranks)


def mismatch(communicator: Communicator, text: str, op: str, ranks: Sequence[int]) -> CollectiveMismatchError:
    """The error for ranks that do not do the same."""
    return CollectiveMismatchError(text, op=op, rank=communicator.rank, step=communicator.step, ranks=ranks)


def mean_over_ranks(communicator: Communicator, values: Mapping[str, float], weight: float = 1.0) -> dict[str, float]:
    """Each value's mean over all ranks, weighted with ``weight`` (say, the number of samples it is a mean of).

    A collective of all ranks, which must pass the same keys. Sums are made in float64 and in order of rank, so that
    all ranks get the same bits. Raises ValueError, on every rank, if the keys differ or all weights are 0.
    """
    check_weight(weight)
    mine = {"weight": float(weight), "values": {key: float(v) for key, v in values.items()}}
    records = all_gather_json(communicator, mine)
    for rank, other in enumerate(records):
        if other["values"].keys() != records[0]["values"].keys():
            ours, first = sorted(other["values"]), sorted(records[0]["values"])
            raise ValueError(f"rank {rank} passes the values {ours}, rank 0 {first}")
    total = sum(r["weight"] for r in records)
    if total == 0:
        raise ValueError("the weights of all ranks are 0: there is no mean")
    used = [r for r in records if r["weight"]]
    return {key: sum(r["weight"] * r["values"][key] for r in used) / total for key in values}


def shard_batches(num_batches: int, rank: int, world_size: int) -> range:
    """The batches that are rank's own: ``rank``, ``rank + world_size``, ... below ``num_batches``.

    Disjoint and complete over the ranks; empty where there are fewer batches than ranks. Raises ValueError for a
    ``world_size`` below 1, a rank outside of it, and a negative ``num_batches``.
    """
    check_int("shard_batches: num_batches", num_batches, 0)
    check_int("shard_batches: world_size", world_size, 1)
    check_int("shard_batches: rank", rank, 0, world_size - 1)
    return range(rank, num_batches, world_size)


# ------------------------------------------------------------------ parameters


def agree_on_settings(communicator: Communicator, settings: Mapping[str, Any]) -> None:
    """Raise CollectiveMismatchError, on every rank, unless all ranks pass the same settings (compared by ``repr``).

    A collective of all ranks.
    """
    found = difference(all_gather_json(communicator, {key: repr(value) for key, value in settings.items()}))
    if found is not None:
        raise mismatch(communicator, found[1], "agree_on_settings", [found[0]])


def difference(
    everyone: Sequence[Mapping[str, Any]], what: str = "settings", absent: str = "not set"
) -> tuple[int, str] | None:
    """The first rank whose settings are not rank 0's, and a sentence that says what differs; None if all agree."""
    for rank, other in enumerate(everyone):
        for key in sorted(everyone[0].keys() | other.keys()):
            here, there = other.get(key, absent), everyone[0].get(key, absent)
            if here != there:
                return rank, f"the ranks' {what} differ: {key} is {here} on rank {rank}, {there} on rank 0"
    return None


def agree_on_params(communicator: Communicator, params: Params) -> Named:
    """The parameters in the order that all ranks will use: that of rank 0.

    A collective of all ranks. Each may pass its parameters in another order, but they must have the same names, shapes,
    dtypes, and whether they are trained. Hashes are compared, and the lists themselves only where the hashes differ.
    Raises CollectiveMismatchError on every rank, naming the first difference.
    """
    named = named_params(params)
    mine = {name: f"{tuple(p.shape)} {p.dtype} {'trained' if p.requires_grad else 'frozen'}" for name, p in named}
    if len(mine) < len(named):
        name = Counter(name for name, _ in named).most_common(1)[0][0]
        raise ValueError(f"two parameters have the name {name!r}; names must differ")
    text = json.dumps(mine).encode()
    if len({*all_gather_bytes(communicator, hashlib.sha256(text).digest())}) == 1:
        return named
    everyone = [json.loads(raw) for raw in all_gather_bytes(communicator, text)]
    if (found := difference(everyone, "parameters", "missing")) is not None:
        raise mismatch(communicator, found[1], "agree_on_params", [found[0]])
    tensors = dict(named)
    return [(name, tensors[name]) for name in everyone[0]]


def broadcast_params(communicator: Communicator, params: Params, root: int = 0) -> None:
    """Give every rank the values that rank ``root`` has (boostr's ``broadcast_params``); for buffers as well.

    A collective of all ranks. Raises CollectiveMismatchError if the lists differ.
    """
    if communicator.world_size == 1:
        return
    work = [communicator.broadcast(p, root, async_op=True) for _, p in agree_on_params(communicator, params)]
    for w in work:
        w.wait()


def assert_replicas_identical(communicator: Communicator, params: Params) -> None:
    """Check that every tensor has the same bits on all ranks (entrenar's contract C-DDP-001).

    A collective of all ranks; it reads each tensor once and sends 16 bytes of each. Raises ReplicaMismatchError, on
    every rank, naming the first tensor that differs and the ranks whose copy is in the minority, or all for a tie.
    """
    if communicator.world_size > 1:
        agree_on_values(communicator, params, LATER if communicator.step else AT_FIRST)


def agree_on_values(communicator: Communicator, params: Params, advice: str = AT_FIRST) -> Named:
    """``agree_on_params``, whose values must have the same bits on all ranks, too; else there is ``advice``."""
    named = agree_on_params(communicator, params)
    everyone = all_gather_bytes(communicator, b"".join(_digest(p) for _, p in named))
    for i, (name, p) in enumerate(named):
        copies = [d[16 * i : 16 * i + 16] for d in everyone]
        if len(set(copies)) > 1:
            (most, count), (_, next_count), *_ = Counter(copies).most_common()
            ranks = [r for r, copy in enumerate(copies) if copy != most or count == next_count]
            told = f"rank {', '.join(map(str, ranks))} against the others"
            if count == next_count:
                told = f"ranks {' and '.join(map(str, ranks))} differ; which is wrong is not known"
            step = f" (step {communicator.step})" if communicator.step is not None else ""
            what = f"the ranks' copies of {name!r} {tuple(p.shape)} {p.dtype} differ: {told}{step}; {advice}"
            raise ReplicaMismatchError(what, name, ranks)
    return named


def moments(optimizer: Optimizer, params: Params) -> Named:
    """What the optimizer keeps of the parameters, such as ``exp_avg of wte.weight``."""
    states = [(name, optimizer.state.get(p._id)) for name, p in named_params(params)]
    return [
        (f"{kind} of {name}", Tensor.wrap(array, state.device))
        for name, state in states
        if state is not None
        for kind, array in state.arrays.items()
    ]


def all_reduce_grads(
    communicator: Communicator,
    grads: GradStore,
    params: Params,
    bucket_size_bytes: int = DEFAULT_BUCKET_BYTES,
    hook: CommHook = all_reduce_hook,
) -> GradStore:
    """The gradients' mean over all ranks, for those of ``params`` that are trained (boostr's ``all_reduce_grads``).

    A collective of all ranks; ``grads`` is consumed. A gradient that this rank does not have counts as zeros, one that
    no rank has is missing in the result too. ``grads`` itself is returned where there is one rank. ``hook`` may combine
    the ranks' buckets in another way.
    """
    if communicator.world_size == 1:
        return grads
    named = [(name, p) for name, p in agree_on_params(communicator, params) if p.requires_grad]
    windows = exchange_window(communicator, Window(0.0, 1.0, 1, 0.0, 0.0, [grads.contains(p) for _, p in named]))
    manager = GradientBucketManager([p for _, p in named], communicator, bucket_size_bytes, hook)
    for _, p in reversed(named):
        if (grad := grads.remove(p)) is not None:
            # A tensor of its own for each: two parameters may have been given the same gradient.
            manager.mark_grad_ready(p.id, Tensor.wrap(grad.data, grad.device))
    absent = [p for i, (_, p) in enumerate(named) if not any(window.present[i] for window in windows)]
    return merged(manager.wait_each(absent))


# ------------------------------------------------------------------ windows


@dataclass(frozen=True)
class Window:
    """One rank's part of a window of micro-batches.

    loss:       the mean over its samples
    weight:     how many samples (or tokens) these are, or what else the micro-batches count
    count:      how many micro-batches
    norm:       the norm of its gradients' sum, or 0 where nobody wants to know
    lr:         the learning rate that it would use
    present:    for each trained parameter, in the common order, whether it has a gradient
    step:       the number of the step that it would make
    non_finite: for each of these parameters, whether its gradient has an infinity or NaN; empty where nobody looks
    losses:     of each micro-batch, for a reproducible sum; else empty, as are the next ones
    weights:    of each micro-batch
    """

    loss: float
    weight: float
    count: int
    norm: float
    lr: float
    present: list[bool]
    step: int = 0
    non_finite: list[bool] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


def exchange_window(communicator: Communicator, window: Window) -> list[Window]:
    """Every rank's window, in order of rank, by one small collective."""
    numbers = [("loss", "f8"), ("weight", "f8"), ("count", "i8"), ("norm", "f8"), ("lr", "f8"), ("step", "i8")]
    lists = [("present", "?"), ("non_finite", "?"), ("losses", "f8"), ("weights", "f8")]
    record = np.dtype([*numbers, *((key, kind, len(getattr(window, key))) for key, kind in lists)])
    mine = np.array([tuple(getattr(window, key) for key in record.names or ())], record)
    rows = all_gather_rows(communicator, mine.view(np.uint8)).view(record)
    return [Window(**{key: row[key].tolist() for key in record.names or ()}) for row in rows[:, 0]]


# ------------------------------------------------------------------ small things


def not_finite(values: Iterable[float]) -> str:
    """Those of the ranks' values that are infinite or NaN, in words."""
    return ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values) if not math.isfinite(value))


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of named arrays, whatever their order: names, dtypes, shapes and bits."""
    out = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        out.update(f"{name} {array.dtype} {array.shape}\n".encode())
        out.update(bytes_of(array).data)
    return out.hexdigest()


def _digest(p: Tensor) -> bytes:
    """16 bytes. Each 4096 are summed up first: words of 32 bits times odd numbers of 64, so that no bit is lost.

    A sum notices every change of one word, and any other with probability 1 - 2^-32, the numbers being random."""
    octets = bytes_of(on_host(p))
    end = octets.size - octets.size % 4096
    words = octets[:end].view(np.uint32).reshape(-1, 1024)
    sums = np.einsum("ij,j->i", words, FACTORS, dtype=np.uint64)
    return hashlib.blake2b(sums.tobytes() + octets[end:].tobytes(), digest_size=16).digest()


# ------------------------------------------------------------------ reducers


class Buckets(Reducer):
    """Averages the gradients over the ranks in flat buffers, when the window is full."""

    unit: float
    num_buckets: int

    def __init__(self, communicator: Communicator, bucket_size_bytes: int, hook: CommHook) -> None:
        self.communicator: Communicator = communicator
        self.world_size: int = communicator.world_size
        self.bucket_size_bytes: int = bucket_size_bytes
        self.hook: CommHook = hook
        self.manager: GradientBucketManager | None = None
        self._agreed: tuple[list[tuple[str, int, bool]], Named] | None = None

    def begin(self, step: Step, params: Params, weight: float) -> Named:
        """Where the parameters are new, the ranks compare them, their values, and the trainers' settings.

        The first micro-batch's weight decides the unit: with float16, what gradients are multiplied by stays near 1.
        """
        comm = self.communicator
        comm.step = step.global_step + 1
        named = named_params(params)
        key = sorted((name, p._id, p.requires_grad) for name, p in named)
        if self._agreed is None or self._agreed[0] != key:
            agree_on_settings(comm, self.settings(step))
            agreed = agree_on_values(comm, named)
            first = self._agreed is None and not step.global_step and not step.accumulator.current_step
            if first and has_float16(agreed):
                self.unit = power_of_two(mean_over_ranks(comm, {"weight": weight})["weight"])
            self._agreed, self.manager = (key, agreed), None
        agreed = step.named(self._agreed[1])
        comm.expose(lambda: self.held(step, agreed))
        return agreed

    def settings(self, step: Step) -> dict[str, Any]:
        """What must be the same on all ranks, by name."""
        optimizer = step.optimizer
        return {
            "the trainer": step.name,
            "the configuration": step.config,
            "the optimizer": type(optimizer).__name__,
            "the optimizer's options": [options_of(o) for o in (optimizer.defaults, *optimizer.param_groups)],
            "the optimizer's state (its hash)": digest_of(optimizer.state_dict()[0]),
            "bucket_size_bytes": self.bucket_size_bytes,
            "the hook": getattr(self.hook, "__name__", type(self.hook).__name__),
            "the global step": step.global_step,
            "the unit of weights": self.unit,
            **step.precision.settings(),
        }

    def reduce(self, step: Step, named: Named) -> tuple[Iterable[GradStore], float] | None:
        """Put the window's sums into buckets, and divide by the weight that all ranks have together; None if no rank
        has a window. Where a graph is captured, all ranks' windows are alike.
        """
        comm, accumulator, trained = self.communicator, step.accumulator, trained_of(named)
        manager = self.buckets(trained)
        try:
            sums = {p.id: grad for p in reversed(trained) if (grad := accumulator.pop(p)) is not None}
            norm = self.send(step, manager, sums)
            weight, count = accumulator.weight, accumulator.current_step
            _, loss = accumulator.flush() or (None, 0.0)
        except Exception:
            accumulator.reset()
            raise
        present = [manager.is_ready(p.id) for p in trained]
        manager.launch_rest()
        windows = self.windows(step, trained, Window(loss, weight, count, norm, 0.0, present))
        if windows is None:
            return None
        total = sum(window.weight for window in windows)
        if has_float16(named):
            self.unit *= power_of_two(total / sum(window.count for window in windows))
        mean_loss = sum(window.weight * window.loss for window in windows if window.weight) / total
        absent = [p for i, p in enumerate(trained) if not any(window.present[i] for window in windows)]
        return manager.wait_each(absent, comm.world_size / total), mean_loss

    def windows(self, step: Step, trained: list[Tensor], mine: Window) -> list[Window] | None:
        """All ranks' windows, checked, of what this rank has; None if no rank has one."""
        lr = step.optimizer.lr if step.schedule is None else step.schedule.get_lr(step.global_step)
        mine = replace(mine, lr=lr, step=step.global_step + 1, non_finite=self.non_finite(trained))
        ranks = self.communicator.world_size
        windows = [mine] * ranks if step.recorder.on_device else exchange_window(self.communicator, mine)
        if not any(window.count for window in windows):
            return None
        self.check(step, trained, windows)
        return windows

    def buckets(self, trained: list[Tensor]) -> GradientBucketManager:
        """The buckets of these parameters, which stay for later windows."""
        if self.manager is None:
            self.manager = self.new_buckets(trained)
            self.num_buckets = self.manager.num_buckets
        return self.manager

    def new_buckets(self, trained: list[Tensor]) -> GradientBucketManager:
        """Which parameters share a bucket."""
        return GradientBucketManager(trained, self.communicator, self.bucket_size_bytes, self.hook)

    def send(self, step: Step, manager: GradientBucketManager, sums: dict[TensorId, Tensor]) -> float:
        """Put this rank's sums, from the last to the first, into the buckets. Returns their norm, if it is wanted."""
        for id, grad in sums.items():
            manager.mark_grad_ready(id, grad)
        return 0.0

    def non_finite(self, trained: list[Tensor]) -> list[bool]:
        """For each parameter whether this rank's gradient is not finite, if that is wanted."""
        return []

    def check(self, step: Step, trained: list[Tensor], windows: list[Window]) -> None:
        """Raise, on all ranks alike, for windows that give no step. Gradients are checked when they are clipped."""
        told = [{"the number of the step": window.step, "the learning rate": window.lr} for window in windows]
        if (found := difference(told, "steps")) is not None:
            raise mismatch(self.communicator, f"{found[1]}; no weight changed", "step", [found[0]])
        if not sum(window.weight for window in windows):
            raise no_weight(step)
        if bad := not_finite(window.loss if window.weight else 0.0 for window in windows):
            raise NonFiniteLossError.of(bad, step.global_step + 1)

    def reset(self) -> None:
        """Drop what is in the buckets, after waiting for what is under way."""
        if self.manager is not None:
            self.manager.reset()

    def held(self, step: Step, named: Named) -> Named:
        """What all ranks must hold alike: parameters, and what the optimizer keeps of them."""
        return [*named, *moments(step.optimizer, named)]

    def compares(self, step: Step, failed: bool = False) -> bool:
        """After every ``compare_every`` steps, and one that has failed, but not while a graph is captured."""
        every = step.config.compare_every
        return every > 0 and (failed or step.global_step % every == 0) and not step.recorder.on_device

    def compare(self, step: Step, named: Named, failed: bool = False) -> None:
        """If it is due, compare the hashes of all that is held, and of what updates have read since the last time: what
        flips and is then rounded away was read.

        Raises ReplicaMismatchError. After a step that ``failed`` on this rank alone there is nobody to compare with,
        and its own error stands."""
        if self.compares(step, failed):
            reads = step.optimizer.reads()
            read = [(name, np.array(reads[p._id])) for name, p in named if p._id in reads]
            with contextlib.suppress(*[CommError] * failed):
                updates = all_gather_json(self.communicator, [int(array[:, 1].sum()) for _, array in read])
                if updates.count(updates[0]) < len(updates):  # the program gave one rank other memory or states
                    read = []
                sums = [(f"what updates read of {name}", Tensor.wrap(array, CPU)) for name, array in read]
                agree_on_values(self.communicator, [*self.held(step, named), *sums], LATER)

    def restart(self, unit: float) -> None:
        """Compare at the next step what the ranks have."""
        self.unit, self._agreed = unit, None

    def memory(self, named: Named) -> GradientBucketManager:
        """The buckets, whose addresses are in a graph."""
        self.communicator._check_usable("a captured step")
        return self.buckets(trained_of(named))


class Overlapped(Buckets):
    """Buckets that are sent while backward still computes."""

    def backward(self, step: Step, named: Named, loss: Tensor, weight: float) -> GradStore:
        """In the last micro-batch of a window each gradient is added to the window's sum, and goes into its bucket once
        it is final. The micro-batches before that only add up.
        """
        accumulator = step.accumulator
        if step.holding or not self.sends(step):
            return super().backward(step, named, loss, weight)
        try:
            step.backward(loss, _Filler(self.buckets(trained_of(named)), accumulator, weight))
        except Exception:
            accumulator.reset()
            self.reset()
            raise
        return GradStore()

    def sends(self, step: Step) -> bool:
        """Whether the coming micro-batch is one whose gradients go to the other ranks."""
        return step.accumulator.current_step + 1 >= step.config.grad_accum_steps


class _Filler:
    """Told by ``backward`` about each finished gradient: adds the window's earlier ones, and fills the buckets."""

    def __init__(self, manager: GradientBucketManager, accumulator: GradAccumulator, weight: float) -> None:
        self._manager, self._accumulator, self._weight = manager, accumulator, weight

    def on_leaf_grad_ready(self, id: TensorId, grad: Tensor) -> None:
        if id not in self._manager or not self._weight:
            return
        kernels = grad.device.kernels
        if self._weight != 1.0:
            kernels.grad_norm.scale_([grad.data], self._weight)
        earlier = self._accumulator.pop(id)
        if earlier is not None:
            kernels.elementwise.add_into(grad.data, earlier.data)
        self._manager.mark_grad_ready(id, grad)


def trained_of(named: Named) -> list[Tensor]:
    """The parameters that require grad."""
    return [p for _, p in named if p.requires_grad]
