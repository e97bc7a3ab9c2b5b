"""How a process learns its rank, and how ranks become a communicator: ``init_process_group``, PyTorch's name.

A launcher tells each process in environment variables who it is. ``discover_place`` reads those of torchrun (and of
all that imitate it: RANK, WORLD_SIZE), Open MPI, other MPIs (PMI, PMIx) and Slurm. Half of a statement, a contradiction
or nonsense is an error: a job of eight ranks must not run as eight jobs of one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minigrad.device import Device

from .comm_errors import RendezvousError
from .communicator import Communicator
from .deadlines import DEFAULT_TIMEOUT, RENDEZVOUS_TIMEOUT, check_seconds, remaining
from .grad_sync import all_gather_bytes
from .noop import NoOpCommunicator
from .rank_parent import report_joined
from .store import Store

BACKENDS = ("noop", "mpi", "nccl")
DEFAULT_PORT = 29500  # torchrun's
LAUNCH = "python -m minigrad.distributed.launch -n N script.py"

Exchange = Callable[[bytes], list[bytes]]


@dataclass(frozen=True)
class Place:
    """Where this process stands in its job.

    ``local_rank`` numbers the job's processes on this machine, None if nobody said so. ``source`` is who said it:
    ``arguments``, ``torchrun``, ``Open MPI``, ``PMI``, ``PMIx``, ``Slurm``, or ``single`` for a process that nobody
    launched. ``mpi`` tells whether a launcher that can start MPI says the same. ``master_addr`` and ``master_port``,
    where rank 0 meets the others, are None if unknown.
    """

    rank: int
    world_size: int
    local_rank: int | None
    source: str
    mpi: bool = False
    master_addr: str | None = None
    master_port: int | None = None


@dataclass(frozen=True)
class _Launcher:
    """The variables by which one kind of launcher speaks; the first name found of each counts."""

    source: str
    rank: str
    size: tuple[str, ...]
    local: tuple[str, ...]


_TORCHRUN = _Launcher("torchrun", "RANK", ("WORLD_SIZE",), ("LOCAL_RANK",))
_OPEN_MPI = _Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_LOCAL_RANK",))
_PMI = _Launcher("PMI", "PMI_RANK", ("PMI_SIZE",), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"))
_PMIX = _Launcher("PMIx", "PMIX_RANK", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",))
_SLURM = _Launcher("Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",))


def discover_place(
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> Place:
    """Who this process is: from the arguments, else from the first launcher that speaks, else a job of its own.

    The order is torchrun, Open MPI, PMI, PMIx, Slurm: a launcher that another one started is the nearer one (``srun
    torchrun``). Slurm counts only inside a job step, because a batch script and ``salloc``'s shell have its variables
    too. ``rank`` and ``world_size`` come together. MASTER_ADDR and MASTER_PORT are read where the arguments do not say;
    under torchrun, whose agent occupies MASTER_PORT, the next port is taken.

    Raises RendezvousError, naming the variables, for a rank without a world size or the other way round, for a rank
    outside the world, and for what is no number.
    """
    if (rank is None) != (world_size is None):
        raise RendezvousError(f"rank={rank!r} and world_size={world_size!r}: pass both or neither")
    speaking = [launcher for launcher in _launchers(environ) if _speaks(launcher, environ)]
    address, port = _master(master_addr, master_port, environ)
    if rank is not None and world_size is not None:
        _check("rank", rank, "world_size", world_size)
        return Place(rank, world_size, local_rank, "arguments", _mpi_says(rank, world_size, environ), address, port)
    if not speaking:
        return Place(0, 1, 0 if local_rank is None else local_rank, "single", False, address, port)
    launcher = speaking[0]
    found_rank = _number(launcher.rank, environ)
    size_name = next((name for name in launcher.size if name in environ), None)
    if size_name is None or found_rank is None:
        there, missing = launcher.rank, " or ".join(launcher.size)
        if found_rank is None:
            there, missing = next(name for name in (*launcher.size, *launcher.local) if name in environ), launcher.rank
        raise RendezvousError(
            f"{there}={environ[there]} is set, but {missing} is not: who launched this process should set both "
            "(or pass rank= and world_size=)"
        )
    found_size = _number(size_name, environ) or 0
    _check(launcher.rank, found_rank, size_name, found_size)
    for name in launcher.local:
        if local_rank is None and name in environ:
            local_rank = _number(name, environ)
            if local_rank is not None and local_rank >= found_size:
                raise RendezvousError(f"{name}={local_rank} contradicts {size_name}={found_size}")
    mpi = _mpi_says(found_rank, found_size, environ)
    return Place(found_rank, found_size, local_rank, launcher.source, mpi, address, port)


def _launchers(environ: Mapping[str, str]) -> list[_Launcher]:
    step = environ.get("SLURM_STEP_ID", "")
    # Slurm gives the batch script and other steps that are no srun numbers from 2^32 - 16 on.
    in_step = step.isdecimal() and int(step) < 2**32 - 16
    return [_TORCHRUN, _OPEN_MPI, _PMI, _PMIX] + ([_SLURM] if in_step else [])


def _speaks(launcher: _Launcher, environ: Mapping[str, str]) -> bool:
    if launcher in (_PMIX, _SLURM):  # SLURM_NTASKS alone is the wish of a job, no statement about this process
        return launcher.rank in environ
    return any(name in environ for name in (launcher.rank, *launcher.size, *launcher.local))


def _mpi_says(rank: int, world_size: int, environ: Mapping[str, str]) -> bool:
    """Whether a launcher that can start MPI says the same: below ``srun torchrun`` Slurm counts torchruns."""
    return any(
        environ.get(launcher.rank) == str(rank) and str(world_size) in [environ.get(name) for name in launcher.size]
        for launcher in _launchers(environ)
        if launcher is not _TORCHRUN
    )


def _number(name: str, environ: Mapping[str, str]) -> int | None:
    text = environ.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise RendezvousError(f"{name}={text!r} is no number >= 0")
    return int(text)


def _check(rank_name: str, rank: Any, size_name: str, world_size: Any) -> None:
    for name, value in ((rank_name, rank), (size_name, world_size)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise RendezvousError(f"{name} is {value!r}, expected an integer")
    if world_size < 1:
        raise RendezvousError(f"{size_name}={world_size}, expected at least 1")
    if not 0 <= rank < world_size:
        raise RendezvousError(f"{rank_name}={rank} contradicts {size_name}={world_size}")


def _master(address: str | None, port: int | None, environ: Mapping[str, str]) -> tuple[str | None, int | None]:
    address = environ.get("MASTER_ADDR") or None if address is None else address
    if port is None:
        port = _number("MASTER_PORT", environ) if "MASTER_PORT" in environ else None
        if port is not None and "TORCHELASTIC_RUN_ID" in environ:
            port += 1
    if port is not None and (isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 2**16):
        raise RendezvousError(f"the rendezvous port is {port!r}, expected an integer from 1 to 65535 (MASTER_PORT)")
    return address, port


def init_process_group(
    backend: str | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    secret: str | bytes | None = None,
    device: str | Device | None = None,
    rendezvous_timeout: float = RENDEZVOUS_TIMEOUT,
    timeout: float = DEFAULT_TIMEOUT,
) -> Communicator:
    """The communicator of this job; every rank calls it once.

    ``backend`` None chooses: a job of one rank gets NoOpCommunicator, ``device="cuda"`` NCCL, anything else MPI.
    ``device`` defaults to the CPU, and for ``"nccl"`` to CUDA. The text ``"cuda"`` means the GPU of number
    ``local_rank``, or the only one where the launcher shows each process one; ``"cuda:1"`` and a Device mean just that.

    MPI has to be started by its launcher, ``python -m minigrad.distributed.launch``, mpirun or srun. NCCL needs no MPI:
    its ranks meet at ``master_addr``:``master_port`` (default MASTER_ADDR, MASTER_PORT; see ``discover_place``) and
    prove to each other that they know ``secret`` (default: MINIGRAD_RENDEZVOUS_SECRET; see Store). Where no address is
    known and an MPI launcher started the job, they meet through MPI.

    ``rendezvous_timeout`` is one deadline in seconds until all ranks have met; ``timeout`` is that of each operation.

    Raises RendezvousError for variables that make no sense (``discover_place``), for a backend that does not fit them,
    and for ranks that are missing or have no usable GPU. A launcher that speaks of several ranks never leads to
    NoOpCommunicator.
    """
    deadline = time.monotonic() + check_seconds("rendezvous_timeout", rendezvous_timeout)
    check_seconds("timeout", timeout)
    report_joined()
    place = discover_place(rank, world_size, local_rank, master_addr, master_port)
    if place.world_size == 1:
        _check_alone(place, os.environ)
    backend = _backend(backend, place, device)
    if backend == "noop":
        return NoOpCommunicator(timeout)
    if backend == "mpi":
        return _agreed(_mpi(timeout, deadline), place)
    chosen = _gpu(device, place)
    if place.world_size == 1:
        return _nccl(lambda value: [value], place, chosen, deadline, timeout)
    if place.master_addr is not None or not place.mpi:
        if place.master_addr is None:
            raise RendezvousError(
                f"{place.world_size} NCCL ranks have no place to meet: set MASTER_ADDR (and MASTER_PORT) on all ranks "
                "to the host of rank 0, or pass master_addr= and master_port=",
                rank=place.rank,
            )
        if secret is None:
            secret = os.environ.get("MINIGRAD_RENDEZVOUS_SECRET")
        with Store(
            place.rank,
            place.world_size,
            place.master_addr,
            place.master_port or DEFAULT_PORT,
            secret=secret,
            timeout=remaining(deadline) or 0.001,
        ) as store:
            return _nccl(store.all_gather, place, chosen, deadline, timeout)
    with _agreed(_mpi(remaining(deadline) or 0.001, deadline), place) as mpi:
        return _nccl(lambda value: all_gather_bytes(mpi, value), place, chosen, deadline, timeout)


def _check_alone(place: Place, environ: Mapping[str, str]) -> None:
    """Raise RendezvousError if the place is a world of one, and any launcher started more ranks than that."""
    said = "world_size=1 was passed" if place.source == "arguments" else f"{place.source} speaks of one rank"
    for launcher in _launchers(environ):
        name = next((name for name in launcher.size if name in environ), None)
        if name is not None and _speaks(launcher, environ) and (_number(name, environ) or 0) > 1:
            raise RendezvousError(
                f"{said}, but {launcher.source} started {environ[name]} ranks ({name}); each would train a model of "
                "its own. Leave rank and world_size out, unset the variables of the launcher that did not start this "
                "process, or build NoOpCommunicator() yourself"
            )


def _backend(backend: str | None, place: Place, device: str | Device | None) -> str:
    """The backend's name, checked against the place and the device."""
    kind = None if device is None else Device(device).type
    if backend is None:
        backend = "noop" if place.world_size == 1 else "nccl" if kind == "cuda" else "mpi"
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}, expected one of {', '.join(map(repr, BACKENDS))}, or None to choose")
    if backend == "noop" and place.world_size > 1:
        raise RendezvousError(
            f"backend 'noop' is for one rank, but {place.source} speaks of {place.world_size}", rank=place.rank
        )
    if backend == "mpi" and kind == "cuda":
        raise RendezvousError("backend 'mpi' serves the CPU; for device 'cuda' take 'nccl'", rank=place.rank)
    if backend == "nccl" and kind == "cpu":
        raise RendezvousError("backend 'nccl' serves CUDA devices; for device 'cpu' take 'mpi'", rank=place.rank)
    if backend == "mpi" and place.world_size > 1 and not place.mpi:
        raise RendezvousError(
            f"{place.source} speaks of {place.world_size} ranks on the CPU. These need MPI, which no launcher of MPI "
            f"started here: start the job with {LAUNCH} (or mpirun, or srun)",
            rank=place.rank,
        )
    return backend


def _gpu(device: str | Device | None, place: Place) -> Device:
    """The GPU of this rank."""
    if device is not None and (isinstance(device, Device) or device != "cuda"):  # Device("cuda:0") == "cuda"
        return Device(device)
    from minigrad.cuda_kernels import driver

    try:
        count = driver().devices
    except OSError as error:
        raise RendezvousError(f"backend 'nccl' needs an NVIDIA GPU: {error}", rank=place.rank) from error
    if count == 1 or place.world_size == 1:
        return Device("cuda:0")
    if place.local_rank is None:
        raise RendezvousError(
            f"which of the {count} GPUs is this rank's? Set LOCAL_RANK, or pass local_rank= or device='cuda:N'",
            rank=place.rank,
        )
    if place.local_rank >= count:
        raise RendezvousError(
            f"this is process {place.local_rank} (from 0) of its machine, which shows {count} GPUs", rank=place.rank
        )
    return Device(f"cuda:{place.local_rank}")


def _mpi(timeout: float, deadline: float) -> Communicator:
    from .mpi import MpiCommunicator

    return MpiCommunicator(timeout=timeout, rendezvous_timeout=remaining(deadline) or 0.001)


def _agreed(communicator: Communicator, place: Place) -> Communicator:
    """The communicator, if it is of the world that the launcher told."""
    found = (communicator.rank, communicator.world_size)
    if place.source != "single" and found != (place.rank, place.world_size):
        communicator.close()
        raise RendezvousError(
            f"{place.source} says rank {place.rank} of {place.world_size}, MPI says rank {found[0]} of {found[1]}. The "
            f"launcher belongs to another MPI than the one that Python loads; start the job with {LAUNCH}",
            rank=place.rank,
        )
    return communicator


def _nccl(exchange: Exchange, place: Place, device: Device, deadline: float, timeout: float) -> Communicator:
    """Tell each other whether all can go on, get rank 0's identifier, and build the communicator.

    Each value begins with a byte that says whether the rank is ready, so that one without a GPU strands nobody.
    """
    from .nccl import NcclCommunicator, check_device, unique_id

    try:
        check_device(device)
        value = b"+" + (unique_id() if place.rank == 0 else b"")
    except Exception as error:
        value = b"-" + f"{device}: {type(error).__name__}: {error}".encode()[:512]
    values = exchange(value)
    failed = {r: v[1:].decode(errors="replace") for r, v in enumerate(values) if not v.startswith(b"+")}
    if failed:
        reasons = "; ".join(f"rank {r} on {text}" for r, text in list(failed.items())[:8])
        raise RendezvousError(f"NCCL cannot start: {reasons}", rank=place.rank, ranks=list(failed))
    return NcclCommunicator(
        place.world_size,
        place.rank,
        device,
        values[0][1:],
        timeout=timeout,
        rendezvous_timeout=remaining(deadline) or 0.001,
    )
