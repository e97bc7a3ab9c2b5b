"""How a trainer is configured: which optimizer, which loss, what batch (atomr-accel-train's ``OptimizerKind``,
``LossKind``, ``TrainerConfig`` and ``StepStats``). All of it is used."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minigrad import Device, GradStore, Tensor
from minigrad.errors import PositiveInt, check_fields, check_option
from minigrad.nn import Module, functional as F
from minigrad.optim import SGD, AdamW, AdamWConfig, GradAccumulator, LrSchedule, Optimizer, SgdConfig

from ..comm.place import on_host
from .config import GradLimit, TrainingConfig, TrainingMetrics
from .simple_trainer import SimpleTrainer
from .step import Step
from .trainer_errors import ZeroSamplesError

IGNORED = -100  # targets that count for nothing, as in PyTorch


@dataclass(frozen=True)
class OptimizerKind:
    """Which optimizer with which options: ``OptimizerKind.sgd(...)`` or ``OptimizerKind.adamw(...)``.

    Raises ValueError for options out of range.
    """

    example: ClassVar[str] = "OptimizerKind.sgd(0.1)"
    config: SgdConfig | AdamWConfig

    def __post_init__(self) -> None:
        self.build()  # checks the options

    @classmethod
    def sgd(cls, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> OptimizerKind:
        """SGD (atomr's ``OptimizerKind::Sgd``)."""
        return cls(SgdConfig(lr, momentum, weight_decay))

    @classmethod
    def adamw(
        cls, lr: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01
    ) -> OptimizerKind:
        """AdamW (atomr's ``OptimizerKind::AdamW``)."""
        return cls(AdamWConfig(lr, beta1, beta2, eps, weight_decay))

    def lr(self) -> float:
        """The learning rate."""
        return self.config.lr

    def build(self, params: Iterable[Any] = ()) -> Optimizer:
        """A new optimizer for these parameters (tensors, or pairs (name, tensor)), perhaps none."""
        named = list(params) or None
        if isinstance(self.config, SgdConfig):
            return SGD.from_config(self.config, named)
        if isinstance(self.config, AdamWConfig):
            return AdamW.from_config(self.config, named)
        raise TypeError(f"an OptimizerKind holds an SgdConfig or an AdamWConfig, not a {type(self.config).__name__}")


@dataclass(frozen=True)
class LossKind:
    """Which loss, a mean: ``LossKind.mse()``, ``.cross_entropy()`` or ``.weighted_cross_entropy(weights)``.

    Of cross-entropy, classes are the last dimension of the outputs, and targets are class indices of the outputs' other
    dimensions. Targets of -100 count for nothing. ``weights`` has a number >= 0 for each class; the mean is then over
    the targets' weights, as in PyTorch.
    """

    example: ClassVar[str] = "LossKind.mse()"
    name: str
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_option("the loss", self.name, ("mse", "cross_entropy", "weighted_cross_entropy"))
        if (self.weights is not None) != (self.name == "weighted_cross_entropy"):
            raise ValueError(f"the loss {self.name} with weights {self.weights}: weighted_cross_entropy alone has them")
        if self.weights is not None and not all(0 <= w < math.inf for w in self.weights):
            raise ValueError(f"the weights of the classes are {self.weights}, expected finite numbers >= 0")

    @classmethod
    def mse(cls) -> LossKind:
        """The mean of (output - label)^2, labels of the outputs' shape."""
        return cls("mse")

    @classmethod
    def cross_entropy(cls) -> LossKind:
        """The mean of -log softmax(output)[label]."""
        return cls("cross_entropy")

    @classmethod
    def weighted_cross_entropy(cls, weights: Sequence[float]) -> LossKind:
        """The same with a weight for each class."""
        return cls("weighted_cross_entropy", tuple(float(w) for w in weights))

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean loss, a scalar."""
        if self.name == "mse":
            return F.mse_loss(outputs, labels)
        if not outputs.ndim or labels.shape != outputs.shape[:-1]:
            raise ValueError(f"{self.name}: outputs {outputs.shape}, labels {labels.shape}; expected (..., C), (...)")
        rows = outputs.reshape(labels.numel(), outputs.shape[-1])
        return F.cross_entropy(rows, labels.reshape(-1), self.class_weights(outputs), IGNORED)

    def class_weights(self, outputs: Tensor) -> Tensor | None:
        """The weights of the classes, in the dtype and on the device of ``outputs``, or None."""
        return None if self.weights is None else Tensor(np.asarray(self.weights)).to(outputs.device).to(outputs.dtype)

    def weight_of(self, labels: np.ndarray) -> float:
        """What the mean of these labels is divided by, so that means of parts make the mean of the whole."""
        if self.name == "mse":
            return float(labels.size)
        kept = labels[labels != IGNORED]
        if self.weights is None:
            return float(kept.size)
        if kept.size and not 0 <= kept.min() <= kept.max() < len(self.weights):
            raise IndexError(f"{self.name}: labels {kept.min()} to {kept.max()}, but {len(self.weights)} weights")
        return math.fsum(np.asarray(self.weights)[kept].tolist())


def mean_gradient(
    loss_of: Callable[[Tensor, Tensor], Tensor],
    kind: LossKind,
    features: np.ndarray,
    labels: np.ndarray,
    batch_size: int,
    device: Device,
) -> tuple[GradStore, float]:
    """The mean loss of the samples and its gradient, from parts of ``batch_size``. ``loss_of(x, y)`` is the mean loss
    of a part, and ``kind`` knows what it is a mean over. Zeros where that is nothing."""
    total = kind.weight_of(labels)
    mean = GradAccumulator(math.ceil(len(labels) / batch_size))
    for begin in range(0, len(labels), batch_size):
        rows = slice(begin, begin + batch_size)
        loss = loss_of(Tensor(features[rows]).to(device), Tensor(labels[rows]).to(device))
        grads = loss.backward() if loss.requires_grad else GradStore()
        mean.add(grads, loss.item(), take=True, weight=kind.weight_of(labels[rows]) / total if total else 0.0)
    window = mean.flush()
    assert window is not None
    return window


@dataclass(frozen=True)
class TrainerConfig:
    """How a trainer steps (atomr's ``TrainerConfig``).

    batch_size_per_device: how many samples go through a replica's model at once; a larger share of a batch goes in
        several parts, whose gradients are added up
    gradient_clip: the limit of the gradients' global norm, None for no clipping

    Raises ValueError or TypeError for values out of range.
    """

    batch_size_per_device: PositiveInt
    gradient_clip: GradLimit | None
    optimizer: OptimizerKind
    loss: LossKind

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def max_grad_norm(self) -> float:
        """The limit, infinity for none: the norm itself is always wanted."""
        return math.inf if self.gradient_clip is None else float(self.gradient_clip)


class KindTrainer:
    """What trainers of a TrainerConfig have in common: a Step of a model's parameters."""

    def __init__(self, config: TrainerConfig, model: Module, schedule: LrSchedule | None) -> None:
        self.config: TrainerConfig = config
        self._named = list(model.named_parameters())
        optimizer = config.optimizer.build([(name, p) for name, p in self._named if p.requires_grad])
        self._trainer = SimpleTrainer(TrainingConfig(max_grad_norm=config.max_grad_norm), optimizer, schedule)
        self._step: Step = self._trainer._step
        self._step.name = type(self).__name__

    @property
    def global_step(self) -> int:
        """Steps made so far."""
        return self._step.global_step

    def state_dict(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What an exact resume needs beside the weights that are here: moments and counts, and the step."""
        return self._trainer.state_dict(self._named)

    def load_state_dict(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned. Raises ValueError for what does not fit, with nothing changed."""
        self._trainer.load_state_dict(self._named, arrays, meta)


@dataclass(frozen=True)
class StepStats:
    """What one step did: the mean loss over all samples, the norm of the mean gradient before clipping, and how many
    microseconds it took."""

    loss: float
    grad_norm: float
    step_micros: int

    @classmethod
    def of(cls, metrics: TrainingMetrics | None, began: float) -> StepStats:
        """Those of a step that began at this time of ``time.perf_counter``."""
        assert metrics is not None and metrics.grad_norm is not None
        return cls(metrics.loss, metrics.grad_norm, int((time.perf_counter() - began) * 1e6))


@dataclass(frozen=True)
class TrainSample:
    """One sample: numbers or arrays, the same shapes for all samples of a batch."""

    features: Any
    label: Any


Batch = Sequence[TrainSample] | tuple[Any, Any]
"""Samples, or two arrays or tensors (features, labels) with one sample per row."""


def batch_arrays(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """(features, labels), each with one sample per row. Raises ZeroSamplesError where there is none."""
    if not len(batch):
        raise ZeroSamplesError("trainer: zero samples: the batch is empty")
    if not isinstance(batch, tuple) or isinstance(batch[0], TrainSample):
        if not all(isinstance(sample, TrainSample) for sample in batch):
            raise TypeError("a batch is a list of TrainSample, or a tuple (features, labels) of arrays or tensors")
        x, y = _stacked([s.features for s in batch]), _stacked([s.label for s in batch])
    elif len(batch) == 2:
        x, y = host_array(batch[0]), host_array(batch[1])
    else:
        raise TypeError(f"a batch is a tuple (features, labels), not one of {len(batch)} things")
    if not x.ndim or not y.ndim or len(x) != len(y):
        raise ValueError(f"features {x.shape} and labels {y.shape}: expected one row per sample in both")
    if not len(x):
        raise ZeroSamplesError("trainer: zero samples: the batch is empty")
    return x, y


def host_array(value: Any) -> np.ndarray:
    """A tensor's or array's values as a NumPy array; float64 numbers of Python become the default dtype's."""
    if isinstance(value, Tensor):
        return on_host(value)
    return value if isinstance(value, np.ndarray) else np.asarray(Tensor(value).data)


def _stacked(values: list[Any]) -> np.ndarray:
    return np.stack([host_array(value) for value in values])
