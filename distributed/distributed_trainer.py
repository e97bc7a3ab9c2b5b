"""DistributedTrainer: SimpleTrainer on several ranks, each with its own share of every batch (boostr's
``DistributedTrainer``).

All ranks start from the same weights, reduce the gradients of a window once, and make the same update, so their weights
stay equal to the last bit. A mean over ranks is taken over samples: the mean of the ranks' means would be another
number wherever they do not have equally many.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from minigrad.dtypes import float16
from minigrad.grad_store import GradStore
from minigrad.optim import LrSchedule, Optimizer
from minigrad.optim.grad_accumulator import check_weight
from minigrad.optim.optimizer import options_of
from minigrad.tensor import Tensor

from .buckets import DEFAULT_BUCKET_BYTES, CommHook, GradientBucketManager, all_reduce_hook
from .comm_errors import CollectiveMismatchError
from .communicator import Communicator
from .grad_sync import (
    Window,
    agree_on_params,
    agree_on_settings,
    assert_replicas_identical,
    broadcast_params,
    compare_replicas,
    digest_of,
    exchange_window,
    mean_over_ranks,
)
from .params import Named, Params, named_params
from .simple_trainer import NonFiniteLossError, SimpleTrainer, TrainingConfig, TrainingMetrics, check_kind


class DistributedTrainer(SimpleTrainer):
    """Turns the gradients of all ranks' micro-batches into optimizer steps.

    ::

        trainer = DistributedTrainer(TrainingConfig(learning_rate=3e-4), communicator)
        trainer.broadcast_params(model.named_parameters())
        for x, y in this_ranks_share:
            loss = model.loss(x, y)
            metrics = trainer.step(model.named_parameters(), loss.backward(), loss.item(), weight=len(x))

    Every rank calls the same methods in the same order, with the same parameters: that is checked before the first
    step, as is that their values agree. A parameter that has no gradient on this rank counts as zeros here; one that
    has none on any rank is left alone. In a world of one rank it is a SimpleTrainer, bit for bit.

    ``bucket_size_bytes`` is the size of the flat buffers that are reduced at once. ``hook`` averages one of them (see
    ``CommHook``; ``BFloat16Compression`` halves what is sent).

    Raises TypeError for a configuration or a communicator of another kind.
    """

    _example = "TrainingConfig(learning_rate=1e-3), init_process_group()"

    def __init__(
        self,
        config: TrainingConfig | None,
        communicator: Communicator,
        optimizer: Optimizer | None = None,
        schedule: LrSchedule | None = None,
        *,
        bucket_size_bytes: int = DEFAULT_BUCKET_BYTES,
        hook: CommHook = all_reduce_hook,
    ) -> None:
        super().__init__(config, optimizer, schedule)
        check_kind(self, "communicator", communicator, Communicator, self._example)
        self._communicator = communicator
        self._bucket_size_bytes, self._hook = bucket_size_bytes, hook
        GradientBucketManager([], communicator, bucket_size_bytes, hook)  # checks them
        self._agreed: tuple[list[tuple[str, int, bool]], Named] | None = None
        self._buckets: GradientBucketManager | None = None
        self._holding = False
        self._weight_unit = 1.0  # of weights, where gradients are float16: what they are multiplied by stays near 1

    @property
    def communicator(self) -> Communicator:
        """What connects the ranks."""
        return self._communicator

    @property
    def num_buckets(self) -> int:
        """Flat buffers that a step reduces; 0 before the first step, and in a world of one rank."""
        return 0 if self._buckets is None else self._buckets.num_buckets

    def broadcast_params(self, params: Params, root: int = 0) -> None:
        """Give every rank the values that rank ``root`` has; call it before the first step, for buffers as well."""
        broadcast_params(self._communicator, params, root)

    def assert_replicas_identical(self, params: Params) -> None:
        """Raise ReplicaMismatchError, on every rank, unless all ranks' tensors have the same bits. A collective."""
        self._communicator.step = self._global_step
        assert_replicas_identical(self._communicator, params)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, micro-batches only join the window; the first one after it may finish that (PyTorch's
        ``no_sync``). All ranks must do the same.
        """
        before, self._holding = self._holding, True
        try:
            yield
        finally:
            self._holding = before

    def step(self, params: Params, grads: GradStore, loss_value: float, weight: float = 1.0) -> TrainingMetrics | None:
        """Take in one micro-batch of this rank: None while the window is not full, else one optimizer step's metrics.

        ``weight`` is the number of samples (or tokens) that the loss is a mean of; only ratios matter, so leave it out
        where all micro-batches are equally large. Gradients are multiplied by it before they are added up; where some
        are float16, by its ratio to the mean weight of the step before (or of all ranks' first micro-batches), which
        overflows only if weights grow by orders of magnitude from one step to the next. A rank that has no samples left
        passes an empty GradStore, a loss of 0 and a weight of 0. The metrics' loss is the mean over the samples of all
        ranks.

        Beside SimpleTrainer's errors, raises those of communication. A loss or gradient that is not finite on one rank
        raises on all of them, at the end of the window; no weight is changed and the window is dropped.
        """
        check_weight(weight)  # before anything is sent
        if self._communicator.world_size == 1 and weight:
            self._check_loss(float(loss_value))
        named = self._agree(params, weight)
        return self._step(named, grads, float(loss_value), weight / self._weight_unit, self._holding)

    def flush(self, params: Params) -> TrainingMetrics | None:
        """Make a step of the ranks' unfinished windows; None if no rank has one. A collective of all ranks."""
        self._settle()
        named = self._agree(params)
        return super().flush(named) if self._communicator.world_size == 1 else self._finish(named)

    # ------------------------------------------------------------------ how gradients are reduced

    def _finish(self, named: Named) -> TrainingMetrics | None:
        if self._communicator.world_size == 1:
            try:
                self._check_total_weight(self._accumulator.weight)
            except ValueError:
                self._accumulator.reset()
                raise
            return super()._finish(named)
        sums = {p.id: self._accumulator.pop(p) for p in _trained(named)}
        norm = self._local_norm([grad for grad in sums.values() if grad is not None])
        buckets = self._bucket_manager(named)
        with self._dropping_on_error(buckets):
            for id, grad in reversed(sums.items()):
                if grad is not None:
                    buckets.mark_grad_ready(id, grad)
        return self._reduce_and_update(named, buckets, norm)

    @contextlib.contextmanager
    def _dropping_on_error(self, buckets: GradientBucketManager) -> Iterator[None]:
        """While the window's sums go into the buckets: drop all of it if a hook or communication fails."""
        try:
            yield
        except Exception:
            self._accumulator.reset()
            buckets.reset()
            raise

    def _reduce_and_update(self, named: Named, buckets: GradientBucketManager, norm: float) -> TrainingMetrics | None:
        """End the window, whose sums are in the buckets: divide them by the weight that all ranks have together.

        None if no rank has a window.
        """
        if self._recorder is not None:
            return self._reduce_in_graph(named, buckets)
        trained, accumulator = _trained(named), self._accumulator
        weight, count = accumulator.weight, accumulator.current_step
        _, loss = accumulator.flush() or (None, 0.0)
        try:
            lr = self._optimizer.lr if self._schedule is None else self._schedule.get_lr(self._global_step)
            present = [buckets.is_ready(p.id) for p in trained]
            buckets.launch_rest()
            step = self._global_step + 1
            mine = Window(loss, weight, count, norm, lr, present, step, self._non_finite(trained))
            windows = exchange_window(self._communicator, mine)
            if not any(window.count for window in windows):
                return None
            self._check_windows(windows)
            total = sum(window.weight for window in windows)
            if _has_float16(named):
                self._weight_unit *= _power_of_two(total / sum(window.count for window in windows))
            mean_loss = sum(window.weight * window.loss for window in windows if window.weight) / total
            absent = [p for i, p in enumerate(trained) if not any(window.present[i] for window in windows)]
            parts = _reduced(buckets, absent, self._communicator.world_size / total)
            return self._update(named, parts, mean_loss)
        finally:
            buckets.reset()

    def _reduce_in_graph(self, named: Named, buckets: GradientBucketManager) -> TrainingMetrics | None:
        """The same as part of a graph, whose ranks have windows of the same weight."""
        ranks, weight = self._communicator.world_size, self._accumulator.weight
        self._accumulator.reset()
        try:
            absent = [p for p in _trained(named) if not buckets.is_ready(p.id)]
            return self._update(named, _reduced(buckets, absent, ranks / (ranks * weight)), 0.0)
        finally:
            buckets.reset()

    def _local_norm(self, grads: list[Tensor]) -> float:
        """The norm of this rank's gradients, for trainers that must know in advance whether all are finite."""
        return 0.0

    def _non_finite(self, trained: list[Tensor]) -> list[bool]:
        """For each trained parameter, whether this rank's gradient is not finite; empty for trainers that do not look
        before all gradients are added up."""
        return []

    def _check_windows(self, windows: list[Window]) -> None:
        """Raise, on all ranks alike, for windows that give no step."""
        step, first = self._global_step + 1, windows[0]
        for rank, window in enumerate(windows):
            for what, here, there in (
                ("number of the step", window.step, first.step),
                ("learning rate", window.lr, first.lr),
            ):
                if here != there:
                    raise CollectiveMismatchError(
                        f"the {what} is {here} on rank {rank}, {there} on rank 0; no weight changed",
                        op="step",
                        rank=self._communicator.rank,
                        step=step,
                        ranks=[rank],
                    )
        self._check_total_weight(sum(window.weight for window in windows))
        bad = [
            f"{window.loss} on rank {rank}"
            for rank, window in enumerate(windows)
            if window.weight and not math.isfinite(window.loss)
        ]
        if bad:
            raise NonFiniteLossError(f"the loss of step {step} is {', '.join(bad)}; no weight was changed", step)

    def _check_total_weight(self, weight: float) -> None:
        if not weight:
            step = self._global_step + 1
            raise ValueError(f"step {step}: the micro-batches of all ranks have weight 0, so there is no mean gradient")

    def _bucket_manager(self, named: Named) -> GradientBucketManager:
        if self._buckets is None:
            self._buckets = self._new_buckets(_trained(named))
        return self._buckets

    def _new_buckets(self, trained: list[Tensor]) -> GradientBucketManager:
        return GradientBucketManager(trained, self._communicator, self._bucket_size_bytes, self._hook)

    def _agree(self, params: Params, weight: float = 0.0) -> Named:
        """The parameters in the ranks' common order. When they are new, the ranks compare them, their values, and the
        trainers' settings. ``weight`` is that of the micro-batch which follows: the first one decides the unit."""
        if self._communicator.world_size == 1:
            named = self._named(params)
            if weight and not self._accumulator.weight and _has_float16(named):
                self._weight_unit = _power_of_two(weight)
            return named
        self._communicator.step = self._global_step + 1
        named = named_params(params)
        key = sorted((name, p._id, p.requires_grad) for name, p in named)
        if self._agreed is None or self._agreed[0] != key:
            agree_on_settings(self._communicator, self._settings())
            agreed = agree_on_params(self._communicator, named)
            compare_replicas(self._communicator, agreed)
            first = self._agreed is None and not self._global_step and not self._accumulator.current_step
            if first and _has_float16(agreed):
                self._weight_unit = _power_of_two(mean_over_ranks(self._communicator, {"weight": weight})["weight"])
            self._agreed, self._buckets = (key, agreed), None
        return self._named(self._agreed[1])

    def _settings(self) -> dict[str, Any]:
        """What must be the same on all ranks, by name."""
        optimizer = self._optimizer
        return {
            "the trainer": type(self).__name__,
            "the configuration": self.config,
            "the optimizer": type(optimizer).__name__,
            "the optimizer's options": [options_of(o) for o in (optimizer.defaults, *optimizer.param_groups)],
            "the optimizer's state (its hash)": digest_of(optimizer.state_dict()[0]),
            "bucket_size_bytes": self._bucket_size_bytes,
            "the hook": getattr(self._hook, "__name__", type(self._hook).__name__),
            "the global step": self._global_step,
            "the unit of weights": self._weight_unit,
        }

    # ------------------------------------------------------------------ CUDA graphs

    def _check_capture(self) -> None:
        comm, kind = self._communicator, type(self)
        own = DistributedTrainer._local_norm, DistributedTrainer._non_finite
        if (kind._local_norm, kind._non_finite) != own:
            super()._check_capture()
        if comm.world_size > 1 and not comm.captures:
            raise ValueError(
                f"{type(comm).__name__} exchanges data by the host, which a graph cannot hold; capture on "
                f"{comm.world_size} ranks needs NcclCommunicator"
            )

    def _prepared(self, params: Params) -> Named:
        named = self._agree(params)
        if self._communicator.world_size > 1:
            self._communicator._check_usable("a captured step")
            self._bucket_manager(named)
        return named

    def _captured_memory(self) -> Any:
        return self._buckets

    # ------------------------------------------------------------------ saving and resuming

    def state_dict(self, params: Params) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What an exact resume needs beside the weights: the same on all ranks, so that one of them may save it.

        Raises RuntimeError within a window of micro-batches, which every rank has another part of.
        """
        if self._communicator.world_size > 1 and self._accumulator.current_step:
            raise RuntimeError(
                f"the window has {self._accumulator.current_step} of {self.config.grad_accum_steps} micro-batches, and "
                "each rank has its own; save after a step that returned metrics, or call flush first"
            )
        arrays, meta = super().state_dict(params)
        if self._weight_unit != 1.0:
            meta["window"]["unit"] = self._weight_unit
        return arrays, meta

    def load_state_dict(self, params: Params, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """As SimpleTrainer's. At the next step the ranks compare again what they have."""
        super().load_state_dict(params, arrays, meta)
        self._agreed, self._weight_unit = None, float(meta["window"].get("unit", 1.0))


def _trained(named: Named) -> list[Tensor]:
    return [p for _, p in named if p.requires_grad]


def _has_float16(named: Named) -> bool:
    return any(p.dtype == float16 for p in _trained(named))


def _power_of_two(x: float) -> float:
    """The largest one that is not above ``x``, by which dividing rounds nothing; 1 for 0."""
    return math.ldexp(1.0, math.frexp(x)[1] - 1) if x else 1.0


def _reduced(buckets: GradientBucketManager, absent: list[Tensor], factor: float) -> Iterator[GradStore]:
    """Each bucket's gradients, times ``factor``, as soon as they have arrived; without the absent parameters'."""
    for part in buckets.wait_each():
        for p in absent:
            part.remove(p)
        if factor != 1.0:
            for grad in part.values():
                grad.device.kernels.grad_norm.scale_([grad.data], factor)
        yield part
