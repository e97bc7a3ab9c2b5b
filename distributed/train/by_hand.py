"""Ranks on CPUs that were started by hand, one process each, become one job of the launcher.

Processes of MPI that are started apart cannot join each other. So they meet at the coordinator's address, rank 0's
process runs the launcher for all, and the others are its remote ends: they show what it says, pass their signals on to
it, and return its exit code. Whichever of them is gone, the job ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..comm.comm_errors import RendezvousError
from ..job.launch import GRACE, find_mpirun
from ..job.launch_job import LaunchJob, carried, handled
from ..job.rendezvous import DistributedTrainConfig, parse_address
from ..job.store import Store
from .grad_sync import difference
from .settings import SettingsError

# Of each process; the launched ranks learn their places from MPI.
OWN = [f"--training.distributed.{key}=null" for key in ("rank", "local_rank", "role", "coordinator_addr")]

ANSWER_SECONDS = 10.0  # after the grace that the ranks have, in which a process that was to end still waits for rank 0


@dataclass(eq=False)
class HandJob(LaunchJob):
    """The launcher's job in rank 0's process, which the other processes follow."""

    store: Store
    places: list[str]
    heard: set[int] = field(default_factory=set)  # ranks whose processes got a signal

    def _on_signal(self, number: int, frame: object, rank: int = 0) -> None:
        """The first signal of each process is the same wish; a second one of the same process ends all at once."""
        if self.stop is None or rank in self.heard:
            super()._on_signal(number, frame)
        self.heard.add(rank)

    def _look_around(self) -> None:
        for rank, word in self.store.hear(0):
            number = signal.Signals(int(word or signal.SIGTERM))
            what = f"got {number.name}" if word else "is gone, so the job ends"
            self._say(f"the process of rank {rank}, started by hand on {self.places[rank]}, {what}")
            self._on_signal(number, None, rank if word else -1)

    def _say(self, line: str) -> None:
        super()._say(line)
        self.store.tell(f"launch: {line}")


def run_by_hand(config: DistributedTrainConfig, settings: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Meet the other processes, train as a job of all, return its exit code.

    ``arguments`` are those of the train command; ``settings`` must be the same in all processes, and so must the
    folder, the Python and the variables (``carried``) that they were started with. Raises ModuleNotFoundError without
    mpirun, RendezvousError for ranks that are missing, and SettingsError for what differs.
    """
    if config.local_rank is not None:
        raise SettingsError("local_rank is for GPUs, or for a launcher to say; leave it out")
    mpirun, secret = find_mpirun(), os.environ.get("MINIGRAD_RENDEZVOUS_SECRET")
    alike = {**settings, "backend": config.backend, "the folder": os.getcwd(), "the Python": sys.executable}
    alike |= {f"the variable {name}": value for name, value in carried().items()}
    mine = [socket.gethostname(), _boot_id(), {key: _short(repr(value)) for key, value in alike.items()}]
    with Store(config.rank, config.world_size, *parse_address(str(config.coordinator_addr)), secret=secret) as store:
        values = store.all_gather(json.dumps(mine).encode())
        # Ranks that were started for GPUs send no JSON.
        told: list[Any] = [json.loads(v) if v.startswith(b"[") else ["", "", {"backend": "another"}] for v in values]
        places, found = [place for place, *_ in told], difference([said for *_, said in told])
        if found is not None:
            raise SettingsError(found[1])
        if len({(place, boot) for place, boot, _ in told}) > len(set(places)):
            raise SettingsError(f"several machines are called {places[0]}: MPI needs host names that differ")
        if config.rank:
            print(f"rank {config.rank} of {config.world_size}: its output is at rank 0, on {places[0]}", flush=True)
            return _follow(store, config.rank)
        hosts = [*Counter(places).items()] if len(set(places)) > 1 else []
        program = ["-m", "minigrad.distributed.train", *arguments, *OWN]
        job = HandJob(mpirun, config.world_size, hosts, None, program, None, GRACE, store, places)
        code = job.run()
        store.tell(str(code))
        while list(store.hear(0)):  # what is left unread would cut the connections before the code has arrived
            pass
        return code


def _boot_id() -> str:
    """By which machines of one name differ, where Linux tells."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text() if path.exists() else ""


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:60]}... (sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"


def _follow(store: Store, rank: int) -> int:
    """Show what rank 0's process says, and tell it of signals, until it tells the exit code."""
    signals: list[int] = []
    deadline = math.inf
    with handled(lambda number, frame: signals.append(number)):
        while time.monotonic() < deadline:
            while signals:
                store.tell(str(signals.pop(0)))
                deadline = min(deadline, time.monotonic() + GRACE + ANSWER_SECONDS)
            for _, word in store.hear(0.2):
                if word is None:
                    raise RendezvousError("the process of rank 0 is gone, and with it the job", rank=rank, ranks=[0])
                if word.isdecimal():
                    return int(word)
                with contextlib.suppress(BrokenPipeError):  # nobody reads it any more; the job goes on
                    print(word, file=sys.stderr, flush=True)
    raise RendezvousError("the process of rank 0 does not answer", rank=rank, ranks=[0])
