"""DdpBuilder: training on one or several replicas whose loop the framework owns (flodl's builder mode).

Every replica trains on batches of its own with its own optimizer; from time to time the parameters of all are averaged.
How often decides an ``AveragingPolicy``. Replicas are threads, each on its GPU, or on the CPU, whose kernels release
the interpreter lock.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from minigrad.autograd import no_grad
from minigrad.data import EpochSampler
from minigrad.device import CPU, Device
from minigrad.errors import NonNegative, NonNegativeInt, PositiveInt, check_fields, check_int, check_option
from minigrad.nn import Module
from minigrad.optim import LrSchedule, Optimizer
from minigrad.random import default_generator, generators_for

from ...comm.calls import Seconds
from ...comm.communicator import Communicator, NoOpCommunicator
from ...comm.threads.thread import ThreadCommunicator
from ...train.config import GradLimit, TrainingConfig
from ...train.simple_trainer import SimpleTrainer
from .coordinator import Coordinator
from .el_che import ElChe
from .options import Overhead, SpeedHint, called_with, made_optimizer, member_of, takes
from .policies import AverageBackend, AveragingPolicy, DivergenceGuard, OvershootLimit
from .replica_data import ReplicaLoader, fetcher
from .replica_group import check_alike, check_kinds, replica_communicators
from .replica_threads import DdpHandle, Replica, ReplicaSchedule, TrainFn
from .timeline import NoTimeline, Timeline
from .trained_state import TrainedState, tensors_of
from .workload import CadencePlan, EpochMetrics


@dataclass
class DdpBuilder:
    """How to train; ``run()`` starts it and returns a handle.

    ::

        handle = DdpBuilder(
            lambda: Net(), lambda params: AdamW(params, lr=1e-3), lambda model, batch: model.loss(*batch),
            dataset=(x, y), batch_size=32, num_epochs=10, replicas=2,
        ).run()
        while (metrics := handle.next_metrics()) is not None:
            print(metrics.epoch, metrics.avg_loss)
        state = handle.join()

    Args:
        model_factory: makes a model; called once for each replica, with its device if it needs an argument. All begin
            with the first one's values.
        optim_factory: makes an optimizer of the pairs (name, parameter) that require grad.
        train_fn: ``train_fn(model, batch) -> loss``, or ``(loss, {"name": number, ...})`` for the epoch's metrics.
        dataset: an array, a tuple of arrays, or an object with ``len()`` and ``dataset[indices] -> batch``.
        batch_size: samples of one replica's batch. What fills no batch is left out of an epoch.
        num_epochs: epochs in all, those before a resumed run included.
        replicas: how many. With one, ``run()`` trains in the calling thread, to the bit as a plain loop does.
        devices: where they are, say ``["cuda:0", "cuda:1"]``, which says how many as well; None: all on the CPU. Models
            are moved there, and the tensors of batches.
        prefetch: up to so many batches are made ahead, in a thread of each replica. Random numbers that the dataset
            draws there come from a generator that seed, epoch and batch decide. 0: in the replica's own thread.
        policy, backend: when the parameters are averaged, and by what, or the names of these ("sync", "cpu"). Averages
            are weighted with batches done.
        anchor, max_anchor, overhead_target, speed_hint: of ``ElChe``; speed_hint is (slowest rank, ratio >= 1).
        divergence_threshold: of ``DivergenceGuard``; None turns it off. With policy SYNC it is always off.
        max_batch_diff: no replica is more batches than this ahead of the slowest one; 0 means lockstep, as 1 does. It
            also limits by how much ElChe changes a count at once.
        max_overshoot: of ``OvershootLimit``, >= 0; None: from the size of an epoch.
        progressive_dispatch: batches are handed out in chunks while the epoch runs. None: yes, unless the policy is
            SYNC or there are ``partition_ratios``.
        partition_ratios: each replica's part of an epoch, in any unit, for CADENCE and ASYNC.
        max_grad_norm: each replica clips its own gradient, between backward and its step.
        scheduler: ``scheduler(world_size)`` gives an LrSchedule, taken at batches of all replicas / replicas.
        lr_scale_ratio: learning rates are multiplied with 1 + (replicas - 1) * ratio.
        epoch_fn: ``epoch_fn(epoch, replica)``, in each replica's thread, before its first batch of the epoch.
        metrics_fn: called with each EpochMetrics in order; what it raises is logged.
        checkpoint_every, checkpoint_fn: after every so many epochs all replicas are averaged and
            ``checkpoint_fn(epochs_done, TrainedState)`` is called, for example to save it; what it raises is logged.
        resume: the TrainedState to go on from. With policy SYNC the run goes on to the bit.
        seed: of the order of samples. Random numbers of models (dropout) come from a generator of each replica's own,
            which one draw from the default generator seeds; with one replica, from the default generator.
        timeline: records what happens.
        snapshot_timeout: seconds after which an average is given up, and made later, because a replica is late (not
            with SYNC).
        batch_timeout: seconds after which a replica that has not come back from a batch, or a callback, is lost.
        communicators: of backend COMMUNICATOR, in order of rank, closed at the end; None: ``replica_communicators``.

    Raises ValueError, TypeError or DataError for values that do not fit; for what the factories return, in ``run()``.
    """

    model_factory: Callable[..., Module]
    optim_factory: Annotated[Callable[[Any], Optimizer], called_with("params")]
    train_fn: Annotated[TrainFn, called_with("model", "batch")]
    dataset: Any = None
    batch_size: PositiveInt | None = None
    num_epochs: NonNegativeInt | None = None
    replicas: PositiveInt = 1
    devices: Sequence[str | Device] | None = None
    prefetch: NonNegativeInt = 2
    policy: AveragingPolicy | str = AveragingPolicy.CADENCE
    backend: AverageBackend | str = AverageBackend.COMMUNICATOR
    anchor: PositiveInt = 10
    max_anchor: PositiveInt = 200
    overhead_target: Overhead = 0.10
    speed_hint: SpeedHint | None = None
    divergence_threshold: float | None = 0.05
    max_batch_diff: NonNegativeInt | None = None
    max_overshoot: NonNegativeInt | None = None
    progressive_dispatch: bool | None = None
    partition_ratios: Sequence[float] | None = None
    max_grad_norm: GradLimit | None = None
    scheduler: Annotated[Callable[[int], LrSchedule], called_with("world_size")] | None = None
    lr_scale_ratio: NonNegative = 1.0
    epoch_fn: Annotated[Callable[[int, Replica], None], called_with("epoch", "replica")] | None = None
    metrics_fn: Annotated[Callable[[EpochMetrics], None], called_with("metrics")] | None = None
    checkpoint_every: PositiveInt | None = None
    checkpoint_fn: Annotated[Callable[[int, TrainedState], None], called_with("epochs_done", "state")] | None = None
    resume: TrainedState | None = None
    seed: Annotated[int, functools.partial(check_int, least=0, most=2**64 - 1)] = 42
    timeline: Timeline | None = None
    snapshot_timeout: Seconds = 5.0
    batch_timeout: Seconds = 300.0
    communicators: Sequence[Communicator] | None = None

    def __post_init__(self) -> None:
        for name in ("dataset", "batch_size", "num_epochs"):
            if getattr(self, name) is None:
                raise ValueError(f"DdpBuilder: {name} is required; options are keywords, not a chain: {name}=...")
        check_fields(self, "DdpBuilder: ")
        self.policy = self._policy = member_of("DdpBuilder: policy", AveragingPolicy, self.policy)
        self.backend = self._backend = member_of("DdpBuilder: backend", AverageBackend, self.backend)
        if not callable(self.model_factory):
            raise TypeError(f"DdpBuilder: model_factory is {self.model_factory!r}, expected a function of (device)")
        if self.divergence_threshold is not None:
            DivergenceGuard(self.divergence_threshold)  # checks it
        if (self.checkpoint_every is None) != (self.checkpoint_fn is None):
            raise ValueError("DdpBuilder: checkpoint_every and checkpoint_fn go together, one of them is missing")
        self._places: list[Device] = self._checked_devices()
        self._check_communicators()
        self._make_plan()
        self._cadence(self._plan)  # checks what it is made of

    def run(self) -> DdpHandle:
        """Make the replicas and start them; with one replica, train to the end."""
        plan, order = self._plan, self._order
        replicas = self._make_replicas(plan)
        el_che, guard, overshoot = self._cadence(plan)
        coordinator = Coordinator(plan, time.perf_counter, el_che, guard, overshoot, self.timeline or NoTimeline())
        loaders = [ReplicaLoader(order, self._fetch, replica.device, self.prefetch, self.seed) for replica in replicas]
        callbacks = self.epoch_fn, self.metrics_fn, self.checkpoint_fn
        resumed = self.resume is not None
        handle = DdpHandle(coordinator, replicas, order, loaders, self.train_fn, *callbacks, resumed)
        if plan.world == 1:
            handle.run(replicas[0])
            for error in coordinator.failures.values():
                if not isinstance(error, Exception):
                    raise error  # Ctrl-C
        else:
            handle.start()
        return handle

    # ------------------------------------------------------------------ checks

    def _make_plan(self) -> None:
        assert self.batch_size is not None and self.num_epochs is not None
        world = len(self._places)
        samples, self._fetch = fetcher(self.dataset)
        self._order = order = EpochSampler(samples, self.batch_size, self.seed, drop_last=True)
        sync = self._policy is AveragingPolicy.SYNC
        if sync and len(order) < world:
            few = f"{len(order)} batches of {self.batch_size}, too few for a step of {world} replicas"
            raise ValueError(f"DdpBuilder: {samples} samples are {few}")
        self._plan = CadencePlan(
            world=world,
            batches=len(order),
            epochs=self.num_epochs,
            policy=self._policy,
            backend=self._backend,
            progressive=self._progressive(sync),
            partition_ratios=self.partition_ratios,
            max_batch_diff=self.max_batch_diff,
            checkpoint_every=self.checkpoint_every,
            snapshot_timeout=self.snapshot_timeout,
            batch_timeout=self.batch_timeout,
            device_indices=[place.index for place in self._places],
            **({} if self.resume is None else self._resumed(self.resume, order)),
        )

    def _checked_devices(self) -> list[Device]:
        if self.devices is None:
            return [CPU] * self.replicas
        places = [Device(device) for device in self.devices]
        if not places or self.replicas not in (1, len(places)):
            raise ValueError(f"DdpBuilder: {len(places)} devices for {self.replicas} replicas; leave one of them out")
        check_kinds(places)
        for place in places:
            place.kernels_package()  # raises, if it is not there
        return places

    def _check_communicators(self) -> None:
        if self.communicators is None:
            return
        world = len(self._places)
        if world == 1 or self._backend is not AverageBackend.COMMUNICATOR:
            raise ValueError("DdpBuilder: communicators are for several replicas with backend COMMUNICATOR")
        places = [(comm.rank, comm.world_size, comm.device) for comm in self.communicators]
        if places != [(rank, world, place) for rank, place in enumerate(self._places)]:
            wanted = f"{world} replicas on {', '.join(map(str, self._places))}"
            raise ValueError(f"DdpBuilder: communicators are (rank, world size, device) {places}, for {wanted}")

    def _progressive(self, sync: bool) -> bool:
        check_option("DdpBuilder: progressive_dispatch", self.progressive_dispatch, (None, False, True))
        if self.partition_ratios is not None:
            ratios = list(self.partition_ratios)
            if len(ratios) != len(self._places) or not all(0 < ratio < math.inf for ratio in ratios):
                raise ValueError(f"DdpBuilder: partition_ratios is {ratios}, expected {len(self._places)} numbers > 0")
        if sync and (self.progressive_dispatch or self.partition_ratios is not None):
            why = "with policy SYNC every replica has one batch of each step"
            raise ValueError(f"DdpBuilder: {why}; progressive_dispatch and partition_ratios are for CADENCE and ASYNC")
        if self.progressive_dispatch and self.partition_ratios is not None:
            raise ValueError("DdpBuilder: partition_ratios have no effect with progressive_dispatch; leave one out")
        if self.progressive_dispatch is None:
            return not sync and self.partition_ratios is None
        return self.progressive_dispatch

    def _resumed(self, state: TrainedState, order: EpochSampler) -> dict[str, int]:
        if len(state.replicas) != len(self._places):
            why = "it is what was left after a failure" if not state.replicas else "the numbers must be equal"
            sizes = f"optimizers of {len(state.replicas)} replicas, for {len(self._places)}"
            raise ValueError(f"DdpBuilder: the state has {sizes}: {why}")
        order.load_state_dict(state.sampler)
        return {"first_epoch": order.epoch, "batches_before": state.batches}

    # ------------------------------------------------------------------ parts

    def _make_replicas(self, plan: CadencePlan) -> list[Replica]:
        world = plan.world
        comms = self._communicators()
        scale = 1.0 + (world - 1) * self.lr_scale_ratio
        schedule = None if self.scheduler is None else self.scheduler(world)
        if self.scheduler is not None and not isinstance(schedule, LrSchedule):
            raise TypeError(f"DdpBuilder: scheduler({world}) returned {schedule!r}, expected an LrSchedule")
        asks = not takes(self.model_factory)  # for the device
        models = [self.model_factory(*[place][:asks]).to(device=place) for place in self._places]
        check_alike(models, self._places)
        for model in models[1:]:
            with no_grad():
                for (_, mine), (_, first) in zip(tensors_of(model), tensors_of(models[0]), strict=True):
                    mine.copy_(first)
        generators = [default_generator] if world == 1 else generators_for(world)
        replicas: list[Replica] = []
        for rank, model in enumerate(models):
            if self.resume is not None:
                self.resume.load_into(model)
            model.train()
            optimizer = made_optimizer("optim_factory", self.optim_factory, model, scale if schedule is None else 1.0)
            own = None if schedule is None else ReplicaSchedule(schedule, scale)
            trainer = SimpleTrainer(TrainingConfig(max_grad_norm=self.max_grad_norm), optimizer, own)
            place = self._places[rank]
            replicas.append(Replica(rank, world, model, trainer, own, comms[rank], generators[rank], place))
        if self.resume is not None:
            for replica, saved in zip(replicas, self.resume.replicas, strict=True):
                replica.load_state_dict(*saved)
        return replicas

    def _communicators(self) -> list[Communicator]:
        if self.communicators is not None:
            return list(self.communicators)
        if len(self._places) == 1:
            return [NoOpCommunicator()]
        if self._backend is AverageBackend.COMMUNICATOR:
            return replica_communicators(self._places, self.batch_timeout)
        return list(ThreadCommunicator.group(len(self._places), self.batch_timeout))

    def _cadence(self, plan: CadencePlan) -> tuple[ElChe | None, DivergenceGuard | None, OvershootLimit | None]:
        if plan.world == 1 or plan.policy is AveragingPolicy.SYNC:
            return None, None, None
        el_che = ElChe(plan.world, min(self.anchor, self.max_anchor)).with_overhead_target(self.overhead_target)
        el_che.with_max_anchor(self.max_anchor).with_max_batch_diff(self.max_batch_diff)
        if self.speed_hint is not None:
            el_che.with_speed_ratio(*self.speed_hint)
        guard = None if self.divergence_threshold is None else DivergenceGuard(self.divergence_threshold)
        overshoot = OvershootLimit(plan.batches // plan.world, self.max_overshoot)
        return el_che, guard, overshoot if plan.policy is AveragingPolicy.ASYNC else None
