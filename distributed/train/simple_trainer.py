"""SimpleTrainer: a Step in one process (boostr's ``SimpleTrainer``)."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minigrad import Device, GradStore, Tensor
from minigrad.cuda import cuda_graph
from minigrad.errors import check_int
from minigrad.optim import LrSchedule, Optimizer
from minigrad.optim.grad_accumulator import check_weight

from .captured_step import CapturedStep, PendingMetrics
from .config import TrainingConfig, TrainingMetrics, check_kind
from .recheck import Recheck
from .step import Gradients, Loss, Params, State, Step


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
        config = TrainingConfig() if config is None else config
        check_kind(self, "config", config, TrainingConfig, self._example)
        self._step: Step = Step(type(self).__name__, config, optimizer, schedule)
        self.config = config
        self._passes: dict[str, cuda_graph.Static] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step {self.global_step}, {self.config}, {self.optimizer})"

    @classmethod
    def with_optimizer(cls, config: TrainingConfig, optimizer: Optimizer) -> "SimpleTrainer":
        """A trainer that uses this optimizer; the configuration's learning rate and weight decay are not used."""
        return cls(config, optimizer)

    def with_lr_schedule(self, schedule: LrSchedule) -> "SimpleTrainer":
        """Take the learning rate of each step from ``schedule.get_lr(global_step)``; returns the trainer."""
        self._step.schedule = schedule
        return self

    @property
    def config(self) -> TrainingConfig:
        """How it steps."""
        return self._step.config

    @config.setter
    def config(self, config: TrainingConfig) -> None:
        self._step.config = config
        self._step.gradients = Recheck() if config.recheck else Gradients()

    @property
    def global_step(self) -> int:
        """Optimizer steps made so far."""
        return self._step.global_step

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that updates the parameters."""
        return self._step.optimizer

    def step(self, params: Params, grads: GradStore, loss_value: float, weight: float = 1.0) -> TrainingMetrics | None:
        """Take in one micro-batch: None while the window is not full, else one optimizer step's metrics.

        ``params`` are boostr's ``{TensorId: Tensor}`` in any order, or parameters, or pairs (name, parameter) as
        ``model.named_parameters()`` gives. Only their gradients count: those under a tensor's id, or under its key of
        the mapping. ``grads`` is consumed (its arrays may be changed).

        ``weight`` is the number of samples (or tokens) that the loss is a mean of; only ratios matter, so leave it out
        where all micro-batches are equally large. Gradients are multiplied by it before they are added up. Where some
        are float16, they are multiplied by its ratio to the mean weight of the step before (or of all ranks' first
        micro-batches). That overflows only if weights grow by orders of magnitude from one step to the next.

        Raises NonFiniteLossError or NonFiniteGradientError, naming the step. Nothing is changed, but the window is
        dropped. The mean gradient of a window is checked with clipping and without. Raises ValueError for a trained
        parameter that the optimizer does not know, for gradients of other tensors only, and for a weight that is not a
        finite number >= 0, or windows of weight 0.
        """
        check_weight(weight)  # before anything is sent
        return self._step.take(params, grads, float(loss_value), weight)

    def backward_and_step(self, loss: Loss, params: Params, weight: float = 1.0) -> TrainingMetrics | None:
        """``loss.backward()`` and ``step`` in one; result and errors are those of ``step``.

        ``loss`` may also be a function that computes it, and under ``recheck=True`` must be. That is called again in a
        suspect step: apart from draws of the default generator, it depends on nothing that it or its like change.
        """
        check_weight(weight)  # before anything is sent
        return self._step.backward_and_take(params, loss, weight)

    def flush(self, params: Params) -> TrainingMetrics | None:
        """Make a step of an unfinished window, averaged over the micro-batches it has; None if it has none.

        On several ranks this is a collective; None then says that no rank has one.
        """
        return self._step.flush(params)

    def state_dict(self, params: Params, part: Callable[[Any], Any] | None = None) -> State:
        """All that an exact resume needs beside the weights: arrays for safetensors, and the rest as JSON.

        Holds the optimizer's moments and counts, the global step, and an unfinished window of micro-batches.
        ``part(array)`` is what of a raw array of the optimizer is given, on a CPU as a view that the next step changes;
        None: a copy of all.
        """
        step = self._step
        step.recorder.wait_for_captures()
        named = step.named(params)
        arrays, meta = step.optimizer.state_dict(part)
        window_arrays, window = step.accumulator.state_dict(named)
        if step.reducer.unit != 1.0:
            window["unit"] = step.reducer.unit
        arrays = {f"optimizer.{key}": value for key, value in arrays.items()}
        arrays.update({f"window.{key}": value for key, value in window_arrays.items()})
        return arrays, {"global_step": step.global_step, "optimizer": meta, "window": window}

    def load_state_dict(self, params: Params, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned. Raises ValueError, naming what does not fit, before anything
        changes. At the next step several ranks compare again what they have.
        """
        step = self._step
        step.recorder.wait_for_captures()
        named = step.named(params)
        if not isinstance(meta, Mapping):
            raise ValueError(f"the saved trainer state is a {type(meta).__name__}, expected a mapping")
        count = check_int("global_step", meta.get("global_step"), 0)
        for key in ("optimizer", "window"):
            if not isinstance(meta.get(key), Mapping):
                raise ValueError(f"the saved trainer state has no {key!r}")
        parts: dict[str, dict[str, np.ndarray]] = {"optimizer": {}, "window": {}}
        for key, value in arrays.items():
            part, _, rest = key.partition(".")
            if part not in parts:
                raise ValueError(f"array {key!r} belongs to neither the optimizer nor the window")
            parts[part][rest] = value
        accumulator = copy.copy(step.accumulator)
        accumulator.load_state_dict(parts["window"], meta["window"], named)
        step.optimizer.load_state_dict(parts["optimizer"], meta["optimizer"])
        step.accumulator, step.global_step = accumulator, count
        accumulator.key_draws(count)
        self.config = step.config  # which forgets what came before
        step.reducer.restart(float(meta["window"].get("unit", 1.0)))

    # ------------------------------------------------------------------ graphs

    def capture(self, loss_function: Callable[..., Tensor], params: Params, *, max_graphs: int = 8) -> CapturedStep:
        """The whole step, ``loss_function(*inputs)`` to the update, as one graph.

        ::

            step = trainer.capture(model.loss, model.named_parameters())
            for x, y in batches:
                pending = step(x, y)
            print(pending.result())

        The first call for inputs of some shapes is an eager step, and the second is captured. From then on a step is
        one launch. The host does not wait for it, but in ``result()`` of what the call returns. Weights, moments,
        random numbers and metrics are those of eager steps to the last bit. On the CPU a step is over when the call
        returns, and with plain kernels all steps are eager. ``loss_function`` returns a tensor of one element; what it
        does in Python happens in the capture only. The ``max_graphs`` combinations of shapes used last are kept.
        ``global_step`` counts launches.

        On several ranks, with DistributedTrainer, BucketedTrainer or AmpTrainer over NCCL, the exchange of gradients is
        part of the graph. All ranks call the step alike, with inputs of the same shapes, whose micro-batches count
        alike; the first call for some shapes and the capture compare them. A loss or gradient that is not finite on one
        rank is an error of all.

        Raises ValueError for parameters on several devices, other trainers and other communicators of several ranks,
        and for ``reproducible`` and ``recheck``.
        """
        step, comm = self._step, self._step.reducer.communicator
        unfit = {
            "reproducible=True numbers random draws before each step": self.config.reproducible,
            "recheck=True looks at the gradients of each step": self.config.recheck,
            f"{step.name} on {step.reducer.world_size} ranks exchanges values by the host; capture with "
            "DistributedTrainer, BucketedTrainer or AmpTrainer, or on one rank": not step.reducer.capturable,
            f"{type(comm).__name__} exchanges data by the host; it needs NcclCommunicator": comm and not comm.captures,
        }
        for why in (why for why, holds in unfit.items() if holds):
            raise ValueError(f"a graph cannot hold this step: {why}")
        step.recorder.wait_for_captures()
        captured = CapturedStep(step, loss_function, params, max_graphs)
        step.recorder.captured.append(captured)
        return captured

    def launch(self, *inputs: Tensor) -> PendingMetrics:
        """A step of what ``capture`` was called with last. Raises RuntimeError before that."""
        captured: list[CapturedStep] = self._step.recorder.captured
        if not captured:
            raise RuntimeError("launch: no step was captured; call capture(loss_function, params) first")
        return captured[-1](*inputs)

    def capture_forward_pass(self, function: Callable[..., Any], *inputs: Tensor) -> Any:
        """Capture ``function(*inputs)`` for ``launch_forward_graph`` (boostr); returns its tensors.

        Run the function once before, so that its kernels are loaded.
        """
        self._close_passes()
        device = next((x.device for x in inputs if x.device.type == "cuda"), Device("cpu"))
        self._passes["forward"] = cuda_graph.Static(function, inputs, device)
        return self._passes["forward"].outputs

    def capture_backward_pass(self, function: Callable[[Any], Any]) -> Any:
        """Capture, for ``launch_backward_graph``, a function of what the forward pass returns, such as
        ``lambda loss: loss.backward()``; returns what it returns.
        """
        forward = self._pass("forward", "capture_backward_pass")
        self._passes["backward"] = cuda_graph.Static(lambda: function(forward.outputs), (), forward.graph.device)
        return self._passes["backward"].outputs

    def launch_forward_graph(self, *inputs: Tensor) -> Any:
        """The captured forward pass for these inputs, of the same shapes; its tensors are overwritten by the next."""
        return self._pass("forward", "launch_forward_graph")(inputs)

    def launch_backward_graph(self) -> Any:
        """The captured backward pass, of what the forward pass gave last."""
        return self._pass("backward", "launch_backward_graph")(())

    @property
    def graphs_captured(self) -> bool:
        """Whether both passes are captured (boostr)."""
        return len(self._passes) == 2

    def clear_graphs(self) -> None:
        """Forget all captures and free their memory."""
        captured = self._step.recorder.captured
        for step in captured:
            step.clear()
        captured.clear()
        self._close_passes()

    def _close_passes(self) -> None:
        for one in self._passes.values():
            one.graph.close()
        self._passes.clear()

    def _pass(self, name: str, asked: str) -> cuda_graph.Static:
        if name not in self._passes:
            raise RuntimeError(f"{asked}: there is no {name} pass; call capture_{name}_pass first")
        return self._passes[name]
