"""How ranks become a communicator: ``init_process_group`` (PyTorch's name), and DistributedTrainConfig, a process's
place in a run (entrenar's struct of the name)."""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from minigrad.device import CPU, Device
from minigrad.errors import check_int

from ..comm.calls import DEFAULT_TIMEOUT, RENDEZVOUS_TIMEOUT, check_seconds, remaining
from ..comm.communicator import Communicator, NoOpCommunicator, all_gather_bytes
from ..comm.launchers import Place, check_alone, discover_place, launch_command
from ..comm.mpi.rank_parent import joining
from .store import Store

BACKENDS = ("noop", "mpi", "nccl")
KINDS = ("cpu", "cuda")
ROLES = ("coordinator", "worker")
DEFAULT_PORT = 29500  # torchrun's

Exchange = Callable[[bytes], list[bytes]]


@joining()
def init_process_group(
    backend: str | None = None, *, rank: int | None = None, world_size: int | None = None,
    local_rank: int | None = None, master_addr: str | None = None, master_port: int | None = None,
    secret: str | bytes | None = None, device: str | Device | None = None,
    rendezvous_timeout: float = RENDEZVOUS_TIMEOUT, timeout: float = DEFAULT_TIMEOUT,
) -> Communicator:  # fmt: skip
    """The communicator of this job; every rank calls it once.

    ``backend`` None chooses: a job of one rank gets NoOpCommunicator, ``device="cuda"`` NCCL, anything else MPI.
    ``device`` defaults to the CPU, and for ``"nccl"`` to CUDA. The text ``"cuda"`` means the GPU of number
    ``local_rank``, or the only one where the launcher shows each process one; ``"cuda:1"`` and a Device mean just that.

    MPI has to be started by its launcher, ``python -m minigrad.distributed.launch``, mpirun or srun. NCCL needs no MPI:
    its ranks meet at ``master_addr``:``master_port`` (default MASTER_ADDR, MASTER_PORT; see ``discover_place``) and
    prove to each other that they know ``secret`` (default: MINIGRAD_RENDEZVOUS_SECRET; see Store). Where no address is
    known and an MPI launcher started the job, they meet through MPI.

    ``rendezvous_timeout`` is one deadline in seconds until all ranks have met; ``timeout`` is that of each operation.

    Raises RendezvousError for variables that make no sense (``discover_place``) and for a backend that does not fit
    them. It is raised, too, for ranks that are missing or have no usable GPU; one rank alone raises DeviceError for
    such a GPU. A launcher that speaks of several ranks never leads to NoOpCommunicator.
    """
    deadline = time.monotonic() + check_seconds("rendezvous_timeout", rendezvous_timeout)
    check_seconds("timeout", timeout)
    place = discover_place(rank, world_size, local_rank, master_addr, master_port)
    if place.world_size == 1:
        check_alone(place)
    backend = _backend(backend, place, device)
    if backend == "noop":
        comm = NoOpCommunicator(timeout, device or CPU)
        comm.device.activate()
        return comm
    if backend == "mpi":
        return _mpi(timeout, deadline, place)
    chosen = _gpu(device, place)
    if place.world_size == 1:
        return _nccl(lambda value: [value], place, chosen, deadline, timeout)
    if place.master_addr is not None:
        if secret is None:
            secret = os.environ.get("MINIGRAD_RENDEZVOUS_SECRET")
        meeting = (place.rank, place.world_size, place.master_addr, place.master_port or DEFAULT_PORT)
        with Store(*meeting, secret=secret, timeout=remaining(deadline) or 0.001) as store:
            return _nccl(store.all_gather, place, chosen, deadline, timeout)
    if not place.mpi:
        remedy = "set MASTER_ADDR (and MASTER_PORT) on all ranks, or pass master_addr= and master_port="
        raise place.error(f"{place.world_size} NCCL ranks have no place to meet: {remedy}, to the host of rank 0")
    with _mpi(remaining(deadline) or 0.001, deadline, place) as mpi:
        return _nccl(lambda value: all_gather_bytes(mpi, value), place, chosen, deadline, timeout)


def _backend(backend: str | None, place: Place, device: str | Device | None) -> str:
    """The backend's name, checked against the place and the device."""
    kind = None if device is None else Device(device).type
    if backend is None:
        backend = "noop" if place.world_size == 1 else "nccl" if kind == "cuda" else "mpi"
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}, expected one of {', '.join(map(repr, BACKENDS))}, or None to choose")
    if backend == "noop" and place.world_size > 1:
        raise place.error(f"backend 'noop' is for one rank, but {place.source} speaks of {place.world_size}")
    if backend == "mpi" and kind == "cuda":
        raise place.error("backend 'mpi' serves the CPU; for device 'cuda' take 'nccl'")
    if backend == "nccl" and kind == "cpu":
        raise place.error("backend 'nccl' serves CUDA devices; for device 'cpu' take 'mpi'")
    if backend == "mpi" and place.world_size > 1 and not place.mpi:
        ranks = f"{place.source} speaks of {place.world_size} ranks on the CPU"
        need = "These need MPI, which processes that are started apart cannot join"
        raise place.error(f"{ranks}. {need}: start the job with {launch_command(place.world_size)}")
    return backend


def _gpu(device: str | Device | None, place: Place) -> Device:
    """The GPU of this rank."""
    if device is not None and (isinstance(device, Device) or device != "cuda"):  # Device("cuda:0") == "cuda"
        return Device(device)
    from minigrad.cuda_kernels import driver

    try:
        count = driver().devices
    except OSError as error:
        raise place.error(f"backend 'nccl' needs an NVIDIA GPU: {error}") from error
    if count == 1 or place.world_size == 1:
        return Device("cuda:0")
    if place.local_rank is None:
        raise place.error(f"which of the {count} GPUs is this rank's? Set LOCAL_RANK, or pass device='cuda:N'")
    if place.local_rank >= count:
        raise place.error(f"this is process {place.local_rank} (from 0) of its machine, which shows {count} GPUs")
    return Device(f"cuda:{place.local_rank}")


def _mpi(timeout: float, deadline: float, place: Place) -> Communicator:
    """MPI's communicator, if it is of the world that the launcher told."""
    from ..comm.mpi.mpi import MpiCommunicator

    communicator = MpiCommunicator(timeout=timeout, rendezvous_timeout=remaining(deadline) or 0.001)
    found = (communicator.rank, communicator.world_size)
    if place.source != "single" and found != (place.rank, place.world_size):
        communicator.close()
        said = f"{place.source} says rank {place.rank} of {place.world_size}, MPI says rank {found[0]} of {found[1]}"
        why = "The launcher belongs to another MPI than the one that Python loads"
        raise place.error(f"{said}. {why}; start the job with {launch_command(place.world_size)}")
    return communicator


def _nccl(exchange: Exchange, place: Place, device: Device, deadline: float, timeout: float) -> Communicator:
    """Tell each other whether all can go on, get rank 0's identifier, and build the communicator.

    Each value begins with a byte that says whether the rank is ready, so that one without a GPU strands nobody.
    """
    from ..comm.nccl.nccl import NcclCommunicator, check_device, unique_id

    try:
        check_device(device)
        value = b"+" + (unique_id() if place.rank == 0 else b"")
    except Exception as error:
        value = b"-" + f"{device}: {type(error).__name__}: {error}".encode()[:512]
    values = exchange(value)
    failed = {r: v[1:].decode(errors="replace") for r, v in enumerate(values) if not v.startswith(b"+")}
    if failed:
        reasons = "; ".join(f"rank {r} on {text}" for r, text in list(failed.items())[:8])
        raise place.error(f"NCCL cannot start: {reasons}", list(failed))
    left, unique = remaining(deadline) or 0.001, values[0][1:]
    return NcclCommunicator(place.world_size, place.rank, device, unique, timeout=timeout, rendezvous_timeout=left)


@dataclass(frozen=True)
class DistributedTrainConfig:
    """Who this process is and how it reaches the others. The names are entrenar's.

    world_size:       number of ranks, at least 1
    rank:             this one's number, 0 to world_size - 1
    local_rank:       its number on its machine, which is that of its GPU; None: what the launcher says
    role:             ``coordinator`` is rank 0, ``worker`` every other rank; None: the one that follows from the rank
    coordinator_addr: ``HOST:PORT`` where ranks meet that no launcher of MPI has started; None: the launcher's, or for
                      GPUs MASTER_ADDR and MASTER_PORT
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
        if self.backend not in KINDS:
            known = f"{', '.join(KINDS)} (there is no 'auto', which would hide that a GPU is missing)"
            raise ValueError(f"backend is {self.backend!r}, expected one of {known}")
        expected = ROLES[min(self.rank, 1)]
        if self.role not in (None, expected):
            known = ", ".join(ROLES)
            raise ValueError(f"role is {self.role!r}, expected one of {known}; rank {self.rank} is the {expected}")
        if self.coordinator_addr is not None:
            parse_address(self.coordinator_addr)
            if self.world_size == 1:
                raise ValueError(f"coordinator_addr {self.coordinator_addr!r}: one rank meets nobody; leave it out")

    @property
    def is_coordinator(self) -> bool:
        """Whether this is rank 0, which writes logs and checkpoints."""
        return self.rank == 0

    @property
    def by_hand(self) -> bool:
        """Whether these are ranks on CPUs that meet at an address: nothing has launched them."""
        return self.coordinator_addr is not None and self.backend == "cpu"

    def check_place(self, place: Place) -> None:
        """Raise ValueError if a launcher has said anything else (``discover_place``)."""
        if place.source == "single":
            if self.world_size > 1 and self.backend != "cuda" and not self.by_hand:
                start = f"python -m minigrad.distributed.launch -n {self.world_size}"
                remedy = f"start the ranks with {start}, or each with its --rank and one --coordinator HOST:PORT"
                raise ValueError(f"world_size is {self.world_size}, but nothing launched this process: {remedy}")
            return
        if self.by_hand:
            use = "for backend 'cuda', or where nothing launched the ranks"
            here = f"With backend 'cpu' those of {place.source} meet through MPI's launcher: leave the address out"
            raise ValueError(f"coordinator_addr {self.coordinator_addr!r} is {use}. {here}")
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
    text = address if type(address) is str else ""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", text)
    if found is None or not 0 < int(found[2]) < 2**16:
        expected = "HOST:PORT with a port from 1 to 65535, such as node1:29500 or [::1]:29500"
        raise ValueError(f"the coordinator's address is {address!r}, expected {expected}")
    return found[1].strip("[]"), int(found[2])
