"""DataParallelTrainer: a trainer that holds the weights, and replicas that it deals each batch out to (mirrors
atomr-accel-train's, whose replicas were stubs).

    batch ── round-robin ──> replica 0: forward, backward ──> gradients ─┐ weighted mean, clip,
      │                                                                  ├─> update of a Step     ──> weights
      └────────────────────> replica 1: forward, backward ──> gradients ─┘

Nothing is kept in replicas: each step sends them the weights. So a step that fails changes nothing, and goes on with
other replicas after ``set_replicas``. Those of other ranks add up their gradients themselves (``RankReplicas``).
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from numbers import Real
from typing import Any

import numpy as np

from minigrad import GradStore, Tensor, as_tensor
from minigrad.dtypes import is_floating
from minigrad.errors import check_float, check_int
from minigrad.nn import Module
from minigrad.optim import LrSchedule, NonFiniteGradientError

from ...comm.calls import check_seconds
from ...train.blocks import non_finite
from ...train.config import NonFiniteLossError, TrainingMetrics
from ...train.train_kinds import Batch, KindTrainer, StepStats, TrainerConfig, batch_arrays
from ...train.trainer_errors import NoReplicasError, ReplicaDroppedReplyError, ReplicaError, ZeroSamplesError
from .replicas import RankReplica, ReplicaProtocol, ReplicaStep, ReplicaStepResult

REPLY_TIMEOUT = 60.0  # seconds


class DataParallelTrainer(KindTrainer):
    """Trains ``model`` on batches of which each replica computes a part.

    ::

        config = TrainerConfig(8, 1.0, OptimizerKind.adamw(3e-4), LossKind.cross_entropy())
        with ThreadReplica(build_model) as first, ThreadReplica(build_model) as second:
            trainer = DataParallelTrainer(config, [first, second], model=build_model())
            for x, y in batches:
                stats = trainer.step((x, y))

    The model's own values are the weights; its frozen parameters stay as they are. Loss and gradients are means over
    all samples of the batch, however many each replica got. They are summed in order of the replicas, so a run does not
    depend on who answers first. Floating buffers become the samples' mean of the replicas' buffers; others, such as
    counts of batches, the largest. Layers that look at the whole batch (batch normalisation) see each replica's part.

    ``timeout`` is the number of seconds that the replicas have for one step. ``seed`` is that of dropout and other
    random numbers, which depend on it, the step and the replica. ``schedule`` sets the learning rate of every step.
    """

    def __init__(
        self, config: TrainerConfig, replicas: Iterable[ReplicaProtocol] = (), *, model: Module,
        schedule: LrSchedule | None = None, timeout: float = REPLY_TIMEOUT, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(config, model, schedule)
        self.model: Module = model
        self.timeout: float = check_seconds("timeout", timeout)
        self.seed: int = seed
        self._step.holding = True  # replicas' answers are a window's micro-batches, however many there are
        self.set_replicas(replicas)

    @property
    def replicas(self) -> tuple[ReplicaProtocol, ...]:
        """Those that the next step will use."""
        return self._replicas

    def set_replicas(self, replicas: Iterable[ReplicaProtocol]) -> None:
        """Use these from the next step on; the former are not closed. A step needs at least one, and of
        RankReplicas all: ValueError for a part of them."""
        replicas = tuple(replicas)
        for rank, replica in enumerate(replicas):
            if not callable(getattr(replica, "make_step", None)):
                raise TypeError(f"replica {rank} is a {type(replica).__name__}, which has no method make_step")
            if isinstance(replica, RankReplica):
                replica.whole.check_all_in(replicas)
        self._replicas = replicas

    def step(self, batch: Batch) -> StepStats:
        """One optimizer step with the mean gradient of the batch; sample i goes to replica i % n.

        ``batch`` is a list of TrainSample, or a tuple (features, labels) with one sample per row. The statistics' norm
        is that of the mean gradient, before clipping.

        Raises, with nothing changed: NoReplicasError; ZeroSamplesError; ReplicaDroppedReplyError for a replica that is
        dead or late; ReplicaError for a replica's own exception; ValueError, NonFiniteLossError or
        NonFiniteGradientError, naming replica, parameter and step, for a result that cannot be used.
        """
        began = time.perf_counter()
        if not self._replicas:
            raise NoReplicasError("DataParallelTrainer.step: no replicas configured; call set_replicas")
        results = self._collect(*batch_arrays(batch))
        for rank, result in enumerate(results):
            self._check(rank, result)
        if not sum(result.samples for result in results):
            raise ZeroSamplesError("trainer: zero samples: the replicas used none of the batch")
        buffers = self._mean_buffers(results)
        metrics = self._update(results)
        if buffers:
            self.model.load_state_dict(buffers, strict=False)
        return StepStats.of(metrics, began)

    # ------------------------------------------------------------------ asking the replicas

    def _collect(self, x: np.ndarray, y: np.ndarray) -> list[ReplicaStepResult]:
        """Every replica's answer, in order of rank."""
        n, step, config = len(self._replicas), self.global_step + 1, self.config
        state = self.model.state_dict()
        trained = frozenset(name for name, p in self._named if p.requires_grad)
        futures: list[Future[ReplicaStepResult]] = []
        for rank, replica in enumerate(self._replicas):
            seed = int(np.random.SeedSequence([self.seed, step, rank]).generate_state(1, np.uint64)[0])
            part = x[rank::n], y[rank::n], state, trained, config.loss, config.batch_size_per_device, seed
            try:
                future = replica.make_step(ReplicaStep(*part))
            except Exception as refusal:
                raise ReplicaError.of(rank, refusal) from refusal
            if not isinstance(future, Future):
                raise TypeError(f"make_step of replica {rank} returned a {type(future).__name__}, expected a Future")
            futures.append(future)
        wait(futures, self.timeout, "FIRST_EXCEPTION")
        done = [future.done() for future in futures]  # asked once: an answer after that is late
        errors = {r: CancelledError() if f.cancelled() else f.exception() for r, f in enumerate(futures) if done[r]}
        failed = {rank: error for rank, error in errors.items() if error is not None}
        for rank, error in failed.items():
            if not isinstance(error, CancelledError | ReplicaDroppedReplyError):
                raise ReplicaError.of(rank, error) from error
        for rank, error in failed.items():
            raise _dropped(rank, str(error) or "it cancelled the step") from error
        if not all(done):
            raise _dropped(done.index(False), f"no answer within {self.timeout:g} s")
        return [future.result() for future in futures]

    def _check(self, rank: int, result: Any) -> None:
        """Raise for a result that must not enter the mean, naming what is wrong with it."""
        if not isinstance(result, ReplicaStepResult):
            raise TypeError(f"replica {rank} answered with a {type(result).__name__}, expected a ReplicaStepResult")
        step, known = self.global_step + 1, dict(self._named)
        for what, number in (("samples", result.samples), ("weight", _weight(result))):
            check_float(f"what replica {rank} answered for {what}", number)
        if not _weight(result):
            return
        if not isinstance(result.loss, Real) or isinstance(result.loss, bool):
            raise TypeError(f"replica {rank} answered with loss={result.loss!r}, expected a number")
        if not math.isfinite(result.loss):
            raise NonFiniteLossError.of(f"{result.loss} on replica {rank}", step)
        for name, grad in result.gradients.items():
            if not isinstance(grad, np.ndarray | Tensor):
                raise TypeError(f"replica {rank}: the gradient of {name} is a {type(grad).__name__}, expected an array")
            p = known.get(name)
            if p is None or not p.requires_grad:
                raise ValueError(f"replica {rank} has a gradient of {name!r}, which is no trained parameter")
            if (tuple(grad.shape), grad.dtype) != (p.shape, p.dtype):
                here = f"has shape {tuple(grad.shape)}, {grad.dtype}; the parameter has {p.shape}, {p.dtype}"
                raise ValueError(f"replica {rank}: the gradient of {name} {here}; no weight was changed")
            if non_finite({name: as_tensor(grad)}):
                text = f"step {step}: the gradient of {name} on replica {rank} is not finite; no weight was changed"
                raise NonFiniteGradientError(text, math.nan)

    # ------------------------------------------------------------------ means over the samples of all replicas

    def _update(self, results: Sequence[ReplicaStepResult]) -> TrainingMetrics | None:
        """A step with the mean gradient and loss."""
        params, total = dict(self._named), sum(_weight(result) for result in results)
        if not total:
            raise ValueError("the batch's labels have weight 0 together, so there is no mean; no weight was changed")
        for result in results:
            grads = {params[k]._id: as_tensor(g).to(params[k].device).clone() for k, g in result.gradients.items()}
            self._step.take(self._named, GradStore(grads), float(result.loss), _weight(result) / total)
        return self._step.flush(self._named)

    def _mean_buffers(self, results: Sequence[ReplicaStepResult]) -> dict[str, np.ndarray]:
        """The buffers after the step."""
        used = [(rank, result) for rank, result in enumerate(results) if result.samples]
        total = sum(result.samples for _, result in used)
        own = self.model.state_dict()
        for rank, result in used:
            for name in result.buffers.keys() | used[0][1].buffers.keys():
                here, mine = result.buffers.get(name), own.get(name)
                found = "missing" if here is None else f"{tuple(here.shape)} {here.dtype}"
                wanted = "no such buffer" if mine is None else f"{mine.shape} {mine.dtype}"
                if found != wanted:
                    raise ValueError(f"replica {rank}: buffer {name} is {found}; the model has {wanted}")
        means = {}
        for name in used[0][1].buffers:
            copies = [np.asarray(result.buffers[name]) for _, result in used]
            if all(np.array_equal(copy, copies[0]) for copy in copies):
                means[name] = copies[0]
            elif is_floating(copies[0].dtype):
                mean = sum(copy.astype(np.float64) * (r.samples / total) for copy, (_, r) in zip(copies, used))
                means[name] = np.asarray(mean).astype(copies[0].dtype)
            else:
                means[name] = np.maximum.reduce(copies)
        return means

    # ------------------------------------------------------------------ saving and resuming

    def state_dict(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What an exact resume needs beside the model's state: the optimizer's moments and counts, and the step."""
        arrays, meta = super().state_dict()
        return arrays, {**meta, "seed": self.seed}

    def load_state_dict(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned. Raises ValueError for what does not fit, with nothing changed."""
        seed = check_int("the saved seed", meta.get("seed") if isinstance(meta, Mapping) else None, 0)
        super().load_state_dict(arrays, meta)
        self.seed = seed


def _weight(result: ReplicaStepResult) -> float:
    return result.samples if result.weight is None else result.weight


def _dropped(rank: int, reason: str) -> ReplicaDroppedReplyError:
    text = f"trainer: replica dropped reply: replica {rank}: {reason}; no weight was changed"
    return ReplicaDroppedReplyError(text, rank)
