"""The main example as its users meet it: what it shows and writes, exact resume, and bad input."""

import contextlib
import html
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import pytest
from example_scripts import (
    EXAMPLES,
    TINY,
    assert_refused,
    command,
    content,
    finish,
    load,
    refusals,
    run,
    send_twice,
    spawned,
)
from processes import writing
from refusals import raises

from minigrad import cuda_kernels, serialization

TRAIN = "train_char_gpt.py"
RUN = Path("runs/char-gpt")
TIMES = ("tokens_per_second", "seconds", "time")  # which are never the same
pytestmark = pytest.mark.long
NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self").exists(), reason="in /proc not even root can write")
NEEDS_NO_CUDA = pytest.mark.skipif(cuda_kernels.availability()[0], reason="this machine has CUDA")
POSIX = pytest.mark.skipif(os.name == "nt", reason="signals and terminals are POSIX's")


def records(folder: Path):
    """The lines of metrics.jsonl without times and memory, which are never the same, and without a process's first."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    varies = {*TIMES, "memory_bytes"}
    return [{key: line[key] for key in line.keys() - varies} for line in lines if "run" not in line]


def assert_same_run(folder: Path, expected: Path) -> None:
    """Weights, moments, step, random state, settings and metrics of two runs that ended are the same bytes."""
    name = "step-00000024"
    for file in ("model.safetensors", "trainer.safetensors", "state.json", "manifest.json"):
        assert (folder / name / file).read_bytes() == (expected / name / file).read_bytes(), file
    assert records(folder) == records(expected)


# ---------------------------------------------------------------------- a run from start to end


@pytest.mark.short
def test_a_run_shows_and_writes_what_it_promises(finished):
    folder, result = finished
    shown = result.stdout
    assert result.stderr == ""  # no progress bar where nobody watches
    assert shown.startswith("pydoc (Python ")
    assert "run: runs/char-gpt, steps 1 to 24" in shown
    for step in (6, 12, 18, 24):
        assert re.search(rf"^step +{step}  train loss \d\.\d{{4}}  validation loss \d\.\d{{4}}$", shown, re.MULTILINE)
    samples = re.findall(r"^-+ sample\n(.*?)\n-+$", shown, re.MULTILINE | re.DOTALL)
    assert [len(sample) for sample in samples] == [301] * 4
    assert len(set(samples)) > 1  # it learns
    assert "done in" in shown
    following = shown.splitlines()[-1]
    assert following.startswith("next: python ") and "sample.py runs/char-gpt" in following

    files = sorted(path.name for path in (folder / RUN).iterdir())
    drawn = importlib.util.find_spec("matplotlib") is not None
    assert files == ["loss.png"] * drawn + ["metrics.jsonl", "step-00000008", "step-00000016", "step-00000024"]
    assert drawn or "pip install matplotlib for a picture" in shown
    if drawn:
        assert (folder / RUN / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [path.name for path in folder.iterdir()] == ["runs"]  # nothing elsewhere


@pytest.mark.short
def test_the_picture_of_the_readme_shows_what_a_run_prints(finished):
    """All of its lines of a training, but for the numbers."""

    texts = [(EXAMPLES.parent / "docs/terminal.svg").read_text("utf-8"), finished[1].stdout]
    plain = [html.unescape(re.sub("<.*?>", "", text)).replace("\N{NO-BREAK SPACE}", " ") for text in texts]
    lines = [re.findall("^(?:pydoc|GPT:|run:|step|done in) .*", text, re.MULTILINE) for text in plain]
    numbers = r" some seconds| \d+ (s|min) to .* CPU| *[\d.,]+|threads?"
    told, printed = ({re.sub(numbers, "#", line) for line in each} for each in lines)
    assert len(told) == 5 and told <= printed


@pytest.mark.short
def test_the_metrics_are_one_json_object_a_line(finished):
    lines = [json.loads(line) for line in (finished[0] / RUN / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == [1, 10, 20]
    for line in steps:
        assert line.keys() - {"memory_bytes"} == {"step", "loss", "grad_norm", "lr", *TIMES}
        assert all(value > 0 for value in line.values())
    assert [line["step"] for line in lines if "val_loss" in line] == [6, 12, 18, 24]
    assert [line["step"] for line in lines if len(line.get("sample", "")) == 301] == [6, 12, 18, 24]
    assert lines[0]["run"].items() >= {"steps": 24, "tokens_per_step": 64, "ranks": 1}.items()
    assert steps[0]["lr"] == 1e-3 / 4  # the first of four warmup steps


# ---------------------------------------------------------------------- stopping and going on


def wait_for(process, fd: int, text: str) -> str:
    """Read until ``text`` was shown, or to the end."""
    shown = b""
    while text.encode() not in shown:
        try:
            piece = os.read(fd, 4096)
        except OSError:  # what reading from a terminal without processes gives on Linux
            break
        if not piece:
            break
        shown += piece
    return shown.decode(errors="replace")


@POSIX
def test_ctrl_c_saves_and_the_command_it_names_goes_on_bit_for_bit(finished, tmp_path):
    import fcntl
    import pty
    import termios

    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))
    terminal = {"stdin": child, "stdout": child, "stderr": child, "env": {**os.environ, "PYTHONUTF8": "1"}}
    process = subprocess.Popen(
        command(TRAIN, *TINY, "--out", "my run"), cwd=tmp_path, start_new_session=True, **terminal
    )
    os.close(child)
    shown = wait_for(process, parent, "step     6  train loss")
    process.send_signal(signal.SIGINT)  # while it writes a sample
    shown += wait_for(process, parent, "to the end")
    os.close(parent)
    assert process.wait(60) == 130
    assert "Traceback" not in shown and shown.startswith("loading\r")
    assert "finishing this step, then saving" in shown

    bars = re.findall(r"\r *\d+% \|.*?\| \d+/24 \[\S+, \S+ left, loss (\S+), lr (\S+), [\d,]+ tokens/s\]", shown)
    assert bars, shown
    assert 0 < float(bars[-1][0]) < 10 and 0 < float(bars[-1][1]) <= 1e-3

    stopped = re.search(r"stopped after step (\d+), saved. To go on:\s+python (.*train_char_gpt.py.*)", shown)
    assert stopped, shown
    step, line = int(stopped[1]), shlex.split(stopped[2])
    assert 6 <= step < 24
    assert serialization.load_checkpoint(tmp_path / "my run").step == step
    assert line[1:] == ["--resume", "--out", "my run"]
    resumed = spawned(line[0], *line[1:], cwd=tmp_path).stdout
    origin = rf"from step-{step:08d} of [\d-]+ \d\d:\d\d\nabout \S+ GB of memory, about \d+ s at the speed so far\n"
    assert re.search(f"steps {step + 1} to 24, {origin}", resumed)
    assert re.search(r"done in \d+ s, \d+ s of them since it was resumed", resumed), resumed
    assert_same_run(tmp_path / "my run", finished[0] / RUN)


@POSIX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("script", [TRAIN, "train_llama_char.py", "train_gpt2.py", "train_char_gpt_ddp.py"])
def test_a_second_signal_says_what_is_lost_and_how_to_go_on(tmp_path, monkeypatch, script, number):
    send_twice(monkeypatch, load(TRAIN, monkeypatch).TrainingRun, "after_step", 11, number)
    done = run(script, *TINY, "--out", "run", cwd=tmp_path)
    told = "error: stopped after step 11; step 8 is saved, 3 steps are lost. To go on: python "
    assert done.returncode == 130 and told in done.stderr, done.stderr
    assert done.stderr.rstrip().endswith(f"{script} --resume --out run")


@POSIX
def test_a_killed_run_goes_on_bit_for_bit_with_another_number_of_threads(finished, tmp_path):
    process = subprocess.Popen(command(TRAIN, *TINY), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    shown = wait_for(process, process.stdout.fileno(), "step    12  train loss")
    process.kill()
    process.stdout.close()
    assert process.wait(60) == -signal.SIGKILL, shown
    with open(tmp_path / RUN / "metrics.jsonl", "a") as file:
        file.write('{"step": 13, "lo')  # the kill cut a line
    resumed = finish(TRAIN, "--resume", "--threads", 1, cwd=tmp_path)  # finds the run by itself
    assert "steps 9 to 24" in resumed.stdout or "steps 17 to 24" in resumed.stdout
    assert_same_run(tmp_path / RUN, finished[0] / RUN)


def test_a_profiled_run_shows_its_kernels_and_is_the_same_run(finished, tmp_path):
    shown = finish(TRAIN, *TINY, "--profile", cwd=tmp_path).stdout
    assert_same_run(tmp_path / RUN, finished[0] / RUN)
    assert re.search(r"^linear.forward +forward +\d+", shown, re.MULTILINE) and "h.*.attn" in shown
    assert json.loads((tmp_path / RUN / "profile.json").read_text())["traceEvents"]


def test_a_line_says_how_far_it_is_where_there_is_no_bar(tmp_path, monkeypatch):
    monkeypatch.setattr(load(TRAIN, monkeypatch), "SAYS_EVERY", 0.0)
    shown = finish(TRAIN, *TINY, "--steps", 3, cwd=tmp_path).stdout
    assert len(re.findall(r"^step +\d of 3  loss .* tokens/s  about \d+ s left$", shown, re.M)) == 3


def test_a_finished_run_has_nothing_to_do_and_a_larger_number_of_steps_goes_on(home):
    (home / "runs/notes.txt").write_text("no run")  # other things may lie there
    before = content(home)
    result = finish(TRAIN, "--resume", cwd=home)
    assert "nothing to do: runs/char-gpt has 24 steps" in result.stdout
    assert content(home) == before
    result = finish(TRAIN, "--resume", "--steps", 26, cwd=home)
    assert serialization.load_checkpoint(home / RUN).step == 26
    assert [record["step"] for record in records(home / RUN) if "val_loss" in record][-2:] == [24, 26]


# ---------------------------------------------------------------------- bad input: exit code 2, nothing touched


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "good.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "tiny.txt").write_text("too short")
    (tmp_path / "latin.txt").write_bytes("häßlich".encode("latin-1") * 100)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/loss.png").write_text("a picture of mine")
    return tmp_path


BAD_INPUT = [
    *refusals("train_char_gpt.py"),
    pytest.param(["--out", "/proc/run"], ["cannot write into /proc/run"], marks=NEEDS_PROC),
    pytest.param(["--device", "cuda"], ["--device cuda", "cannot be used"], marks=NEEDS_NO_CUDA),
]


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("arguments", "parts"), BAD_INPUT)
def test_bad_input_is_one_line_and_touches_nothing(texts, arguments, parts):
    before = content(texts)
    assert_refused(run(TRAIN, *arguments, cwd=texts), 2, *parts)
    assert content(texts) == before


def test_a_run_is_never_overwritten_and_keeps_its_settings_and_text(home):
    (home / "other.txt").write_text("another text, long enough for one window of training and of validation. " * 9)
    before = content(home)
    for arguments, parts in (
        ((*TINY, "--out", RUN), ["runs/char-gpt holds a run already", "--resume"]),
        (("--resume", "--n-embd", 32), ["--n-embd 32", "has 16", "keeps it"]),
        (("--resume", "--steps", 0), ["--steps is 0"]),
        (("--resume", "--data", "other.txt"), ["other.txt is not the text", "runs/char-gpt", "pydoc"]),
    ):
        assert_refused(run(TRAIN, *arguments, cwd=home), 2, *parts)
    assert content(home) == before


@POSIX
@pytest.mark.parametrize("script", [TRAIN, "train_char_gpt_ddp.py"])
@pytest.mark.parametrize("folder", [RUN, "runs/begun"])  # which has no checkpoint yet
def test_a_run_that_another_process_trains_is_refused(home, script, folder):
    with writing(home / folder / "metrics.jsonl") as pid:
        for flags in (["--resume"], TINY):
            flags = [*flags, "--out", folder]
            assert_refused(run(script, *flags, cwd=home), 2, f"process {pid} (", "is writing it")


@POSIX
@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("resume", [True, False])
def test_what_another_process_trains_meanwhile_is_not_overwritten(home, monkeypatch, resume, ended):
    """Between the choice of the folder, or the loading of the checkpoint, and the lock."""
    name, place = ("load_run", RUN / "step-00000024") if resume else ("new_folder", RUN)
    shutil.move(home / place, home / "other")
    module = load(TRAIN, monkeypatch, *(["--resume"] if resume else TINY), "--out", home / RUN)
    choose, before = getattr(module, name), {}

    def meanwhile(*arguments, **options):
        chosen = choose(*arguments, **options)
        shutil.move(home / "other", home / place) if ended else stack.enter_context(
            writing(home / RUN / "metrics.jsonl")
        )
        before.update(content(home))
        return chosen

    monkeypatch.setattr(module, name, meanwhile)
    words = "has trained in .* meanwhile" if ended else r"cannot write into .* process \d+ \(.* is writing it"
    with contextlib.ExitStack() as stack:
        raises(module.UsageError, words, module.main)
    assert content(home) == before


def test_the_next_run_gets_a_folder_of_its_own(home):
    before = content(home / RUN)
    assert "run: runs/char-gpt-2" in finish(TRAIN, *TINY, "--steps", 2, cwd=home).stdout
    assert content(home / RUN) == before


# ---------------------------------------------------------------------- damaged and foreign checkpoints


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("file", "damage"), [("trainer.safetensors", flip), ("state.json", Path.unlink)])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_offered(home, file, damage):
    damage(home / RUN / "step-00000024" / file)
    before = content(home)
    expected = ["damaged checkpoint", f"runs/char-gpt/step-00000024/{file}", "runs/char-gpt/step-00000016"]
    assert_refused(run(TRAIN, "--resume", cwd=home), 2, *expected)
    assert content(home) == before


def test_the_offered_checkpoint_goes_on_to_the_same_end(finished, home):
    flip(home / RUN / "step-00000024/model.safetensors")
    result = spawned(TRAIN, "--resume", "--out", RUN / "step-00000016", cwd=home)
    assert "run: runs/char-gpt, steps 17 to 24" in result.stdout
    assert not (home / RUN / "step-00000024").exists()  # replaced by a sound revision
    (home / RUN / "step-00000024.r1").rename(home / RUN / "step-00000024")
    assert_same_run(home / RUN, finished[0] / RUN)


OTHERS = [
    ({"settings": None}, "no 'settings'"),
    ({"settings": {"n_layer": 10**5, "n_embd": 4}}, "100000 layers, but the weights are 16 tensors"),
    ({"tokenizer": {"kind": "characters", "characters": "abc"}}, "wte.weight"),
    ({"trainer": ["not", "a", "trainer"]}, "expected a mapping"),
]


@pytest.mark.parametrize(("changes", "reason"), OTHERS)
def test_a_checkpoint_of_something_else_is_refused(home, changes, reason):
    saved = serialization.load_checkpoint(home / RUN)
    shutil.rmtree(home / RUN)
    state = {name: value for name, value in {**saved.state, **changes}.items() if value is not None}
    serialization.save_checkpoint(home / RUN, saved.tensors, state)
    before = content(home)
    assert_refused(run(TRAIN, "--resume", cwd=home), 2, "is not a checkpoint of this script", reason)
    assert content(home) == before


# ---------------------------------------------------------------------- a run that cannot go on: exit code 1


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(tmp_path):
    result = run(TRAIN, *TINY, "--lr", "1e30", "--grad-clip", 0, "--save-every", 24, "--out", "run", cwd=tmp_path)
    assert_refused(result, 1, "step 2", "no checkpoint was saved yet")


def test_the_last_good_checkpoint_outlives_a_run_that_diverges(home):
    saved = serialization.load_checkpoint(home / RUN, 8)
    shutil.rmtree(home / RUN)
    saved.state["settings"].update(lr=1e38, grad_clip=0.0, save_every=1, keep=1)
    checkpoint = serialization.save_checkpoint(home / RUN, saved.tensors, saved.state)
    before = content(checkpoint)
    result = run(TRAIN, "--resume", cwd=home)
    assert_refused(result, 1, "step 9", f"the last good checkpoint is {RUN / 'step-00000008'}")
    assert content(checkpoint) == before
    assert [path.name for path in (home / RUN).glob("step-*")] == ["step-00000008"]


@POSIX
def test_a_full_disk_stops_the_run_and_keeps_what_was_saved(home):
    import resource

    for step in (16, 24):
        shutil.rmtree(home / RUN / f"step-{step:08d}")
    before = content(home / RUN / "step-00000008")
    limit = (home / RUN / "step-00000008/model.safetensors").stat().st_size // 2
    limits = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))}
    result = spawned(TRAIN, "--resume", cwd=home, returncode=None, **limits)
    kept = f"the last good checkpoint is {RUN / 'step-00000008'}"
    assert_refused(result, 1, "the checkpoint of step 16 could not be written", "File too large", kept)
    assert content(home / RUN / "step-00000008") == before
    assert {path.name for path in (home / RUN).iterdir()} <= {"loss.png", "metrics.jsonl", "step-00000008"}


def test_ranks_show_a_bar_as_lines_and_losses_are_drawn_as_text(monkeypatch, capsys):
    train = load(TRAIN, monkeypatch)
    for text in ("\r 20% | 1/5", "\n", "\r"):
        train.Lines().write(text)
    assert capsys.readouterr().err == "20% | 1/5\n"
    rows = train.curve([(step, 3.0 - step / 100) for step in range(1, 101)], columns=20, rows=5).splitlines()
    assert [row.count("*") for row in rows[:5]] == [3, 5, 4, 5, 3] and rows[5].endswith("step 100")
    assert rows[0].startswith("  2.970 |*") and rows[4].startswith("  2.020 |")
