"""Replicas: workers that hold a copy of the model and turn a part of a batch into gradients, in a thread or a process.

A replica keeps nothing between steps: each request brings the weights. So one that is new, or late, or was dead can
never spoil a step, and none has to be brought up to date.

What goes between processes is safetensors and JSON; nothing is unpickled but the function that the child starts with,
which it gets from its parent.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from minigrad import safetensors_format
from minigrad.device import CPU, Device
from minigrad.grad_store import GradStore
from minigrad.nn import Module
from minigrad.optim import GradAccumulator, grad_norm
from minigrad.random import Generator, drawing_from
from minigrad.tensor import Tensor

from .train_kinds import LossKind, host_array
from .trainer_errors import ReplicaDroppedReplyError, ReplicaError

Arrays = Mapping[str, np.ndarray]
END_SECONDS = 5.0  # that a process has to end after it was told to


@dataclass(frozen=True)
class ReplicaStep:
    """One replica's part of a step; the arrays are only read.

    features, labels: its samples, one per row, perhaps none
    state:      the values of all parameters and persistent buffers, by name
    trained:    the names of the parameters that get gradients
    loss:       what to compute, a mean over the samples
    batch_size: how many samples may go through the model at once
    seed:       of the random numbers, say of dropout
    """

    features: np.ndarray
    labels: np.ndarray
    state: Arrays
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
    gradients: of the mean loss, by the parameter's name; one that is missing counts as zeros
    buffers:   the model's buffers after forward, by name
    weight:    what the loss is a mean over, where that is not the samples (tokens, or weights of classes)
    """

    loss: float
    grad_norm: float
    samples: int
    gradients: Arrays = field(default_factory=dict)
    buffers: Arrays = field(default_factory=dict)
    weight: float | None = None


class ReplicaProtocol(Protocol):
    """What a trainer asks of a replica (atomr's trait of that name); write your own, or take one of those below."""

    def make_step(self, step: ReplicaStep) -> Future[ReplicaStepResult]:
        """Begin the step and return at once. The future gets the result, or the replica's exception; a
        ReplicaDroppedReplyError, or a cancelled future, says that the replica is gone."""


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
    gradients = {name: host_array(grads[p]) for name, p in named.items() if p in grads}
    buffers = {name: host_array(b).copy() for name, b in model.state_dict().items() if name not in named}
    return ReplicaStepResult(mean, grad_norm(grads), samples, gradients, buffers, total)


class _Worker:
    """A thread that does one request after the other, and answers every one, at the latest when it ends."""

    def __init__(self, work: Callable[[ReplicaStep], ReplicaStepResult], name: str) -> None:
        self._work = work
        self._requests: queue.SimpleQueue[tuple[ReplicaStep, Future[ReplicaStepResult]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended: str | None = None  # why
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, step: ReplicaStep) -> Future[ReplicaStepResult]:
        future: Future[ReplicaStepResult] = Future()
        with self._lock:
            if self._ended is None:
                self._requests.put((step, future))
            else:
                future.set_exception(ReplicaDroppedReplyError(self._ended))
        return future

    def close(self, timeout: float | None) -> None:
        self._requests.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        reason = "it was closed"
        while (request := self._requests.get()) is not None:
            step, future = request
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._work(step))
            except ReplicaDroppedReplyError as error:
                reason = str(error)
            except Exception as error:
                future.set_exception(error)
            except BaseException as error:  # SystemExit, KeyboardInterrupt: the thread's end
                reason = f"its thread ended with {type(error).__name__}"
            if not future.done():
                self._end(reason)
                future.set_exception(ReplicaDroppedReplyError(reason))
                return
            del step, future, request
        self._end(reason)

    def _end(self, reason: str) -> None:
        with self._lock:
            self._ended = reason
            while not self._requests.empty():
                left = self._requests.get()
                if left is not None and left[1].set_running_or_notify_cancel():
                    left[1].set_exception(ReplicaDroppedReplyError(reason))


class ThreadReplica:
    """A replica in a thread of this process. ``build()`` makes its model, of the trainer's structure and dtypes."""

    def __init__(self, build: Callable[[], Module]) -> None:
        self._model = build()
        self._worker = _Worker(lambda step: compute_step(self._model, step), "replica")

    def make_step(self, step: ReplicaStep) -> Future[ReplicaStepResult]:
        """Begin the step; the future gets the result."""
        return self._worker.submit(step)

    def close(self) -> None:
        """End the thread, after the steps that it has; does not wait for them."""
        self._worker.close(timeout=0)

    def __enter__(self) -> ThreadReplica:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class ProcessReplica:
    """A replica in a process of its own, started afresh (spawn). ``build`` is a function of a module, or a
    ``functools.partial`` of one: the process imports it and calls it for its model at its first step.

    Close it, or use it in a ``with`` statement; it also ends with this process.
    """

    def __init__(self, build: Callable[[], Module]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, build), name="replica", daemon=True)
        self._process.start()
        theirs.close()  # so that the process's end is the end of the pipe
        self._worker = _Worker(self._exchange, f"replica-{self._process.pid}")

    @property
    def pid(self) -> int | None:
        """The process's number."""
        return self._process.pid

    def make_step(self, step: ReplicaStep) -> Future[ReplicaStepResult]:
        """Send the step; the future gets the result."""
        return self._worker.submit(step)

    def close(self) -> None:
        """End the process; a step under way is dropped."""
        self._process.terminate()
        self._process.join(END_SECONDS)
        if self._process.is_alive():  # stopped, say
            self._process.kill()
            self._process.join()
        self._worker.close(timeout=END_SECONDS)
        self._pipe.close()

    def __enter__(self) -> ProcessReplica:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _exchange(self, step: ReplicaStep) -> ReplicaStepResult:
        message = _encode_step(step)
        try:
            self._pipe.send_bytes(message)
            reply = self._pipe.recv_bytes()
        except (EOFError, OSError) as error:
            self._process.join(END_SECONDS)
            code = self._process.exitcode
            raise ReplicaDroppedReplyError(
                f"process {self._process.pid} " + (f"ended with exit code {code}" if code is not None else "is gone")
            ) from error
        return _decode_result(reply)


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
            reply = _encode_result(compute_step(model, _decode_step(request)))
        except Exception as error:
            text = {"kind": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
            reply = _message({}, {"error": text})
        try:
            pipe.send_bytes(reply)
        except OSError:
            os._exit(0)  # the parent is gone: there is nobody to report to


# ------------------------------------------------------------------ messages: arrays as safetensors, the rest as JSON


def _encode_step(step: ReplicaStep) -> bytes:
    arrays = {"features": step.features, "labels": step.labels}
    arrays.update({f"state.{name}": array for name, array in step.state.items()})
    rest = {
        "trained": sorted(step.trained),
        "loss": [step.loss.name, step.loss.weights],
        "batch_size": step.batch_size,
        "seed": step.seed,
    }
    return _message(arrays, rest)


def _decode_step(message: bytes) -> ReplicaStep:
    arrays, rest = _parts(message)
    name, weights = rest["loss"]
    return ReplicaStep(
        arrays["features"],
        arrays["labels"],
        _under("state.", arrays),
        frozenset(rest["trained"]),
        LossKind(name, None if weights is None else tuple(weights)),
        rest["batch_size"],
        rest["seed"],
    )


def _encode_result(result: ReplicaStepResult) -> bytes:
    arrays = {f"gradient.{name}": array for name, array in result.gradients.items()}
    arrays.update({f"buffer.{name}": array for name, array in result.buffers.items()})
    # hex, because JSON has no NaN
    numbers = [float(result.loss).hex(), float(result.grad_norm).hex(), result.samples, result.weight]
    return _message(arrays, {"result": numbers})


def _decode_result(message: bytes) -> ReplicaStepResult:
    arrays, rest = _parts(message)
    if "error" in rest:
        error = rest["error"]
        raise ReplicaError(error["message"], kind=error["kind"], trace=error["trace"])
    loss, norm, samples, weight = rest["result"]
    gradients, buffers = _under("gradient.", arrays), _under("buffer.", arrays)
    return ReplicaStepResult(float.fromhex(loss), float.fromhex(norm), samples, gradients, buffers, weight)


def _under(prefix: str, arrays: Arrays) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _message(arrays: Arrays, rest: Mapping[str, Any]) -> bytes:
    return b"".join(safetensors_format.encode(arrays, {"rest": json.dumps(rest)}))


def _parts(message: bytes) -> tuple[dict[str, np.ndarray], Any]:
    end = 8 + int.from_bytes(message[:8], "little")
    header = safetensors_format.parse_header(message[8:end], len(message) - end)
    arrays = {
        name: np.frombuffer(message, e.dtype, math.prod(e.shape), end + e.begin).reshape(e.shape)
        for name, e in header.tensors.items()
    }
    return arrays, json.loads(header.metadata["rest"])
