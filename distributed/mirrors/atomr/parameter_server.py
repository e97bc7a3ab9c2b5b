"""AsyncParameterServer: workers pull weights, and push gradients when they are ready, of weights that may be some
versions old (mirrors atomr-accel-train's)."""

import json
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad import GradStore, Tensor, as_tensor, empty_like
from minigrad.errors import check_instance, check_int
from minigrad.modes import Closing
from minigrad.optim import LrSchedule, NonFiniteGradientError

from ...comm.communicator import Communicator, recv_bytes, send_bytes
from ...train.config import TrainingConfig
from ...train.simple_trainer import SimpleTrainer
from ...train.train_kinds import OptimizerKind

PULL, PUSH, CLOSE = range(3)  # what a remote worker asks for
WINDOW = 128  # pushes that the mean staleness is of

Values = Any
"""One array or tensor, or a mapping from names to such."""


class StaleGradientError(RuntimeError):
    """A gradient is of weights older than the server allows; nothing was changed. Pull, and compute it again.

    ``worker``, ``staleness`` and ``max_staleness`` tell whose and how old.
    """

    def __init__(self, message: str, worker: int, staleness: int, max_staleness: int) -> None:
        super().__init__(message)
        self.worker: int = worker
        self.staleness: int = staleness
        self.max_staleness: int = max_staleness


ERRORS = (StaleGradientError, NonFiniteGradientError, ValueError)  # that a remote worker hears of


@dataclass(frozen=True)
class ServerStats:
    """What a server has done: its version, gradients applied and rejected as stale, and times that the weights were
    pulled. ``avg_staleness`` is the mean staleness, in versions, of the last 128 gradients applied (0 before the
    first)."""

    version: int
    gradients_applied: int
    gradients_rejected: int
    weights_pulled: int
    avg_staleness: float


class AsyncParameterServer:
    """Holds weights; any number of threads may call it at once.

    ::

        server = AsyncParameterServer(dict(model.named_parameters()), OptimizerKind.adamw(1e-3), max_staleness=4)
        weights, version = server.pull_weights()          # in each worker
        version = server.push_gradient(worker, version, gradient)

    ``weights`` is one array or tensor, or a mapping from names to such, floating; they are copied, and stay on their
    device. Gradients and pulled weights have the same structure. Each push is one step of the optimizer (its moments
    are the server's) and makes a new version, counted from 0. A gradient of version v is rejected if the server's is
    more than ``max_staleness`` ahead of v. ``gradient_clip`` limits the norm of each gradient. ``schedule`` sets the
    learning rate by version.
    """

    def __init__(
        self,
        weights: Values,
        optimizer: OptimizerKind,
        max_staleness: int,
        *,
        gradient_clip: float | None = None,
        schedule: LrSchedule | None = None,
    ) -> None:
        check_int("max_staleness", max_staleness, 0)
        check_instance("optimizer", optimizer, OptimizerKind)
        self._single = not isinstance(weights, Mapping)
        arrays = {"weights": weights} if self._single else weights
        self._params = {}
        for name, value in arrays.items():
            copy = as_tensor(value).detach().clone()
            if not copy.is_floating_point():
                raise TypeError(f"{name} has dtype {copy.dtype}, expected a floating one")
            self._params[name] = copy.requires_grad_()
        if not self._params:
            raise ValueError("there are no weights")
        named = list(self._params.items())
        self._trainer = SimpleTrainer(TrainingConfig(max_grad_norm=gradient_clip), optimizer.build(named), schedule)
        self.max_staleness: int = max_staleness
        self._lock = threading.Lock()
        self._pulled = self._rejected = 0
        self._staleness: deque[int] = deque(maxlen=WINDOW)

    def push_gradient(self, worker: int, worker_version: int, gradient: Values) -> int:
        """Make one optimizer step with a gradient of the weights of ``worker_version``; returns the new version.

        Raises, with nothing changed: StaleGradientError; ValueError for a version that there is not yet, for missing or
        unknown names and for another shape or length; TypeError for another dtype; NonFiniteGradientError. Their
        messages name the worker.
        """
        who = f"worker {worker}"
        worker_version = check_int(f"{who}: worker_version", worker_version, 0)
        grads = self._checked(who, gradient)
        with self._lock:
            version = self._trainer.global_step
            staleness = version - worker_version
            if staleness < 0:
                raise ValueError(f"{who}: worker_version is {worker_version}, but the newest version is {version}")
            if staleness > self.max_staleness:
                self._rejected += 1
                behind = f"of version {worker_version}, {staleness} behind version {version}"
                allowed = f"at most {self.max_staleness} are allowed: pull the weights and compute it again"
                text = f"{who}: the gradient is {behind}; {allowed}"
                raise StaleGradientError(text, worker, staleness, self.max_staleness)
            try:
                self._trainer.step(list(self._params.items()), grads, 0.0)
            except NonFiniteGradientError as error:
                raise NonFiniteGradientError(f"{who}: {error}", error.norm) from error
            self._staleness.append(staleness)
            return self._trainer.global_step

    def pull_weights(self) -> tuple[Values, int]:
        """(a copy of the weights, their version): arrays, or, of weights on a GPU, tensors there."""
        with self._lock:
            self._pulled += 1
            clones = {name: p.detach().clone() for name, p in self._params.items()}
            version = self._trainer.global_step
        copies = {name: clone if clone.device.type == "cuda" else clone.data for name, clone in clones.items()}
        return (copies["weights"] if self._single else copies), version

    def stats(self) -> ServerStats:
        """What it has done so far."""
        with self._lock:
            last = self._staleness
            mean = sum(last) / len(last) if last else 0.0
            applied = self._trainer.global_step
            return ServerStats(applied, applied, self._rejected, self._pulled, mean)

    def serve(self, communicator: Communicator) -> None:
        """Answer all other ranks, each of which has a RemoteParameterServer of this one, until they have closed it.

        A rank that asks nothing for the communicator's ``timeout`` is an error. Raises TypeError if the weights are not
        a mapping.
        """
        if self._single:
            raise TypeError("serve: the weights are one array, expected a mapping from names to arrays")
        ranks = [rank for rank in range(communicator.world_size) if rank != communicator.rank]
        with ThreadPoolExecutor(len(ranks) or 1, "serve") as threads:
            list(threads.map(lambda rank: self._serve(communicator, rank), ranks))

    def _serve(self, comm: Communicator, rank: int) -> None:
        like = {name: self._params[name].detach().to(comm.device) for name in sorted(self._params)}
        while True:
            what, version = _receive_json(comm, rank)
            if what == CLOSE:
                return
            if what == PULL:
                weights, version = self.pull_weights()
                _send_json(comm, rank, version)
                _send(comm, rank, [as_tensor(weights[name], device=comm.device) for name in like])
                continue
            gradient = _receive(comm, rank, like)
            try:
                _send_json(comm, rank, self.push_gradient(rank, version, gradient))
            except ERRORS as error:
                kind = next(i for i, known in enumerate(ERRORS) if isinstance(error, known))
                stale = (error.staleness, error.max_staleness) if isinstance(error, StaleGradientError) else ()
                _send_json(comm, rank, [kind, str(error), *stale])

    def _checked(self, who: str, gradient: Values) -> GradStore:
        """The gradient as the optimizer takes it, copied."""
        if self._single == isinstance(gradient, Mapping):
            wanted = "one array" if self._single else "a mapping from names to arrays"
            raise TypeError(f"{who}: the gradient is a {type(gradient).__name__}, expected {wanted}")
        params, named = self._params, _fitting(who, {"weights": gradient} if self._single else gradient, self._params)
        return GradStore({params[k]._id: grad.to(params[k].device).clone() for k, grad in named.items()})


class RemoteParameterServer(Closing):
    """What a worker has of a parameter server that is another rank, whose ``serve`` answers it.

    ::

        weights = dict(model.named_parameters())
        if comm.rank == 0:
            AsyncParameterServer(weights, OptimizerKind.adamw(1e-3), max_staleness=4).serve(comm)
        else:
            with RemoteParameterServer(comm, weights) as server:
                weights, version = server.pull_weights()
                version = server.push_gradient(version, gradient)

    ``weights`` has the names, shapes and dtypes of the server's, on the communicator's device.
    """

    def __init__(self, communicator: Communicator, weights: Mapping[str, Tensor], server: int = 0) -> None:
        self._communicator, self._server = communicator, server
        self._weights = {name: weights[name].detach() for name in sorted(weights)}

    def pull_weights(self) -> tuple[dict[str, Tensor], int]:
        """(a copy of the weights, their version)."""
        _send_json(self._communicator, self._server, [PULL, 0])
        version = self._version()
        return _receive(self._communicator, self._server, self._weights), version

    def push_gradient(self, version: int, gradient: Mapping[str, Any]) -> int:
        """As the server's ``push_gradient``, whose errors are raised here."""
        version = check_int("version", version, 0)
        grads = _fitting(f"worker {self._communicator.rank}", gradient, self._weights)
        _send_json(self._communicator, self._server, [PUSH, version])
        _send(self._communicator, self._server, grads.values())
        return self._version()

    def close(self) -> None:
        """Ask no more."""
        _send_json(self._communicator, self._server, [CLOSE, 0])

    def _version(self) -> int:
        version = _receive_json(self._communicator, self._server)
        if isinstance(version, int):
            return version
        kind, message, *stale = version
        if ERRORS[kind] is StaleGradientError:
            raise StaleGradientError(message, self._communicator.rank, *stale)
        raise NonFiniteGradientError(message, np.nan) if ERRORS[kind] is NonFiniteGradientError else ValueError(message)


def _fitting(who: str, gradient: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradient in order of the weights. Raises ValueError or TypeError for one that does not fit."""
    if gradient.keys() != weights.keys():
        missing, unknown = sorted(weights.keys() - gradient.keys()), sorted(gradient.keys() - weights.keys())
        raise ValueError(f"{who}: the gradient lacks {missing} and has {unknown}, which are no weights")
    grads = {name: as_tensor(gradient[name]).detach() for name in weights}
    for name, p in weights.items():
        if grads[name].shape != p.shape:
            raise ValueError(f"{who}: the gradient of {name} has shape {grads[name].shape}, expected {p.shape}")
        if grads[name].dtype != p.dtype:
            raise TypeError(f"{who}: the gradient of {name} has dtype {grads[name].dtype}, expected {p.dtype}")
    return grads


def _send(comm: Communicator, rank: int, tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        comm.send(tensor.contiguous(), rank)


def _receive(comm: Communicator, rank: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    out = {name: empty_like(tensor) for name, tensor in like.items()}
    for tensor in out.values():
        comm.recv(tensor, rank)
    return out


def _send_json(comm: Communicator, rank: int, value: Any) -> None:
    send_bytes(comm, json.dumps(value).encode(), rank)


def _receive_json(comm: Communicator, rank: int) -> Any:
    return json.loads(recv_bytes(comm, rank))
