"""SimpleTrainer: what happens between ``loss.backward()`` and the next forward, written once (boostr's
``SimpleTrainer``).

Accumulate, average, reduce, clip, update, count. The trainers for several processes are this one; they put in how the
gradients are reduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minigrad.device import Device
from minigrad.engine import BackwardHook
from minigrad.grad_store import GradStore
from minigrad.optim import AdamW, GradAccumulator, LrSchedule, NonFiniteGradientError, Optimizer, clip_grad_norm
from minigrad.tensor import Tensor

from .captured_step import CapturedPass, CapturedStep, PendingMetrics
from .params import Named, Params, named_params


class NonFiniteLossError(RuntimeError):
    """The loss is infinite or NaN; nothing was changed. ``step`` is the number of the step that it belongs to."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def check_kind(trainer: object, name: str, value: object, kind: type, example: str) -> None:
    """Raise TypeError, with what would work, if an argument of a trainer's constructor is of another kind."""
    if not isinstance(value, kind):
        got = value.__name__ if isinstance(value, type) else f"of type {type(value).__name__}"
        own = type(trainer).__name__
        raise TypeError(f"{own}: {name} is {got}, expected a {kind.__name__}: {own}({example}) would work")


@dataclass(frozen=True)
class TrainingConfig:
    """How a trainer steps. ``max_grad_norm`` None turns clipping off.

    ``learning_rate`` and ``weight_decay`` are those of the AdamW that the trainer makes; they are not used with an
    optimizer of your own. Raises ValueError for values out of range.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    max_grad_norm: float | None = 1.0
    grad_accum_steps: int = 1

    def __post_init__(self) -> None:
        AdamW(lr=self.learning_rate, weight_decay=self.weight_decay)  # checks both
        GradAccumulator(self.grad_accum_steps)
        limit = self.max_grad_norm
        if limit is not None and not (isinstance(limit, int | float) and limit > 0):
            raise ValueError(f"max_grad_norm is {self.max_grad_norm!r}, expected a number > 0, or None for no clipping")

    def with_lr(self, learning_rate: float) -> TrainingConfig:
        """A copy with another learning rate."""
        return replace(self, learning_rate=learning_rate)

    def with_weight_decay(self, weight_decay: float) -> TrainingConfig:
        """A copy with another weight decay."""
        return replace(self, weight_decay=weight_decay)

    def with_max_grad_norm(self, max_grad_norm: float | None) -> TrainingConfig:
        """A copy with another limit of the gradients' global norm."""
        return replace(self, max_grad_norm=max_grad_norm)

    def with_grad_accum_steps(self, grad_accum_steps: int) -> TrainingConfig:
        """A copy with another number of micro-batches per step."""
        return replace(self, grad_accum_steps=grad_accum_steps)


@dataclass(frozen=True)
class TrainingMetrics:
    """What one optimizer step did.

    ``step`` counts from 1; ``loss`` is the mean over the window's micro-batches (and over all ranks); ``grad_norm`` the
    global norm before clipping, None if clipping is off; ``lr`` the learning rate that was used.
    """

    step: int
    loss: float
    grad_norm: float | None
    lr: float


class SimpleTrainer:
    """Turns the gradients of micro-batches into optimizer steps, in one process.

    ::

        trainer = SimpleTrainer(TrainingConfig(learning_rate=3e-4))
        for x, y in batches:
            loss = model.loss(x, y)
            metrics = trainer.step(model.parameters(), loss.backward(), loss.item())

    Without an ``optimizer`` it makes an AdamW of the configuration's learning rate and weight decay, for the parameters
    that the first step brings. A ``schedule`` sets the learning rate of every step.

    Raises TypeError for a configuration of another kind.
    """

    _example = "TrainingConfig(learning_rate=1e-3)"

    def __init__(
        self,
        config: TrainingConfig | None = None,
        optimizer: Optimizer | None = None,
        schedule: LrSchedule | None = None,
    ) -> None:
        self.config: TrainingConfig = TrainingConfig() if config is None else config
        check_kind(self, "config", self.config, TrainingConfig, self._example)
        self._own_optimizer = optimizer is None
        self._optimizer = optimizer or AdamW(lr=self.config.learning_rate, weight_decay=self.config.weight_decay)
        self._schedule = schedule
        self._accumulator = self._new_accumulator()
        self._global_step = 0
        self._optimized: set[int] = set()
        self._recorder: CapturedStep | None = None  # of the graph that is captured now
        self._captures: list[CapturedStep] = []
        self._passes: dict[str, CapturedPass] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step {self._global_step}, {self.config}, {self._optimizer})"

    @classmethod
    def with_optimizer(cls, config: TrainingConfig, optimizer: Optimizer) -> SimpleTrainer:
        """A trainer that uses this optimizer; the configuration's learning rate and weight decay are not used."""
        return cls(config, optimizer)

    def with_lr_schedule(self, schedule: LrSchedule) -> SimpleTrainer:
        """Take the learning rate of each step from ``schedule.get_lr(global_step)``; returns the trainer."""
        self._schedule = schedule
        return self

    @property
    def global_step(self) -> int:
        """Optimizer steps made so far."""
        return self._global_step

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that updates the parameters."""
        return self._optimizer

    def step(self, params: Params, grads: GradStore, loss_value: float) -> TrainingMetrics | None:
        """Take in one micro-batch: None while the window is not full, else one optimizer step's metrics.

        ``params`` are boostr's ``{TensorId: Tensor}`` in any order, or parameters, or pairs (name, parameter) as
        ``model.named_parameters()`` gives. Only their gradients count; ``grads`` is consumed (its arrays may be
        changed).

        Raises NonFiniteLossError or NonFiniteGradientError, naming the step, before anything is changed but the window,
        which is dropped (the mean gradient of a window is checked with clipping and without), and ValueError for a
        trained parameter that the optimizer does not know, and for gradients of other tensors only.
        """
        loss = float(loss_value)
        self._check_loss(loss)
        return self._step(self._named(params), grads, loss)

    def flush(self, params: Params) -> TrainingMetrics | None:
        """Make a step of an unfinished window, averaged over the micro-batches it has; None if it has none."""
        self._settle()
        named = self._named(params)
        return None if self._accumulator.current_step == 0 else self._finish(named)

    def _new_accumulator(self) -> GradAccumulator:
        return GradAccumulator(self.config.grad_accum_steps)

    def _check_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            self._accumulator.reset()
            raise self._loss_error(loss, self._global_step + 1)

    @staticmethod
    def _loss_error(loss: float, step: int, rank: int | None = None) -> NonFiniteLossError:
        where = "" if rank is None else f" on rank {rank}"
        return NonFiniteLossError(f"the loss of step {step} is {loss}{where}; no weight was changed", step)

    def _backward(self, loss: Tensor, hook: BackwardHook | None = None) -> GradStore:
        return loss.backward(hook=hook)

    def _step(
        self, named: Named, grads: GradStore, loss: float, weight: float = 1.0, hold: bool = False
    ) -> TrainingMetrics | None:
        """Add a micro-batch of this weight to the window, and finish that if it is full, unless told to ``hold`` it."""
        if self._recorder is None:
            self._settle()
        if not isinstance(grads, GradStore):
            raise TypeError(f"step takes the GradStore that loss.backward() returned, not {type(grads).__name__}")
        wanted = grads.take([p._id for _, p in named])
        if not wanted and not grads.is_empty():
            raise ValueError(
                f"none of the {len(grads)} gradients belongs to any of the {len(named)} parameters, so nothing would "
                "be trained; pass model.parameters() anew to each step (a generator gives its parameters only once)"
            )
        for name, p in named:
            grad = wanted.get(p._id)
            if grad is None:
                continue
            g, x = grad.data, p.data
            fits = g.shape == x.shape and (g.dtype is x.dtype or g.dtype == x.dtype)
            if not fits or grad.device is not p.device:
                raise ValueError(
                    f"the gradient of parameter {name} has shape {grad.shape}, {grad.dtype}, on {grad.device}; the "
                    f"parameter has {p.shape}, {p.dtype}, on {p.device}"
                )
        full = self._accumulator.add(GradStore(wanted), loss, take=True, weight=weight)
        return self._finish(named) if full and not hold else None

    def _finish(self, named: Named) -> TrainingMetrics | None:
        """End the window: reduce its gradients over the ranks, where there are several, and update."""
        window = self._accumulator.flush()
        assert window is not None
        grads, loss = window
        return self._update(named, [grads], loss)

    def _update(self, named: Named, parts: Iterable[GradStore], loss: float) -> TrainingMetrics | None:
        """One optimizer step with the gradients of all ``parts``, which may still be on their way; None if left out."""
        lr = None if self._schedule is None else self._schedule.get_lr(self._global_step)
        norm = self._apply(named, parts, lr)
        if self._recorder is not None:
            return None  # this was the capture; each launch counts as a step
        self._global_step += 1
        return TrainingMetrics(self._global_step, loss, norm, self._optimizer.lr)

    def _apply(self, named: Named, parts: Iterable[GradStore], lr: float | None) -> float | None:
        """Clip and update; returns the norm before clipping, or None if clipping is off."""
        grads, max_norm = merged(parts), self.config.max_grad_norm
        clip = self._clip if self._recorder is None else self._recorder.clip
        try:
            norm = clip(grads, math.inf if max_norm is None else max_norm, [p for _, p in named])
        except NonFiniteGradientError as error:
            where = "".join(f", parameter {name}" for name, p in named if p._id == error.first)
            text = f"step {self._global_step + 1}{where}: {error}"
            raise NonFiniteGradientError(text, error.norm, error.first) from error
        if lr is not None:
            self._optimizer.set_lr(lr)
        self._optimizer.step(grads)
        return None if max_norm is None else norm

    def _clip(self, grads: GradStore, max_norm: float, params: list[Tensor]) -> float:
        """Clip to the global norm and return it; a trainer that has only some of the parameters asks the others."""
        return clip_grad_norm(grads, max_norm, params)

    def _named(self, params: Params) -> Named:
        """The parameters with names; those new to the trainer's own optimizer are added to it."""
        named = named_params(params)
        if self._optimized.issuperset([p._id for _, p in named if p.requires_grad]):
            return named
        known = {p._id for group in self._optimizer.param_groups for p in group["params"]}
        missing = [i for i, (_, p) in enumerate(named) if p.requires_grad and p._id not in known]
        if missing and not self._own_optimizer:
            raise ValueError(
                f"parameters {', '.join(named[i][0] for i in missing[:5])}"
                + (f" ... ({len(missing)} in all)" if len(missing) > 5 else "")
                + " require grad but are not in the optimizer, "
                "so they would never change; add them with optimizer.add_param_group, or freeze them"
            )
        if missing:
            self._optimizer.add_param_group({"params": [named[i] for i in missing]})
        self._optimized.update(p._id for _, p in named if p.requires_grad)
        return named

    # ------------------------------------------------------------------ CUDA graphs

    def capture(self, loss_function: Callable[..., Tensor], params: Params, *, max_graphs: int = 8) -> CapturedStep:
        """The whole step, ``loss_function(*inputs)`` to the update, as one CUDA graph.

        ::

            step = trainer.capture(model.loss, model.named_parameters())
            for x, y in batches:
                pending = step(x, y)
            print(pending.result())

        The first inputs of some shapes are an eager step, the second are captured, and from then on a step is one
        launch, for which the host does not wait: ``result()`` of what it returns does. Weights, moments, random numbers
        and metrics are those of eager steps to the last bit. On the CPU all steps are eager. ``loss_function`` returns
        a tensor of one element; what it does in Python happens in the capture only. The ``max_graphs`` combinations of
        shapes used last are kept. ``global_step`` counts launches.

        On several ranks, with DistributedTrainer, BucketedTrainer or AmpTrainer over NCCL, the exchange of gradients is
        part of the graph. All ranks call the step alike, with inputs of the same shapes, whose micro-batches count
        alike; the first call for some shapes and the capture compare them. A loss or gradient that is not finite on one
        rank is an error of all.

        Raises ValueError for parameters on several devices, other trainers and other communicators of several ranks.
        """
        self._check_capture()
        self._settle()
        self._captures.append(CapturedStep(self, loss_function, params, max_graphs))
        return self._captures[-1]

    def _check_capture(self) -> None:
        """ValueError where steps cannot be captured."""
        ranks = getattr(getattr(self, "_communicator", None), "world_size", 1)
        if ranks > 1:
            raise ValueError(
                f"{type(self).__name__} on {ranks} ranks exchanges values by the host in each step, which a graph "
                "cannot hold; capture with DistributedTrainer, BucketedTrainer or AmpTrainer, or on one rank"
            )

    def _prepared(self, params: Params) -> Named:
        """The parameters of a captured step, when everything is there that a graph uses."""
        return self._named(params)

    def _record_micro_batch(self, named: Named, loss: Tensor) -> None:
        """Capture a micro-batch, and the end of its window."""
        self._step(named, self._backward(loss), 0.0)

    def _captured_memory(self) -> Any:
        """What a graph uses besides parameters and states: with another one, it is of no use."""
        return None

    def launch(self, *inputs: Tensor) -> PendingMetrics:
        """A step of what ``capture`` was called with last. Raises RuntimeError before that."""
        if not self._captures:
            raise RuntimeError("launch: no step was captured; call capture(loss_function, params) first")
        return self._captures[-1](*inputs)

    def capture_forward_pass(self, function: Callable[..., Any], *inputs: Tensor) -> Any:
        """Capture ``function(*inputs)`` for ``launch_forward_graph`` (boostr); returns its tensors, without values yet.

        Run the function once before, so that its kernels are loaded. With inputs on the CPU nothing is captured, and
        None returned: a launch then calls the function.
        """
        self._close_passes()
        device = next((x.device for x in inputs if x.device.type == "cuda"), Device("cpu"))
        self._passes["forward"] = CapturedPass(function, inputs, device, None)
        return self._passes["forward"].outputs

    def capture_backward_pass(self, function: Callable[[Any], Any]) -> Any:
        """Capture, for ``launch_backward_graph``, a function of what the forward pass returns, such as
        ``lambda loss: loss.backward()``; returns what it returns.
        """
        forward = self._pass("forward", "capture_backward_pass")
        self._passes["backward"] = CapturedPass(function, (), forward.device, forward)
        return self._passes["backward"].outputs

    def launch_forward_graph(self, *inputs: Tensor) -> Any:
        """The captured forward pass for these inputs, of the same shapes; its tensors are overwritten by the next."""
        return self._pass("forward", "launch_forward_graph")(*inputs)

    def launch_backward_graph(self) -> Any:
        """The captured backward pass, of what the forward pass gave last."""
        return self._pass("backward", "launch_backward_graph")()

    @property
    def graphs_captured(self) -> bool:
        """Whether both passes are captured (boostr)."""
        return len(self._passes) == 2

    def clear_graphs(self) -> None:
        """Forget all captures and free their memory."""
        for step in self._captures:
            step.clear()
        self._captures.clear()
        self._close_passes()

    def _close_passes(self) -> None:
        for one in self._passes.values():
            one.close()
        self._passes.clear()

    def _pass(self, name: str, asked: str) -> CapturedPass:
        if name not in self._passes:
            raise RuntimeError(f"{asked}: there is no {name} pass; call capture_{name}_pass first")
        return self._passes[name]

    def _overflowed(self) -> None:
        """Scaled gradients overflowed: for a trainer that scales its losses."""
        raise NotImplementedError(f"{type(self).__name__} scales no losses")

    def _settle(self, but: CapturedStep | None = None) -> None:
        """Wait for the results of captured steps."""
        for step in self._captures:
            if step is not but:
                step.settle()

    # ------------------------------------------------------------------ saving and resuming

    def state_dict(self, params: Params) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """All that an exact resume needs beside the weights: arrays for safetensors, and the rest as JSON.

        Holds the optimizer's moments and counts, the global step, and an unfinished window of micro-batches.
        """
        self._settle()
        named = self._named(params)
        arrays, meta = self._optimizer.state_dict()
        window_arrays, window = self._accumulator.state_dict(named)
        arrays = {f"optimizer.{key}": value for key, value in arrays.items()}
        arrays.update({f"window.{key}": value for key, value in window_arrays.items()})
        return arrays, {"global_step": self._global_step, "optimizer": meta, "window": window}

    def load_state_dict(self, params: Params, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned. Raises ValueError, naming what does not fit, before anything
        changes.
        """
        self._settle()
        named = self._named(params)
        if not isinstance(meta, Mapping):
            raise ValueError(f"the saved trainer state is a {type(meta).__name__}, expected a mapping")
        step = meta.get("global_step")
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"global_step is {step!r}, expected an integer >= 0")
        for key in ("optimizer", "window"):
            if not isinstance(meta.get(key), Mapping):
                raise ValueError(f"the saved trainer state has no {key!r}")
        parts: dict[str, dict[str, np.ndarray]] = {"optimizer": {}, "window": {}}
        for key, value in arrays.items():
            part, _, rest = key.partition(".")
            if part not in parts:
                raise ValueError(f"array {key!r} belongs to neither the optimizer nor the window")
            parts[part][rest] = value
        accumulator = self._new_accumulator()
        accumulator.load_state_dict(parts["window"], meta["window"], named)
        self._optimizer.load_state_dict(parts["optimizer"], meta["optimizer"])
        self._accumulator, self._global_step = accumulator, step


def merged(parts: Iterable[GradStore]) -> GradStore:
    """All parts' gradients in one store."""
    grads = GradStore()
    for part in parts:
        grads.update(part)
    return grads
