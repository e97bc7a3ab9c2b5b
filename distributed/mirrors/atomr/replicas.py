"""Replicas: workers that hold a copy of the model and turn a part of a batch into gradients, in a thread or a process.

A replica keeps nothing between steps: each request brings the weights. So one that is new, or late, or was dead can
never spoil a step, and none has to be brought up to date.

What goes between processes is safetensors and JSON. Nothing is unpickled but the function that a child starts with,
which it gets from its parent.
"""

from __future__ import annotations

import functools
import json
import math
import multiprocessing
import os
import signal
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol, TypeVar

import numpy as np

from minigrad.device import CPU
from minigrad.files import safetensors_format
from minigrad.nn import Module
from minigrad.optim import grad_norm
from minigrad.random import Generator, drawing_from
from minigrad.tensor import Tensor

from ...comm.call_thread import CallThread
from ...train.train_kinds import LossKind, host_array, mean_gradient
from ...train.trainer_errors import ReplicaDroppedReplyError, ReplicaError

Arrays = Mapping[str, np.ndarray]
W = TypeVar("W", bound="Worker")
Values = Mapping[str, np.ndarray | Tensor]
END_SECONDS = 5.0  # that a process has to end after it was told to


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


class Worker:
    """A replica's thread, which does one request after the other, and answers every one."""

    def __init__(self, work: Callable[[ReplicaStep], ReplicaStepResult], name: str) -> None:
        self._work = work
        self._thread = CallThread(name)
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

    def __enter__(self: W) -> W:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _answer(self, step: ReplicaStep) -> ReplicaStepResult:
        if self._ended is not None:
            raise ReplicaDroppedReplyError(self._ended)
        try:
            return self._work(step)
        except ReplicaDroppedReplyError as error:
            self._ended = str(error)
            raise
        except Exception:
            raise
        except BaseException as error:  # SystemExit, KeyboardInterrupt: the replica's end
            self._ended = f"its thread ended with {type(error).__name__}"
            raise ReplicaDroppedReplyError(self._ended) from error


class ThreadReplica(Worker):
    """A replica in a thread of this process. ``build()`` makes its model, of the trainer's structure and dtypes.

    ``close`` ends the thread after the steps that it has; it does not wait for them.
    """

    def __init__(self, build: Callable[[], Module]) -> None:
        model = build()
        super().__init__(lambda step: compute_step(model, step), "replica")


class ProcessReplica(Worker):
    """A replica in a process of its own, started afresh (spawn). ``build`` is a function of a module, or a
    ``functools.partial`` of one: the process imports it and calls it for its model at its first step.

    Close it, or use it in a ``with`` statement; it also ends with this process.
    """

    def __init__(self, build: Callable[[], Module]) -> None:
        try:
            ForkingPickler.dumps(build)
        except Exception as error:  # whatever its own parts raise
            raise TypeError(
                f"ProcessReplica: {build!r} cannot be sent to another process ({error}); pass a function that a module "
                "defines at its top, or a functools.partial of one"
            ) from error
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, build), name="replica", daemon=True)
        self._process.start()
        theirs.close()  # so that the process's end is the end of the pipe
        super().__init__(self._exchange, f"replica-{self._process.pid}")

    @property
    def pid(self) -> int | None:
        """The process's number."""
        return self._process.pid

    def close(self, timeout: float = END_SECONDS) -> None:
        """End the process; a step under way is dropped. ``timeout`` is how long it has to end by itself, in seconds."""
        self._process.terminate()
        self._process.join(timeout)
        if self._process.is_alive():  # stopped, say
            self._process.kill()
            self._process.join()
        super().close(timeout)
        self._pipe.close()

    def _exchange(self, step: ReplicaStep) -> ReplicaStepResult:
        about = [sorted(step.trained), step.loss.name, step.loss.weights, step.batch_size, step.seed]
        request = message(about, batch={"features": step.features, "labels": step.labels}, state=step.state)
        try:
            self._pipe.send_bytes(request)
            reply = self._pipe.recv_bytes()
        except (EOFError, OSError) as error:
            self._process.join(END_SECONDS)
            code = self._process.exitcode
            raise ReplicaDroppedReplyError(
                f"process {self._process.pid} " + (f"ended with exit code {code}" if code is not None else "is gone")
            ) from error
        found, arrays = parts(reply)
        if isinstance(found, dict):
            raise ReplicaError(found["message"], kind=found["kind"], trace=found["trace"])
        loss, norm, samples, weight = found
        return ReplicaStepResult(loss, norm, samples, arrays["gradients"], arrays["buffers"], weight)


def _serve(pipe: Connection, build: Callable[[], Module]) -> None:
    """What a replica's process does until its parent closes the pipe or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    model: Module | None = None
    while True:
        try:
            request = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            if model is None:
                model = build()
            (trained, name, weights, *rest), arrays = parts(request)
            loss = LossKind(name, None if weights is None else tuple(weights))
            state, batch = arrays["state"], arrays["batch"]
            step = ReplicaStep(batch["features"], batch["labels"], state, frozenset(trained), loss, *rest)
            made = compute_step(model, step)
            numbers = [float(made.loss), float(made.grad_norm), made.samples, made.weight]
            reply = message(numbers, gradients=made.gradients, buffers=made.buffers)
        except Exception as error:
            trace = traceback.format_exc()
            reply = message({"kind": type(error).__name__, "message": str(error), "trace": trace})
        try:
            pipe.send_bytes(reply)
        except OSError:
            os._exit(0)  # the parent is gone: there is nobody to report to


def message(rest: Any, **groups: Values) -> bytes:
    """Groups of arrays as safetensors, the rest as JSON."""
    arrays = {f"{group}.{name}": array for group, named in groups.items() for name, array in named.items()}
    return b"".join(safetensors_format.encode(arrays, {"rest": json.dumps(rest)}))


def parts(raw: bytes) -> tuple[Any, Mapping[str, dict[str, np.ndarray]]]:
    """The rest, and the arrays by group and name."""
    end = 8 + int.from_bytes(raw[:8], "little")
    header = safetensors_format.parse_header(raw[8:end], len(raw) - end)
    groups: defaultdict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for key, e in header.tensors.items():
        group, _, name = key.partition(".")
        groups[group][name] = np.frombuffer(raw, e.dtype, math.prod(e.shape), end + e.begin).reshape(e.shape)
    return json.loads(header.metadata["rest"]), groups
