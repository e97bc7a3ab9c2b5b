"""The kernels that a program is about to need are compiled by several processes at once, into the disk cache.

``known_kernels.txt`` lists the kernels that the first steps of some programs need; benchmarks/known_kernels.py recorded
it. A process that misses one of them may be each of the programs that need all that it has needed so far. What these
programs have in common it lets *helpers* compile, a process for each core. Once they are ready, it waits for what they
compile, and shows how far they are.

Whoever compiles a kernel has a lock on it, and everybody else waits for the result: helpers, ranks, pytest's workers.
The locks are bytes of one file, which the system frees when a process ends. A cache has at most as many helpers as there
are threads, and they end with their work or with the process that they work for. A wrong guess costs only their time.
Which code runs never depends on them: what no helper compiles, a process compiles itself, from the same sources.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import itertools
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from numba import config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.sigutils import normalize_signature

IDLE = 2.0  # seconds without work, after which a helper ends
SOON = 3.0  # seconds, after which a line says why it takes long
URGENT = 1e6  # in place of seconds: the program waits for it
PATIENCE = 120.0  # seconds to wait for a process, which may have been stopped
SAVING, SLOTS = 0, range(1, 9)  # places of locks: on the cache's indices, and of the helpers, which need 200 MB each
BAR = "compiling CPU kernels, for this and later runs: {n_fmt} of {total_fmt} |{bar:20}| {postfix}"
Key = tuple[str, str]  # a kernel's name, and the types of its arguments


class Known(NamedTuple):
    """The programs, a letter each, that need a kernel, and how many seconds it compiles."""

    programs: frozenset[str]
    seconds: float


@functools.cache
def known_kernels() -> dict[Key, Known]:
    """The list, in the order in which the programs need the kernels."""
    text = Path(__file__).with_name("known_kernels.txt").read_text(encoding="ascii")
    rows = [line.split(" ", 3) for line in text.splitlines()]
    return {(name, types): Known(frozenset(programs), float(seconds)) for programs, seconds, name, types in rows}


def key_of(name: str, types: Any) -> Key:
    """How the list writes a kernel and the types of its arguments."""
    return name, repr(tuple(types)).replace("bool", "boolean")


def place_of(key: Key) -> int:
    """Of the lock on a kernel."""
    return int.from_bytes(hashlib.sha256(" ".join(key).encode()).digest()[:5], "big") + SLOTS.stop


class Team:
    """The processes that share a cache, as one of them sees them."""

    def __init__(self, folder: Path) -> None:
        self.kernels: dict[str, Any] = {}  # Numba's dispatchers, by name
        self.most_helpers = min(len(SLOTS), config.NUMBA_NUM_THREADS)
        self._folder = folder
        self._locks = os.open(folder / "locks", os.O_RDWR | os.O_CREAT, 0o600)  # to close any such would free all locks
        self._compiling: list[int] = []  # places of the locks of kernels, from callers to callees
        self._needed: list[tuple[str, Any]] = []
        self._ahead: dict[Key, float] = {}  # what helpers were told to compile, with its seconds
        self._helpers: dict[int, subprocess.Popen[bytes]] = {}  # by their slots
        self._since = 0.0
        self._told = False

    def take(self, place: int, wait: bool = False) -> bool:
        """Whether a lock is this process's now, rather than another's."""
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, place)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def free(self, place: int) -> None:
        """Leave a lock to others."""
        fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, place)

    def compile(self, dispatcher: Any, types: Any) -> Any:
        """Numba's ``dispatcher.compile(types)``, which calls ``load``, and leaves no lock behind."""
        with global_compiler_lock:
            outer = len(self._compiling)
            try:
                return type(dispatcher).compile(dispatcher, types)
            finally:
                for place in self._compiling[outer:]:
                    self.free(place)
                del self._compiling[outer:]

    def load(self, name: str, types: Any, read: Callable[[], Any], holds: Callable[[], bool]) -> Any:
        """A kernel that is in the cache, now or when others have compiled it; None: this process is to compile it.

        ``read`` gives it or None, ``holds`` is quicker.
        """
        if not self._compiling:
            self._needed.append((name, types))
        if (found := read()) is not None:
            return found
        key = key_of(name, types)
        self._plan()
        if key in self._ahead:
            self._send({key: URGENT})
        self._wait(key, holds)
        self._compiling.append(place_of(key))
        return read()  # it may have come since the last look

    def _wait(self, key: Key, holds: Callable[[], bool]) -> None:
        """Until a kernel is in the cache, or this process has the lock on it and is to compile it."""
        started, bar = time.monotonic(), None
        with contextlib.ExitStack() as shown:
            for look in itertools.count():
                waited = time.monotonic() - started
                coming = key in self._ahead and any(map(self._works, self._helpers))
                if holds() or waited > PATIENCE or (not coming and self.take(place_of(key))):
                    return
                if look % 10 == 9 and coming:
                    bar = self._show(bar, waited, shown)
                time.sleep(0.03)

    def _works(self, slot: int) -> bool:
        """Whether a helper lives, and has begun: it has its slot."""
        alive = self._helpers[slot].poll() is None
        if alive and not self.take(slot):
            return True
        self.free(slot)
        return False

    def _cached(self, key: Key) -> bool:
        kernel = self.kernels[key[0]]
        return bool(kernel._cache.holds(normalize_signature(key[1])[0], kernel.targetctx))

    def _plan(self) -> None:
        """Set helpers to work on what this program will need, as far as it is known."""
        known = known_kernels()
        used = [known[key].programs for key in itertools.starmap(key_of, self._needed) if key in known]
        programs = frozenset.intersection(*used) if used else frozenset()
        if self.most_helpers < 2 or not programs or not sys.executable or getattr(sys, "frozen", False):
            return
        wanted = [key for key in known if programs <= known[key].programs and key not in self._ahead]
        new = {key: known[key].seconds for key in wanted if not self._cached(key)}
        if sum(new.values()) > 1:
            self._ahead.update(new)
            self._start()
            self._send(new)

    def _start(self) -> None:
        """Start helpers, if none is left, for the slots that are vacant."""
        if all(helper.poll() is not None for helper in self._helpers.values()):
            self._since = time.monotonic()
            vacant = [slot for slot in SLOTS[: self.most_helpers] if self.take(slot)]
            for slot in vacant:
                self.free(slot)
            self._helpers = {slot: start_helper(self._folder, slot) for slot in vacant}

    def _send(self, work: dict[Key, float]) -> None:
        """Tell the helpers what to compile; what takes most seconds they do first, so that none is busy much longer."""
        lines = "".join(f"{seconds} {name} {types}\n" for (name, types), seconds in work.items())
        for helper in self._helpers.values():
            assert helper.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has just ended
                helper.stdin.write(lines.encode())

    def _show(self, bar: Any, waited: float, shown: contextlib.ExitStack) -> Any:
        """A bar, new or moved, if there is more than a second to wait; where there is no terminal, one line in all."""
        from tqdm import tqdm  # when first used: "import minigrad" is shorter without

        left = [seconds for key, seconds in self._ahead.items() if not self._cached(key)]
        done, passed = sum(self._ahead.values()) - sum(left), time.monotonic() - self._since
        seconds = sum(left) * (passed / done if done > 1 else 1 / len(self._helpers))
        if bar is None and seconds > 1:
            bar = shown.enter_context(tqdm(bar_format=BAR, leave=False, disable=None, dynamic_ncols=True))
        if bar is not None and not bar.disable:
            bar.total, bar.n = len(self._ahead), len(self._ahead) - len(left)
            bar.set_postfix_str(f"{seconds:.0f} s left")
        elif waited > SOON and not self._told:
            self._told = True
            print(f"compiling {len(left)} CPU kernels, for this and later runs: {seconds:.0f} s", file=sys.stderr)
        return bar


def start_helper(folder: Path, slot: int) -> subprocess.Popen[bytes]:
    """A process that compiles what it reads, until there is no more or this one ends."""
    environment = {**os.environ, "MINIGRAD_CACHE_DIR": str(folder.parent), "PYTHONSAFEPATH": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
    helper = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import help_others; help_others({slot})"],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the program, which may go on
    )
    atexit.register(end, helper)
    return helper


def end(helper: subprocess.Popen[bytes]) -> None:
    """What a killed helper leaves is as if it had not begun."""
    helper.kill()
    helper.wait()
    assert helper.stdin is not None
    helper.stdin.close()


def help_others(slot: int) -> None:
    """The life of a helper. It skips what is being compiled already."""
    from .jit import TEAM

    work: queue.PriorityQueue[tuple[float, str, str]] = queue.PriorityQueue()

    def read() -> None:
        for line in sys.stdin:
            seconds, name, types = line.strip().split(" ", 2)
            work.put((-float(seconds), name, types))
        os._exit(0)  # the process that it works for has ended

    threading.Thread(target=read, daemon=True).start()
    TEAM.most_helpers = 0
    TEAM.take(slot, wait=True)
    with contextlib.suppress(queue.Empty):
        while True:
            _, name, types = work.get(timeout=IDLE)
            if TEAM.take(place_of((name, types))):
                TEAM.kernels[name].compile(normalize_signature(types)[0])
                TEAM.free(place_of((name, types)))
