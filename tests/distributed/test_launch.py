"""The launcher: every rank's lines, the first failure's code, and nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import requires_mpi, run_ranks

from minigrad.distributed import launch

pytestmark = requires_mpi

WHO = 'import os, sys, time\nrank = int(os.environ["OMPI_COMM_WORLD_RANK"])\n'  # ranks without MPI start fast


def alive(mark: str) -> list[str]:
    """The processes whose command line holds ``mark``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if mark in command:
            found.append(f"{folder.name}: {command}")
    return found


def wait_until_gone(mark: str, seconds: float = 8.0) -> None:
    until = time.monotonic() + seconds
    while (left := alive(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left, "\n".join(left)


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


def test_a_module(tmp_path):
    (tmp_path / "some_module.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    out = subprocess.run(
        [sys.executable, "-m", "minigrad.distributed.launch", "-n", "1", "-m", "some_module", "-x", "1"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (out.returncode, out.stdout) == (0, "[0] __main__ ['-x', '1']\n"), out.stderr


@pytest.mark.parametrize(
    ("act", "code", "words"),
    [
        ("sys.exit(3)", 3, "exit code 3"),
        ("os.kill(os.getpid(), 9)", 137, "killed by SIGKILL"),
        ("os.abort()", 134, "killed by SIGABRT"),
        ("1 / 0", 1, "exit code 1"),
    ],
)
def test_the_first_failure_is_named_and_the_rest_is_ended(act, code, words):
    program = WHO + f"if rank == 1:\n    {act}\nprint('waits')\ntime.sleep(100)\n"
    result = run_ranks(3, program, options=("--grace", "0.5"))
    assert result.returncode == code, result.text
    assert f"launch: rank 1 failed first: {words}" in result.stderr
    assert "launch: ended rank 0, 2, still running after 0.5 s" in result.stderr
    assert result.seconds < 15


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


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_signal_to_the_launcher_ends_all_ranks(tmp_path, number):
    """Even SIGKILL leaves no process; a rank that ignores SIGTERM is killed too."""
    program = tmp_path / f"rank_that_waits_{number.name}.py"
    program.write_text(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(os.environ['OMPI_MCA_btl_sm_backing_directory'])\ntime.sleep(99)\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-m", "minigrad.distributed.launch", "-n", "2", str(program)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert job.stdout is not None
    (folder,) = {job.stdout.readline()[len("[0] ") :].rstrip() for _ in range(2)}  # of the job's shared memory
    assert Path(folder).name.startswith(launch.SCRATCH) and os.path.isdir(folder)
    began = time.monotonic()
    job.send_signal(number)
    _, err = job.communicate(timeout=30)
    wait_until_gone(str(program))
    assert time.monotonic() - began < 12
    if number is signal.SIGKILL:
        return  # nobody is left to tidy up
    assert job.returncode == 128 + number
    assert f"got {number.name} and ended all ranks" in err
    assert not os.path.exists(folder)


def test_what_is_missing_is_said(monkeypatch, capsys):
    def nothing(name: str) -> None:
        raise launch.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(launch.importlib.metadata, "distribution", nothing)
    assert launch.main(["-n", "2", "x.py"]) == 2
    assert 'pip install "minigrad-cuda[mpi]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "-n N"),
        (["-n", "0", "x.py"], "not >= 1"),
        (["-n", "2"], "name a script"),
        (["--hosts", "a:b", "x.py"], "'a:b' is no host name"),
        (["-n", "2", "--timeout", "-1", "x.py"], "not > 0"),
    ],
)
def test_wrong_command_lines(arguments, words, capsys):
    with pytest.raises(SystemExit) as caught:
        launch.main(arguments)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


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
    assert {path.name for path in tmp_path.iterdir()} == {f"{launch.SCRATCH}alive", f"{launch.SCRATCH}young", "other"}


def test_hosts_become_mpiruns():
    hosts = launch.parse_hosts("a,b:2")
    job = launch.Job(Path("mpirun"), 3, hosts, 1, ["x.py"], None, 1.0)
    command = " ".join(job.command())
    assert "--host a:1,b:2" in command
    assert "-n 3 " in command
    assert "-x NUMBA_NUM_THREADS" in command
    assert "OMPI_MCA_btl" not in job.environment("scratch")  # between hosts Open MPI chooses the network
