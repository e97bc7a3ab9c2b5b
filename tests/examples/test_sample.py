"""The sampling script: the same seed gives the same text, and what cannot be continued is refused."""

import importlib.util
import io
import os
import re
import shutil
import sys

import numpy as np
import pytest
from example_scripts import TINY, assert_refused, content, finish, load, refusals, run, spawned

import minigrad

SAMPLE = "sample.py"
RUN = "runs/char-gpt"
pytestmark = pytest.mark.long


def text(*arguments: object, cwd) -> str:
    """What the script wrote, without the line end of the terminal."""
    result = finish(SAMPLE, *arguments, cwd=cwd)
    assert re.fullmatch(r"\S+, step \d+(, validation loss \d\.\d+)?\n", result.stderr), result.stderr
    return result.stdout.removesuffix("\n")


def test_a_seed_gives_its_text_again_and_no_seed_another(finished):
    folder = finished[0]
    first = text("--prompt", "The ", "--chars", 40, "--seed", 7, cwd=folder)  # finds the run by itself
    assert first.startswith("The ") and len(first) == 44
    assert text(f"{RUN}/step-00000024", "--prompt", "The ", "--chars", 40, "--seed", 7, cwd=folder) == first
    others = {text(RUN, "--prompt", "The ", "--chars", 40, cwd=folder) for _ in range(2)}
    assert len({first, *others}) == 3


def test_an_earlier_checkpoint_writes_another_text(finished):
    arguments = ("--temperature", 1, "--chars", 60, "--seed", 1)
    assert text(RUN, *arguments, cwd=finished[0]) != text(RUN, *arguments, "--step", 8, cwd=finished[0])


def test_each_character_is_shown_before_the_next_one_is_made(finished, monkeypatch):
    shown, order = io.StringIO(), []
    shown.flush = lambda: order.append(len(shown.getvalue()))
    generate = load("generate.py", monkeypatch)
    stream = generate.stream
    monkeypatch.chdir(finished[0])
    monkeypatch.setattr(generate, "stream", lambda *a, **options: (order.append(0) or i for i in stream(*a, **options)))
    monkeypatch.setattr(sys, "stdout", shown)
    assert load(SAMPLE, monkeypatch, RUN, "--prompt", "The ", "--chars", 3).main() == 0
    assert order == [0, 5, 0, 6, 0, 7]  # made, and how much is shown then


@pytest.mark.short
def test_sampling_only_reads(home):
    before = content(home)
    text("--chars", 3, "--top-k", 5, "--top-p", 0.9, cwd=home)
    assert content(home) == before


def test_the_run_saved_last_is_the_default(home):
    shutil.copytree(home / RUN, home / "runs/another")
    shutil.rmtree(home / RUN / "step-00000024")
    for path, time in ((home / RUN / "step-00000016", 1_000), (home / "runs/another/step-00000024", 2_000)):
        os.utime(path, (time, time))
    (home / "runs/.hidden").write_text("no run")
    arguments = ("--temperature", 0, "--chars", 30)
    assert text(*arguments, cwd=home) == text("runs/another", *arguments, cwd=home)


def test_text_that_the_terminal_cannot_show_is_escaped(finished):
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    result = spawned(SAMPLE, "--prompt", "“", "--chars", 0, cwd=finished[0], env=ascii_only)
    assert result.stdout == "\\u201c\n" and "step 24, validation loss" in result.stderr


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("arguments", "parts"), refusals("sample.py"))
def test_bad_input_is_one_line(finished, arguments, parts):
    assert_refused(run(SAMPLE, *arguments, cwd=finished[0]), 2, *parts)


def test_a_model_that_knows_no_new_line_starts_with_what_it_knows(tmp_path):
    (tmp_path / "data.txt").write_text("abc " * 200)
    finish("train_char_gpt.py", *TINY, "--steps", 1, "--sample-every", 0, "--data", "data.txt", cwd=tmp_path)
    assert " abc".startswith(text("--chars", 0, cwd=tmp_path))


def test_attention_is_what_the_model_computes_with(finished, monkeypatch):
    picture = load("attention_picture.py", monkeypatch)
    run_ = load("char_run.py", monkeypatch).load_run(finished[0] / RUN, minigrad.Device("cpu"))
    tokens = run_.tokenizer.encode("The state").tolist()
    (shares,) = picture.attention(run_.model, tokens)
    assert shares.shape == (2, 9, 9) and np.allclose(shares.sum(-1), 1) and not np.triu(shares, 1).any()
    layer = run_.model.h[0].attn
    heard = []
    layer.register_forward_pre_hook(lambda module, inputs: heard.append(inputs[0]))
    with minigrad.no_grad():
        run_.model(minigrad.tensor([tokens]))
        values = layer.c_attn(heard[0]).reshape(9, 3, 2, 8)[:, 2].transpose(0, 1).numpy()
        expected = layer.attend(heard[0]).reshape(9, 2, 8).transpose(0, 1).numpy()
    np.testing.assert_allclose(shares @ values, expected, rtol=1e-4, atol=1e-5)
    if importlib.util.find_spec("matplotlib") is None:
        assert_refused(run(SAMPLE, "--attention", "a.png", cwd=finished[0]), 2, "pip install matplotlib")
