"""Replicas: workers that hold a copy of the model and turn a part of a batch into gradients, in a thread or a process.

A replica keeps nothing between steps: each request brings the weights. So one that is new, or late, or was dead can
never spoil a step, and none has to be brought up to date.

Weights and gradients of a process lie in memory that it shares with its parent; samples and numbers go through a pipe,
as safetensors and JSON. Nothing is unpickled but the function that a child starts with, which it gets from its parent.

Replicas can also be the other ranks of a communicator, threads, processes or GPUs (``RankReplicas``):

    the trainer's rank                        every other rank, in ``serve_replica``
    its samples, the loss  ── send ───────>
    weights and buffers    ── broadcast ──>   forward, backward
                           <── all_gather ──  mean loss, its weight, buffers; or an error
                           <── all_reduce ──  the gradient, times the rank's share of the weight

So weights and gradients stay on the communicator's device, and the trainer gets one gradient, the weighted mean.
"""

import contextlib
import functools
import itertools
import json
import math
import mmap
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler, recv_handle, send_handle
from typing import IO, Any, Protocol

import numpy as np

from minigrad import GradStore, Tensor, as_tensor, full_like
from minigrad.device import CPU
from minigrad.files import safetensors_format
from minigrad.modes import Closing
from minigrad.nn import Module
from minigrad.optim import grad_norm
from minigrad.random import Generator, drawing_from

from ...comm.call_thread import CallThread
from ...comm.calls import Work
from ...comm.comm_errors import CommError
from ...comm.communicator import Communicator, all_gather_bytes, recv_bytes, send_bytes
from ...train.blocks import non_finite
from ...train.grad_sync import all_reduce_grads, broadcast_params
from ...train.train_kinds import LossKind, host_array, mean_gradient
from ...train.trainer_errors import ReplicaDroppedReplyError, ReplicaError

Arrays = Mapping[str, np.ndarray]
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


class Worker(Closing):
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

    Both processes have the same host memory for weights and gradients: a step writes the weights there, the child its
    gradients, and a pipe carries samples, numbers and buffers. So what is on a GPU is copied to the host and back; take
    ``RankReplicas`` for several GPUs.

    Close it, or use it in a ``with`` statement; it also ends with this process.
    """

    def __init__(self, build: Callable[[], Module]) -> None:
        try:
            ForkingPickler.dumps(build)
        except Exception as error:  # whatever its own parts raise
            remedy = "pass a function that a module defines at its top, or a functools.partial of one"
            sent = f"{build!r} cannot be sent to another process ({error})"
            raise TypeError(f"ProcessReplica: {sent}; {remedy}") from error
        self._file = _unnamed_file()
        self._layout: Any = []  # name, dtype and shape of each array in the file, as the child knows them
        self._memory: Arrays = {}
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, build), name="replica", daemon=True)
        self._process.start()
        theirs.close()  # so that the process's end is the end of the pipe
        send_handle(self._pipe, self._file.fileno(), self._process.pid)
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
        self._file.close()

    def _exchange(self, step: ReplicaStep) -> ReplicaStepResult:
        layout = [(name, str(value.dtype), list(value.shape)) for name, value in step.state.items()]
        request = request_of(step, layout if layout != self._layout else None)
        if layout != self._layout:
            self._memory, self._layout = _shared(self._file, layout), []
        for name, value in step.state.items():
            self._memory[name][0, ...] = host_array(value)
        try:
            self._pipe.send_bytes(request)
            reply = self._pipe.recv_bytes()
        except (EOFError, OSError) as error:
            self._process.join(END_SECONDS)
            code = self._process.exitcode
            end = f"ended with exit code {code}" if code is not None else "is gone"
            raise ReplicaDroppedReplyError(f"process {self._process.pid} {end}") from error
        self._layout = layout
        result = result_of(reply, lambda name: self._memory[name][1, ...].copy())  # the next step writes there again
        if isinstance(result, ReplicaError):
            raise result
        return result


def _serve(pipe: Connection, build: Callable[[], Module]) -> None:
    """What a replica's process does until its parent closes the pipe or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    model = functools.cache(build)
    memory: Arrays = {}

    def keep(gradients: Values) -> list[str]:
        for name, grad in gradients.items():
            if grad.dtype != memory[name].dtype:
                raise TypeError(f"{name} is {grad.dtype} here, {memory[name].dtype} in the trainer's model")
            memory[name][1, ...] = host_array(grad)
        return [*gradients]

    with contextlib.suppress(EOFError, OSError), os.fdopen(recv_handle(pipe), "r+b") as file:
        while True:
            (layout, *about), batch = parts(pipe.recv_bytes())
            if layout is not None:
                memory = _shared(file, layout)
            state = {name: both[0, ...] for name, both in memory.items()}
            pipe.send_bytes(answer(model, about, batch, state, keep))


def _unnamed_file() -> IO[bytes]:
    """In memory, where the system has such files."""
    return os.fdopen(os.memfd_create("replica"), "w+b") if sys.platform == "linux" else tempfile.TemporaryFile()


def _shared(file: IO[bytes], layout: Any) -> dict[str, np.ndarray]:
    """Arrays (2, *shape) in a file's memory: a tensor of the trainer's, and its gradient from the replica."""
    sizes = [-(-2 * np.dtype(dtype).itemsize * math.prod(shape) // 64) * 64 for _, dtype, shape in layout]
    file.truncate(max(sum(sizes), os.fstat(file.fileno()).st_size, 1))  # what was in use does not go
    memory = mmap.mmap(file.fileno(), 0)
    places = zip(layout, itertools.accumulate(sizes, initial=0))
    return {name: np.ndarray((2, *shape), dtype, memory, begin) for (name, dtype, shape), begin in places}


# ---------------------------------------------------------------------- what goes to a replica elsewhere, and back


def request_of(step: ReplicaStep, *first: Any) -> bytes:
    """What a step says but for its state, after what else there is to say."""
    about = [*first, sorted(step.trained), step.loss.name, step.loss.weights, step.batch_size, step.seed]
    return message(about, {"features": step.features, "labels": step.labels})


def answer(
    build: Callable[[], Module], about: Any, batch: Arrays, state: Values, keep: Callable[[Values], list[str]]
) -> bytes:
    """Make the step of a request, and reply. ``keep`` is given the gradients, and returns the names to reply."""
    trained, name, weights, *rest = about
    try:
        loss = LossKind(name, None if weights is None else tuple(weights))
        step = ReplicaStep(batch["features"], batch["labels"], state, frozenset(trained), loss, *rest)
        made = compute_step(build(), step)
        numbers = [float(made.loss), float(made.grad_norm), made.samples, made.weight]
        return message([*numbers, keep(made.gradients)], made.buffers)
    except Exception as error:
        return message({"message": str(error), "kind": type(error).__name__, "trace": traceback.format_exc()}, {})


def result_of(reply: bytes, gradient: Callable[[str], np.ndarray | Tensor]) -> ReplicaStepResult | ReplicaError:
    """What a replica replied, with the gradients of the names."""
    about, buffers = parts(reply)
    if isinstance(about, dict):
        return ReplicaError(**about)
    loss, norm, samples, weight, names = about
    return ReplicaStepResult(loss, norm, samples, {name: gradient(name) for name in names}, buffers, weight)


def message(rest: Any, arrays: Values) -> bytes:
    """Arrays as safetensors, the rest as JSON."""
    return b"".join(safetensors_format.encode(arrays, {"rest": json.dumps(rest)}))


def parts(raw: bytes) -> tuple[Any, dict[str, np.ndarray]]:
    """The rest, and the arrays by name."""
    end = 8 + int.from_bytes(raw[:8], "little")
    header = safetensors_format.parse_header(raw[8:end], len(raw) - end)
    arrays = {
        name: np.frombuffer(raw, e.dtype, math.prod(e.shape), end + e.begin).reshape(e.shape)
        for name, e in header.tensors.items()
    }
    return json.loads(header.metadata["rest"]), arrays


# ---------------------------------------------------------------------- replicas that are ranks

Made = Mapping[int, ReplicaStepResult | Exception]  # by rank


class RankReplicas(Closing):
    """A replica for each other rank of ``communicator``, in order of rank; all take part in a step, or none.

    ::

        if comm.rank == 0:
            with RankReplicas(comm) as replicas:
                trainer = DataParallelTrainer(config, replicas, model=model)
                ...
        else:
            serve_replica(comm, model)

    They can be mixed with other replicas, which are best named first: asking the last rank returns when all ranks have
    answered. That is by the deadline of the communicator; the trainer's ``timeout`` is for the others. What the ranks
    made together is in the first one's result, and counts with the weight of all.

    A rank that is late or gone breaks the communicator, and the trainer can go on with other replicas. A rank's
    exception does not, nor does a loss or gradient that is not finite.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._ranks = [rank for rank in range(communicator.world_size) if rank != communicator.rank]
        self._replicas = [RankReplica(self, rank) for rank in self._ranks]
        self._asked: dict[int, tuple[ReplicaStep, Future[ReplicaStepResult]]] = {}
        self._dropped: Made = {}  # why there are no more steps

    def __iter__(self) -> Iterator[ReplicaProtocol]:
        return iter(self._replicas)

    def check_all_in(self, replicas: Iterable[ReplicaProtocol]) -> None:
        """Raise ValueError unless each rank is among these once."""
        given = [rank for rank, mine in zip(self._ranks, self._replicas) for other in replicas if other is mine]
        if given != self._ranks:
            remedy = "pass them all, or make RankReplicas of a communicator of fewer ranks (communicator.split)"
            raise ValueError(f"RankReplicas of {given} of ranks {self._ranks}, but a step needs all, once: {remedy}")

    def ask(self, rank: int, step: ReplicaStep) -> Future[ReplicaStepResult]:
        """Note a rank's part of a step. When all have one, the step is made."""
        if rank in self._asked or any(asked.state is not step.state for asked, _ in self._asked.values()):
            self._asked = {}  # of a step that another replica refused
        asked = self._asked
        asked[rank] = step, Future()
        if len(asked) == len(self._ranks):
            self._asked = {}
            made = self._dropped or self._make({rank: step for rank, (step, _) in asked.items()})
            for rank_asked, (_, future) in asked.items():
                result = made.get(rank_asked, ReplicaStepResult(0.0, 0.0, 0))
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        return asked[rank][1]

    def close(self) -> None:
        """Ask no more; the ranks return from ``serve_replica``."""
        if not self._dropped:
            self._drop(self._ranks, "it was closed")
            for rank in self._ranks:
                send_bytes(self._communicator, b"", rank)

    def _drop(self, ranks: Iterable[int], reason: str) -> None:
        self._dropped = {rank: ReplicaDroppedReplyError(reason) for rank in ranks}

    def _make(self, steps: Mapping[int, ReplicaStep]) -> Made:
        requests = {rank: request_of(step) for rank, step in steps.items()}
        step = steps[self._ranks[0]]
        state = _on_device(self._communicator, step.state, step.trained)
        try:
            for rank, request in requests.items():
                send_bytes(self._communicator, request, rank)
            broadcast_params(self._communicator, state.items(), self._communicator.rank)
            made = _reduce(self._communicator, state)
        except CommError as error:
            self._drop([rank for rank in error.ranks if rank in steps] or steps, str(error))
            return self._dropped
        except BaseException as error:
            self._drop(steps, f"an earlier step ended with {type(error).__name__}: {error}")
            self._communicator.__exit__(type(error), error, None)  # the others wait for what will not come
            raise
        return made


class RankReplica:
    """One of RankReplicas, which is ``whole``."""

    def __init__(self, whole: RankReplicas, rank: int) -> None:
        self.whole: RankReplicas = whole
        self.make_step: Callable[[ReplicaStep], Future[ReplicaStepResult]] = functools.partial(whole.ask, rank)


def serve_replica(communicator: Communicator, model: Module, trainer: int = 0) -> None:
    """Compute for the RankReplicas of rank ``trainer``, until they are closed. ``model`` has the structure and dtypes
    of the trainer's; its values do not matter.

    A trainer that asks nothing for the communicator's ``timeout`` is an error, and so is another structure.
    """
    gradients: dict[str, Tensor] = {}

    def keep(made: Values) -> list[str]:
        gradients.update({name: as_tensor(grad) for name, grad in made.items()})
        return non_finite(gradients)

    while request := recv_bytes(communicator, trainer):
        gradients.clear()
        (trained, *rest), batch = parts(request)
        state = _on_device(communicator, model.state_dict(), trained)
        broadcast_params(communicator, state.items(), trainer)
        _reduce(communicator, state, answer(lambda: model, [trained, *rest], batch, state, keep), gradients)


def _on_device(communicator: Communicator, state: Values, trained: Container[str]) -> dict[str, Tensor]:
    """A model's tensors on the communicator's device: themselves, where they are there already."""
    return {
        name: as_tensor(value).detach().to(communicator.device).contiguous().requires_grad_(name in trained)
        for name, value in state.items()
    }


def _reduce(
    communicator: Communicator, state: Mapping[str, Tensor], reply: bytes = b"", gradients: Values | None = None
) -> Made:
    """The ranks' answers. If there is a mean, the first has all gradients and all weight, and the others weigh 0."""
    replies = {rank: raw for rank, raw in enumerate(all_gather_bytes(communicator, reply)) if raw}
    # Of gradients, the trainer sees those that are not finite.
    made = {rank: result_of(raw, lambda name: full_like(state[name], math.nan)) for rank, raw in replies.items()}
    results = {rank: result for rank, result in made.items() if isinstance(result, ReplicaStepResult)}
    weights = {rank: result.weight or 0.0 for rank, result in results.items()}
    total = sum(weights.values())
    bad = any(result.gradients or not math.isfinite(result.loss) for result in results.values())
    if bad or not total or len(results) < len(made):
        return made
    mine = {state[k]._id: as_tensor(grad).to(communicator.device) for k, grad in (gradients or {}).items()}
    hook = functools.partial(_add_up, weights.get(communicator.rank, 0.0) / total)
    summed = all_reduce_grads(communicator, GradStore(mine), state.items(), hook=hook)
    mean = {name: summed[p] for name, p in state.items() if summed.contains(p)}
    loss = sum(result.loss * (weights[rank] / total) for rank, result in results.items())
    results = {rank: replace(result, weight=0.0) for rank, result in results.items()}
    first = min(results)
    return {**results, first: replace(results[first], loss=loss, gradients=mean, weight=total)}


def _add_up(share: float, communicator: Communicator, bucket: Tensor) -> Work:
    bucket.device.kernels.grad_norm.scale_([bucket.data], share)
    return communicator.all_reduce(bucket, async_op=True)
