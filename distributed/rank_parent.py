"""The parent of one rank: mpirun starts it, it starts the program, and it tells the launcher how that ended.

mpirun reports only the end of a job, in prose, and under ULFM takes no notice of a rank that exits with an error. This
process runs by its path, without the package, so that it costs 20 ms: ``python rank_parent.py RANK_VARIABLE command``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

MARK = "\x1eminigrad rank "  # begins a report on stderr: RANK RETURNCODE (negative for a signal), or RANK VICTIM
VICTIM = "victim"  # reported by a rank that is about to fail because another one has
PR_SET_PDEATHSIG = 1


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when its parent is gone, so that no rank is left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)


def report(rank: int | str, what: int | str) -> None:
    """Tell the launcher how a rank ended, or that it is a VICTIM."""
    os.write(2, f"{MARK}{rank} {what}\n".encode())


def main(arguments: list[str]) -> int:
    """Run the command, report its end; returns its code if that is 0."""
    rank = os.environ.get(arguments[0], "?")
    die_with_parent()
    child = subprocess.Popen(arguments[1:], stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda received, frame: child.send_signal(received))
    code = child.wait()
    report(rank, code)
    if code:
        # Under ULFM mpirun tells the other ranks of a death by signal, not of an exit code.
        os.kill(os.getpid(), signal.SIGKILL)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
