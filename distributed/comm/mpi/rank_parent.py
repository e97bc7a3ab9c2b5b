"""The parent of one rank: mpirun starts it, it starts the program, and it tells the launcher how that ended.

mpirun reports only the end of a job, in prose, and under ULFM takes no notice of a rank that exits with an error. This
process runs by its path, without the package, so that it costs 20 ms: ``python rank_parent.py RANK_VARIABLE command``.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

MARK = "\x1eminigrad rank "  # begins a report on stderr: RANK RETURNCODE (negative for a signal), or RANK and a word
STARTED = "started"  # its program runs, and signals reach it
JOINED = "joined"  # it has asked for a communicator
MET = "met"  # it has one
APART = "apart"  # it got an error instead
DONE = "done"  # its program has ended well, and it waits for the others to end
VICTIM = "victim"  # it is about to fail because another one has
WORDS = (STARTED, JOINED, MET, APART, DONE, VICTIM)
PR_SET_PDEATHSIG = 1


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when its parent is gone, so that no rank is left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)


def report(rank: int | str, what: int | str) -> None:
    """Tell the launcher how a rank ended, or one of the words above."""
    os.write(2, f"{MARK}{rank} {what}\n".encode())


def tell(word: str) -> None:
    """In a rank: tell the launcher, if there is one, one of the words above."""
    if "MINIGRAD_LAUNCH" in os.environ:
        report(os.environ.get("OMPI_COMM_WORLD_RANK", "?"), word)


@contextlib.contextmanager
def joining() -> Iterator[None]:
    """Around the making of a communicator: tell the launcher of the begin and of how it ended."""
    tell(JOINED)
    try:
        yield
    except BaseException:
        tell(APART)
        raise
    tell(MET)


def carriers() -> dict[signal.Signals, signal.Signals]:
    """Signals for the program, and what they travel as: mpirun passes on SIGUSR1 and SIGUSR2; others end it."""
    return {signal.SIGINT: signal.SIGUSR1, signal.SIGTERM: signal.SIGUSR2}


def start_child() -> None:
    """In the child: a process group of its own, because mpirun sends its signals to that of this process."""
    os.setpgid(0, 0)
    die_with_parent()


def main(arguments: list[str]) -> int:
    """Run the command, report its end; returns its code if that is 0."""
    rank = os.environ.get(arguments[0], "?")
    die_with_parent()
    child = subprocess.Popen(arguments[1:], stdin=subprocess.DEVNULL, preexec_fn=start_child)

    def end(number: int, frame: object) -> None:  # mpirun ends the job: also what the program has started
        if child.returncode is None:
            kill_group(child.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    asked = {carrier: number for number, carrier in carriers().items()}
    for carrier in asked:
        signal.signal(carrier, lambda received, frame: child.send_signal(asked[signal.Signals(received)]))
    report(rank, STARTED)
    code = child.wait()
    report(rank, code)
    if code:
        kill_group(child.pid, signal.SIGKILL)
        # Under ULFM mpirun tells the other ranks of a death by signal, not of an exit code.
        os.kill(os.getpid(), signal.SIGKILL)
    return code


def kill_group(group: int, number: int) -> None:
    """Send a signal to what is left of a process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
