"""Replicas: workers that hold a copy of the model and turn a part of a batch into gradients.

A replica keeps nothing between steps: each request brings the weights. So one that is new, or late, or was dead can
never spoil a step, and none has to be brought up to date.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from minigrad.device import CPU
from minigrad.nn import Module
from minigrad.optim import grad_norm
from minigrad.random import Generator, drawing_from
from minigrad.tensor import Tensor

from ...comm.call_thread import CallThread
from ...train.train_kinds import LossKind, host_array, mean_gradient
from ...train.trainer_errors import ReplicaDroppedReplyError

Arrays = Mapping[str, np.ndarray]
Values = Mapping[str, np.ndarray | Tensor]


@dataclass(frozen=True)
class ReplicaStep:
    """One replica's part of a step; what it holds is only read.

    features, labels: its samples, one per row, perhaps none
    state:      the trainer's parameters and persistent buffers, by name, where it has them
    trained:    the names of the parameters that get gradients
    loss:       what to compute, a mean over the samples
    batch_size: how many samples may go through the model at once
    seed:       of the random numbers, say of dropout
    """

    features: np.ndarray
    labels: np.ndarray
    state: Values
    trained: frozenset[str]
    loss: LossKind
    batch_size: int
    seed: int


@dataclass(frozen=True)
class ReplicaStepResult:
    """What a replica made of its samples.

    loss:      the mean over its samples
    grad_norm: the norm of its own gradient
    samples:   how many there were
    gradients: of the mean loss, by the parameter's name, arrays or tensors of any device; one that is missing counts as
               zeros
    buffers:   the model's buffers after forward, by name
    weight:    what the loss is a mean over, where that is not the samples (tokens, or weights of classes)
    """

    loss: float
    grad_norm: float
    samples: int
    gradients: Values = field(default_factory=dict)
    buffers: Arrays = field(default_factory=dict)
    weight: float | None = None


class ReplicaProtocol(Protocol):
    """What a trainer asks of a replica (atomr's trait of that name); write your own, or take one of those below."""

    def make_step(self, step: ReplicaStep) -> Future[ReplicaStepResult]:
        """Begin the step and return at once. The future gets the result, or the replica's exception; a
        ReplicaDroppedReplyError, or a cancelled future, says that the replica is gone."""


def compute_step(model: Module, step: ReplicaStep) -> ReplicaStepResult:
    """Forward and backward of one replica's samples, in parts of ``step.batch_size``."""
    samples, total = len(step.labels), step.loss.weight_of(step.labels)
    if not samples:
        return ReplicaStepResult(0.0, 0.0, 0, weight=0.0)
    model.load_state_dict(step.state)
    named = dict(model.named_parameters())
    for name, p in named.items():
        p.requires_grad_(name in step.trained)
    device = next((p.device for p in named.values()), CPU)
    with drawing_from(Generator(step.seed)):
        grads, mean = mean_gradient(
            lambda x, y: step.loss(model(x), y), step.loss, step.features, step.labels, step.batch_size, device
        )
    gradients = {name: grads[p] for name, p in named.items() if p in grads}
    buffers = {name: host_array(b).copy() for name, b in model.state_dict().items() if name not in named}
    return ReplicaStepResult(mean, grad_norm(grads), samples, gradients, buffers, total)


class ThreadReplica:
    """A replica in a thread of this process, which does one request after the other, and answers every one.
    ``build()`` makes its model, of the trainer's structure and dtypes.
    """

    def __init__(self, build: Callable[[], Module]) -> None:
        self._model = build()
        self._thread = CallThread("replica")
        self._lock = threading.Lock()
        self._closed = False
        self._ended: str | None = None  # why it does no more

    def make_step(self, step: ReplicaStep) -> Future[ReplicaStepResult]:
        """Begin the step, after those that it has; the future gets the result."""
        with self._lock:
            if not self._closed:
                return self._thread.submit(functools.partial(self._answer, step))
        refused: Future[ReplicaStepResult] = Future()
        refused.set_exception(ReplicaDroppedReplyError(self._ended or "it was closed"))
        return refused

    def close(self, timeout: float = 0.0) -> None:
        """End the thread after the steps that it has, and wait for it that long, in seconds."""
        with self._lock:
            self._closed = True
        self._thread.stop(timeout)

    def __enter__(self) -> ThreadReplica:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _answer(self, step: ReplicaStep) -> ReplicaStepResult:
        if self._ended is not None:
            raise ReplicaDroppedReplyError(self._ended)
        try:
            return compute_step(self._model, step)
        except Exception:
            raise
        except BaseException as error:  # SystemExit, KeyboardInterrupt: the replica's end
            self._ended = f"its thread ended with {type(error).__name__}"
            raise ReplicaDroppedReplyError(self._ended) from error
