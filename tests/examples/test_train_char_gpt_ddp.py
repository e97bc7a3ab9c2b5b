"""The example on several processes: it learns what one process does, and loses nothing when a rank dies."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from example_scripts import EXAMPLES, TINY, assert_refused, finish, spawned
from processes import python, writing
from ranks import RanksResult, requires_mpi, run_ranks

from minigrad.serialization import load_checkpoint

SCRIPT = EXAMPLES / "train_char_gpt_ddp.py"
pytestmark = [requires_mpi, pytest.mark.long]


def launch(n: int, folder: Path, *arguments: object, code: int = 0) -> RanksResult:
    """The finished script on ``n`` ranks, with a run in ``folder``."""
    result = run_ranks(n, SCRIPT, "--out", folder, *arguments, timeout=120)
    assert result.returncode == code, result.text
    return result


def tensors(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = load_checkpoint(folder)
    return {f"{file}/{name}": array for file, named in checkpoint.tensors.items() for name, array in named.items()}


def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    alone = spawned("train_char_gpt_ddp.py", *TINY, "--dropout", 0, "--out", tmp_path / "alone", cwd=tmp_path)
    result = launch(2, tmp_path / "two", *TINY, "--dropout", 0)
    assert "all 2 ranks hold the same weights, bit for bit" in result.lines(0) and not result.lines(1)
    assert result.stderr == "" and "ranks" not in alone.stdout  # no progress bar; one process is nobody's replica
    shown = result.lines(0)
    assert shown[0].startswith("pydoc (Python ") and shown[-1].startswith("next: python ") and "sample.py" in shown[-1]

    def losses(lines: list[str]) -> list[list[float]]:
        return [[float(line.split()[i]) for i in (4, 7)] for line in lines if line.startswith("step ")]

    assert len(losses(result.lines(0))) == 4  # training and validation, every 6 of 24 steps
    np.testing.assert_allclose(losses(result.lines(0)), losses(alone.stdout.splitlines()), atol=2e-4)
    one, two = tensors(tmp_path / "alone"), tensors(tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:  # float32; AdamW turns rounding errors of tiny gradients into steps of up to the learning rate
        np.testing.assert_allclose(two[name], one[name], atol=1e-3, err_msg=name)
    again = launch(2, tmp_path / "two", "--resume")
    assert "nothing to do: " in again.lines(0)[-1] and not again.lines(1), again.text
    sample = finish("sample.py", tmp_path / "two", "--prompt", "The ", "--chars", 20, cwd=tmp_path)
    assert sample.stdout.startswith("The ")


def test_a_reproducible_run_is_one_run_on_any_ranks(tmp_path: Path) -> None:
    flags = (*TINY, "--reproducible", "--grad-accum", 3)
    spawned("train_char_gpt_ddp.py", *flags, "--out", tmp_path / "alone", cwd=tmp_path)
    launch(2, tmp_path / "two", *flags)
    shutil.copytree(tmp_path / "two" / "step-00000008", tmp_path / "three" / "step-00000008")
    launch(3, tmp_path / "three", "--resume")
    one = tensors(tmp_path / "alone")
    for other in (tensors(tmp_path / "two"), tensors(tmp_path / "three")):
        assert other.keys() == one.keys() and not [name for name in one if one[name].tobytes() != other[name].tobytes()]


def test_gpt2_on_two_processes_that_keep_shares_learns_the_same(tmp_path: Path) -> None:
    """Of a batch of one sequence a rank has none."""
    (tmp_path / "text").write_text("def f(x):\n    return x\n\n\n" * 60)
    flags = (*TINY[2:], "--steps", 4, "--batch-size", 1, "--dtype", "float32", "--data", tmp_path / "text")
    for stage in (0, 1, 3):
        shared = ("--preset", "tiny", *flags, "--shard", stage, "--out", tmp_path / str(stage))
        run_ranks(2, EXAMPLES / "train_gpt2.py", *shared, timeout=120, returncode=0)
    whole, *others = [tensors(tmp_path / stage) for stage in "013"]
    for name, array in [item for other in others for item in other.items()]:
        np.testing.assert_allclose(array, whole[name], atol=1e-5, err_msg=name)


def struck(examples: str, victim: str, number: str, *arguments: str) -> None:
    import os
    import sys

    sys.path.insert(0, examples)
    import train_char_gpt_ddp as script

    class Struck(script.Training):
        def interrupted(self, received):
            if (self.trainer.global_step, self.comm.rank) == (3, int(victim)):
                os.kill(os.getpid(), int(number))
            return super().interrupted(received)

    script.Training = Struck
    sys.argv[:] = [script.__file__, *arguments]
    script.run_cli(script.main)


@pytest.mark.parametrize("victim", [0, 1])
def test_nothing_is_lost_when_a_rank_is_killed(tmp_path: Path, victim: int) -> None:
    folder, flags = tmp_path / "run", (*TINY, "--lr", "1e-3", "--min-lr", "1e-3")  # the same whatever --steps is
    result = run_ranks(2, struck, EXAMPLES, victim, 9, *flags, "--save-every", 99, "--out", folder, returncode=137)
    assert f"launch: rank {victim} failed first: killed by SIGKILL" in result.stderr, result.text
    told = result.errors(1 - victim)
    assert "error: " in told and "saved step 3" in told and "MPI_ERR" not in result.text, result.text
    assert f"launch -n 2 {SCRIPT} --resume --out {folder}" in told, result.text
    launch(2, folder, "--resume", "--steps", 7)
    launch(2, tmp_path / "straight", *flags, "--steps", 7)
    expected, found = tensors(tmp_path / "straight"), tensors(folder)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    if victim:
        shown = launch(3, folder, "--resume", "--steps", 8).lines(0)  # of each batch of 2, one rank has nothing
        assert "all 3 ranks hold the same weights, bit for bit" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_one_rank_finishes_the_step_on_all_and_saves(tmp_path: Path, number: int) -> None:
    folder, code = tmp_path / "run", 128 + number
    flags = (int(number), *TINY, "--save-every", 99, "--out", folder)
    result = run_ranks(2, struck, EXAMPLES, 1, *flags, timeout=120, returncode=code)
    assert "error" not in result.stderr and "Traceback" not in result.stderr, result.text
    assert result.errors(1).strip().startswith("finishing this step") and not result.errors(0), result.text
    told, command = result.lines(0)[-2:]
    assert told == "stopped after step 3, saved. To go on:" and load_checkpoint(folder).step == 3
    assert command.endswith(f"launch -n 2 {SCRIPT} --resume --out {folder}"), result.text
    assert "steps 4 to 5" in launch(2, folder, "--resume", "--steps", 5).stdout


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the ranks' processes are found in /proc")
@pytest.mark.parametrize("flags", [(), ("--shard", "2")], ids=["whole", "shares"])
def test_a_run_whose_ranks_are_killed_ends_as_the_undisturbed_one(flags) -> None:
    """The benchmark's ten kills are two here; of shares what was not saved is made again."""
    options = ["--kills", 2, "--steps", 90, "--save-every", 10, "--", *TINY[2:], "--eval-every", 99, "--keep", 2]
    goodput = python(EXAMPLES.parent / "benchmarks/goodput.py", *options, *flags, returncode=0)
    report = json.loads(goodput.stdout)
    assert report["same_weights"] and report["restarts"] == len(report["kills"]) == 2, goodput.stdout
    assert 0 < report["goodput"][1] < report["goodput"][0] < 1


def test_a_job_that_loses_a_host_goes_on_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two hosts are this one: a stand-in for ssh starts ranks there, but does not reach the lost one afterwards.

    Hosts share no memory, so MPI gets none: what two of them call by one name would be one file here.
    """
    ssh, options = tmp_path / "ssh", ("--hosts", "localhost:1,lost:2", "--max-restarts", "2")
    ssh.write_text('#!/bin/sh\n[ "$1" = -o ] && exit 255\nshift 2\nOMPI_MCA_btl=tcp,self exec sh -c "$*"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    flags = (*TINY, "--steps", 8, "--shard", 2, "--save-every", 2, "--out", tmp_path / "run")
    result = run_ranks(3, struck, EXAMPLES, 2, 9, *flags, timeout=240, options=options, returncode=0)
    assert "without lost, which cannot be reached\nlaunch: restart 1 of 2, on 1 ranks\n" in result.stderr, result.text
    assert "steps 3 to 8, from step-00000002" in result.stdout and load_checkpoint(tmp_path / "run").step == 8


def test_a_job_that_may_start_again_names_its_folder(tmp_path: Path) -> None:
    for script, folder in (("train_char_gpt_ddp.py", ()), ("train_gpt2.py", ("--preset", "tiny"))):
        result = spawned(script, *folder, cwd=tmp_path, env={"MINIGRAD_RESTART": "0"}, returncode=None)
        assert_refused(result, 2, "with --max-restarts give the run's folder, --out")


def late(examples: str, *arguments: str) -> None:
    import os
    import signal
    import sys

    sys.path.insert(0, examples)
    import train_char_gpt_ddp as script

    class Late(script.Training):
        def interrupted(self, received):
            return signal.SIGINT if self.trainer.global_step == 3 else 0

        def write_checkpoint(self):
            os.kill(os.getpid(), signal.SIGINT)
            super().write_checkpoint()

    script.Training = Late
    sys.argv[:] = [script.__file__, *arguments]
    script.run_cli(script.main)


@pytest.mark.short
def test_a_signal_that_comes_after_another_rank_told_of_it_breaks_no_checkpoint(tmp_path: Path) -> None:
    result = run_ranks(1, late, EXAMPLES, *TINY, "--save-every", 99999, "--out", tmp_path / "run", timeout=120)
    assert result.returncode == 128 + signal.SIGINT and "error" not in result.stderr, result.text
    assert "stopped after step 3, saved" in result.stdout and load_checkpoint(tmp_path / "run").step == 3


def test_wrong_input_is_one_line_on_every_rank(tmp_path: Path) -> None:
    for flag, value, words in (("--n-head", 3, "n_embd=128 is not a multiple"), ("--timeout", "nan", "is nan")):
        assert_refused(spawned(SCRIPT, flag, value, cwd=tmp_path, returncode=None), 2, words)
    (tmp_path / "file").write_text("")
    with writing(tmp_path / "held/metrics.jsonl") as pid:
        for folder, why in {"file/run": "Not a directory", "held": f"process {pid} ("}.items():
            result = launch(2, tmp_path / folder, *TINY, code=2)
            for rank in range(2):
                assert why in result.errors(rank) and not result.lines(rank), result.text
    result = launch(2, tmp_path / "x", "--resume", code=2)
    assert "is not a folder" in result.errors(0) and "Traceback" not in result.stderr
