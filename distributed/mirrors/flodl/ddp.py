"""Ddp: explicit control over replicas, for loops of your own such as GANs (flodl's ``Ddp`` and ``DdpConfig``).

The caller runs forward and backward of each replica, and between backward and the optimizers' steps asks for the
gradients' mean. Gradients are in GradStores, so the calls take those: one for each replica, in order of rank.

``Ddp.wrap(models, devices)`` has all replicas in this process; ``devices=["cpu", "cpu"]`` means two replicas that share
the CPU's cores, say as two threads. ``["cuda:0", "cuda:1"]`` means one on each of two GPUs, connected as
``replica_communicators`` says. ``Ddp.of_rank(model, communicator)`` has one replica in each of several processes (MPI,
or NCCL with one GPU each); every rank then makes the same calls.

ReplicaSet: the replicas of one process, which compute at once and then make one step (for ``Trainer``).
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from minigrad import Device, GradStore, Tensor, TensorId, float32, tensor, zeros
from minigrad.errors import NonNegative, NonNegativeInt, check_fields, check_float
from minigrad.modes import Closing
from minigrad.nn import Module
from minigrad.optim import clip_grad_norm
from minigrad.random import Generator, drawing_from, generators_for

from ...comm.call_thread import in_threads
from ...comm.calls import DEFAULT_TIMEOUT, Work
from ...comm.comm_errors import CommError
from ...comm.communicator import Communicator
from ...comm.place import on_host
from ...train.buckets import GradientBucketManager, all_reduce_hook
from ...train.config import GradLimit, TrainingMetrics
from ...train.distributed_trainer import DistributedTrainer
from ...train.grad_sync import Buckets, agree_on_params, trained_of
from ...train.step import Named, Step, misfit
from ...train.trainer_errors import ReplicaDroppedReplyError, ReplicaError
from .options import Overhead, SpeedHint, clamped_overhead
from .replica_group import check_alike, check_kinds, close_all, replica_communicators
from .timeline import EventKind, Timeline

_T = TypeVar("_T")
LossFn = Callable[..., Tensor | tuple[Tensor, float]]


@dataclass(frozen=True)
class DdpConfig:
    """How ``Trainer.setup_with`` trains on several replicas.

    speed_hint:      (slow_rank, ratio >= 1): all other replicas are ``ratio`` times as fast, until speeds are measured
    overhead_target: averaging's share of the time that ElChe aims at, 0 to 1, clamped to 0.01 ... 0.5 (None: 0.10)
    max_anchor:      the most batches of the slowest replica between two averagings: None 200; 0 turns ElChe off, so
                     that every batch is divided among the replicas
    max_grad_norm:   clip each replica's mean gradient to this norm before they are averaged
    lr_scale:        what learning rates are multiplied with, those of a schedule too
    timeline:        where to record batches, waiting and averagings

    Raises ValueError for values out of range. (flodl takes a ratio below 1, which its own example has, for 1.)
    """

    speed_hint: SpeedHint | None = None
    overhead_target: Overhead | None = None
    max_anchor: NonNegativeInt | None = None
    max_grad_norm: GradLimit | None = None
    lr_scale: NonNegative = 1.0
    timeline: Timeline | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.overhead_target is not None:
            object.__setattr__(self, "overhead_target", clamped_overhead("overhead_target", self.overhead_target))
        if self.max_grad_norm == math.inf:
            raise ValueError(f"max_grad_norm is {self.max_grad_norm}, expected a number, or None for no clipping")

    @classmethod
    def new(cls) -> DdpConfig:
        """flodl's chains of setters are keywords here: TypeError that shows them."""
        raise TypeError("options are keywords, not a chain: DdpConfig(speed_hint=(1, 2.3), overhead_target=0.1)")


class _Member:
    """One replica that this process has: what connects it to the others, and its tensors in the common order."""

    def __init__(self, communicator: Communicator, params: Named, buffers: Named) -> None:
        self.communicator = communicator
        self.trained = [(name, p) for name, p in params if p.requires_grad]
        self.params, self.buffers = params, buffers
        self.present = zeros(len(self.trained), device=params[0][1].device if params else communicator.device)
        """Reduced with its gradients: which of them it has."""
        self.weight = 1.0
        """What its gradients count in the mean that is being made."""

    @functools.cached_property
    def buckets(self) -> GradientBucketManager:
        """What averages its gradients."""
        return GradientBucketManager([*trained_of(self.trained), self.present], self.communicator, hook=self._send)

    def _send(self, communicator: Communicator, bucket: Tensor) -> Work:
        if self.weight != 1.0:
            bucket.device.kernels.grad_norm.scale_([bucket.data], self.weight)
        return all_reduce_hook(communicator, bucket)


class Ddp(Closing):
    """Keeps replicas of a model alike.

    ::

        ddp = Ddp.wrap([model_0, model_1], ["cpu", "cpu"])
        ddp.sync_params()
        grads = [loss_of(model, shard).backward() for model, shard in zip(models, shards)]
        ddp.all_reduce_gradients(grads)
        for optimizer, store in zip(optimizers, grads):
            optimizer.step(store)

    Parameters and buffers are paired by their order in the models. Which parameters are trained is looked at once, when
    the object is made. Raises ValueError for replicas that do not fit together.

    ``world_size`` counts the replicas, those of other processes too; ``devices`` says where this process's are.
    """

    def __init__(self, members: Sequence[_Member], devices: Sequence[Device], owned: Sequence[Communicator]) -> None:
        self._members, self._owned = list(members), list(owned)
        self.devices: list[Device] = list(devices)
        self.world_size: int = members[0].communicator.world_size

    @classmethod
    def wrap(cls, models: Sequence[Module], devices: Sequence[str | Device], timeout: float = DEFAULT_TIMEOUT) -> Ddp:
        """All replicas of this process, each on its device: ``"cpu"`` once for every replica, or GPUs."""
        if len(models) < 2:
            raise ValueError("Ddp::wrap requires at least 2 models")
        if len(models) != len(devices):
            counts = f"{len(models)} models, {len(devices)} devices"
            raise ValueError(f"Ddp::wrap: model count must match device count ({counts})")
        places = [Device(device) for device in devices]
        check_kinds(places)
        params, buffers = check_alike(models, places)
        comms = replica_communicators(places, timeout)
        return cls([_Member(*member) for member in zip(comms, params, buffers, strict=True)], places, comms)

    @classmethod
    def of_rank(cls, model: Module, communicator: Communicator) -> Ddp:
        """This rank's replica. A collective of all ranks; raises CollectiveMismatchError where the models differ."""
        params = agree_on_params(communicator, model.named_parameters())
        buffers = agree_on_params(communicator, model.named_buffers())
        return cls([_Member(communicator, params, buffers)], [communicator.device], [])

    @property
    def communicators(self) -> list[Communicator]:
        """What connects this process's replicas with all others, in order of rank; for use between its own calls."""
        return [member.communicator for member in self._members]

    # ------------------------------------------------------------------ weights and buffers

    def sync_params(self) -> None:
        """Give every replica the parameters and buffers of replica 0."""
        self._broadcast([[t for _, t in (*member.params, *member.buffers)] for member in self._members], 0)

    def sync_buffers(self, root: int = 0) -> None:
        """Give every replica the buffers of replica ``root``, such as BatchNorm's running averages."""
        self._broadcast([[t for _, t in member.buffers] for member in self._members], root)

    def _broadcast(self, tensors: list[list[Tensor]], root: int) -> None:
        pairs = zip(self.communicators, tensors, strict=True)
        begun = [communicator.broadcast(t, root, async_op=True) for communicator, own in pairs for t in own]
        for operation in begun:  # of all replicas: one waits for the others
            operation.wait()

    # ------------------------------------------------------------------ gradients

    def all_reduce_gradients(self, grads: Sequence[GradStore]) -> None:
        """Replace the gradients by their mean over all replicas; for shards of equal size and losses that are means.

        ``grads`` has a store for each replica of this process, in order of rank. A gradient that a replica does not
        have counts as zeros, and it gets the mean; one that no replica has stays missing.

        Raises ValueError for a gradient that does not fit its parameter, before anything is changed.
        """
        self._reduce(grads, [1] * self.world_size)

    def weighted_all_reduce_gradients(self, grads: Sequence[GradStore], batch_counts: Sequence[int]) -> None:
        """Replace the gradients by sum(c_r g_r) / sum(c_r), of all ranks' counts, in order of rank. Here g_r is the
        gradient of the *mean* loss of replica r's c_r batches or samples. For the rest see ``all_reduce_gradients``.

        With a count of 0 a replica's own gradients are not looked at, and it gets the others' mean. A replica that has
        added up the gradients of its c_r batches divides the sum by c_r first: weighting sums would weight twice.
        """
        if len(batch_counts) != self.world_size:
            counts = f"batch_counts len ({len(batch_counts)}) != device count ({self.world_size})"
            raise ValueError(f"weighted_all_reduce: {counts}")
        for rank, count in enumerate(batch_counts):
            check_float(f"weighted_all_reduce: batch_counts[{rank}]", count)
        if sum(batch_counts) == 0:
            raise ValueError("weighted_all_reduce: total batch count is 0")
        self._reduce(grads, batch_counts)

    def _reduce(self, grads: Sequence[GradStore], counts: Sequence[float]) -> None:
        if isinstance(grads, GradStore) or len(grads) != len(self._members):
            given = "one GradStore" if isinstance(grads, GradStore) else f"{len(grads)} GradStores"
            raise ValueError(f"Ddp: {given} for {len(self._members)} replicas; pass a list with one for each of them")
        factor = self.world_size / sum(counts)
        for member, store in zip(self._members, grads, strict=True):
            for name, p in member.trained:
                grad = store.get(p)
                if grad is not None and (grad.shape, grad.dtype, grad.device) != (p.shape, p.dtype, p.device):
                    raise misfit(f"Ddp: the gradient of {name} on replica {member.communicator.rank}", grad, p)
            member.weight = counts[member.communicator.rank] * factor
        try:
            for member, store in zip(self._members, grads, strict=True):
                own = store if member.weight else GradStore()  # 0 times a NaN would still be NaN
                flags = tensor([p in own for _, p in member.trained], dtype=float32, device=member.present.device)
                member.buckets.mark_grad_ready(member.present.id, flags)
                for _, p in reversed(member.trained):
                    if (grad := own.get(p)) is not None:
                        member.buckets.mark_grad_ready(p.id, grad.detach())
                member.buckets.launch_rest()
            for member, store in zip(self._members, grads, strict=True):
                means = member.buckets.wait_and_unflatten()
                for (_, p), anywhere in zip(member.trained, on_host(means[member.present]), strict=True):
                    store.remove(p)
                    if anywhere:
                        store.insert(p, means[p].clone())
        finally:
            for member in self._members:
                member.buckets.reset()

    # ------------------------------------------------------------------ life

    def close(self) -> None:
        """Take no more calls, where ``wrap`` made the group; the replicas stay as they are."""
        close_all(self._owned)


# ------------------------------------------------------------------ replicas in step


@dataclass(frozen=True)
class ReplicaJob:
    """One forward and backward: the loss, what it is computed of, and how many rows that has."""

    loss_fn: LossFn
    batch: tuple[Any, ...]
    rows: int

    def run(self, model: Any, rank: int, timeline: Timeline) -> tuple[GradStore, float, float]:
        """Gradients, loss, and the weight that the loss has among the others."""
        start = timeline.now_ms()
        made = self.loss_fn(model, *self.batch)
        loss, weight = made if isinstance(made, tuple) else (made, self.rows)
        grads = loss.backward()
        timeline.span(EventKind.BATCH, rank, start, rows=self.rows)
        return grads, loss.item(), weight

    def to(self, device: Device) -> ReplicaJob:
        """The same with the tensors of its batch on a device."""
        batch = tuple(x.to(device) if isinstance(x, Tensor) else x for x in self.batch)
        return ReplicaJob(self.loss_fn, batch, self.rows)

    def shards(self, sizes: Sequence[int]) -> Iterator[list[ReplicaJob]]:
        """The rows dealt out, ``sizes[r]`` to replica r: one job each, or none where that is 0."""
        begin = 0
        for size in sizes:
            part = tuple(x[begin : begin + size] for x in self.batch)
            yield [ReplicaJob(self.loss_fn, part, size)] if size else []
            begin += size


class ClippedBuckets(Buckets):
    """Buckets of which each rank first clips its own mean gradient.

    A mean of gradients within the limit is within it too, so the clipping after the reduction only measures.
    """

    capturable = False

    def send(self, step: Step, manager: GradientBucketManager, sums: dict[TensorId, Tensor]) -> float:
        """Clip, and put the sums into the buckets."""
        max_norm, weight = step.config.max_grad_norm, step.accumulator.weight
        if max_norm is not None and weight:
            own = GradStore({grad._id: grad for grad in sums.values()})
            clip_grad_norm(own, max_norm * weight, error_if_nonfinite=False)
        return super().send(step, manager, sums)


class ReplicaTrainer(DistributedTrainer):
    """One replica's trainer, which clips its own mean gradient before the reduction."""

    _reducer = ClippedBuckets


ReplicaRound = tuple[TrainingMetrics | None, list[float], float]
"""A step's metrics; each replica's milliseconds for its forwards and backwards; those of the step after them."""


@dataclass(eq=False)
class ReplicaSet:
    """The replicas of a model, one thread each while they work.

    ``heads[r]`` is what losses are given, ``ddp`` has the models in them. All get the weights of replica 0.
    """

    ddp: Ddp
    heads: Sequence[Any]
    trainers: Sequence[ReplicaTrainer]
    timeline: Timeline
    timeout: float

    def __post_init__(self) -> None:
        self._named: list[Named] = [member.params for member in self.ddp._members]
        self._buffers: list[Named] = [member.buffers for member in self.ddp._members]
        self._unusable: str | None = None
        self.generators: list[Generator] = generators_for(len(self.heads))
        self.share_weights()

    def share_weights(self) -> None:
        """Give all replicas the parameters and buffers of replica 0."""
        self.ddp.sync_params()
        self._agree()

    def round(self, jobs: list[list[ReplicaJob]]) -> ReplicaRound:
        """Every replica's jobs at once, then one step. One that fails puts the buffers back, and changes nothing."""
        before = [(b, b.clone()) for named in self._buffers for _, b in named]
        steps = [replica.global_step for replica in self.trainers]
        try:
            return self._round(jobs)
        except Exception:
            # A replica that has made the step keeps its buffers; one that is late may still write into them.
            if self._unusable is None and [replica.global_step for replica in self.trainers] == steps:
                for buffer, values in before:
                    buffer.copy_(values)
            raise

    def _round(self, jobs: list[list[ReplicaJob]]) -> ReplicaRound:
        self._follow_replica_0()
        timeline = self.timeline
        # Before any replica computes: a copy from another GPU waits for what that has still to do.
        jobs = [[job.to(device) for job in own] for own, device in zip(jobs, self.ddp.devices, strict=True)]

        def compute(rank: int) -> tuple[float, float]:
            replica, began = self.trainers[rank], time.perf_counter()
            with drawing_from(self.generators[rank]), replica.no_sync():
                for job in jobs[rank]:
                    grads, loss, weight = job.run(self.heads[rank], rank, timeline)
                    replica.step(self._named[rank], grads, loss, weight)
            return (time.perf_counter() - began) * 1e3, timeline.now_ms()

        computed = self._on_all(compute, "forward and backward")
        for rank, future in enumerate(computed):
            error = future.exception()
            if error is not None:
                for replica in self.trainers:
                    replica._step.accumulator.reset()
                raise ReplicaError.of(rank, error) from error
        results = [future.result() for future in computed]
        for rank, (_, ended) in enumerate(results):
            timeline.span(EventKind.IDLE, rank, ended)
        timeline.event(EventKind.SYNC_START)
        began = time.perf_counter()
        metrics = self._collective(lambda rank: self.trainers[rank].flush(self._named[rank]), "the reduction")
        self.ddp.sync_buffers(next(rank for rank, own in enumerate(jobs) if own))
        timeline.event(EventKind.SYNC_END)
        return metrics[0], [ms for ms, _ in results], (time.perf_counter() - began) * 1e3

    def assert_identical(self) -> None:
        """Raise ReplicaMismatchError unless all replicas' parameters and buffers have the same bits."""
        tensors = [[*named, *buffers] for named, buffers in zip(self._named, self._buffers)]
        self._collective(lambda rank: self.trainers[rank].assert_replicas_identical(tensors[rank]), "the check")

    def _follow_replica_0(self) -> None:
        """Freeze in all replicas what is frozen in the first."""
        flags = [p.requires_grad for _, p in self._named[0]]
        for named in self._named[1:]:
            for (_, p), flag in zip(named, flags, strict=True):
                p.requires_grad_(flag)
        if flags != self._flags:
            self._agree()

    def _agree(self) -> None:
        """Let the replicas compare their parameters and settings, which they do at the first step, all together."""
        self._collective(lambda rank: self.trainers[rank].flush(self._named[rank]), "the comparison")
        self._flags = [p.requires_grad for _, p in self._named[0]]

    def _collective(self, task: Callable[[int], _T], what: str) -> list[_T]:
        """``task(rank)`` in every replica's thread; where they fail, the first error that is not another one's echo."""
        futures = self._on_all(task, what)
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            own = [error for error in errors if not isinstance(error, CommError)]
            if len(errors) < len(futures):
                self._unusable = f"replicas may differ since {what} failed: {(own or errors)[0]}"
            raise (own or errors)[0]
        return [future.result() for future in futures]

    def _on_all(self, task: Callable[[int], _T], what: str) -> list[Future[_T]]:
        if self._unusable is not None:
            raise RuntimeError(f"the trainer takes no more steps: {self._unusable}")
        self._unusable = f"{what} was interrupted"

        def work(rank: int) -> _T:
            self.ddp.devices[rank].activate()
            return task(rank)

        futures = in_threads("replica", len(self.heads), work)
        wait(futures, min(self.timeout, threading.TIMEOUT_MAX))
        late = [rank for rank, future in enumerate(futures) if not future.done()]
        if late:
            self._unusable = f"replica {', '.join(map(str, late))} has not ended {what} within {self.timeout:g} s"
            raise ReplicaDroppedReplyError(self._unusable, late[0])
        self._unusable = None
        return [*futures]
