"""The command ``minigrad``: the example scripts under shorter names, and the report of the installation."""

import re
import signal
import subprocess
import sys

import example_scripts
import pytest
from example_scripts import TINY, assert_refused, refusals
from processes import python

import minigrad
from minigrad import __main__


def run(*arguments: object, cwd):
    """The command as a process runs it, but in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["minigrad", *map(str, arguments)])
        patch.setattr(sys, "path", [*sys.path])
        return example_scripts.called(__main__.main, patch, cwd)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    """A folder in which ``minigrad train`` has trained a tiny model, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    result = python("-m", "minigrad", "train", *TINY, "--steps", 8, cwd=folder, returncode=0)
    return folder, result.stdout


@pytest.mark.long(but=1)
@pytest.mark.parametrize("last", ["minigrad.interrupt", "numpy.exceptions", "numba.core"])
@pytest.mark.parametrize(
    "program", [["-m", "minigrad", "env"], [example_scripts.EXAMPLES / "mlp_classifier.py"]], ids=str
)
def test_ctrl_c_during_the_imports_is_one_line(program, last, tmp_path):
    """``-X importtime`` says what has just been imported."""
    command = [sys.executable, "-X", "importtime", *map(str, program)]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, cwd=tmp_path) as process:
        while not (line := process.stderr.readline()).split("|")[-1].strip().startswith(last):
            assert line, "it has ended"
        process.send_signal(signal.SIGINT)
        said = [line for line in process.communicate(timeout=60)[1].splitlines() if "import time:" not in line]
    assert (process.returncode, said) == (130, ["error: interrupted"])


def test_ctrl_c_in_a_program_of_somebodys_is_pythons():
    done = python("-c", "import minigrad, os; os.kill(os.getpid(), 2)", returncode=-2)
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.long
def test_train_is_the_example(trained, tmp_path):
    example_scripts.finish("train_char_gpt.py", *TINY, "--steps", 8, cwd=tmp_path)
    checkpoint = "runs/char-gpt/step-00000008"
    for file in ("model.safetensors", "trainer.safetensors", "state.json"):
        assert (trained[0] / checkpoint / file).read_bytes() == (tmp_path / checkpoint / file).read_bytes()


@pytest.mark.long
def test_train_says_how_to_go_on_and_that_works(trained):
    folder, shown = trained
    assert shown.splitlines()[-1] == "next: minigrad sample runs/char-gpt"
    texts = [run("sample", "runs/char-gpt", "--chars", 20, "--seed", seed, cwd=folder).stdout for seed in (1, 1, 2)]
    assert len(texts[0]) == 22 and texts[0].startswith("\n")  # the prompt, the characters, the end of the line
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.long(but=1)
@pytest.mark.parametrize("command", ["train", "sample"])
def test_help_speaks_of_the_command_alone(command, tmp_path):
    shown = run(command, "--help", cwd=tmp_path).stdout
    assert shown.startswith(f"usage: minigrad {command} ") and "--device" in shown
    assert "examples/" not in shown and ".py" not in shown
    uses = [line for line in shown.splitlines() if line.strip().startswith("minigrad ")]
    columns = {len(re.match(r" *\S+(?: \S+)*  +", line)[0]) for line in uses if "  " in line.strip()}
    assert len(uses) > 1 and len(columns) == 1  # the remarks stand below each other


@pytest.mark.long
def test_a_reader_that_stops_is_no_error():
    for command in ("env", "examples"):
        shell = ["sh", "-c", f"{sys.executable} -m minigrad {command} | true"]
        assert subprocess.run(shell, capture_output=True).stderr == b""


@pytest.mark.long
def test_help_and_version_of_the_command_itself(tmp_path):
    for flag in ("-h", "--help", None):
        shown, of_env = run(*filter(None, [flag]), cwd=tmp_path), run("env", flag or "-h", cwd=tmp_path)
        assert shown.returncode == of_env.returncode == 0
        commands = ("train", "sample", "watch", "examples", "env")
        assert all(f"\n  minigrad {command} " in shown.stdout for command in commands)
        assert of_env.stdout.startswith("usage: minigrad env\n")
    assert run("--version", cwd=tmp_path).stdout == f"minigrad {minigrad.__version__}\n"


@pytest.mark.long
def test_examples_are_listed_and_run(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    shown = run("examples", cwd=tmp_path).stdout.splitlines()
    assert max(map(len, shown)) < 70
    names = [line.split()[0] for line in shown if line.startswith("  ")]
    assert {"autograd_tour", "train_addition", "train_gpt2", "sample"} <= set(names) and "char_run" not in names
    assert "  train_addition          Teach a small GPT to add two numbers of two\n" in "\n".join(shown)
    help = run("examples", "addition", "--help", cwd=tmp_path)
    assert help.returncode == 0 and help.stdout.startswith("usage: train_addition.py "), help.stderr


def test_env_is_the_report(tmp_path, monkeypatch):
    monkeypatch.setattr(__main__.env, "main", lambda: print("the report") or 0)
    assert run("env", cwd=tmp_path).stdout == "the report\n"


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("arguments", "parts"), refusals("minigrad"))
def test_bad_input_is_one_line(arguments, parts, tmp_path):
    assert_refused(run(*arguments, cwd=tmp_path), 2, *parts)


def test_an_installation_without_the_scripts_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(__main__, "__file__", str(tmp_path / "minigrad" / "__main__.py"))
    assert_refused(run("train", cwd=tmp_path), 2, "train_char_gpt.py is missing; install minigrad again")
