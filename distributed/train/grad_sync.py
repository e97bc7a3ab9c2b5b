"""What every data-parallel trainer shares: agreeing on parameters and windows, broadcasting, comparing replicas.

Ranks must never guess what the others hold. They compare their lists of parameters by hash before the first step, and
in each window exchange one small record: its loss, its weight, and which parameters have a gradient.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minigrad.errors import check_int
from minigrad.grad_store import GradStore
from minigrad.optim import Optimizer
from minigrad.optim.grad_accumulator import check_weight
from minigrad.tensor import Tensor

from ..comm.comm_errors import CollectiveMismatchError
from ..comm.communicator import Communicator
from ..comm.gather import all_gather_bytes, all_gather_json, all_gather_rows
from ..comm.place import bytes_of, on_host
from .buckets import DEFAULT_BUCKET_BYTES, CommHook, GradientBucketManager, all_reduce_hook
from .params import Named, Params, named_params
from .step import merged

FACTORS = np.random.default_rng(0).integers(2**63, size=512, dtype=np.uint64) * 2 + 1
AT_FIRST = "call broadcast_params before the first step, and change weights on all ranks alike"
LATER = (
    "unless the program changed it on one rank alone, its memory or processor is at fault; go on from a "
    "checkpoint of before"
)


class ReplicaMismatchError(RuntimeError):
    """The ranks' copies of a tensor differ. ``name`` is the first such tensor, ``ranks`` those in the minority."""

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
            raise ValueError(
                f"rank {rank} passes the values {sorted(other['values'])}, rank 0 {sorted(records[0]['values'])}"
            )
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


def difference(everyone: Sequence[Mapping[str, str]]) -> tuple[int, str] | None:
    """The first rank whose settings are not rank 0's, and a sentence that says what differs; None if all agree."""
    for rank, other in enumerate(everyone):
        for key in sorted(everyone[0].keys() | other.keys()):
            here, there = other.get(key, "not set"), everyone[0].get(key, "not set")
            if here != there:
                return rank, f"the ranks' settings differ: {key} is {here} on rank {rank}, {there} on rank 0"
    return None


def agree_on_params(communicator: Communicator, params: Params) -> Named:
    """The parameters in the order that all ranks will use: that of rank 0.

    A collective of all ranks. Each may pass its parameters in another order, but they must have the same names, shapes,
    dtypes, and whether they are trained. Hashes are compared, and the lists themselves only where the hashes differ.
    Raises CollectiveMismatchError on every rank, naming the first difference.
    """
    named = named_params(params)
    lines = [
        json.dumps([name, list(p.shape), str(p.dtype), "trained" if p.requires_grad else "frozen"]) for name, p in named
    ]
    for name, count in Counter(name for name, _ in named).items():
        if count > 1:
            raise ValueError(f"two parameters have the name {name!r}; names must differ")
    mine = "\n".join(lines).encode()
    digests = all_gather_bytes(communicator, hashlib.sha256(mine).digest())
    if len(set(digests)) == 1:
        return named
    texts = [raw.decode() for raw in all_gather_bytes(communicator, mine)]
    everyone = [set(text.split("\n")) - {""} for text in texts]
    for rank, entries in enumerate(everyone):
        if entries != everyone[0]:
            here = min(entries - everyone[0], default="no such parameter")
            there = min(everyone[0] - entries, default="no such parameter")
            text = (
                f"the ranks' parameters differ: rank {rank} has {here}, rank 0 has {there} "
                f"({len(entries)} parameters against {len(everyone[0])})"
            )
            raise mismatch(communicator, text, "agree_on_params", [rank])
    tensors = dict(named)
    return [(name, tensors[name]) for name, *_ in map(json.loads, texts[0].split("\n"))]


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
    every rank, naming the first tensor that differs and the ranks whose copy is in the minority.
    """
    if communicator.world_size > 1:
        agree_on_values(communicator, params)


def agree_on_values(communicator: Communicator, params: Params, advice: str = AT_FIRST) -> Named:
    """``agree_on_params``, whose values must have the same bits on all ranks, too; else there is ``advice``."""
    named = agree_on_params(communicator, params)
    digest = b"".join(_digest(p) for _, p in named)
    everyone = all_gather_bytes(communicator, digest)
    for i, (name, p) in enumerate(named):
        copies = [d[16 * i : 16 * i + 16] for d in everyone]
        if len(set(copies)) > 1:
            most = Counter(copies).most_common(1)[0][0]
            ranks = [r for r, copy in enumerate(copies) if copy != most]
            raise ReplicaMismatchError(
                f"the ranks' copies of {name!r} {tuple(p.shape)} {p.dtype} differ: rank "
                f"{', '.join(map(str, ranks))} against the others"
                + (f" (step {communicator.step})" if communicator.step is not None else "")
                + f"; {advice}",
                name,
                ranks,
            )
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
    """

    loss: float
    weight: float
    count: int
    norm: float
    lr: float
    present: list[bool]
    step: int = 0
    non_finite: list[bool] = field(default_factory=list)


def exchange_window(communicator: Communicator, window: Window) -> list[Window]:
    """Every rank's window, in order of rank, by one small collective."""
    numbers = np.array([window.loss, window.weight, window.count, window.norm, window.lr, window.step], np.float64)
    flags = [*window.present, *window.non_finite]
    bits = np.packbits(np.array(flags, np.bool_))
    record = np.concatenate([numbers.view(np.uint8), bits])
    windows = []
    for row in all_gather_rows(communicator, record):
        loss, weight, count, norm, lr, step = np.frombuffer(row[: numbers.nbytes].tobytes(), np.float64).tolist()
        found = np.unpackbits(row[numbers.nbytes :], count=len(flags)).astype(bool).tolist()
        present, non_finite = found[: len(window.present)], found[len(window.present) :]
        windows.append(Window(loss, weight, int(count), norm, lr, present, int(step), non_finite))
    return windows


# ------------------------------------------------------------------ small things


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of named arrays, whatever their order: names, dtypes, shapes and bits."""
    out = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        out.update(f"{name} {array.dtype} {array.shape}\n".encode())
        out.update(bytes_of(array).data)
    return out.hexdigest()


def _digest(p: Tensor) -> bytes:
    """16 bytes. Each 4096 bytes are summed up first, as words times odd numbers, at the memory's speed: so a change of
    one word is always seen, and any other with probability 1 - 2^-64."""
    octets = bytes_of(on_host(p))
    end = octets.size - octets.size % 4096
    sums = np.einsum("ij,j->i", octets[:end].view(np.uint64).reshape(-1, 512), FACTORS)
    return hashlib.blake2b(sums.tobytes() + octets[end:].tobytes(), digest_size=16).digest()
