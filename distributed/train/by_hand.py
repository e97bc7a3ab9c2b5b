"""Ranks on CPUs that were started by hand, one process each, become one job of the launcher.

Processes of MPI that are started apart cannot join each other. So they meet at the coordinator's address, rank 0's
process runs the launcher for all, and the others are its remote ends: they show what it says, pass their signals on to
it, and return its exit code. Whichever of them is gone, the job ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..comm.comm_errors import RendezvousError
from ..job.launch import GRACE, find_mpirun
from ..job.launch_job import LaunchJob, handled
from ..job.rendezvous import DistributedTrainConfig, parse_address
from ..job.store import Store
from .grad_sync import difference
from .settings import SettingsError

# Of each process; the launched ranks learn their places from MPI.
OWN = [f"--training.distributed.{key}=null" for key in ("rank", "local_rank", "role", "coordinator_addr")]


@dataclass(eq=False)
class HandJob(LaunchJob):
    """The launcher's job in rank 0's process, which the other processes follow."""

    store: Store
    places: list[str]

    def _look_around(self) -> None:
        for rank, word in self.store.hear(0):
            number = signal.Signals(int(word or signal.SIGTERM))
            what = f"got {number.name}" if word else "is gone, so the job ends"
            self._say(f"the process of rank {rank}, started by hand on {self.places[rank]}, {what}")
            if word or not self.stop:
                self._on_signal(number, None)

    def _say(self, line: str) -> None:
        super()._say(line)
        self.store.tell(f"launch: {line}")


def run_by_hand(config: DistributedTrainConfig, settings: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Meet the other processes, train as a job of all, return its exit code.

    ``arguments`` are those of the train command; ``settings`` must be the same in all processes, and so must the folder
    and the Python that they were started with. Raises FileNotFoundError without mpirun, RendezvousError for ranks that
    are missing, and SettingsError for settings that differ.
    """
    mpirun, secret = find_mpirun(), os.environ.get("MINIGRAD_RENDEZVOUS_SECRET")
    alike = {**settings, "backend": config.backend, "the folder": os.getcwd(), "the Python": sys.executable}
    mine = [socket.gethostname(), {key: repr(value) for key, value in alike.items()}]
    with Store(config.rank, config.world_size, *parse_address(str(config.coordinator_addr)), secret=secret) as store:
        values = store.all_gather(json.dumps(mine).encode())
        # Ranks that were started for GPUs send no JSON.
        told: list[Any] = [json.loads(v) if v.startswith(b"[") else ["", {"backend": "another"}] for v in values]
        places, found = [place for place, _ in told], difference([said for _, said in told])
        if found is not None:
            raise SettingsError(found[1])
        if config.rank:
            print(f"rank {config.rank} of {config.world_size}: its output is at rank 0, on {places[0]}", flush=True)
            return _follow(store, config.rank)
        hosts = [*Counter(places).items()] if len(set(places)) > 1 else []
        program = ["-m", "minigrad.distributed.train", *arguments, *OWN]
        job = HandJob(mpirun, config.world_size, hosts, None, program, None, GRACE, store, places)
        code = job.run()
        store.tell(str(code))
        list(store.hear(0))  # what is left unread would cut the connections before the code has arrived
        return code


def _follow(store: Store, rank: int) -> int:
    """Show what rank 0's process says, and tell it of signals, until it tells the exit code."""
    with handled(lambda number, frame: store.tell(str(number))):
        while True:
            for _, word in store.hear():
                if word is None:
                    raise RendezvousError("the process of rank 0 is gone, and with it the job", rank=rank, ranks=[0])
                if word.isdecimal():
                    return int(word)
                print(word, file=sys.stderr, flush=True)
