"""ReplicaSet: the replicas of one process, which compute at once and then make one step (for ``Trainer``)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from minigrad.device import Device
from minigrad.grad_store import GradStore, TensorId
from minigrad.nn import Module
from minigrad.optim import LrSchedule, Optimizer, clip_grad_norm
from minigrad.random import Generator, drawing_from, generators_for
from minigrad.tensor import Tensor

from ...comm.call_thread import in_threads
from ...comm.comm_errors import CommError
from ...train.buckets import GradientBucketManager
from ...train.config import TrainingConfig, TrainingMetrics
from ...train.distributed_trainer import DistributedTrainer
from ...train.grad_sync import Buckets
from ...train.params import Named
from ...train.step import Step
from ...train.trainer_errors import ReplicaDroppedReplyError, ReplicaError
from .ddp import Ddp
from .timeline import EventKind, Timeline

_T = TypeVar("_T")
LossFn = Callable[..., Tensor | tuple[Tensor, float]]


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

    def send(self, step: Step, manager: GradientBucketManager, sums: dict[TensorId, Tensor]) -> None:
        """Clip, and put the sums into the buckets."""
        max_norm, weight = step.config.max_grad_norm, step.accumulator.weight
        if max_norm is not None and weight:
            own = GradStore({grad._id: grad for grad in sums.values()})
            clip_grad_norm(own, max_norm * weight, error_if_nonfinite=False)
        super().send(step, manager, sums)


class ReplicaTrainer(DistributedTrainer):
    """One replica's trainer, which clips its own mean gradient before the reduction."""

    _reducer = ClippedBuckets


class ReplicaRound(NamedTuple):
    """A step's metrics; each replica's milliseconds for its forwards and backwards; those of the step after them."""

    metrics: TrainingMetrics | None
    ms: list[float]
    sync_ms: float


@dataclass(eq=False)
class ReplicaSet:
    """The replicas of a model, one thread each while they work.

    ``heads[r]`` is what losses are given, ``models[r]`` the model in it. All get the weights of replica 0. Raises
    ValueError for models that do not fit together.
    """

    heads: Sequence[Any]
    models: Sequence[Module]
    devices: Sequence[Device]
    optimizers: Sequence[Optimizer]
    config: TrainingConfig
    schedule: LrSchedule | None
    timeline: Timeline
    timeout: float

    def __post_init__(self) -> None:
        self.ddp: Ddp = Ddp.wrap(self.models, self.devices, self.timeout)
        self._named: list[Named] = [[*model.named_parameters()] for model in self.models]
        self._unusable: str | None = None
        self.trainers: list[ReplicaTrainer] = [
            ReplicaTrainer(self.config, communicator, optimizer, self.schedule)
            for communicator, optimizer in zip(self.ddp.communicators, self.optimizers, strict=True)
        ]
        self.generators: list[Generator] = generators_for(len(self.models))
        self.share_weights()

    def share_weights(self) -> None:
        """Give all replicas the parameters and buffers of replica 0."""
        self.ddp.sync_params()
        self._agree()

    def round(self, jobs: list[list[ReplicaJob]]) -> ReplicaRound:
        """Every replica's jobs at once, then one step. One that fails puts the buffers back, and changes nothing."""
        before = [(b, b.device.kernels.copy(b.data)) for model in self.models for _, b in model.named_buffers()]
        steps = [replica.global_step for replica in self.trainers]
        try:
            return self._round(jobs)
        except Exception:
            # A replica that has made the step keeps its buffers; one that is late may still write into them.
            if self._unusable is None and [replica.global_step for replica in self.trainers] == steps:
                for buffer, values in before:
                    buffer.device.kernels.elementwise.assign(buffer.data, values)
                    buffer.bump_version()
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
        return ReplicaRound(metrics[0], [ms for ms, _ in results], (time.perf_counter() - began) * 1e3)

    def assert_identical(self) -> None:
        """Raise ReplicaMismatchError unless all replicas' parameters and buffers have the same bits."""
        tensors = [[*model.named_parameters(), *model.named_buffers()] for model in self.models]
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

        futures = in_threads("replica", len(self.models), work)
        wait(futures, min(self.timeout, threading.TIMEOUT_MAX))
        late = [rank for rank, future in enumerate(futures) if not future.done()]
        if late:
            self._unusable = f"replica {', '.join(map(str, late))} has not ended {what} within {self.timeout:g} s"
            raise ReplicaDroppedReplyError(self._unusable, late[0])
        self._unusable = None
        return [*futures]
