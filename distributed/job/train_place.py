"""DistributedTrainConfig: this process's place in a distributed run (entrenar's struct of the name)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from minigrad.errors import check_int

from ..comm.communicator import Communicator
from ..comm.deadlines import DEFAULT_TIMEOUT, RENDEZVOUS_TIMEOUT
from ..comm.launchers import Place, discover_place
from .rendezvous import init_process_group

BACKENDS = ("cpu", "cuda")
ROLES = ("coordinator", "worker")


@dataclass(frozen=True)
class DistributedTrainConfig:
    """Who this process is and how it reaches the others. The names are entrenar's.

    world_size:       number of ranks, at least 1
    rank:             this one's number, 0 to world_size - 1
    local_rank:       its number on its machine, which is that of its GPU; None: what the launcher says
    role:             ``coordinator`` is rank 0, ``worker`` every other rank; None: the one that follows from the rank
    coordinator_addr: ``HOST:PORT`` where ranks on GPUs meet that no launcher of MPI has started; None: the launcher's,
                      or MASTER_ADDR and MASTER_PORT
    backend:          ``cpu`` is MPI (or this process alone), ``cuda`` NCCL

    Raises ValueError for every value that is wrong or has no meaning with the others: nothing falls back in silence.
    """

    world_size: int
    rank: int = 0
    local_rank: int | None = None
    role: str | None = None
    coordinator_addr: str | None = None
    backend: str = "cpu"

    def __post_init__(self) -> None:
        check_int("world_size", self.world_size, 1)
        check_int("rank", self.rank, 0, self.world_size - 1)
        if self.local_rank is not None:
            check_int("local_rank", self.local_rank, 0, self.world_size - 1)
        if self.backend not in BACKENDS:
            raise ValueError(
                f"backend is {self.backend!r}, expected one of {', '.join(BACKENDS)} (there is no 'auto', which would "
                "hide that a GPU is missing)"
            )
        if self.role is not None and self.role not in ROLES:
            raise ValueError(f"role is {self.role!r}, expected one of {', '.join(ROLES)}, or none")
        expected = ROLES[min(self.rank, 1)]
        if self.role not in (None, expected):
            raise ValueError(f"role is {self.role!r}, but rank {self.rank} is the {expected}: rank 0 coordinates")
        if self.coordinator_addr is not None:
            parse_address(self.coordinator_addr)
            if self.backend != "cuda":
                raise ValueError(
                    f"coordinator_addr {self.coordinator_addr!r} is for backend 'cuda'. With backend {self.backend!r} "
                    "the ranks meet through MPI's launcher: leave the address out"
                )
            if self.world_size == 1:
                raise ValueError(
                    f"coordinator_addr {self.coordinator_addr!r}: one rank meets nobody; leave the address out"
                )

    @property
    def is_coordinator(self) -> bool:
        """Whether this is rank 0, which writes logs and checkpoints."""
        return self.rank == 0

    def check_place(self, place: Place) -> None:
        """Raise ValueError if a launcher has said anything else (``discover_place``)."""
        if place.source == "single":
            if self.world_size > 1 and self.backend != "cuda":
                raise ValueError(
                    f"world_size is {self.world_size}, but nothing launched this process: start the ranks with "
                    f"python -m minigrad.distributed.launch -n {self.world_size}"
                )
            return
        for name, mine, said in (
            ("world_size", self.world_size, place.world_size),
            ("rank", self.rank, place.rank),
            ("local_rank", self.local_rank, place.local_rank),
        ):
            if mine is not None and said is not None and mine != said:
                raise ValueError(f"{name} is {mine}, but {place.source} says {said}: leave it out, or start it so")

    def connect(
        self, *, timeout: float = DEFAULT_TIMEOUT, rendezvous_timeout: float = RENDEZVOUS_TIMEOUT
    ) -> Communicator:
        """This rank's communicator, by ``init_process_group``. Raises ValueError if a launcher contradicts, and
        RendezvousError for ranks that are missing."""
        place = discover_place()
        self.check_place(place)
        host, port = (None, None) if self.coordinator_addr is None else parse_address(self.coordinator_addr)
        named = place.source == "single" and self.world_size > 1
        return init_process_group(
            "nccl" if self.backend == "cuda" else None,
            rank=self.rank if named else None,
            world_size=self.world_size if named else None,
            local_rank=self.local_rank,
            master_addr=host,
            master_port=port,
            rendezvous_timeout=rendezvous_timeout,
            timeout=timeout,
        )


def parse_address(address: str) -> tuple[str, int]:
    """``HOST:PORT`` as its two parts; an IPv6 host stands in brackets. ValueError for anything else."""
    found = (
        re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", address) if type(address) is str else None
    )
    if found is None or not 0 < int(found[2]) < 2**16:
        raise ValueError(
            f"the coordinator's address is {address!r}, expected HOST:PORT with a port from 1 to 65535, such as "
            "node1:29500 or [::1]:29500"
        )
    return found[1].strip("[]"), int(found[2])
