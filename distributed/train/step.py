"""Step: what happens between ``loss.backward()`` and the next forward, written once for all trainers.

    accumulate > reduce > unscale > clip > update > count

A trainer is a Step with its own members. The classes below are those of one process, eager, in full precision:

    reducer     makes a window's gradients those of all ranks     (grad_sync.py: in buckets, beside backward)
    precision   scales the loss, and unscales the gradients       (amp_trainer.py: mixed precision)
    gradients   reduces and unscales those of a window            (recheck.py: again, where they are suspect)
    updater     clips, and steps the optimizer                    (distributed_trainer.py: bucket by bucket)
    recorder    decides on the update, and counts it              (captured_step.py: as part of a graph)
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from minigrad import BackwardHook, GradStore, Tensor, TensorId, float16
from minigrad.grad_store import check_grads
from minigrad.optim import AdamW, GradAccumulator, LrSchedule, NonFiniteGradientError, Optimizer, clip_grad_norm
from minigrad.optim.grad_scaler import MIN_SCALE, GradScaler

from ..comm.communicator import Communicator
from .config import NonFiniteLossError, TrainingConfig, TrainingMetrics

Params = Mapping[TensorId, Tensor] | Iterable[Tensor | tuple[str, Tensor]]
"""How trainers are told which parameters there are."""
Named = list[tuple[str, Tensor]]
Loss = Tensor | Callable[[], Tensor]  # of a micro-batch, or what computes it
State = tuple[dict[str, np.ndarray], dict[str, Any]]
"""What ``state_dict`` gives: arrays for safetensors, and the rest as JSON."""


class Step:
    """Turns the gradients of micro-batches into optimizer steps. ``name`` is the trainer's, for messages.

    Without an ``optimizer`` it makes an AdamW of the configuration, for the parameters that the first step brings.
    """

    def __init__(
        self, name: str, config: TrainingConfig, optimizer: Optimizer | None = None, schedule: LrSchedule | None = None
    ) -> None:
        self.name: str = name
        self.config: TrainingConfig = config
        self.schedule: LrSchedule | None = schedule
        self.own_optimizer: bool = optimizer is None
        self.optimizer: Optimizer = optimizer or AdamW(lr=config.learning_rate, weight_decay=config.weight_decay)
        self.accumulator: GradAccumulator = config.accumulator()
        self.reducer: Reducer = Reducer()
        self.precision: Precision = Precision()
        self.gradients: Gradients = Gradients()
        self.updater: Updater = Updater()
        self.recorder: Recorder = Recorder()
        self.global_step: int = 0
        self.holding: bool = False
        """While true, micro-batches only join the window."""
        self._known: set[int] = set()
        self.accumulator.key_draws(self.global_step)

    def take(self, params: Params, grads: GradStore, loss: float, weight: float = 1.0) -> TrainingMetrics | None:
        """Take in a micro-batch, which is consumed; None while the window is not full, or the step was left out."""
        self.gradients.keep(self, None, weight)
        named = self.reducer.begin(self, params, weight)
        return self.accumulate(named, by_own_id(grads, params), loss, weight / self.reducer.unit)

    def backward_and_take(self, params: Params, loss: Loss, weight: float = 1.0) -> TrainingMetrics | None:
        """``backward``, beside which gradients may already be reduced, and ``take``."""
        self.recorder.wait_for_captures()
        named = self.reducer.begin(self, params, weight)
        weight /= self.reducer.unit
        self.gradients.keep(self, loss, weight)
        return self.end_window(named) if self.compute(named, loss, weight) else None

    def compute(self, named: Named, loss: Loss, weight: float) -> bool:
        """``backward``, and ``add``."""
        loss = loss if isinstance(loss, Tensor) else loss()
        return self.add(named, self.reducer.backward(self, named, loss, weight), loss.item(), weight)

    def flush(self, params: Params) -> TrainingMetrics | None:
        """Make a step of an unfinished window; None if there is none."""
        self.recorder.wait_for_captures()
        return self.end_window(self.reducer.begin(self, params, 0.0))

    def backward(self, loss: Tensor, hook: BackwardHook | None = None) -> GradStore:
        """The gradients of the scaled loss."""
        return self.precision.scale(loss).backward(hook=hook)

    def accumulate(self, named: Named, grads: GradStore, loss: float, weight: float = 1.0) -> TrainingMetrics | None:
        """Add a micro-batch to the window, and end the window if it is full."""
        return self.end_window(named) if self.add(named, grads, loss, weight) else None

    def add(self, named: Named, grads: GradStore, loss: float, weight: float) -> bool:
        """Add a micro-batch to the window; whether it ends that."""
        self.recorder.wait_for_captures()
        if self.reducer.world_size == 1 and weight and not math.isfinite(loss):
            self.accumulator.reset()
            self.accumulator.key_draws(self.global_step)
            raise NonFiniteLossError.of(loss, self.global_step + 1)
        full = self.accumulator.add_of(named, wanted_grads(grads, named), loss, weight)
        self.accumulator.key_draws(self.global_step)
        if not full and not self.holding:
            self.reducer.end_micro_batch(self, named)
        return full and not self.holding

    def end_window(self, named: Named) -> TrainingMetrics | None:
        """Reduce, unscale, clip, update, count."""
        try:
            if (means := self.gradients.of_window(self, named)) is None:
                return None
            norm = self.updater.clip_and_update(self, named, means[0])
            metrics = self.recorder.count(self, means[1], norm)
            self.reducer.compare(self, named)
            return metrics
        except (NonFiniteLossError, NonFiniteGradientError):
            self.reducer.compare(self, named, failed=True)
            raise
        finally:
            self.reducer.reset()
            self.accumulator.key_draws(self.global_step)

    def set_scheduled_lr(self) -> None:
        """Give the optimizer this step's learning rate, if there is a schedule."""
        if self.schedule is not None:
            self.optimizer.set_lr(self.schedule.get_lr(self.global_step))

    def named(self, params: Params) -> Named:
        """The parameters with names; those new to the step's own optimizer are added to it."""
        named = named_params(params)
        self.precision.check(named)
        trained = {p._id for _, p in named if p.requires_grad}
        if not self._known.issuperset(trained):
            add_missing(self.optimizer, named, self.own_optimizer)
            self._known |= trained
        return named


class Reducer:
    """Makes a window's gradients those of all ranks. Here there is one rank: they are so already.

    Gradients are multiplied by the weights of their micro-batches. Where some are float16, the first weight of a window
    decides the unit, so that what they are multiplied by stays near 1.
    """

    communicator: Communicator | None = None
    """What connects several ranks."""
    world_size: int = 1
    capturable: bool = True
    """Whether a graph can hold the reduction."""
    unit: float = 1.0
    """What the weights of micro-batches are divided by."""
    num_buckets: int = 0
    """Flat buffers of a step, once there was one."""

    def begin(self, step: Step, params: Params, weight: float) -> Named:
        """The parameters in the order of all ranks, before a micro-batch of this weight."""
        named = step.named(params)
        if weight not in (0.0, self.unit) and not step.accumulator.weight and has_float16(named):
            self.unit = power_of_two(weight)
        return named

    def backward(self, step: Step, named: Named, loss: Tensor, weight: float) -> GradStore:
        """The gradients of a micro-batch, without those that the reducer has taken already."""
        return step.backward(loss)

    def end_micro_batch(self, step: Step, named: Named) -> None:
        """After a micro-batch that does not end the window, outside of ``no_sync``."""

    def reduce(self, step: Step, named: Named) -> tuple[Iterable[GradStore], float] | None:
        """End the window: its mean gradients, in parts that may still be on their way, and its mean loss.

        Raises ValueError for weights that are 0 together.
        """
        if step.accumulator.current_step and not step.accumulator.weight:
            step.accumulator.reset()
            raise no_weight(step)
        window = step.accumulator.flush()
        return None if window is None else ([window[0]], window[1])

    def reset(self) -> None:
        """Drop what the reducer has of the window."""

    def compares(self, step: Step, failed: bool = False) -> bool:
        """Whether ``compare`` is due after this step, or one that found a loss or gradient that is not finite."""
        return False

    def compare(self, step: Step, named: Named, failed: bool = False) -> None:
        """After a step: whether all ranks hold the same."""

    def restart(self, unit: float) -> None:
        """Another state was loaded: compare anew what the ranks have."""
        self.unit = unit

    def memory(self, named: Named) -> Any:
        """What a graph uses besides parameters and states; with another one, the graph is of no use."""
        return None


class Gradients:
    """Makes the micro-batches' sums the means of a step."""

    def keep(self, step: Step, loss: Loss | None, weight: float) -> None:
        """Before a micro-batch: its loss, None if its gradients are there already."""

    def of_window(self, step: Step, named: Named) -> tuple[Iterable[GradStore], float] | None:
        """The gradients, reduced and unscaled, and the loss; None if there is no window, or its step is left out."""
        if (reduced := step.reducer.reduce(step, named)) is None:
            return None
        unscaled = step.precision.unscale(reduced[0], step.recorder)
        return None if unscaled is None else (unscaled, reduced[1])


class Precision:
    """Multiplies the loss with a scaler's factor, and divides the reduced gradients by it; None: nothing is scaled."""

    def __init__(self, scaler: GradScaler | None = None, names_overflow: bool = False) -> None:
        self.names_overflow: bool = names_overflow
        """Whether the updater refuses gradients that overflowed, so that it can say which."""
        self.scaler: GradScaler | None = scaler
        self.skipped_steps: int = 0
        """Steps that were left out, because gradients overflowed."""

    def check(self, named: Named) -> None:
        """Raise ValueError for parameters of a wrong dtype."""

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to call ``backward`` of."""
        return loss if self.scaler is None else self.scaler.scale_loss(loss)

    def unscale(self, parts: Iterable[GradStore], recorder: "Recorder") -> Iterable[GradStore] | None:
        """The gradients of the unscaled loss; None if they overflowed and the step is left out. Without that, clipping
        refuses them."""
        if self.scaler is None:
            return parts
        grads = merged(parts)
        kept = recorder.unscale(self.scaler, grads) or self.names_overflow or not self.leave_out()
        return [grads] if kept else None

    def can_leave_out(self) -> bool:
        """Whether a step that overflows is left out: there is a scale, and it has not fallen to its least."""
        return self.scaler is not None and not (self.scaler.adapts and self.scaler.get_scale() <= MIN_SCALE)

    def leave_out(self) -> bool:
        """Note that scaled gradients overflowed: lower the scale and count the step. Returns whether it is left out; if
        not (``can_leave_out``), it is an error."""
        if self.scaler is None or not self.can_leave_out():
            return False
        self.scaler.update_scale(overflow=True)
        self.skipped_steps += 1
        return True

    def adapt(self) -> None:
        """Note that an update was made."""
        if self.scaler is not None:
            self.scaler.update_scale(overflow=False)

    def settings(self) -> dict[str, Any]:
        """What must be the same on all ranks, by name."""
        return {} if self.scaler is None else {"the loss scale": self.scaler.state_dict()}


class Updater:
    """Clips all gradients by their global norm, and makes one step of the optimizer with them."""

    def clip_and_update(self, step: Step, named: Named, parts: Iterable[GradStore]) -> float | None:
        """Returns the norm before clipping, or None if clipping is off. Raises NonFiniteGradientError."""
        grads, limit = merged(parts), step.config.max_grad_norm
        try:
            norm = self.clip(step, grads, math.inf if limit is None else limit, [p for _, p in named])
        except NonFiniteGradientError as error:
            where = "".join(f", parameter {name}" for name, p in named if p._id == error.first)
            text = f"step {step.global_step + 1}{where}: {error}"
            raise NonFiniteGradientError(text, error.norm, error.first) from error
        step.set_scheduled_lr()
        self.update(step, grads)
        return None if limit is None else norm

    def clip(self, step: Step, grads: GradStore, max_norm: float, params: list[Tensor]) -> float:
        """Clip to the global norm, and return it."""
        return step.recorder.clip(grads, max_norm, params)

    def update(self, step: Step, grads: GradStore) -> None:
        """Make the optimizer's step."""
        step.optimizer.step(grads)


class Recorder:
    """Decides on the update and counts it: here at once, by the host."""

    on_device: bool = False
    """Whether values stay on the device, because a graph is being captured."""

    def __init__(self) -> None:
        self.captured: list[Any] = []  # the trainer's CapturedSteps

    def wait_for_captures(self, but: object = None) -> None:
        """Wait for the results of captured steps."""
        for one in self.captured:
            if one is not but:
                one.settle()

    def unscale(self, scaler: GradScaler, grads: GradStore) -> bool:
        """Unscale the gradients; returns whether all are finite."""
        return scaler.unscale_grads(grads)

    def clip(self, grads: GradStore, max_norm: float, params: list[Tensor]) -> float:
        """Clip to the global norm, and return it; NonFiniteGradientError for one that is not finite."""
        return clip_grad_norm(grads, max_norm, params)

    def count(self, step: Step, loss: float, norm: float | None) -> TrainingMetrics | None:
        """Count the update, and tell what it did."""
        step.global_step += 1
        step.precision.adapt()
        return TrainingMetrics(step.global_step, loss, norm, step.optimizer.lr)


def no_weight(step: Step) -> ValueError:
    """The error for a window that has micro-batches, and no weight."""
    why = "the micro-batches of all ranks have weight 0, so there is no mean gradient"
    return ValueError(f"step {step.global_step + 1}: {why}")


def merged(parts: Iterable[GradStore]) -> GradStore:
    """All parts' gradients in one store."""
    grads = GradStore()
    for part in parts:
        grads.update(part)
    return grads


# ------------------------------------------------------------------ parameters and their gradients


def named_params(params: Params) -> Named:
    """Pairs (name, tensor) of boostr's ``{TensorId: Tensor}``, of tensors, or of such pairs.

    A tensor without a name is called by its position. A mapping is taken in order of its ids, that of creation: not
    that of insertion, which may change. Raises TypeError for a module and for what is no collection.
    """
    if not isinstance(params, Iterable) or isinstance(params, Tensor):
        raise TypeError(f"params is a {type(params).__name__}, expected a model's parameters: model.named_parameters()")
    entries = [params[key] for key in sorted(params)] if isinstance(params, Mapping) else list(params)
    return [entry if isinstance(entry, tuple) else (str(i), entry) for i, entry in enumerate(entries)]


def by_own_id(grads: GradStore, params: Params) -> GradStore:
    """``grads``, in which a gradient under a mapping's key is now under the id of that key's tensor."""
    if isinstance(params, Mapping) and isinstance(grads, GradStore):
        for key, p in params.items():
            if isinstance(key, TensorId) and key != p._id and (grad := grads.remove(key)) is not None:
                grads.insert(p, grad)
    return grads


def add_missing(optimizer: Optimizer, named: Named, allowed: bool) -> None:
    """Add the trained parameters that the optimizer does not know; ValueError if that is not ``allowed``."""
    known = {p._id for group in optimizer.param_groups for p in group["params"]}
    missing = [(name, p) for name, p in named if p.requires_grad and p._id not in known]
    if missing and not allowed:
        more = f" ... ({len(missing)} in all)" if len(missing) > 5 else ""
        found = f"parameters {', '.join(name for name, _ in missing[:5])}{more} require grad"
        remedy = "add them with optimizer.add_param_group, or freeze them"
        raise ValueError(f"{found} but are not in the optimizer, so they would never change; {remedy}")
    if missing:
        optimizer.add_param_group({"params": missing})


def wanted_grads(grads: GradStore, named: Named) -> GradStore:
    """The parameters' gradients, taken out of ``grads``.

    Raises TypeError for something that is no GradStore, and ValueError for gradients of other tensors only, and for one
    that does not fit its parameter.
    """
    wanted = check_grads("step", grads, "trainer.step(params, grads, loss)").take([p._id for _, p in named])
    if not wanted and not grads.is_empty():
        found = f"none of the {len(grads)} gradients belongs to any of the {len(named)} parameters"
        remedy = "pass model.parameters() anew to each step (a generator gives its parameters only once)"
        raise ValueError(f"{found}, so nothing would be trained; {remedy}")
    for name, p in named:
        grad = wanted.get(p._id)
        if grad is None:
            continue
        g, x = grad.data, p.data
        if g.shape != x.shape or g.dtype != x.dtype or grad.device is not p.device:
            raise misfit(f"the gradient of parameter {name}", grad, p)
    return GradStore(wanted)


def misfit(what: str, grad: Tensor, p: Tensor) -> ValueError:
    """The error for a gradient that does not fit its parameter."""
    found, wanted = (f"{x.shape}, {x.dtype}, on {x.device}" for x in (grad, p))
    return ValueError(f"{what} has shape {found}; the parameter has {wanted}")


def has_float16(named: Named) -> bool:
    """Whether a trained parameter is float16."""
    return any(p.dtype == float16 for _, p in named if p.requires_grad)


def power_of_two(x: float) -> float:
    """The largest one that is not above ``x``, by which dividing rounds nothing; 1 for 0."""
    return math.ldexp(1.0, math.frexp(x)[1] - 1) if x else 1.0
