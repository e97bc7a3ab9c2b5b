"""Optimizers, learning-rate schedules, gradient clipping and accumulation, averages of weights."""

from .. import hints as _hints
from . import lr_scheduler
from .adamw import Adam, AdamW, AdamWConfig
from .clip import NonFiniteGradientError, clip_grad_norm, grad_norm
from .clip_more import clip_grad_norm_async, clip_grad_norm_per_param, clip_grad_value, clip_grads_with_norm
from .ema import EMA
from .grad_accumulator import GradAccumulator
from .grad_scaler import GradScaler, LossScaleStrategy
from .lr_schedule import *
from .optimizer import Optimizer, decay_groups
from .optimizers import SGD, AdaGrad, AdaGradConfig, Lamb, LambConfig, Muon, SgdConfig, orthogonalize

# fmt: off
__all__ = [
    "SGD", "SgdConfig", "Adam", "AdamW", "AdamWConfig", "AdaGrad", "AdaGradConfig", "Lamb", "LambConfig", "Muon",
    "orthogonalize", "EMA", "Optimizer", "decay_groups", "GradAccumulator", "GradScaler", "LossScaleStrategy",
    "NonFiniteGradientError", "clip_grad_norm", "clip_grad_norm_async", "clip_grad_norm_per_param", "clip_grad_value",
    "clip_grads_with_norm", "grad_norm", "LrSchedule", "Constant", "CosineAnnealing", "CyclicalLr", "DecayShape",
    "lr_scheduler", "ExponentialDecay", "InverseSqrt", "Lambda", "LinearWarmup", "StepDecay", "WarmRestarts", "Wsd",
]
# fmt: on

_hints.answer_for(__name__, searched=True)
_hints.answer_for(lr_scheduler.__name__)
