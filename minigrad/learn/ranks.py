"""Ranks that send each other arrays: threads of one process, with a clock that is computed and not measured.

A message costs its sender ``latency`` seconds and ``per_byte`` for each byte, and is there when the sender is done. Who
receives it waits until then. So times are the same at every run.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from .exercise import Array, Wrong


class Lost(RuntimeError):  # noqa: N818
    """A rank waits for a message that nobody will send."""


class Rank:
    """What a rank's program talks to: ``number`` and ``size``, ``send`` and ``recv``, and its clock, ``now``."""

    def __init__(self, number: int, world: "World") -> None:
        self.number: int = number
        self.size: int = world.size
        self.now: float = 0.0
        self.sent: int = 0  # bytes
        self._world = world

    def send(self, to: int, array: Any) -> None:
        """Send a copy of an array; nobody waits for it to be taken."""
        world, data = self._world, np.array(array)
        if not 0 <= to < self.size or to == self.number:
            raise ValueError(f"rank {self.number} sends to rank {to}, of ranks 0 to {self.size - 1}: a step too many?")
        self.now += world.latency + world.per_byte * data.nbytes
        self.sent += data.nbytes
        with world.changed:
            world.messages[self.number, to].append((self.now, data))
            world.reached[self.number].add(to)
            world.changed.notify_all()

    def recv(self, source: int) -> Any:
        """The next array of rank ``source``. Raises Lost if it will never come."""
        world = self._world
        if not 0 <= source < self.size or source == self.number:
            raise ValueError(f"rank {self.number} receives from rank {source}, of ranks 0 to {self.size - 1}")
        with world.changed:
            world.waits[self.number] = source
            while not world.messages[source, self.number]:
                if world.stuck(self.number):
                    world.changed.notify_all()
                    raise Lost(f"rank {self.number} waits for rank {source}, which " + world.does(source))
                world.changed.wait()
            del world.waits[self.number]
            arrived, data = world.messages[source, self.number].popleft()
        self.now = max(self.now, arrived)
        return data

    def work(self, seconds: float) -> None:
        """Compute for so long."""
        self.now += seconds


class World:
    """So many ranks."""

    def __init__(self, size: int, latency: float = 1.0, per_byte: float = 0.0) -> None:
        self.size: int = size
        self.latency: float = latency
        self.per_byte: float = per_byte
        self.ranks: list[Rank] = [Rank(number, self) for number in range(size)]
        self.changed: threading.Condition = threading.Condition()
        self.messages: dict[tuple[int, int], deque[tuple[float, Array]]] = {
            (a, b): deque() for a in range(size) for b in range(size)
        }
        self.reached: dict[int, set[int]] = {number: set() for number in range(size)}  # to whom a rank has sent
        self.waits: dict[int, int] = {}  # for whom a rank waits
        self.ended: set[int] = set()

    def stuck(self, number: int) -> bool:
        """Whether all whom a rank waits for, one after the other, have ended or wait in a circle."""
        seen: set[int] = set()
        while number in self.waits and number not in seen and not self.messages[self.waits[number], number]:
            seen.add(number)
            number = self.waits[number]
        return number in self.ended or number in seen

    def does(self, number: int) -> str:
        """What a rank does that sends nothing."""
        return "has ended" if number in self.ended else f"waits for rank {self.waits.get(number)}"

    def run(self, program: Callable[..., Any], *arguments: list[Any]) -> list[Any]:
        """What ``program(rank, *arguments)`` returns on each rank; an argument is a list with one for each rank."""
        results: list[Any] = [None] * self.size
        errors: dict[int, BaseException] = {}

        def body(rank: Rank) -> None:
            try:
                results[rank.number] = program(rank, *[given[rank.number] for given in arguments])
            except BaseException as error:
                errors[rank.number] = error
            finally:
                with self.changed:
                    self.ended.add(rank.number)
                    self.changed.notify_all()

        threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in sorted(errors.values(), key=lambda error: isinstance(error, Lost)):
            raise error
        left = [f"rank {b} never took a message of rank {a}" for (a, b), queue in self.messages.items() if queue]
        if left:
            raise Lost(left[0])
        return results


def run(what: str, world: World, program: Callable[..., Any], *arguments: list[Any]) -> list[Any]:
    """``world.run`` in a check: a message that never comes, or that nobody takes, is an answer."""
    try:
        return world.run(program, *arguments)
    except Lost as error:
        raise Wrong(f"{what}\n{error}") from None


def timeline(rows: dict[str, list[tuple[float, float, str]]], end: float, width: int = 60) -> str:
    """Rows of (start, end, sign) as text, to scale."""
    lines = []
    for name, spans in rows.items():
        cells = ["."] * width
        for start, stop, sign in spans:
            first, last = round(start / end * width), max(round(stop / end * width), round(start / end * width) + 1)
            cells[first:last] = sign * (min(last, width) - first)
        lines.append(f"{name:>12} |{''.join(cells[:width])}|")
    return "\n".join(lines)
