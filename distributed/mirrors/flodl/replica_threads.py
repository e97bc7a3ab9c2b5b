"""DdpHandle: a ``DdpBuilder`` run under way, whose threads each train one replica, as the coordinator says.

What is decided is in ``coordinator``; here is what blocks: waiting, training, averaging, and the callbacks.
"""

import logging
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.data import EpochSampler
from minigrad.device import CPU, Device
from minigrad.errors import check_float
from minigrad.modes import Closing
from minigrad.nn import Module
from minigrad.optim import LrSchedule
from minigrad.random import Generator, drawing_from
from minigrad.tensor import Tensor

from ...comm.call_thread import in_threads
from ...comm.comm_errors import CommError
from ...comm.communicator import Communicator
from ...comm.place import copied
from ...train.simple_trainer import SimpleTrainer
from .coordinator import Average, Coordinator, Stop, Wait
from .replica_data import ReplicaLoader
from .replica_group import average, catch_up, weighted_mean
from .timeline import EventKind
from .trained_state import TrainedState, tensors_of
from .workload import Batch, EpochMetrics

log: logging.Logger = logging.getLogger("minigrad.distributed")

TrainFn = Callable[[Any, Any], Tensor | tuple[Tensor, Mapping[str, float]]]


_recorded: ContextVar[dict[str, float] | None] = ContextVar("recorded", default=None)
"""What the batch that this thread trains on has recorded."""


def record_scalar(name: str, value: float) -> None:
    """Within ``train_fn``: a number for the epoch's metrics, as if it were returned with the loss (flodl's name).

    Raises RuntimeError elsewhere.
    """
    if (recorded := _recorded.get()) is None:
        raise RuntimeError(f"record_scalar({name!r}) is for the train_fn of a DdpBuilder, while it trains on a batch")
    recorded[name] = float(value)


class ReplicaSchedule(LrSchedule):
    """A schedule at ``position``, the run's step, times ``scale``; what a replica itself has counted plays no part."""

    def __init__(self, inner: LrSchedule, scale: float) -> None:
        self.inner: LrSchedule = inner
        self.scale: float = scale
        self.position: int = 0

    def _lr(self, step: int) -> float:
        return self.inner.get_lr(self.position) * self.scale


@dataclass(eq=False)
class Replica:
    """One replica: what ``epoch_fn`` gets as its worker."""

    rank: int
    world_size: int
    model: Module
    trainer: SimpleTrainer
    schedule: ReplicaSchedule | None
    communicator: Communicator
    generator: Generator
    device: Device = CPU
    epoch: int = -1

    def __post_init__(self) -> None:
        self.named: list[tuple[str, Tensor]] = list(self.model.named_parameters())
        self.tensors: list[Tensor] = [tensor for _, tensor in tensors_of(self.model)]

    @property
    def local_step(self) -> int:
        """Steps that this replica has made."""
        return self.trainer.global_step

    @property
    def current_lr(self) -> float:
        """Its learning rate."""
        return self.trainer.optimizer.lr

    def set_lr(self, lr: float) -> None:
        """Use this learning rate from the next batch on; a schedule overrides it."""
        self.trainer.optimizer.set_lr(lr)

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rate of each parameter group, or that of the schedule."""
        check_float("factor", factor)
        if self.schedule is not None:
            self.schedule.scale *= factor
        for group in self.trainer.optimizer.param_groups:
            group["lr"] *= factor

    def set_scheduler(self, schedule: LrSchedule) -> None:
        """Take the learning rate from this schedule, at batches of all replicas / replicas."""
        self.schedule = ReplicaSchedule(schedule, 1.0 if self.schedule is None else self.schedule.scale)
        self.trainer.with_lr_schedule(self.schedule)

    def state_dict(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What a resume needs beside the weights: the trainer's state and the random numbers'."""
        arrays, meta = self.trainer.state_dict(self.named)
        return arrays, {**meta, "generator": self.generator.state_dict()}

    def load_state_dict(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.trainer.load_state_dict(self.named, arrays, meta)
        self.generator.load_state_dict(meta["generator"])


class ReplicaFailedError(RuntimeError):
    """No replica is left that could give a state. ``failures`` are the errors by rank; the first is the cause."""

    def __init__(self, message: str, failures: dict[int, BaseException]) -> None:
        super().__init__(message)
        self.failures: dict[int, BaseException] = failures


@dataclass(eq=False, repr=False)
class DdpHandle(Closing):
    """A run under way (flodl's ``DdpHandle``), whose threads train until all epochs are done or a replica fails. As a
    context manager it ends the run at the end of the block.

    ``world_size`` is the number of replicas, ``devices`` where they are.
    """

    coordinator: Coordinator
    replicas: list[Replica]
    order: EpochSampler
    loaders: list[ReplicaLoader]
    train_fn: TrainFn
    epoch_fn: Callable[[int, Replica], None] | None = None
    metrics_fn: Callable[[EpochMetrics], None] | None = None
    checkpoint_fn: Callable[[int, TrainedState], None] | None = None
    resumed: bool = False

    def __post_init__(self) -> None:
        self.devices: list[Device] = [replica.device for replica in self.replicas]
        self.world_size: int = len(self.devices)
        self._state: TrainedState | None = None
        self.changed: threading.Condition = threading.Condition()
        self.metrics: deque[EpochMetrics] = deque()
        self._publishing = threading.RLock()
        self._states: dict[int, tuple[dict[str, np.ndarray], dict[str, Any]]] = {}

    # ------------------------------------------------------------------ what its owner calls

    def poll_metrics(self) -> list[EpochMetrics]:
        """Epochs that have ended since the last call, in order; returns at once."""
        with self.changed:
            ended = list(self.metrics)
            self.metrics.clear()
        return ended

    def next_metrics(self) -> EpochMetrics | None:
        """The next epoch's metrics, as soon as it has ended; None when the run is over and all have been given."""
        with self.changed:
            self.wait(lambda: bool(self.metrics))
            return self.metrics.popleft() if self.metrics else None

    def stop(self) -> None:
        """Let each replica end after its batch; ``join`` then gives the average of what they have."""
        with self.changed:
            self.coordinator.stop()
            self.changed.notify_all()

    def join(self) -> TrainedState:
        """Wait for the end; the state of the run.

        If a replica was lost, the others stop, and the state is their average, with a RuntimeWarning that says what
        happened. A replica is lost ``batch_timeout`` after it went silent, so this always returns.

        Raises ReplicaFailedError if no replica is left, or those that are have not trained.
        """
        with self.changed:
            self.wait(lambda: False)
        if self._state is None:
            self._state = self._end()
        return self._state

    def _end(self) -> TrainedState:
        """The state of the run, or the average of the replicas that are left."""
        c = self.coordinator
        alive = [replica for replica in self.replicas if replica.rank not in c.failures]
        if c.failures:
            words = "; ".join(f"replica {r}: {type(e).__name__}: {e}" for r, e in sorted(c.failures.items()))
            if not alive or not (self.resumed or any(c.total_batches[replica.rank] for replica in alive)):
                first = next(iter(c.failures.values()))
                raise ReplicaFailedError(f"no trained replica is left: {words}", dict(c.failures)) from first
            left = ", ".join(str(replica.rank) for replica in alive)
            told = f"training ended in epoch {c.epochs_done} because a replica was lost ({words})"
            warnings.warn(f"{told}; the state is the average of replica {left}", RuntimeWarning, stacklevel=3)
        if c.failures or c.stopping:
            weights = [max(c.steps[replica.rank], 1) for replica in alive]
            tensors = weighted_mean([replica.tensors for replica in alive], weights)
            return self.state(tensors, c.epochs_done, [])
        return self.state(alive[0].tensors, c.epochs_done, [replica.state_dict() for replica in alive])

    def close(self) -> None:
        """Stop the replicas, and wait for their end."""
        self.stop()
        with self.changed:
            self.wait(lambda: False)

    # ------------------------------------------------------------------ running

    def start(self) -> None:
        """One thread for each replica; they do not keep the program alive."""
        in_threads("replica", len(self.replicas), lambda rank: self.run(self.replicas[rank]))

    def run(self, replica: Replica) -> None:
        """Train one replica to its end, in this thread."""
        rank = replica.rank
        try:
            replica.device.activate()
            with replica.communicator, drawing_from(replica.generator):
                try:
                    self._loop(replica)
                except BaseException as error:
                    with self.changed:
                        self.coordinator.failed(rank, error)  # before the others hear of it
                        self.changed.notify_all()
                    raise
        except BaseException as error:  # failed() has it; a communicator that cannot close is a failure too
            with self.changed:
                self.coordinator.failed(rank, error)
        finally:
            self.loaders[rank].close()
            with self.changed:
                self.coordinator.leave(rank)
                self.changed.notify_all()

    def wait(self, until: Callable[[], bool]) -> None:
        """Block until a condition holds, or every replica has ended or is known to be stuck. Call with the lock."""
        while not until() and not self.coordinator.over:
            self._pause()

    # ------------------------------------------------------------------ a replica's life

    def _loop(self, replica: Replica) -> None:
        while not isinstance(task := self._next(replica.rank), Stop):
            if isinstance(task, Batch):
                self._train(replica, task)
            else:
                self._average(replica, task)

    def _next(self, rank: int) -> Batch | Average | Stop:
        """The next task, as soon as there is one."""
        coordinator, began = self.coordinator, None
        with self.changed:
            rounds = coordinator.rounds
            while isinstance(task := coordinator.next(rank), Wait):
                if coordinator.rounds != rounds or began is None:
                    self.changed.notify_all()  # an average begins, or this replica is one less that others wait for
                began = began or (time.perf_counter(), coordinator.timeline.now_ms())
                self._pause()
                rounds = coordinator.rounds
            self.changed.notify_all()  # it is busy from now on: the others have a deadline to watch
            if began is not None:
                coordinator.waited(rank, (time.perf_counter() - began[0]) * 1e3)
                coordinator.timeline.span(EventKind.IDLE, rank, began[1])
        return task

    def _pause(self) -> None:
        seconds = self.coordinator.next_deadline() - self.coordinator.clock()
        self.changed.wait(min(max(seconds, 0.0), threading.TIMEOUT_MAX))
        if self.coordinator.check():
            self.changed.notify_all()

    def _train(self, replica: Replica, task: Batch) -> None:
        rank, coordinator = replica.rank, self.coordinator
        if replica.schedule is not None:
            replica.schedule.position = coordinator.lr_step + coordinator.steps[rank]
        if task.epoch != replica.epoch:
            replica.epoch = task.epoch
            if self.epoch_fn is not None:
                self.epoch_fn(task.epoch, replica)
        start_ms = coordinator.timeline.now_ms()
        began = coordinator.clock()
        with self.changed:
            upcoming = coordinator.work.upcoming(rank, self.loaders[rank].depth)
        recorded: dict[str, float] = {}
        _recorded.set(recorded)
        result = self.train_fn(replica.model, self.loaders[rank].get(task, upcoming))
        loss, scalars = result if isinstance(result, tuple) else (result, {})
        _recorded.set(None)
        scalars = {name: float(number) for name, number in {**recorded, **scalars}.items()}
        value = loss.item()
        replica.trainer.step(replica.named, loss.backward(), value)
        wall_ms = (coordinator.clock() - began) * 1e3
        coordinator.timeline.span(EventKind.BATCH, rank, start_ms, epoch=task.epoch, batch=task.index)
        with self.changed:
            if rank in coordinator.failures:  # given up as stuck: too late
                raise coordinator.failures[rank]
            coordinator.batch_done(rank, self.order.batch_size, value, wall_ms, scalars)
            self.changed.notify_all()
        self._publish()

    def _average(self, replica: Replica, task: Average) -> None:
        if task.overlaps:
            self._average_beside(replica, task)
            return
        rank, coordinator = replica.rank, self.coordinator
        try:
            delta = average(replica.communicator, replica.tensors, [max(steps, 1) for steps in coordinator.steps])
        except CommError as error:
            self._blame(rank, error)
            return
        if task.checkpoint is not None:
            self._checkpoint(replica, task.deltas, task.checkpoint)
        with self.changed:
            coordinator.average_done(rank, delta)
            self.changed.notify_all()

    def _average_beside(self, replica: Replica, task: Average) -> None:
        """An average in host memory that nobody stands still for. Who hands in the last copy makes the mean."""
        rank, began = replica.rank, time.perf_counter()
        mean, delta, last = task.mean, 0.0, False
        if mean is not None:
            delta = catch_up(replica.tensors, task.parts[rank], mean)
        else:
            part = [Tensor.wrap(copied(tensor), CPU) for tensor in replica.tensors]
            with self.changed:
                task.parts[rank] = part
                last = len(task.parts) == len(self.replicas)
        if last:
            ranks = range(len(self.replicas))
            task.mean = weighted_mean([task.parts[r] for r in ranks], [max(task.taken[r][0], 1) for r in ranks])
        with self.changed:
            task.cost_ms = max(task.cost_ms, (time.perf_counter() - began) * 1e3)
            if mean is not None:
                self.coordinator.average_done(rank, delta)
            self.changed.notify_all()

    def _blame(self, rank: int, error: CommError) -> None:
        """An average has failed: it is those who are missing that are lost, if they are known."""
        with self.changed:
            others = set(error.ranks) - {rank}
            if not others and not self.coordinator.stopping:
                raise error
            for other in others - self.coordinator.failures.keys():  # its own word counts more
                self.coordinator.failed(other, error)
            self.coordinator.stop()
            self.changed.notify_all()

    def _checkpoint(self, replica: Replica, deltas: Mapping[int, float], epoch: int) -> None:
        """Between average and ``average_done`` all replicas stand still and are equal; the first one saves for all."""
        if self.checkpoint_fn is None:
            return
        self._states[replica.rank] = replica.state_dict()
        if replica.rank:
            return
        with self.changed:
            while len(deltas) < len(self.replicas) - 1 and not self.coordinator.stopping:
                self._pause()
            if len(deltas) < len(self.replicas) - 1:
                return
        state = self.state(replica.tensors, epoch, [self._states[rank] for rank in range(len(self.replicas))])
        try:
            self.checkpoint_fn(epoch, state)
        except Exception:
            log.exception("checkpoint_fn failed after epoch %d; training goes on", epoch)

    def _publish(self) -> None:
        """Pass on the epochs that are over, in order."""
        with self._publishing:
            while True:
                with self.changed:
                    if not self.coordinator.ready:
                        return
                    metrics = self.coordinator.ready.popleft()
                    self.metrics.append(metrics)
                    self.changed.notify_all()
                if self.metrics_fn is not None:
                    try:
                        self.metrics_fn(metrics)
                    except Exception:
                        log.exception("metrics_fn failed for epoch %d; training goes on", metrics.epoch)

    # ------------------------------------------------------------------ what is left

    def state(self, tensors: Sequence[Tensor], epoch: int, trainers: Sequence[Any]) -> TrainedState:
        """The run's state with these tensors, copied."""
        c, names = self.coordinator, [name for name, _ in tensors_of(self.replicas[0].model)]
        arrays = {name: copied(tensor) for name, tensor in zip(names, tensors, strict=True)}
        buffers = {name for name, _ in self.replicas[0].model.named_buffers()}
        return TrainedState(
            params={name: array for name, array in arrays.items() if name not in buffers},
            buffers={name: array for name, array in arrays.items() if name in buffers},
            epoch=epoch,
            batches=c.batches_ever,
            sampler={**self.order.state_dict(), "epoch": epoch, "position": 0},
            replicas=list(trainers),
            failures=dict(c.failures),
            report=c.report(),
        )
