"""Numbers on their way to the device, which the host does not wait for."""

import weakref
from collections.abc import Sequence

import numpy as np

from . import memory, recording
from .array import Array, empty
from .streams import Event


class Upload:
    """Numbers that go to the device with every step, by a copy that the host does not wait for.

    They are written into page-locked memory first. A copy may still be reading it when the next step's numbers come, so
    there are several such buffers. One is written again when the event after its last copy has passed. The device's
    memory is one: copies and kernels of a stream have an order.
    """

    DEPTH = 4  # steps that the host may be ahead before it waits

    def __init__(self, nbytes: int, device: int) -> None:
        self.target: Array = empty(nbytes, np.uint8, device)
        self._buffers: list[np.ndarray] = [memory.pinned_empty((nbytes,), np.uint8) for _ in range(self.DEPTH)]
        self._events: list[Event] = [Event() for _ in range(self.DEPTH)]
        self._sent = 0
        weakref.finalize(self, _wait, self._events)  # before the buffers are used for something else

    def send(self, *parts: np.ndarray) -> list[Array]:
        """Contiguous NumPy arrays of 8 or 4 bytes an element, in one copy; where they are on the device.

        During capture they are numbers of the graph's.
        """
        graph = recording.current()
        if graph is not None:
            return [graph.number(part) for part in parts]
        turn = self._sent % self.DEPTH
        buffer, event = self._buffers[turn], self._events[turn]
        if self._sent >= self.DEPTH:
            event.synchronize()
        arrived, end = [], 0
        for part in parts:
            start, end = end, end + part.nbytes
            buffer[start:end] = part.reshape(-1).view(np.uint8)
            target = self.target
            arrived.append(Array(target.memory, part.shape, part.dtype, None, target.pointer + start, target))
            end += -end % 8
        memory.copy_in(self.target.pointer, buffer[:end], wait=False)
        event.record()
        self._sent += 1
        return arrived


def _wait(events: Sequence[Event]) -> None:
    for event in events:  # perhaps within a capture, which does not mind, but Event.synchronize would
        if event.handle is not None:
            event.handle.synchronize()
