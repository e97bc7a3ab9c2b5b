"""The kernels that a program is about to need are compiled by several processes at once, into the disk cache.

``known_kernels.txt`` lists the kernels that the first steps of some programs need; benchmarks/known_kernels.py recorded
it. A process that misses one of them may be each of the programs that need all that it has needed so far. What these
programs have in common it lets *helpers* compile, a process for each core. Once they are ready, it waits for what they
compile, and shows how far they are.

Whoever compiles a kernel has a lock on it, and everybody else waits for the result: helpers, ranks, pytest's workers.
The locks are bytes of one file, which the system frees when a process ends. A cache has at most as many helpers as
threads, and they end with their work or with the process that they work for. A wrong guess costs only their time.
Which code runs never depends on them: what no helper compiles, a process compiles itself, from the same sources.
"""

import atexit
import contextlib
import errno
import functools
import hashlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: no locks, so no helpers
    fcntl = None  # type: ignore[assignment]

from numba import config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.sigutils import normalize_signature

IDLE = 2.0  # seconds without work, after which a helper ends
SOON = 3.0  # seconds of work, of which a line says at once why it takes long
PATIENCE = 120.0  # seconds to wait for another process, which may have been stopped
URGENT = 1e6  # in place of a kernel's seconds: the program waits for it
SLOTS = range(8)  # places of the locks of helpers, which need 200 MB each
BAR = "compiling: {n_fmt} of {total_fmt} |{bar:20}| {unit}"


@functools.cache
def known_kernels() -> dict[str, tuple[frozenset[str], float]]:
    """For each kernel with its arguments' types: the programs that need it, a letter each, and its seconds."""
    text = Path(__file__).with_name("known_kernels.txt").read_text(encoding="ascii")
    rows = [line.split(" ", 2) for line in text.splitlines()]
    return {key: (frozenset(programs), float(seconds)) for programs, seconds, key in rows}


def key_of(name: str, types: Any) -> str:
    """How the list writes a kernel and the types of its arguments."""
    return f"{name} {tuple(types)}".replace("bool", "boolean")


def place_of(key: str) -> int:
    """Of the lock on a kernel."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:5], "big") + SLOTS.stop


class Team:
    """The processes that share a cache, as one of them sees them."""

    def __init__(self, folder: Path) -> None:
        self.kernels: dict[str, Any] = {}  # Numba's dispatchers, by name
        able = sys.executable and fcntl and not getattr(sys, "frozen", False)
        self.most_helpers: int = min(len(SLOTS), config.NUMBA_NUM_THREADS) if able else 0
        self._folder = folder
        self._locks = os.open(folder / "locks", os.O_RDWR | os.O_CREAT, 0o600)  # to close any such would free all locks
        self.saving: Any = threading.Lock()  # while a kernel is written, a helper is not cut off
        self._compiling: list[int] = []  # places of the locks of kernels, from callers to callees
        self._needed: list[tuple[str, Any]] = []
        self._ahead: dict[str, float] = {}  # what helpers were told to compile, with its seconds
        self._helpers: dict[int, subprocess.Popen[bytes]] = {}  # by their slots
        self._since, self._told = 0.0, False

    def take(self, place: int, wait: bool = False) -> bool:
        """Whether a lock is this process's now, rather than another's; it is where the system has no such locks."""
        try:
            if fcntl is not None:
                fcntl.lockf(self._locks, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, place)
        except OSError as error:
            return error.errno not in (errno.EAGAIN, errno.EACCES)
        return True

    def free(self, place: int) -> None:
        """Leave a lock to others."""
        with contextlib.suppress(OSError):  # where there are none
            if fcntl is not None:
                fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, place)

    def compile(self, dispatcher: Any, types: Any) -> Any:
        """Numba's ``dispatcher.compile(types)``, which calls ``load``, and leaves no lock behind."""
        with global_compiler_lock:
            outer = len(self._compiling)
            try:
                return type(dispatcher).compile(dispatcher, types)
            finally:
                while len(self._compiling) > outer:
                    self.free(self._compiling.pop())

    def load(self, name: str, types: Any, read: Callable[[], Any], holds: Callable[[], bool]) -> Any:
        """A kernel from the cache, perhaps when others have compiled it; None: this process is to compile it."""
        if not self._compiling:
            self._needed.append((name, types))
        if (found := read()) is None:
            key = key_of(name, types)
            self._plan()
            if key in self._ahead:
                self._send({key: URGENT})
            self._wait(key, holds)
            self._compiling.append(place_of(key))
            found = read()
        return found

    def _plan(self) -> None:
        """Set helpers to work on what this program will need, as far as it is known."""
        known = known_kernels()
        used = [known[key][0] for key in (key_of(*needed) for needed in self._needed) if key in known]
        programs = frozenset.intersection(*used) if used else frozenset()
        wanted = {key: seconds for key, (needed_by, seconds) in known.items() if programs <= needed_by}
        there = [key for key in wanted if key.partition(" ")[0] in self.kernels]  # the list may be older than they
        new = {key: wanted[key] for key in there if key not in self._ahead and not self._cached(key)}
        seconds = sum(new.values()) / max(1, self.most_helpers)
        if programs and seconds > SOON and not self._told:
            self._told = True
            print(f"compiling {len(new)} CPU kernels, for this and later runs: about {seconds:.0f} s", file=sys.stderr)
        if programs and self.most_helpers > 1 and sum(new.values()) > 1:
            if all(helper.poll() is not None for helper in self._helpers.values()):
                vacant = [slot for slot in SLOTS[: self.most_helpers] if self.take(slot)]
                for slot in vacant:
                    self.free(slot)
                self._helpers, self._since = {slot: self._start(slot) for slot in vacant}, time.monotonic()
            self._ahead.update(new)
            self._send(new)

    def _start(self, slot: int) -> subprocess.Popen[bytes]:
        """A process that compiles what it reads, until there is no more or this one ends."""
        path = os.pathsep.join(map(os.path.abspath, sys.path))
        # A session of its own: Ctrl-C is for the program, which may go on.
        helper = subprocess.Popen(
            [sys.executable, "-c", f"from {__package__}.jit import TEAM; TEAM.help_others({slot})"],
            bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "MINIGRAD_CACHE_DIR": str(self._folder.parent), "PYTHONPATH": path,
                 "PYTHONSAFEPATH": "1"}, start_new_session=True,
        )  # fmt: skip
        atexit.register(self._end, slot, helper)
        return helper

    def _end(self, slot: int, helper: subprocess.Popen[bytes]) -> None:
        if self.take(slot):  # it is starting: it would end by itself, but only then
            helper.kill()
        helper.__exit__(None, None, None)  # closes its pipe, at which it ends, and waits

    def find(self, key: str) -> tuple[Any, Any]:
        """The dispatcher and the types that a line of the list names."""
        name, _, types = key.partition(" ")
        return self.kernels[name], normalize_signature(types)[0]

    def _cached(self, key: str) -> bool:
        kernel, types = self.find(key)
        return bool(kernel._cache.holds(types, kernel.targetctx))

    def _send(self, work: dict[str, float]) -> None:
        lines = "".join(f"{seconds} {key}\n" for key, seconds in work.items())
        for process in self._helpers.values():
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has just ended
                process.stdin.write(lines.encode())

    def _works(self, slot: int) -> bool:
        """Whether a helper lives and has begun, which is when it takes its slot."""
        vacant = self._helpers[slot].poll() is not None or self.take(slot)
        if vacant:
            self.free(slot)
        return not vacant

    def _wait(self, key: str, holds: Callable[[], bool]) -> None:
        """Until a kernel is in the cache, or this process has the lock on it and is to compile it."""
        began, bar, next_look = time.monotonic(), None, 0.5
        while not holds() and (waited := time.monotonic() - began) < PATIENCE:
            coming = key in self._ahead and any(map(self._works, self._helpers))
            if not coming and self.take(place_of(key)):
                break
            if coming and waited > next_look:
                bar, next_look = self._show(bar), waited + 0.25
            time.sleep(0.03)
        if bar is not None:
            bar.close()

    def _show(self, bar: Any) -> Any:
        """A bar, new or moved, if there is more than a second to wait; none where there is no terminal."""
        from tqdm import tqdm  # when first used: "import minigrad" is shorter without

        left = [seconds for key, seconds in self._ahead.items() if not self._cached(key)]
        done, passed = sum(self._ahead.values()) - sum(left), time.monotonic() - self._since
        seconds = sum(left) * (passed / done if done > 1 else 1 / len(self._helpers))
        if bar is None and seconds > 1:
            bar = tqdm(total=len(self._ahead), unit="", bar_format=BAR, leave=False, disable=None, dynamic_ncols=True)
        if bar is not None:
            bar.total, bar.n = len(self._ahead), len(self._ahead) - len(left)
            bar.unit = f"{seconds:.0f} s left"
            bar.refresh()
        return bar

    def help_others(self, slot: int) -> None:
        """The life of a helper. It skips what is being compiled already, and begins with what takes longest."""
        work: queue.PriorityQueue[tuple[float, str]] = queue.PriorityQueue()

        def read() -> None:
            for line in sys.stdin:
                seconds, _, key = line.strip().partition(" ")
                work.put((-float(seconds), key))
            self.saving.acquire()
            os._exit(0)  # the process that it works for has ended

        threading.Thread(target=read, daemon=True).start()
        self.most_helpers = 0
        self.take(slot, wait=True)
        with contextlib.suppress(queue.Empty):
            while True:
                _, key = work.get(timeout=IDLE)
                if self.take(place_of(key)):
                    kernel, types = self.find(key)
                    kernel.compile(types)
                    self.free(place_of(key))
