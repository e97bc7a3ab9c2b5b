"""Signals that end a training after its step, on all ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from minigrad.creation import tensor

from ..comm.calls import ReduceOp
from ..comm.communicator import Communicator
from ..job.launch import handled


@contextlib.contextmanager
def interrupts() -> Iterator[list[int]]:
    """A list that Ctrl-C or SIGTERM adds its number to, instead of raising; a second one raises at once.

    It stays empty in other threads than the main one, which Python gives no signals.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        os.write(2, b"\nfinishing this step, then saving (again: stop at once)\n")  # print may be amid a line here

    with handled(note, (signal.SIGINT, signal.SIGTERM)):
        yield received


def interrupted(communicator: Communicator, received: list[int]) -> int:
    """The signal that ends the training on all ranks, whichever got it, or 0. A collective of all ranks."""
    mine = received[:1] or [0]
    if communicator.world_size == 1:
        return mine[0]  # without waiting for a GPU
    number = tensor(mine, device=communicator.device)
    communicator.all_reduce(number, ReduceOp.MAX)
    return int(number.item())
