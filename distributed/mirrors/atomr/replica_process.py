"""ProcessReplica: a replica in a process of its own, for computation that holds Python's lock, or may crash.

What goes between the processes is safetensors and JSON. Nothing is unpickled but the function that the child starts
with, which it gets from its parent.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from minigrad.files import safetensors_format
from minigrad.nn import Module

from ...train.train_kinds import LossKind, host_array
from ...train.trainer_errors import ReplicaDroppedReplyError, ReplicaError
from .replicas import Arrays, ReplicaStep, ReplicaStepResult, Values, Worker, compute_step

END_SECONDS = 5.0  # that a process has to end after it was told to


class ProcessReplica:
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
        self._worker = Worker(self._exchange, f"replica-{self._process.pid}")

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
    arrays = {"features": step.features, "labels": step.labels, **_prefixed("state.", step.state)}
    return _message(arrays, [sorted(step.trained), step.loss.name, step.loss.weights, step.batch_size, step.seed])


def _decode_step(message: bytes) -> ReplicaStep:
    arrays, (trained, name, weights, batch_size, seed) = _parts(message)
    loss, state = LossKind(name, None if weights is None else tuple(weights)), _under("state.", arrays)
    return ReplicaStep(arrays["features"], arrays["labels"], state, frozenset(trained), loss, batch_size, seed)


def _encode_result(result: ReplicaStepResult) -> bytes:
    arrays = {**_prefixed("gradient.", result.gradients), **_prefixed("buffer.", result.buffers)}
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


def _prefixed(prefix: str, values: Values) -> dict[str, np.ndarray]:
    return {prefix + name: host_array(value) for name, value in values.items()}


def _under(prefix: str, arrays: Arrays) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _message(arrays: Arrays, rest: Any) -> bytes:
    return b"".join(safetensors_format.encode(arrays, {"rest": json.dumps(rest)}))


def _parts(message: bytes) -> tuple[dict[str, np.ndarray], Any]:
    end = 8 + int.from_bytes(message[:8], "little")
    header = safetensors_format.parse_header(message[8:end], len(message) - end)
    arrays = {
        name: np.frombuffer(message, e.dtype, math.prod(e.shape), end + e.begin).reshape(e.shape)
        for name, e in header.tensors.items()
    }
    return arrays, json.loads(header.metadata["rest"])
