"""ShardedTrainer: a BucketedTrainer whose ranks share moments, and in stages 2 and 3 gradients and weights (ZeRO).

    gradients   reduce-scatter [ bucket 0 ][ bucket 1 ]        each rank gets the mean of its own part
    AdamW                                              [ my parts ]
    weights                                                         all-gather [ bucket 0 ][ bucket 1 ]

That is an all-reduce in two halves, with the update between them: as many bytes. In stage 3 weights are gathered when
they are used (units.py). boostr's ``ZeroTrainer``s, which own whole tensors and all-reduce all gradients.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import minigrad
from minigrad import GradStore, Tensor, TensorId, autocast
from minigrad.device import CPU
from minigrad.errors import check_int
from minigrad.grad_arithmetic import scale_grads
from minigrad.nn import Module
from minigrad.optim import GradAccumulator, LrSchedule, Optimizer
from minigrad.optim.optimizer_state import options_of
from minigrad.tools.step_memory import MemoryReport

from ..comm.communicator import Communicator, all_gather_json
from .amp_trainer import AmpTrainer, MixedPrecisionConfig
from .buckets import DEFAULT_BUCKET_BYTES, all_reduce_hook, filled
from .config import TrainingConfig
from .grad_sync import Overlapped, trained_of
from .parts import Owned, PartOfModelRecorder, PartOfModelUpdater
from .shards import Share, ShareManager, cut, join
from .step import Named, Params, Precision, State, Step
from .units import Units


class Shares(Overlapped):
    """Reduces gradients to this rank's shares, and knows the optimizer of these."""

    capturable = False
    manager: ShareManager | None

    def __init__(self, communicator: Communicator, bucket_size_bytes: int, stage: int, offload: bool = False) -> None:
        super().__init__(communicator, bucket_size_bytes, all_reduce_hook)
        self.stage = stage
        self.offload = offload
        self.own: Optimizer | None = None
        self.units: Units | None = None  # of the model, in stage 3

    def settings(self, step: Step) -> dict[str, Any]:
        """With the stage, and its units."""
        units = None if self.units is None else [[p.shape for p in unit.params] for unit in self.units.all]
        return {**super().settings(step), "the stage": self.stage, "the units": units}

    def begin(self, step: Step, params: Params, weight: float) -> Named:
        """Where the parameters are new, the states are joined, and cut anew. Shares of the same parameters stay, so
        that these are moved no more."""
        known, shares = self._agreed, self.manager
        named = super().begin(step, params, weight)
        if self._agreed is not known and shares is not None:
            self.join_states(step, shares)
            now = {p.id: (p.dtype, p.device) for ps in filled(trained_of(named), self.bucket_size_bytes) for p in ps}
            was = {p.id: (share.mine.dtype, share.mine.device) for share in shares.buckets for p in share.params}
            if self.units is not None and now.keys() != was.keys():
                raise ValueError("stage 3: since shard(model) other parameters are trained; freeze before it")
            if self.units is not None or [*now.items()] == [*was.items()]:
                self.manager = shares
            for p in (p for share in shares.buckets for p in share.params if p.id not in now):
                p.data = p.device.kernels.copy(p.data)  # else it would keep the old buffer
        return named

    def join_states(self, step: Step, shares: ShareManager | None) -> None:
        """Give the trainer's optimizer the states of whole parameters, until ``optimizer_of`` cuts them again."""
        if shares is not None and self.own is not None:
            join(self.own, step.optimizer, shares)
            self.own = None

    def new_buckets(self, trained: list[Tensor]) -> ShareManager:
        """Buckets with a part for each rank."""
        there = sum(p.device is CPU for p in trained)
        if self.offload and there:
            found = f"{there} of {len(trained)} trained parameters are on the CPU"
            remedy = 'leave offload out, or call model.to(device="cuda") first'
            raise ValueError(f"offload=True takes optimizer states from GPUs to host memory; {found}: {remedy}")
        share = functools.partial(Share, communicator=self.communicator, stage=self.stage)
        if self.stage < 3:
            return ShareManager(trained, self.communicator, self.bucket_size_bytes, bucket=share)
        if self.units is None:
            raise RuntimeError("stage 3 gathers weights before they are used: call trainer.shard(model) first")
        groups = [unit.params for unit in self.units.all[::-1]]
        shares = ShareManager(trained, self.communicator, sys.maxsize, groups=groups, bucket=share)
        self.units.keep(shares)
        return shares

    def shares(self) -> ShareManager:
        """The buckets, which there are from the first reduction on."""
        assert self.manager is not None
        return self.manager

    def optimizer_of(self, step: Step) -> Optimizer:
        """The optimizer of this rank's pieces, with the options that the trainer's has now."""
        shares = self.shares()
        for piece in shares.pieces if self.offload else []:
            piece.to_host()
        if self.own is None:
            self.own = cut(step.optimizer, shares)
        for mine, whole in zip(self.own.param_groups, step.optimizer.param_groups, strict=True):
            mine.update(options_of(whole))
        return self.own

    def backward(self, step: Step, named: Named, loss: Tensor, weight: float) -> GradStore:
        """In stage 3 units tell when gradients are sent."""
        if self.units is not None:
            try:
                self.units.expect(loss, None if step.holding else step.accumulator)
            except Exception:
                step.accumulator.reset()
                self.reset()
                raise
        return super().backward(step, named, loss, weight)

    def sends(self, step: Step) -> bool:
        """From stage 2 on, each micro-batch."""
        return self.stage > 1 or super().sends(step)

    def end_micro_batch(self, step: Step, named: Named) -> None:
        """From stage 2 on, reduce its gradients: whole ones are not kept."""
        if self.stage > 1:
            self.buckets(trained_of(named))
            self.reduce_now(step.accumulator, reversed(trained_of(named)))

    def reduce_now(self, accumulator: GradAccumulator, params: Iterable[Tensor], factor: float = 1.0) -> None:
        """Add the gradients of these parameters, times ``factor``, to the shares, out of the accumulator."""
        for p in params:
            if (grad := accumulator.pop(p)) is not None:
                scale_grads([grad] if factor != 1.0 else [], factor)
                self.shares().mark_grad_ready(p.id, grad)
        self.shares().end_micro_batch()

    def held(self, step: Step, named: Named) -> Named:
        """Without what the ranks share."""
        shared = self.pieces()
        return super().held(step, [(name, p) for name, p in named if p.id not in shared])

    def pieces(self) -> dict[TensorId, Tensor]:
        """This rank's part of each parameter of which it keeps only a part now, perhaps empty."""
        units = [] if self.units is None or self.units.whole else self.units.all
        mine = {piece.p.id: piece.tensor for unit in units for share in unit.shares for piece in share.pieces}
        return {p.id: mine[p.id] if p.id in mine else p.new_empty((0,)) for unit in units for p in unit.params}

    def restart(self, unit: float) -> None:
        """The trainer's optimizer has other states, and the window is another."""
        super().restart(unit)
        self.own = None
        self.reset()


class ShareUpdater(PartOfModelUpdater):
    """Updates this rank's pieces, clipped by the norm of all, and gives all ranks the new weights.

    Where each rank has a part of the model, the pieces of all ranks of ``model`` are it, of which those of ``owned``
    parameters count.
    """

    def __init__(self, reducer: Shares, model: Communicator | None = None, owned: Owned = lambda p: True) -> None:
        super().__init__(reducer.communicator if model is None else model, owned)
        self._reducer, self._counts = reducer, owned

    def clip(self, step: Step, grads: GradStore, max_norm: float, params: list[Tensor]) -> float:
        """Clip the gradients of the pieces."""
        pieces = self._reducer.shares().pieces
        counted = {piece.tensor.id for piece in pieces if self._counts(piece.p)}
        self._owned = lambda tensor: tensor.id in counted
        return super().clip(step, grads, max_norm, [piece.tensor for piece in pieces])

    def update(self, step: Step, grads: GradStore) -> None:
        """One step of the optimizer of pieces."""
        self._reducer.shares().adopt()
        own = self._reducer.optimizer_of(step)
        moved = [piece for piece in self._reducer.shares().pieces if self._reducer.offload and piece.tensor in grads]
        own.step(GradStore({p.own.id: grads[p.tensor].cpu() for p in moved}) if self._reducer.offload else grads)
        for piece in moved:
            piece.from_host()
        step.optimizer.timestep = own.timestep
        if self._reducer.units is None:
            self._reducer.shares().spread()
        else:
            self._reducer.units.changed()


class ShardedTrainer(AmpTrainer):
    """A BucketedTrainer whose ranks each keep a share of what a step needs, not all of it (ZeRO).

    ::

        trainer = ShardedTrainer(TrainingConfig(learning_rate=3e-4), communicator, stage=2)
        trainer.broadcast_params(model.named_parameters())
        for x, y in this_ranks_share:
            metrics = trainer.backward_and_step(model.loss(x, y), model.named_parameters(), weight=len(x))

    Of n ranks each keeps 1/n of the optimizer's states (``stage`` 1), of the gradients too (2), and of the weights (3;
    tell it the model: ``shard``). Shares are ranges of elements, whatever parameters they cut. Weights and metrics are
    those of BucketedTrainer, but for the order of sums, and the ranks' weights are equal to the bit.

    From stage 2 on the gradients of each micro-batch are reduced, so that no rank keeps whole ones. All ranks must then
    make equally many micro-batches, a rank without samples one of weight 0. Within ``no_sync`` they need not in stage
    2; gradients are whole there.

    ``precision``: as AmpTrainer's; None: all is computed in the parameters' dtype. ``optimizer`` may have any groups;
    its states are those of whole parameters only within ``state_dict`` and ``load_state_dict``. So a run goes on in any
    stage, on any number of ranks. In a world of one rank nothing is shared.

    In stages 1 and 2 the first step moves the trained parameters into buffers of ``bucket_size_bytes``, which are then
    gathered in place. So does a step after some were frozen or unfrozen. What has shared a parameter's memory before,
    such as an array of NumPy, keeps the old values. A graph that was captured before reads those: capture it again.
    From then on that memory is the trainer's: ``p.data = array`` is copied to it in the next step, so give other
    tensors copies of it.

    ``offload`` (ZeRO-Offload): the optimizer of this rank's share, with its states and a copy of the share's weights,
    is in host memory. There the CPU updates the copy with gradients that are copied from the GPU, and the weights are
    copied back. Results differ by the rounding of the CPU's kernels. One rank alone offloads all its states, whatever
    the stage. Parameters on the CPU are refused with a ValueError in the first step.

    Sources: Rajbhandari et al. (2020), shards.py; Ren et al., "ZeRO-Offload: democratizing billion-scale model
    training" (2021).

    Raises ValueError for another stage, an optimizer that cannot update parts of parameters (Lamb, Muon), and
    ``reproducible=True``, whose sums are of whole micro-batches.
    """

    _example = "TrainingConfig(learning_rate=1e-3), init_process_group(), stage=2"
    _stage = 1

    def __init__(
        self,
        config: TrainingConfig | None,
        communicator: Communicator,
        optimizer: Optimizer | None = None,
        schedule: LrSchedule | None = None,
        *,
        stage: int | None = None,
        precision: MixedPrecisionConfig | None = None,
        bucket_size_bytes: int = DEFAULT_BUCKET_BYTES,
        offload: bool = False,
    ) -> None:
        super().__init__(config, precision, communicator, optimizer, schedule, bucket_size_bytes=bucket_size_bytes)
        self.stage: int = check_int("stage", self._stage if stage is None else stage, 1, 3)
        if not self.optimizer.elementwise:
            text = f"{type(self).__name__}: {type(self.optimizer).__name__} looks at whole parameters"
            raise ValueError(f"{text}, of which a rank has ranges of elements; use AdamW, Adam, SGD or AdaGrad")
        if self.config.reproducible:
            raise ValueError(f"{type(self).__name__}: reproducible=True adds up whole gradients: use BucketedTrainer")
        self._mixed_precision = precision is not None
        if precision is None:
            self._step.precision = Precision()
        self._shares: Shares | None = None
        if offload:
            self.optimizer.keeps_on = CPU
        if self.world_size > 1 or offload:
            stage = self.stage if self.world_size > 1 else 1
            self._shares = self._step.reducer = Shares(communicator, bucket_size_bytes, stage, offload)
            self._step.updater = ShareUpdater(self._shares)
            self._step.recorder = PartOfModelRecorder(communicator)

    def autocast(self, device_type: str | None = None) -> autocast:
        """The context of the forward pass; without a ``precision`` it changes nothing."""
        return super().autocast(device_type) if self._mixed_precision else autocast(device_type, enabled=False)

    # ------------------------------------------------------------------ stage 3

    def shard(self, model: Module, blocks: Sequence[Module] | None = None) -> None:
        """Keep only a share of the trained parameters of ``model`` from now on (stage 3; in others, nothing happens).

        Their values must be the same on all ranks: call ``broadcast_params`` before. ``blocks`` are the modules whose
        parameters are gathered one by one; None: the entries of the model's only ModuleList. A module that is called
        has its weights; elsewhere a parameter is NaN, until ``gather_full_params``. Whoever changes weights in place
        does it after that: of a change within ``forward`` only what lies in a rank's own share may stay. Blocks return
        tensors, or tuples, lists and dicts of them. They may be called several times, and in any order, if it is that
        of all ranks; where it is their own, the next one is gathered ahead. A collective of all ranks, which then must
        all make equally many forward passes, a rank without samples one of weight 0.

        Raises ValueError for a model without blocks, or with several lists of them. The step raises TypeError for what
        else a block returns, RuntimeError if the loss uses a block's weights by another way than what it returned, and
        CollectiveMismatchError, on all ranks, if one of them calls blocks in another order (a NcclCommunicator says so
        only with ``check``).
        """
        found = Units(model, blocks) if self.stage > 2 else None
        if found is not None and self._shares is not None and self._shares.stage > 2:
            self._shares.units = found
            self._shares.buckets(trained_of(self._shares.begin(self._step, model.named_parameters(), 0.0)))

    def gather_full_params(self) -> None:
        """Have all weights whole on all ranks (boostr): to save or load them, or to use them as one likes."""
        if self._shares is not None and self._shares.units is not None:
            self._shares.units.gather()

    def release_params(self) -> None:
        """Keep only this rank's share of the weights, as they are now (boostr)."""
        if self._shares is not None and self._shares.units is not None:
            self._shares.units.release()

    def state_dict(self, params: Params, part: Callable[[Any], Any] | None = None) -> State:
        """As AmpTrainer's, of whole parameters: a collective of all ranks, each of which gets all.

        With a ``part`` a rank gives what it has of a sharded array, as it is: nothing is gathered. On the CPU these are
        views of what the next step changes.
        """
        shares = self._shares
        if shares is not None and part is None:
            shares.join_states(self._step, shares.manager)
        arrays, meta = super().state_dict(params, part)
        if shares is not None and part is None and shares.manager is not None:
            shares.optimizer_of(self._step)
        if shares is not None and part is not None and shares.own is not None:
            mine, about = shares.own.state_dict(lambda array: array[:])
            arrays.update({f"optimizer.{key}": value for key, value in mine.items()})
            for steps in all_gather_json(self.communicator, about["steps"]):
                meta["optimizer"]["steps"].update(steps)
        return arrays, meta

    def memory_report(self, module: Module, compute_loss: Callable[[], Tensor]) -> MemoryReport:
        """``minigrad.memory_report`` of this rank: gradients and the optimizer's states are its share.

        ``offloaded`` are states and copies of weights in host memory.
        """
        if self._shares is None:
            return minigrad.memory_report(module, compute_loss, self.optimizer)
        shares = [] if self._shares.manager is None else self._shares.manager.buckets
        report = minigrad.memory_report(module, compute_loss, self._shares.own, [share.weights for share in shares])
        report.gradients = sum((share.flat if share.keeps_whole else share.mine).data.nbytes for share in shares)
        report.offloaded += sum(x.own.data.nbytes for share in shares for x in share.pieces if x.own is not x.tensor)
        return report


class ZeroTrainer(ShardedTrainer):
    """Stage 1 (boostr)."""


class Zero2Trainer(ShardedTrainer):
    """Stage 2 (boostr)."""

    _stage = 2


class Zero3Trainer(ShardedTrainer):
    """Stage 3 (boostr)."""

    _stage = 3
