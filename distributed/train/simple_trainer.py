"""SimpleTrainer: a Step in one process (boostr's ``SimpleTrainer``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minigrad.grad_store import GradStore
from minigrad.optim import LrSchedule, Optimizer

from .captured_step import Capturing
from .config import TrainingConfig, TrainingMetrics, check_kind
from .params import Params
from .step import Step
from .step_state import restore_step, save_step


class SimpleTrainer(Capturing):
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
        super().__init__(Step(type(self).__name__, config, optimizer, schedule))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step {self.global_step}, {self.config}, {self.optimizer})"

    @classmethod
    def with_optimizer(cls, config: TrainingConfig, optimizer: Optimizer) -> SimpleTrainer:
        """A trainer that uses this optimizer; the configuration's learning rate and weight decay are not used."""
        return cls(config, optimizer)

    def with_lr_schedule(self, schedule: LrSchedule) -> SimpleTrainer:
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

    @property
    def global_step(self) -> int:
        """Optimizer steps made so far."""
        return self._step.global_step

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that updates the parameters."""
        return self._step.optimizer

    def step(self, params: Params, grads: GradStore, loss_value: float) -> TrainingMetrics | None:
        """Take in one micro-batch: None while the window is not full, else one optimizer step's metrics.

        ``params`` are boostr's ``{TensorId: Tensor}`` in any order, or parameters, or pairs (name, parameter) as
        ``model.named_parameters()`` gives. Only their gradients count: those under a tensor's id, or under its key of
        the mapping. ``grads`` is consumed (its arrays may be changed).

        Raises NonFiniteLossError or NonFiniteGradientError, naming the step, before anything is changed but the window,
        which is dropped (the mean gradient of a window is checked with clipping and without), and ValueError for a
        trained parameter that the optimizer does not know, and for gradients of other tensors only.
        """
        return self._step.take(params, grads, float(loss_value))

    def flush(self, params: Params) -> TrainingMetrics | None:
        """Make a step of an unfinished window, averaged over the micro-batches it has; None if it has none.

        On several ranks this is a collective; None then says that no rank has one.
        """
        return self._step.flush(params)

    def state_dict(self, params: Params) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """All that an exact resume needs beside the weights: arrays for safetensors, and the rest as JSON.

        Holds the optimizer's moments and counts, the global step, and an unfinished window of micro-batches.
        """
        return save_step(self._step, params)

    def load_state_dict(self, params: Params, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned. Raises ValueError, naming what does not fit, before anything
        changes. At the next step several ranks compare again what they have.
        """
        restore_step(self._step, params, arrays, meta)
