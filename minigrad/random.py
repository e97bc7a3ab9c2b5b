"""Random numbers from a counter-based generator (Philox4x32-10; Salmon, Moraes, Dror, Shaw 2011).

Number i of draw n depends on (seed, n, i) and on nothing else: it is the same on every device and for every number of
threads, and the whole state is two integers.
"""

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from . import dtypes
from .errors import bad_state, bad_type, bad_value
from .modes import holding


class Generator:
    """A source of random draws: a ``seed`` and the count ``offset`` of draws made so far.

    ``seed`` is an integer in [0, 2**64). ``state_dict`` and ``load_state_dict`` save and restore it.
    """

    offset: int

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> "Generator":
        """Start again from ``seed``; returns the generator."""
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= int(seed) < 2**64:
            raise bad_value(f"seed {seed!r}: expected an integer in [0, 2**64)")
        if _source.refuse is not None:
            _source.refuse("it sets a random generator's state", "do it before a launch, which reads the state then")
        self.seed = seed
        self.offset = 0
        return self

    def next(self) -> tuple[int, int]:
        """The (seed, offset) of one draw, which no later draw uses again."""
        source = _source.draw
        return self._draw() if source is None else source(self)

    def _draw(self) -> tuple[int, int]:
        with self._lock:
            offset = self.offset
            self.offset = offset + 1
        return self.seed, offset

    def advance(self, draws: int) -> None:
        """Count draws that were made elsewhere, by a launch of a graph."""
        with self._lock:
            self.offset += draws

    def state_dict(self) -> dict[str, int]:
        """The state: ``{"seed": ..., "offset": ...}``."""
        return {"seed": self.seed, "offset": self.offset}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where ``state_dict`` was taken."""
        seed, offset = state["seed"], state["offset"]
        if not isinstance(offset, int) or offset < 0:
            raise bad_value(f"generator offset {offset!r}: expected an integer >= 0")
        self.manual_seed(seed)
        self.offset = offset

    def __repr__(self) -> str:
        return f"Generator(seed={self.seed}, offset={self.offset})"


Source: TypeAlias = Generator | None  # of random numbers; None: the default generator
Draw: TypeAlias = Callable[[Generator], tuple[int, int]]


class _Source(threading.local):
    draw: Draw | None = None  # what ``next`` asks in the calling thread
    refuse: Callable[[str, str], None] | None = None  # raises if it captures what it does to the device
    default: Generator | None = None  # what the default generator stands for in the calling thread


_source = _Source()


def _of_current(name: str) -> property:
    """The attribute of the generator that the default one stands for."""
    return property(lambda own: getattr(own.current(), name), lambda own, new: setattr(own.current(), name, new))


class _DefaultGenerator(Generator):
    """The default generator: one that all threads share, but within ``drawing_from`` the calling thread's own."""

    def __init__(self) -> None:
        self._shared = Generator()

    def current(self) -> Generator:
        """The generator that it stands for in the calling thread."""
        return self._shared if _source.default is None else _source.default

    if not TYPE_CHECKING:
        seed, offset, _lock = map(_of_current, ("seed", "offset", "_lock"))

    def _draw(self) -> tuple[int, int]:
        return self.current()._draw()


default_generator: Generator = _DefaultGenerator()
Draws = list[tuple[Generator, tuple[int, int]]]


def drawing_by(draw: Draw, refuse: Callable[[str, str], None]) -> contextlib.AbstractContextManager[None]:
    """Within, ``draw(generator)`` is what the calling thread's generators give, and a call that sets the state of one
    is told to ``refuse``: why, and what to do instead."""
    return holding(_source, draw=draw, refuse=refuse)


@contextlib.contextmanager
def recording(draws: Draws) -> Iterator[None]:
    """Append each draw of the calling thread, from whichever generator, to ``draws``."""
    outer = _source.draw

    def draw(generator: Generator) -> tuple[int, int]:
        found = generator._draw() if outer is None else outer(generator)
        draws.append((generator, found))
        return found

    with holding(_source, draw=draw):
        yield


@contextlib.contextmanager
def replaying(draws: Draws) -> Iterator[Iterator[object]]:
    """Give the recorded draws again, while the generators stay as they are; yields the iterator of those left.

    RuntimeError for a draw that was not recorded at this place.
    """
    left = iter(draws)

    def draw(generator: Generator) -> tuple[int, int]:
        expected, found = next(left, (None, (None, None)))
        if found[0] is None or (expected is not generator and found[0] != generator.seed):
            raise bad_state("a random draw was made that was not made the first time")
        return found[0], found[1]

    with holding(_source, draw=draw):
        yield left


def drawing_from(generator: Generator) -> contextlib.AbstractContextManager[None]:
    """Let ``generator`` stand for the default generator in the calling thread, whatever other threads draw.

    So each of several threads that compute at once has random numbers of its own, the same in every run.
    ``manual_seed`` then seeds ``generator``, and the default generator's state is that of ``generator``.
    """
    return holding(_source, default=generator.current() if isinstance(generator, _DefaultGenerator) else generator)


def generators_for(n: int) -> list[Generator]:
    """``n`` generators of different numbers, which one draw from the default generator decides."""
    seed, offset = default_generator.next()
    words = [np.random.SeedSequence(seed, spawn_key=(offset, i)).generate_state(1, np.uint64) for i in range(n)]
    return [Generator(int(word[0])) for word in words]


def draw(kind: str, kernels: Any, shape: Any, dtype: Any, generator: Source) -> Any:
    """An array of ``kind`` "uniform", in [0, 1), or "normal". float16 and bfloat16 are float32's, uniform ones cut, not
    rounded, so that they stay below 1 (to multiples of 2^-11 and 2^-8, as PyTorch's).
    """
    if not dtypes.is_floating(dtype):
        raise bad_type(f"random {kind} values are floating, not {dtype}; randint gives integers")
    function = kernels.random.uniform if kind == "uniform" else kernels.random.normal
    wide = dtypes.float32 if dtypes.is_half(dtype) else dtype
    x = function(shape, wide, *(generator or default_generator).next())
    if wide is dtype or wide == dtype:
        return x
    k = kernels.elementwise
    if kind == "uniform":
        step = float(dtypes.finfo(dtype).eps) / 2
        x = k.mul(k.floor(k.div(x, step)), step)
    return k.cast(x, dtype)


def manual_seed(seed: int) -> Generator:
    """Seed the generator that all random functions use unless they are given another."""
    return default_generator.manual_seed(seed)


def fresh_seed() -> int:
    """A seed that nobody can predict, from the operating system."""
    return secrets.randbits(64)
