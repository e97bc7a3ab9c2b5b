"""Signals that end a training after its step, on all ranks, and what is said of one that ends at once."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import numpy as np

from ..comm.communicator import Communicator, all_gather_rows
from ..job.launch import handled

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ANSWERS = (b"\nfinishing this step, then saving (again: stop at once)\n", b"\nstopping at once, without saving\n")


@contextlib.contextmanager
def interrupts(lost: Callable[[], str] = str) -> Iterator[list[int]]:
    """A list that Ctrl-C or SIGTERM adds its number to, instead of raising; a second one raises at once, with a message
    of ``lost()``: what is saved, and how to go on (``what_is_lost``).

    Python calls handlers between its own instructions, not while a kernel is compiled, which takes seconds. So a thread
    answers, which gets the signals' numbers through a socket.

    The list stays empty in other threads than the main one, which Python gives no signals.
    """
    received: list[int] = []
    answered: list[bytes] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, frame: object) -> None:
        received.append(number)
        if max(len(received), len(answered)) > 1:  # two signals during one kernel's compilation are one call of this
            raise KeyboardInterrupt(lost())

    def answer() -> None:
        while number := ours.recv(1):
            if number[0] in SIGNALS:
                os.write(2, ANSWERS[min(len(answered), 1)])  # print may be amid a line in the main thread
                answered.append(number)

    ours, pythons = socket.socketpair()
    pythons.setblocking(False)
    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    try:
        with handled(note, SIGNALS):
            yield received
    finally:
        signal.set_wakeup_fd(before)
        pythons.close()
        thread.join()
        ours.close()


def what_is_lost(step: int, saved: int | None, command: str) -> str:
    """Of a training that was stopped after a step without saving it; ``command`` goes on, or begins again."""
    lost, then = step - (saved or 0), "begin again" if saved is None else "go on"
    kept = "nothing is saved" if saved is None else f"step {saved} is saved"
    return f"stopped after step {step}; {kept}, {lost} step{' is' if lost == 1 else 's are'} lost. To {then}: {command}"


def interrupted(communicator: Communicator, received: list[int]) -> int:
    """The signal that ends the training on all ranks, whichever got it, or 0. A collective of all ranks."""
    mine = received[:1] or [0]
    if communicator.world_size == 1:
        return mine[0]  # without waiting for a GPU
    return int(all_gather_rows(communicator, np.array(mine)).max())
