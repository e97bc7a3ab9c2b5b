"""Trainer: the same training loop on one replica and on several (flodl's ``Trainer``).

In setup mode ``step`` divides each batch among the replicas, and averages what they find. They run forward and backward
in threads of their own, on GPUs, or on the CPU, whose kernels release the interpreter's lock. What follows backward is
SimpleTrainer's, with one replica, and DistributedTrainer's, with several: nothing of it is repeated here.

The loss is a function that every replica calls with its own share, and a mean over that share. flodl takes one loss
over the outputs gathered from all replicas, so that their gradients are parts of a sum. It then averages them as if
they were means.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np

from minigrad import Device, as_tensor, cuda
from minigrad.data import EpochSampler, Prefetcher
from minigrad.errors import check_instance
from minigrad.modes import Closing
from minigrad.nn import Module
from minigrad.optim import Lambda, LrSchedule, Optimizer

from ...comm.calls import DEFAULT_TIMEOUT, check_seconds
from ...train.config import TrainingConfig, TrainingMetrics
from ...train.simple_trainer import SimpleTrainer
from ...train.step import Named
from .builder import DdpBuilder
from .ddp import Ddp, DdpConfig, LossFn, ReplicaJob, ReplicaSet, ReplicaTrainer
from .el_che import DEFAULT_MAX_ANCHOR, DEFAULT_OVERHEAD_TARGET, AutoBalancer, ElChe
from .options import check_function, made_optimizer
from .replica_data import fetcher
from .timeline import EventKind, NoTimeline, Timeline

INITIAL_ANCHOR = 10

Builder = Callable[[Device], Any]
OptimizerFactory = Callable[[Named], Optimizer]
T = TypeVar("T")


@runtime_checkable
class HasGraph(Protocol):
    """A wrapper around the model that is trained, such as a task's head with its tokenizer (flodl's ``HasGraph``)."""

    def graph(self) -> Module:
        """The model, the same one at each call."""


class _Itself:
    """A name within a class for the class."""

    def __get__(self, instance: object, owner: type[T]) -> type[T]:
        return owner


class Trainer(Closing):
    """Trains a model on one replica or several; made by ``setup``, ``setup_with`` and the like.

    ::

        trainer = Trainer.setup(model, lambda device: build(), lambda params: AdamW(params), devices=["cpu", "cpu"])
        for x, y in batches:
            metrics = trainer.step(lambda model, x, y: F.cross_entropy(model(x), y), x, y)

    ``setup`` and its siblings are flodl's names for the class itself. It divides every batch among the replicas; but on
    GPUs of different names it deals whole batches out, with ElChe. With a configuration it does so unless that says
    ``max_anchor=0``. Of a wrapper around a model, ``builder(device)`` makes others, and losses are given them.

    With one device (the default: that of the model) this is SimpleTrainer, bit for bit. With several, there is a
    replica for each; ``["cpu", "cpu"]`` means two replicas on the CPU, ``["cuda:0", "cuda:1"]`` one on each of two
    GPUs, connected as ``replica_communicators`` says. ``builder(device)`` makes those beside the model that was passed,
    which is replica 0 and whose weights all get. ``optimizer(params)`` is called for each replica with pairs (name,
    parameter), those that are trained. Each batch is divided among the replicas in proportion to the speeds that
    AutoBalancer measures; or, with ElChe, whole batches are dealt out and ``step`` makes an update when it has as many
    as ElChe wants.

    The gradient of a step is the mean over all rows of all replicas, however they were dealt out. Each replica computes
    its statistics (BatchNorm) of its own rows; after a step all have the buffers of the first replica that had rows.
    Parameters that are frozen or unfrozen in replica 0 are so in all. Random numbers, of dropout say, come from a
    generator of each replica's own, which one draw from the default generator seeds.

    A step that fails changes no weight and drops the batches that it had; with several replicas, no buffer either. What
    the loss raises comes as it is from one replica; from several as ReplicaError, whose cause it is.
    ReplicaDroppedReplyError says that a replica has not answered within ``timeout`` seconds. After that, and after a
    failure of communication, the trainer takes no more steps. NonFiniteLossError and NonFiniteGradientError are
    SimpleTrainer's.

    The attributes are to be read only.

    Attributes:
        devices: where the replicas are; ``world_size`` is how many.
        models: the replicas' models, in order of rank; the first is the one that was passed. Between steps all are
            equal.
        balancer: how batches are divided, where there is no ElChe.
        el_che: how many batches each replica gets per step; None where every batch is divided.
    """

    prints_summary: ClassVar[bool] = True
    """Whether a new trainer prints one line to stderr that says where its replicas are."""
    builder: ClassVar[type[DdpBuilder]] = DdpBuilder
    """The other way to train, which owns the loop and averages parameters by a policy."""

    def __init__(
        self,
        model: Any,
        builder: Builder,
        optimizer: OptimizerFactory,
        config: DdpConfig | None = None,
        *,
        devices: Sequence[str | Device] | None = None,
        schedule: LrSchedule | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        first, config = _graph(model), _config_for(devices) if config is None else config
        check_instance("config", config, DdpConfig)
        if not isinstance(schedule, LrSchedule | None):
            raise TypeError(f"schedule is {schedule!r}, expected an LrSchedule")
        check_function("builder", builder, "device")
        places = [_device_of(first)] if devices is None else [Device(device) for device in devices]
        if not places:
            raise ValueError("devices is empty; name one device for each replica, or leave it out for one replica")
        if _device_of(first) is not places[0]:
            raise ValueError(f"the model is on {_device_of(first)}, the first device is {places[0]}: move it by .to()")
        n = len(places)
        self.balancer: AutoBalancer = AutoBalancer(n)
        self.el_che: ElChe | None = None
        if n > 1 and config.max_anchor != 0:
            limit, target = config.max_anchor or DEFAULT_MAX_ANCHOR, config.overhead_target or DEFAULT_OVERHEAD_TARGET
            self.el_che = ElChe(n, min(INITIAL_ANCHOR, limit)).with_overhead_target(target).with_max_anchor(limit)
        if n > 1 and config.speed_hint is not None:
            self.balancer.apply_speed_hint(*config.speed_hint)
            if self.el_che is not None:
                self.el_che.with_speed_ratio(*config.speed_hint)
        check_seconds("timeout", timeout)
        self._timeline: Timeline = config.timeline or NoTimeline()
        self._heads = [model, *(builder(place) for place in places[1:])]
        self.devices: list[Device] = places
        self.world_size: int = n
        self.models: list[Module] = [_graph(head) for head in self._heads]
        for model in self.models:
            model.train()
        self._named: list[Named] = [[*model.named_parameters()] for model in self.models]
        optimizers = [made_optimizer("optimizer", optimizer, model, config.lr_scale) for model in self.models]
        if schedule is not None and config.lr_scale != 1.0:
            unscaled = schedule
            schedule = Lambda(lambda step: unscaled.get_lr(step) * config.lr_scale)
        clipping = TrainingConfig(max_grad_norm=config.max_grad_norm)
        self._queue: list[ReplicaJob] = []
        self._data: tuple[EpochSampler, Callable[[np.ndarray], Any], bool] | None = None
        self._replicas: ReplicaSet | None = None
        self._trainers: list[SimpleTrainer] = [SimpleTrainer(clipping, optimizers[0], schedule)]
        if n > 1:
            ddp = Ddp.wrap(self.models, places, timeout)
            trainers = [ReplicaTrainer(clipping, *pair, schedule) for pair in zip(ddp.communicators, optimizers)]
            self._replicas = ReplicaSet(ddp, self._heads, trainers, self._timeline, timeout)
            self._trainers = [*trainers]
        if self.prints_summary:
            print(f"minigrad: {n} replica{'s' * (n > 1)} on {', '.join(map(str, places))}", file=sys.stderr)

    setup: _Itself = _Itself()
    setup_with: _Itself = setup
    setup_head: _Itself = setup
    setup_head_with: _Itself = setup

    # ------------------------------------------------------------------ what it has

    @property
    def optimizers(self) -> list[Optimizer]:
        """The replicas' optimizers, in order of rank."""
        return [trainer.optimizer for trainer in self._trainers]

    @property
    def global_step(self) -> int:
        """Optimizer steps made so far."""
        return self._trainers[0].global_step

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of all replicas' optimizers; a schedule overrides it."""
        for trainer in self._trainers:
            trainer.optimizer.set_lr(lr)

    # ------------------------------------------------------------------ training

    def step(self, loss_fn: LossFn, *batch: Any) -> TrainingMetrics | None:
        """Train on one batch: tensors, which are moved to the replicas' devices, or arrays, all with as many rows.

        ``loss_fn(model, *rows)`` is called for each replica, in its thread, with its own model (or head) and rows. It
        returns the mean loss over these rows; or a pair (loss, weight), where the loss is a mean over something else,
        such as tokens that are not padding. Returns the step's metrics, whose loss is the mean over the whole batch;
        None while ElChe collects batches.
        """
        if isinstance(loss_fn, Module) or not callable(loss_fn):
            raise TypeError(f"step takes loss_fn(model, *batch) and the batch, not a {type(loss_fn).__name__} first")
        job = ReplicaJob(loss_fn, batch, _rows(batch))
        if self._replicas is None:
            grads, loss, _ = job.to(self.devices[0]).run(self._heads[0], 0, self._timeline)
            return self._trainers[0].step(self._named[0], grads, loss)
        if self.el_che is not None:
            self._queue.append(job)
            counts = self.el_che.batch_counts
            return self._march(self._replicas, self.el_che, counts) if len(self._queue) >= sum(counts) else None
        sizes = self.balancer.shard_sizes(job.rows)
        metrics, ms, _ = self._replicas.round(list(job.shards(sizes)))
        self.balancer.update(sizes, ms)
        return metrics

    def flush(self) -> TrainingMetrics | None:
        """At the end of an epoch: make a step of the batches that ElChe has collected; None if there are none."""
        if self._replicas is None or self.el_che is None or not self._queue:
            return None
        return self._march(self._replicas, self.el_che, self.el_che.clamp_total(len(self._queue)))

    def set_data_loader(self, dataset: Any, batch_size: int, *, seed: int = 42, resident: bool = False) -> "Trainer":
        """Say where ``epoch`` takes its batches from; returns the trainer.

        ``dataset``, ``batch_size`` and ``seed`` are those of DdpBuilder, for the batch of all replicas. Batches are
        made ahead by a thread; or, if the data are ``resident``, arrays are moved to the first replica's device at
        once, and batches are rows of them.
        """
        if resident:
            arrays = dataset if isinstance(dataset, tuple) else (dataset,)
            dataset = tuple(as_tensor(array, device=self.devices[0]) for array in arrays)
        samples, fetch = fetcher(dataset)
        self._data = EpochSampler(samples, batch_size, seed, drop_last=True), fetch, resident
        return self

    def epoch(self, number: int, loss_fn: LossFn) -> Iterator[TrainingMetrics]:
        """Train on an epoch of ``set_data_loader``, in the order that its number and the seed decide; gives each step's
        metrics.
        """
        if self._data is None:
            raise RuntimeError("there are no data; call set_data_loader first")
        order, fetch, resident = self._data
        made = (fetch(order.batch(number, i)) for i in range(len(order)))
        with nullcontext(made) if resident else Prefetcher(made, device=self.devices[0]) as batches:
            for batch in batches:
                metrics = self.step(loss_fn, *(batch if isinstance(batch, tuple) else (batch,)))
                if metrics is not None:
                    yield metrics
        if (rest := self.flush()) is not None:
            yield rest

    def _march(self, replicas: ReplicaSet, el_che: ElChe, counts: list[int]) -> TrainingMetrics | None:
        queue, self._queue = iter(self._queue), []
        metrics, ms, sync_ms = replicas.round([[next(queue) for _ in range(count)] for count in counts])
        before = el_che.anchor
        el_che.report_timing(ms, counts, sync_ms)
        if el_che.anchor != before:
            self._timeline.event(EventKind.ANCHOR_CHANGED, before=before, after=el_che.anchor)
        return metrics

    def assert_replicas_identical(self) -> None:
        """Raise ReplicaMismatchError unless all replicas' parameters and buffers have the same bits."""
        if self._replicas is not None:
            self._replicas.assert_identical()

    def close(self) -> None:
        """Take no more steps, where there are several replicas; the models stay as they are."""
        if self._replicas is not None:
            self._replicas.ddp.close()

    # ------------------------------------------------------------------ saving and resuming

    def state_dict(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What a resume needs beside replica 0's weights: arrays for safetensors, and the rest as JSON.

        It fits any number of replicas. Measured speeds are not saved. Raises RuntimeError while ElChe has batches.
        """
        if self._queue:
            raise RuntimeError(f"{len(self._queue)} batches wait for the next step; call flush before saving")
        arrays, meta = self._trainers[0].state_dict(self._named[0])
        if self._replicas is not None:
            meta["generators"] = [generator.state_dict() for generator in self._replicas.generators]
        return arrays, meta

    def load_state_dict(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned, and give all replicas the weights that replica 0 has now."""
        for trainer, named in zip(self._trainers, self._named, strict=True):
            trainer.load_state_dict(named, arrays, meta)
        if self._replicas is not None:
            for generator, saved in zip(self._replicas.generators, meta.get("generators", ()), strict=False):
                generator.load_state_dict(saved)
            self._replicas.share_weights()


def _config_for(devices: Sequence[str | Device] | None) -> DdpConfig:
    """With ElChe where GPUs of different names will not be equally fast."""
    places = [Device(device) for device in devices or ()]
    alike = len(set(places)) < 2 or {place.type for place in places} != {"cuda"}
    return DdpConfig(max_anchor=0 if alike or len({cuda.get_device_name(place) for place in places}) < 2 else None)


def _graph(head: Any) -> Module:
    if not isinstance(head, Module | HasGraph):
        raise TypeError(f"setup takes a Module, or a wrapper with graph(), not {type(head).__name__}")
    model = head if isinstance(head, Module) else head.graph()
    if not isinstance(model, Module):
        raise TypeError(f"graph() of {type(head).__name__} returned {type(model).__name__}, expected a Module")
    return model


def _device_of(model: Module) -> Device:
    return next((p.device for p in model.parameters()), Device("cpu"))


def _rows(batch: tuple[Any, ...]) -> int:
    """The number of rows that all of the batch's tensors have."""
    shapes = [tuple(getattr(x, "shape", ())) for x in batch]
    if not shapes or not all(shapes) or len({shape[0] for shape in shapes}) > 1 or shapes[0][0] == 0:
        raise ValueError(f"step takes tensors or arrays with as many rows in each, at least one; got shapes {shapes}")
    return int(shapes[0][0])
