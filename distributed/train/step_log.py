"""A line of JSON for every so many steps of several ranks, in a file of rank 0's."""

from __future__ import annotations

import os
import time

from minigrad.errors import check_int
from minigrad.metrics_log import JsonLinesLog

from ..comm.calls import CommStats
from ..comm.communicator import Communicator
from ..comm.gather import all_gather_json
from .config import TrainingMetrics


class StepLog:
    """Appends a line to ``path`` every ``every`` steps; nothing without a path.

    A line has the metrics, tokens per second of all ranks, and the seconds of communication and those in which a rank
    waited for it, the largest of any rank, since the line before. Raises ValueError for an ``every`` below 1.
    """

    def __init__(self, communicator: Communicator, path: str | os.PathLike[str] | None, every: int = 1) -> None:
        check_int("log_every", every, 1)
        self._communicator = communicator
        self.every: int = every if path is not None else 0
        self._file = JsonLinesLog(path) if path is not None and communicator.rank == 0 else None
        self._before = CommStats()
        self._begin()

    def _begin(self) -> None:
        self.tokens: int = 0
        """Elements of the batches since the last line, for the caller to count."""
        self._since = time.perf_counter()

    def after(self, metrics: TrainingMetrics, skipped_steps: int) -> None:
        """Write a line if one is due; then a collective of all ranks."""
        if not self.every or metrics.step % self.every:
            return
        comm, stats, before = self._communicator, self._communicator.stats, self._before
        mine = [self.tokens, stats.busy_s - before.busy_s, stats.waited_s - before.waited_s]
        everyone = all_gather_json(comm, mine)
        if self._file is not None:
            self._file.write(
                {
                    **vars(metrics),
                    "tokens_per_second": sum(tokens for tokens, _, _ in everyone) / (time.perf_counter() - self._since),
                    "communication_seconds": max(busy for _, busy, _ in everyone),
                    "waited_seconds": max(waited for _, _, waited in everyone),
                    "world_size": comm.world_size,
                    "skipped_steps": skipped_steps,
                }
            )
        self._begin()
        self._before = CommStats(stats.operations, stats.bytes_sent, stats.busy_s, stats.waited_s)

    def sync(self) -> None:
        """Until what was written is safe."""
        if self._file is not None:
            self._file.sync()

    def resume_after(self, step: int) -> None:
        """Remove the lines of later steps."""
        if self._file is not None:
            self._file.truncate_after(step)
        self._begin()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
