"""Optimizers, learning-rate schedules, gradient clipping and accumulation."""

from .adamw import AdamW, AdamWConfig
from .clip import NonFiniteGradientError, clip_grad_norm, clip_grad_norm_per_param, clip_grad_value
from .grad_accumulator import GradAccumulator
from .lr_schedule import (
    Constant,
    CosineAnnealing,
    CyclicalLr,
    DecayShape,
    ExponentialDecay,
    InverseSqrt,
    Lambda,
    LinearWarmup,
    LrSchedule,
    StepDecay,
    WarmRestarts,
    Wsd,
)
from .optimizer import Optimizer, decay_groups

__all__ = [
    "AdamW",
    "AdamWConfig",
    "Optimizer",
    "decay_groups",
    "GradAccumulator",
    "NonFiniteGradientError",
    "clip_grad_norm",
    "clip_grad_norm_per_param",
    "clip_grad_value",
    "LrSchedule",
    "Constant",
    "CosineAnnealing",
    "CyclicalLr",
    "DecayShape",
    "ExponentialDecay",
    "InverseSqrt",
    "Lambda",
    "LinearWarmup",
    "StepDecay",
    "WarmRestarts",
    "Wsd",
]
