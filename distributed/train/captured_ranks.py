"""What the ranks of a captured step exchange: within the graph, and when it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad.modes import current_graph
from minigrad.tensor import Tensor

from ..comm.calls import ReduceOp
from ..comm.communicator import Communicator
from .grad_sync import agree_on_settings, mismatch

MARKS = "step", "learning rate", "number of the capture"
"""What a rank sends with its losses in each launch, as float64; the device makes no update where the ranks' differ."""


class CapturedRanks:
    """The ranks of a communicator whose collectives can be captured."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator

    def compare(self, settings: dict[str, Any]) -> None:
        """Raise CollectiveMismatchError, on every rank, unless all have the same settings. Eagerly, by the host."""
        agree_on_settings(self.communicator, settings)

    def gather(self, losses: Any, marks: Callable[[], Sequence[float]]) -> Any:
        """Captured: this rank's marks, then each rank's n losses, float64, and its marks.

        ``marks()`` is called before each launch.
        """
        graph, comm = current_graph(), self.communicator
        assert graph is not None
        kernels, n, count = comm.device.kernels, len(losses), len(MARKS)
        numbers = graph.number(lambda: np.array(marks(), np.float64))
        mine = kernels.empty((n + count,), np.float64)
        found = kernels.empty((count + comm.world_size * (n + count),), np.float64)
        kernels.elementwise.assign(mine[:n], losses)
        kernels.elementwise.assign(mine[n:], numbers.data)
        kernels.elementwise.assign(found[:count], numbers.data)
        comm.all_gather(Tensor.wrap(mine, comm.device), Tensor.wrap(found[count:], comm.device))
        return found

    def any(self, flag: Any) -> Any:
        """Captured: int32 (1,), whether it is not 0 on any rank."""
        comm = self.communicator
        found = comm.device.kernels.empty((1,), np.int32)
        comm.device.kernels.elementwise.assign(found, flag)
        comm.all_reduce(Tensor.wrap(found, comm.device), ReduceOp.MAX)
        return found

    def result(self, event: Any, gathered: np.ndarray) -> list[list[float]]:
        """Each rank's losses, of what ``gather`` has made for the host when ``event`` has happened.

        Raises, and aborts the communicator, after its timeout, and CollectiveMismatchError if the ranks' marks differ.
        """
        comm: Any = self.communicator
        comm.wait_for(event, lambda: self._check_marks(gathered))
        losses: list[list[float]] = self._rows(gathered)[:, : -len(MARKS)].tolist()
        return losses

    def _rows(self, gathered: np.ndarray) -> np.ndarray:
        return gathered[len(MARKS) :].reshape(self.communicator.world_size, -1)

    def _check_marks(self, gathered: np.ndarray) -> None:
        comm, own = self.communicator, gathered[: len(MARKS)].tolist()
        marks = self._rows(gathered)[:, -len(MARKS) :].tolist()
        odd = [rank for rank in range(comm.world_size) if marks[rank] != own]
        if odd:
            here = f"{dict(zip(MARKS, own))} on this rank, {comm.rank}"
            text = (
                "the ranks did not launch the same step of the same graph, and no weight was changed: "
                f"{here}, {dict(zip(MARKS, marks[odd[0]]))} on rank {odd[0]}"
            )
            raise mismatch(comm, text, "the launch of a graph", odd)
