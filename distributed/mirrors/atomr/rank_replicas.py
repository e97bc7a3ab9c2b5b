"""RankReplicas: replicas that are the other ranks of a communicator, threads, processes or GPUs.

    the trainer's rank                        every other rank, in ``serve_replica``
    its samples, the loss  ── send ───────>
    weights and buffers    ── broadcast ──>   forward, backward
                           <── all_gather ──  mean loss, its weight, buffers; or an error
                           <── all_reduce ──  the gradient, times the rank's share of the weight

So weights and gradients stay on the communicator's device, and the trainer gets one gradient, the weighted mean.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace

from minigrad.creation import as_tensor, full_like
from minigrad.grad_store import GradStore
from minigrad.modes import Closing
from minigrad.nn import Module
from minigrad.tensor import Tensor

from ...comm.calls import Work
from ...comm.comm_errors import CommError
from ...comm.communicator import Communicator
from ...comm.gather import all_gather_bytes, recv_bytes, send_bytes
from ...train.blocks import non_finite
from ...train.grad_sync import all_reduce_grads, broadcast_params
from ...train.trainer_errors import ReplicaDroppedReplyError
from .replicas import ReplicaProtocol, ReplicaStep, ReplicaStepResult, Values, answer, parts, request_of, result_of

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
            raise ValueError(
                f"of RankReplicas on the ranks {self._ranks} those of {given} are given, but a step needs all, once: "
                "pass them all, or make RankReplicas of a communicator of fewer ranks (communicator.split)"
            )

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
