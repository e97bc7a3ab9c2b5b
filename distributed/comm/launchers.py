"""How a process learns its rank: what its launcher tells it in environment variables.

``discover_place`` reads those of torchrun (and of all that imitate it: RANK, WORLD_SIZE), Open MPI, other MPIs (PMI,
PMIx) and Slurm. Half of a statement, a contradiction or nonsense is an error: a job of eight ranks must not run as
eight jobs of one.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .comm_errors import RendezvousError

RESTARTS = "MINIGRAD_RESTART"


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

    def error(self, reason: str, ranks: Sequence[int] = ()) -> RendezvousError:
        """The error of this rank; ``ranks`` are to blame."""
        return RendezvousError(reason, rank=self.rank, ranks=ranks)


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
    rank: int | None = None, world_size: int | None = None, local_rank: int | None = None,
    master_addr: str | None = None, master_port: int | None = None, *, environ: Mapping[str, str] = os.environ,
) -> Place:  # fmt: skip
    """Who this process is: from the arguments, else from the first launcher that speaks, else a job of its own.

    The order is torchrun, Open MPI, PMI, PMIx, Slurm: a launcher that another one started is the nearer one (``srun
    torchrun``). Slurm counts only inside a job step, because a batch script and ``salloc``'s shell have its variables
    too. ``rank`` and ``world_size`` come together. MASTER_ADDR and MASTER_PORT are read where the arguments do not say;
    under torchrun, whose agent occupies MASTER_PORT, the next port is taken.

    Raises RendezvousError, naming the variables, for a rank outside the world and for what is no number. It is raised,
    too, for a rank without a world size or the other way round.
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
    own, size = _first([launcher.rank], environ), _first(launcher.size, environ)
    if own is None or size is None:
        there = next(name for name in (launcher.rank, *launcher.size, *launcher.local) if name in environ)
        missing = launcher.rank if own is None else " or ".join(launcher.size)
        both = "who launched this process should set both (or pass rank= and world_size=)"
        raise RendezvousError(f"{there}={environ[there]} is set, but {missing} is not: {both}")
    _check(*own, *size)
    local = _first(launcher.local, environ)
    if local_rank is None and local is not None:
        local_rank = local[1]
        if local_rank >= size[1]:
            raise RendezvousError(f"{local[0]}={local_rank} contradicts {size[0]}={size[1]}")
    mpi = _mpi_says(own[1], size[1], environ)
    return Place(own[1], size[1], local_rank, launcher.source, mpi, address, port)


def launch_command(ranks: int) -> str:
    """What starts the program of this process on so many ranks, with MPI."""
    module = getattr(sys.modules["__main__"], "__spec__", None)  # of python -m
    program = "script.py" if sys.argv[0] in ("", "-c") else sys.argv[0]
    script = ["-m", module.name.removesuffix(".__main__")] if module else [program]
    return f"python -m minigrad.distributed.launch -n {ranks} {shlex.join([*script, *sys.argv[1:]])}"


def restarts(environ: Mapping[str, str] = os.environ) -> int | None:
    """How often the launcher has started this job again since it lost a rank; None where it would not
    (``--max-restarts``).

    A program that finds more than 0 goes on from its newest checkpoint, or begins anew if there is none yet.
    """
    return _number(RESTARTS, environ) if RESTARTS in environ else None


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


def _first(names: Sequence[str], environ: Mapping[str, str]) -> tuple[str, int] | None:
    """The first of these variables that is set, and its number."""
    name = next((name for name in names if name in environ), None)
    return None if name is None else (name, _number(name, environ))


def _number(name: str, environ: Mapping[str, str]) -> int:
    text = environ[name]
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


def check_alone(place: Place, environ: Mapping[str, str] = os.environ) -> None:
    """Raise RendezvousError if the place is a world of one, and any launcher started more ranks than that."""
    said = "world_size=1 was passed" if place.source == "arguments" else f"{place.source} speaks of one rank"
    for launcher in _launchers(environ):
        size = _first(launcher.size, environ) if _speaks(launcher, environ) else None
        if size is not None and size[1] > 1:
            apart = f"{launcher.source} started {size[1]} ranks ({size[0]}); each would train a model of its own"
            unset = "unset the variables of the launcher that did not start this process"
            remedy = f"Leave rank and world_size out, {unset}, or build NoOpCommunicator() yourself"
            raise RendezvousError(f"{said}, but {apart}. {remedy}")
