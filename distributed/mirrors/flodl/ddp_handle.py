"""DdpHandle: a ``DdpBuilder`` run under way, as its owner sees it."""

from __future__ import annotations

import warnings

from minigrad.device import Device

from .replica_threads import ReplicaThreads
from .trained_state import TrainedState
from .workload import EpochMetrics


class ReplicaFailedError(RuntimeError):
    """No replica is left that could give a state. ``failures`` are the errors by rank; the first is the cause."""

    def __init__(self, message: str, failures: dict[int, BaseException]) -> None:
        super().__init__(message)
        self.failures: dict[int, BaseException] = failures


class DdpHandle:
    """A run under way (flodl's ``DdpHandle``). As a context manager it ends the run at the end of the block.

    ``world_size`` is the number of replicas, ``devices`` where they are.
    """

    def __init__(self, threads: ReplicaThreads, resumed: bool = False) -> None:
        self._threads, self._resumed = threads, resumed
        self._state: TrainedState | None = None
        self.devices: list[Device] = [replica.device for replica in threads.replicas]
        self.world_size: int = len(self.devices)

    def poll_metrics(self) -> list[EpochMetrics]:
        """Epochs that have ended since the last call, in order; returns at once."""
        with self._threads.changed:
            ended = list(self._threads.metrics)
            self._threads.metrics.clear()
        return ended

    def next_metrics(self) -> EpochMetrics | None:
        """The next epoch's metrics, as soon as it has ended; None when the run is over and all have been given."""
        threads = self._threads
        with threads.changed:
            threads.wait(lambda: bool(threads.metrics))
            return threads.metrics.popleft() if threads.metrics else None

    def stop(self) -> None:
        """Let each replica end after its batch; ``join`` then gives the average of what they have."""
        with self._threads.changed:
            self._threads.coordinator.stop()
            self._threads.changed.notify_all()

    def join(self) -> TrainedState:
        """Wait for the end; the state of the run.

        If a replica was lost, the others stop, and the state is their average, with a RuntimeWarning that says what
        happened. A replica is lost ``batch_timeout`` after it went silent, so this always returns.

        Raises ReplicaFailedError if no replica is left, or those that are have not trained.
        """
        with self._threads.changed:
            self._threads.wait(lambda: False)
        if self._state is None:
            self._state = self._end()
        return self._state

    def _end(self) -> TrainedState:
        coordinator = self._threads.coordinator
        failures = dict(coordinator.failures)
        left = [rank for rank in range(self.world_size) if rank not in failures]
        if not failures:
            return self._threads.final_state()
        words = "; ".join(f"replica {r}: {type(e).__name__}: {e}" for r, e in sorted(failures.items()))
        if not left or not (self._resumed or any(coordinator.total_batches[rank] for rank in left)):
            raise ReplicaFailedError(f"no trained replica is left: {words}", failures) from next(
                iter(failures.values())
            )
        warnings.warn(
            f"training ended in epoch {coordinator.epochs_done} because a replica was lost ({words}); the state is "
            f"the average of replica {', '.join(map(str, left))}",
            RuntimeWarning,
            stacklevel=3,
        )
        return self._threads.final_state()

    def __enter__(self) -> DdpHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        with self._threads.changed:
            self._threads.wait(lambda: False)
