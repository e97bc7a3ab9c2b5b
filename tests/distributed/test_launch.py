"""The launcher: every rank's lines, the first failure's code, and nobody left behind."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from in_threads import wait_until
from ranks import alive, requires_mpi, run_ranks
from refusals import raises

from minigrad.distributed.job import launch

pytestmark = [requires_mpi, pytest.mark.long]

WHO = 'import os, sys, time\nrank = int(os.environ["OMPI_COMM_WORLD_RANK"])\n'  # ranks without MPI start fast


@pytest.mark.short
def test_lines_arguments_and_threads():
    """Whole lines with their rank before them, on the stream that they were written to; arguments pass unchanged."""
    program = WHO + (
        "for i in range(300):\n"
        "    print(rank, i, 'x' * (37 * (i % 50)), 'end')\n"
        "    if i % 10 == 0: print('err', i, file=sys.stderr)\n"
        "print(sys.argv[1:])\n"
        "print(os.environ['NUMBA_NUM_THREADS'], os.environ['OMP_NUM_THREADS'], sys.stdin.read() == '')\n"
        "sys.stdout.write('no line break')\n"
    )
    result = run_ranks(3, program, "--steps", "a b", "-n", options=("--threads-per-rank", "3"))
    assert result.returncode == 0, result.text
    for rank in range(3):
        lines = result.lines(rank)
        assert lines[:300] == [f"{rank} {i} {'x' * (37 * (i % 50))} end" for i in range(300)]
        assert lines[300:] == ["['--steps', 'a b', '-n']", "3 3 True", "no line break"]
        assert result.errors(rank).splitlines() == [f"err {i}" for i in range(0, 300, 10)]


def test_threads_that_the_user_has_set_stay():
    program = WHO + "print([os.environ[name] for name in ('NUMBA_NUM_THREADS', 'OMP_NUM_THREADS')])\n"
    cores = os.cpu_count() or 1
    result = run_ranks(2, program, env={"NUMBA_NUM_THREADS": "5", "OMP_NUM_THREADS": str(max(1, cores // 2))})
    assert result.lines(0) == [f"['5', '{max(1, cores // 2)}']"], result.text
    result = run_ranks(2, program, env={"NUMBA_NUM_THREADS": "5"}, options=("--threads-per-rank", "3"))
    assert result.lines(0) == ["['3', '3']"], result.text


def test_what_ranks_print_stops_no_output():
    """Characters that the terminal has not, and words like those of the launcher's own reports."""
    program = WHO + (
        "os.write(1, 'a \u2192 b\\n'.encode())\n"
        "os.write(2, b'\\x1eminigrad rank nobody\\n')\n"
        "print('end')\n"
    )  # fmt: skip
    result = run_ranks(2, program, env={"PYTHONIOENCODING": "latin-1:strict"}, timeout=20)
    assert result.returncode == 0, result.text
    assert result.lines(0) == result.lines(1) == ["a \\u2192 b", "end"]
    assert "minigrad rank nobody" in result.errors(0)


def test_the_job_ends_when_nobody_reads_its_output():
    """As in ``launch ... | head -1``, with ranks that would print for ever."""
    command = [sys.executable, "-m", "minigrad.distributed.launch", "-n", "2", "-m", "timeit", "-n", "1", "-r"]
    process = subprocess.Popen(
        [*command, "1000000000", "print('x' * 80)"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().endswith("xxx\n")
        process.stdout.close()
        assert process.wait(timeout=30) == 128 + signal.SIGPIPE
        assert process.stderr.read() == "launch: got SIGPIPE and ended all ranks\n"
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


FAILURES = [("sys.exit(3)", 3, "exit code 3"), ("os.abort()", 134, "killed by SIGABRT")]


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("act", "code", "words"), FAILURES)
def test_the_first_failure_is_named_and_the_rest_is_ended(act, code, words):
    program = WHO + f"if rank == 1:\n    {act}\nprint('waits')\ntime.sleep(100)\n"
    result = run_ranks(3, program, options=("--grace", "0.5"))
    assert result.returncode == code, result.text
    assert f"launch: rank 1 failed first: {words}" in result.stderr
    assert "launch: ended rank 0, 2, still running after 0.5 s" in result.stderr
    assert result.seconds < 15


def test_a_rank_at_work_has_its_grace_while_another_waits_in_vain():
    program = WHO + (
        "if rank == 1:\n    sys.exit(3)\n"
        "if rank == 2:\n    time.sleep(3)\n    print('saved')\n    sys.exit(0)\n"
        "from minigrad.distributed import MpiCommunicator\nMpiCommunicator()\n"
    )
    result = run_ranks(3, program, timeout=30)
    assert result.returncode == 3 and result.lines(2) == ["saved"], result.text
    assert "launch: ended rank 0, waiting for rank 1, 2, which cannot come" in result.stderr, result.text


def test_later_failures_do_not_hide_the_first():
    program = WHO + "time.sleep(0.2 + 0.6 * (rank != 2))\nsys.exit(10 + rank)\n"
    result = run_ranks(3, program)
    assert result.returncode == 12, result.text
    assert "rank 2 failed first: exit code 12" in result.stderr
    assert "rank 0: exit code 10" in result.stderr


def test_the_job_ends_after_its_timeout():
    result = run_ranks(2, WHO + "time.sleep(100)\n", timeout=2.0)
    assert result.returncode == launch.TIMED_OUT, result.text
    assert "ended rank 0, 1, still running after 2 s" in result.stderr
    assert result.seconds < 15


def started(
    folder: Path, program: str, *options: str, arguments=(), lines: int = 2, **how
) -> tuple[subprocess.Popen[str], list[str]]:
    """A job of two ranks that have each written their first line, and these ``lines`` in order of rank."""
    path = folder / "program.py"
    path.write_text(program)
    job = subprocess.Popen(
        [sys.executable, "-m", "minigrad.distributed.launch", "-n", "2", *options, str(path), *arguments],
        text=True, start_new_session=True, **{**dict.fromkeys(("stdout", "stderr"), subprocess.PIPE), **how},
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if job.stdout is None:
        return job, []
    return job, sorted(job.stdout.readline() for _ in range(lines))


SAVES = (
    "import signal, sys, time\n"
    "def on_term(*_): raise SystemExit(143)\n"
    "signal.signal(signal.SIGTERM, on_term)\n"
    "try:\n    print('ready')\n    time.sleep(99)\n"
    "except KeyboardInterrupt:\n    time.sleep(0.3)\n    print('interrupted')\n    raise\n"
    "finally:\n    print('saved')\n"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_to_the_launcher_reaches_every_rank(tmp_path, number):
    """``finally`` runs, and KeyboardInterrupt is raised, as without the launcher."""
    job, _ = started(tmp_path, SAVES)
    job.send_signal(number)
    out, err = job.communicate(timeout=20)
    assert job.returncode == 128 + number, err
    expected = ["interrupted"] * (number is signal.SIGINT) + ["saved"]
    for rank in range(2):
        assert re.findall(rf"^\[{rank}\] (.*)$", out, re.M) == expected, out + err
    assert f"launch: got {number.name} and passed it on; the ranks have 30 s" in err
    assert f"launch: all ranks have ended after {number.name}\n" in err
    assert "failed" not in err and "not by the signal" not in err


def test_ctrl_c_in_a_terminal_reaches_the_ranks_once_and_mpirun_not_at_all(tmp_path):
    """The terminal sends SIGINT to all processes of its foreground group."""
    import fcntl
    import pty
    import termios

    parent, child = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(child, termios.TIOCSCTTY, 0)

    bar = "import sys\nfor i in range(3):\n    print(f'\\r{i} of 3', file=sys.stderr)\n"
    job, _ = started(tmp_path, bar + SAVES, stdout=child, stderr=child, preexec_fn=take_terminal)
    os.close(child)
    shown = b""
    while shown.count(b"ready") < 2:
        shown += os.read(parent, 4096)
    os.write(parent, b"\x03")
    with contextlib.suppress(OSError):  # what reading from a terminal without processes gives on Linux
        while piece := os.read(parent, 4096):
            shown += piece
    os.close(parent)
    text = shown.decode()
    assert job.wait(20) == 130, text
    assert text.count("interrupted") == text.count("saved") == 2, text
    assert "all ranks have ended after SIGINT" in text
    assert re.search(r"\[\d\] 2 of 3\r\x1b\[K\[\d\] saved", text) and not re.search(r" of 3\r?\n", text)  # a bar


@pytest.mark.parametrize("again", [False, True], ids=["grace", "again"])
def test_ranks_that_go_on_after_a_signal_are_killed(tmp_path, again):
    """At the end of the grace, or at a second signal."""
    program = WHO + (
        "import signal\nif rank:\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready')\ntime.sleep(99)\n"
    )
    job, _ = started(tmp_path, program, "--grace", "60" if again else "0.5")
    job.send_signal(signal.SIGINT)
    if again:
        time.sleep(launch.REPEATED / 5)
        job.send_signal(signal.SIGINT)  # the same one, for timeout(1) sends it twice
        time.sleep(launch.REPEATED + 0.2)
        assert job.poll() is None
        job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=20)
    assert job.returncode == 130
    assert f"killed rank 1, {'at the second signal' if again else 'still running after 0.5 s'}" in err, err
    wait_until(lambda: not alive(str(tmp_path)), 8.0)


def test_ranks_say_what_is_lost_at_a_second_signal(tmp_path):
    program = "import time\nfrom minigrad.distributed.train.signals import interrupts as block\n"
    job, _ = started(
        tmp_path, f"{program}with block(lambda: '3 steps are lost'):\n    print('ready')\n    time.sleep(99)\n"
    )
    for wait in (0, launch.REPEATED + 0.2):
        time.sleep(wait)
        job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=20)
    assert job.returncode == 143 and "not by the signal" not in err
    assert {*re.findall(r"\[(\d)\] KeyboardInterrupt: 3 steps are lost", err)} == {"0", "1"}, err


def test_a_signal_waits_for_no_lock_of_what_it_interrupts():
    job = launch.LaunchJob(Path("mpirun"), 2, [], None, [], None, 1.0)
    handler = threading.Thread(target=job._on_signal, args=(signal.SIGINT, None), daemon=True)
    with job.changed._cond, job.printing:  # type: ignore[attr-defined]
        handler.start()
        handler.join(5.0)
        assert job.stop == signal.SIGINT and not handler.is_alive()


def test_ranks_that_say_late_that_they_started_get_the_signal():
    job = launch.LaunchJob(Path("mpirun"), 2, [], None, [], None, 1.0)
    job._on_signal(signal.SIGINT, None)
    threading.Timer(0.1, job.told[launch.rank_parent.STARTED].update, [(0, 1)]).start()
    with subprocess.Popen(["sleep", "9"]) as mpirun:
        job._wait(mpirun)
    assert job.passed_on == 1


def test_a_rank_that_fails_while_it_ends_is_named(tmp_path):
    program = WHO + "try:\n    print('ready')\n    time.sleep(99)\nexcept KeyboardInterrupt:\n    sys.exit(3 * rank)\n"
    job, _ = started(tmp_path, program)
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=20)
    assert job.returncode == 130
    assert "launch: not by the signal, rank 1: exit code 3\n" in err


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_killed_launcher_leaves_no_process(tmp_path):
    """Even of ranks that ignore SIGTERM."""
    program = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready')\ntime.sleep(99)\n"
    job, _ = started(tmp_path, program)
    job.kill()
    job.communicate(timeout=20)
    wait_until(lambda: not alive(str(tmp_path)), 12.0)


@pytest.mark.skipif(sys.platform != "linux", reason="the rank dies with its parent on Linux alone")
def test_a_rank_whose_parent_is_killed_is_the_one_that_failed(tmp_path):
    program = WHO + (
        "import signal\nfrom minigrad.distributed.comm.mpi.rank_parent import VICTIM, report\n"
        "if rank == 0:\n    os.kill(os.getppid(), signal.SIGKILL)\n    time.sleep(99)\n"
        "time.sleep(0.5)\nreport(rank, VICTIM)\nsys.exit(1)\n"
    )
    result = run_ranks(2, program, timeout=30)
    assert result.returncode == 137, result.text
    assert "launch: rank 0 failed first: killed by SIGKILL\nlaunch: after that, rank 1: exit code 1" in result.stderr


LOST = WHO + (
    "import signal\ncount = os.environ['MINIGRAD_RESTART']\nprint('start', count, flush=True)\n"
    "if rank == 1 and int(count) < int(sys.argv[1]):\n    {}\ntime.sleep(0.2)\n"
)
ITSELF = "os.kill(os.getpid(), signal.SIGKILL)"
KILL = LOST.format(ITSELF)


def test_a_job_that_loses_a_rank_starts_again():
    """All ranks do, as often as is allowed, and the program learns how often; the last start's code counts."""
    again = ("--max-restarts", "3", "--grace", "0.5")
    result = run_ranks(2, KILL, "2", options=again, env={"MINIGRAD_RESTART": "9"}, returncode=0)
    for rank in range(2):
        assert result.lines(rank) == ["start 0", "start 1", "start 2"], result.text
    assert result.stderr.count("launch: rank 1 failed first: killed by SIGKILL") == 2
    assert [line for line in result.stderr.splitlines() if "restart " in line] == [
        f"launch: restart {i} of 3, on 2 ranks" for i in (1, 2)
    ]
    result = run_ranks(2, KILL, "9", options=("--max-restarts", "1", "--grace", "0.5"), returncode=137)
    assert "launch: not started again: that was restart 1\n" in result.stderr
    assert result.lines(1) == ["start 0", "start 1"]


@pytest.mark.parametrize(
    ("act", "options", "code", "words"),
    [
        ("sys.exit(2)", (), 2, "not started again: exit code 2 would come again"),
        ("time.sleep(99)", ("--timeout", "1.5"), 124, "still running after 1.5 s"),
        (ITSELF, ("--timeout", "2.5", "--max-restarts", "999"), 137, "restart 1 of 999"),
    ],
)
def test_what_would_come_again_or_is_over_is_not_started_again(act, options, code, words):
    """The timeout is that of all starts together."""
    program, options = LOST.format(act), ("--max-restarts", "5", "--grace", "0.3", *options)
    result = run_ranks(2, program, "9999", options=options, timeout=20)
    assert result.returncode in (code, launch.TIMED_OUT) and words in result.stderr, result.text
    assert result.seconds < 12 and (result.lines(1) == ["start 0"]) == (code != 137)


def test_a_signal_ends_a_job_that_would_start_again(tmp_path):
    job, _ = started(tmp_path, SAVES, "--max-restarts", "5")
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=20)
    assert job.returncode == 143 and "restart" not in err, err


PHASES = ["start", "rendezvous", "step", "save", "end"]
WAYS = {
    "return": ("sys.exit(0)", 1),
    "exception": ("1 / 0", 1),
    **{name: (f"os.kill(os.getpid(), signal.{name})", 128 + getattr(signal, name)) for name in ("SIGTERM", "SIGINT")},
    **{f"launcher's {name}": ("time.sleep(99)", 128 + getattr(signal, name)) for name in ("SIGTERM", "SIGINT")},
}
ENDS = [(phase, way, rank) for phase in PHASES for way in WAYS for rank in range(1 if "launcher" in way else 2)]
random.Random(0).shuffle(ENDS)

TRAINING = """
import os, signal, sys, time
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
def at(phase):
    if [phase, str(rank)] == sys.argv[1:3]:
        print(os.environ["OMPI_MCA_btl_sm_backing_directory"])
        exec(sys.argv[3])
at("start")
import minigrad
from minigrad.distributed import MpiCommunicator, save_distributed_checkpoint
from minigrad.distributed.train import checkpoint
from minigrad.files import durable
module, name = (checkpoint, "all_gather_json") if rank else (durable, "fsync")
def in_a_save(*arguments, function=getattr(module, name)):
    at("save")
    return function(*arguments)
setattr(module, name, in_a_save)
at("rendezvous")
with MpiCommunicator(timeout=60) as comm:
    x = minigrad.ones(3)
    comm.all_reduce(x)
    at("step")
    comm.all_reduce(x)
    save_distributed_checkpoint(comm, sys.argv[0] + ".run", {"model": {"x": x}}, {"step": 1})
at("end")
"""


def test_however_a_job_ends_all_processes_are_gone_soon(tmp_path, seeds):
    """Long before the ranks' deadline of 60 s; within 5 s where no other test runs; the exit code tells the way."""
    for seed in seeds(4):
        phase, way, rank = ENDS[seed % len(ENDS)]
        act, code = WAYS[way]
        (folder := tmp_path / str(seed)).mkdir()
        job, (scratch, *_) = started(folder, TRAINING, arguments=[phase, str(rank), act], lines=1)
        began = time.monotonic()
        if "launcher" in way:
            job.send_signal(getattr(signal, way.split()[1]))
        out, err = job.communicate(timeout=45)
        text = f"rank {rank}, {way} at {phase}: exit code {job.returncode}\n{out}{err}"
        assert job.returncode == (0 if (phase, way) == ("end", "return") else code), text
        wait_until(lambda folder=folder: not alive(str(folder)))
        took, limit = time.monotonic() - began, 45.0 if "PYTEST_XDIST_WORKER" in os.environ else 5.0
        print(f"{took:.2f} s, {text.splitlines()[0]}")
        assert took < limit, text
        assert launch.SCRATCH in scratch and not os.path.exists(scratch.split()[-1]), text


def test_independent_copies_are_warned_of():
    program = "from minigrad.distributed import init_process_group\n{}print('done')\n"
    result = run_ranks(2, program.format(""))
    assert result.returncode == 0, result.text
    assert "launch: warning: no rank asked for a communicator" in result.stderr and "2 copies" in result.stderr
    result = run_ranks(2, program.format("with init_process_group() as comm:\n    comm.barrier()\n"))
    assert result.returncode == 0 and result.stderr == "", result.text
    assert run_ranks(1, program.format("")).stderr == ""


@pytest.mark.short
def test_what_is_missing_is_said(monkeypatch, capsys):
    def nothing(name: str) -> None:
        raise launch.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(launch.importlib.metadata, "distribution", nothing)
    with pytest.raises(SystemExit):
        launch.main(["-n", "2"])  # this is missing first
    assert "name a script" in capsys.readouterr().err
    assert launch.main(["-n", "2", "x.py"]) == 2
    assert 'pip install "minigrad-cuda[mpi]"' in capsys.readouterr().err


WRONG_LINES = [
    *[([], "-n N"), (["-n", "0", "x.py"], "not >= 1"), (["-n", "2"], "name a script")],
    *[(["--hosts", "a:b", "x.py"], "'a:b' is no host name"), (["-n", "2", "--timeout", "-1", "x.py"], "not > 0")],
    (["-n", "2", "--max-restarts", "-1", "x.py"], "not >= 1"),
]


@pytest.mark.short
@pytest.mark.parametrize(("arguments", "words"), WRONG_LINES)
def test_wrong_command_lines(arguments, words, capsys):
    assert raises(SystemExit, "2", launch.main, arguments).code == 2
    assert words in capsys.readouterr().err


@pytest.mark.short
def test_leftovers_of_a_killed_launcher_are_swept(tmp_path):
    for name in ("dead", "alive", "young"):
        (tmp_path / f"{launch.SCRATCH}{name}").mkdir()
        (tmp_path / f"{launch.SCRATCH}{name}" / "segment").write_text("x")
    (tmp_path / "other").mkdir()
    held = launch.lock(str(tmp_path / f"{launch.SCRATCH}alive"))
    assert held is not None
    for name in ("dead", "alive"):
        os.utime(tmp_path / f"{launch.SCRATCH}{name}", (1, 1))
    launch.sweep(str(tmp_path))
    os.close(held)
    left = {path.name.removeprefix(launch.SCRATCH) for path in tmp_path.iterdir()}
    assert left == {"alive", "young", "other"}


@pytest.mark.short
def test_hosts_become_mpiruns_and_a_job_that_has_lost_all_is_over(monkeypatch, capsys):
    """That it goes on without one of them, the tests of train_char_gpt_ddp.py see."""
    monkeypatch.setenv("MINIGRAD_FAST", "0")
    monkeypatch.setenv("MINIGRAD_RENDEZVOUS_SECRET", "secret")
    hosts = launch.parse_hosts("a,b:2")
    job = launch.LaunchJob(Path("mpirun"), 3, hosts, 1, ["x.py"], None, 1.0)
    command = " ".join(job.command())
    assert "--host a:1,b:2" in command
    assert "-n 3 " in command
    assert "-x NUMBA_NUM_THREADS" in command and "-x MINIGRAD_RESTART" in command
    assert "-x MINIGRAD_FAST" in command and "SECRET" not in command
    assert "OMPI_MCA_btl" not in job.environment("scratch")  # between hosts Open MPI chooses the network
    job.max_restarts = 3
    monkeypatch.setenv("PATH", "")
    assert not job._starts_again(137) and "no host is left" in capsys.readouterr().err
    assert launch.reachable("localhost")
