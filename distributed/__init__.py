"""Data-parallel training: communicators, trainers and engines, for one process or many.

The folder ``distributed/`` is installed as ``minigrad.distributed``; the base install has no top-level ``distributed``,
which is the name of Dask's package.
"""

from .simple_trainer import NonFiniteLossError, SimpleTrainer, TrainingConfig, TrainingMetrics

__all__ = ["NonFiniteLossError", "SimpleTrainer", "TrainingConfig", "TrainingMetrics"]
