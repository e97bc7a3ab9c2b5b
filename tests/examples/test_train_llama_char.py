"""The Llama example: the same training with another model. What it shares is tested in test_train_char_gpt.py."""

from pathlib import Path

import pytest
from example_scripts import TINY, assert_refused, finish, run

from minigrad.serialization import load_checkpoint

TRAIN = "train_llama_char.py"
RUN = Path("runs/char-llama")
SIZES = (*TINY, "--n-kv-head", 1, "--n-inner", 24)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ``runs/char-llama`` was trained to its end."""
    folder = tmp_path_factory.mktemp("llama")
    result = finish(TRAIN, *SIZES, cwd=folder)
    assert "Llama: " in result.stdout and "run: runs/char-llama, steps 1 to 24" in result.stdout
    assert "done in" in result.stdout and result.stderr == ""
    return folder


def test_it_trains_a_llama_which_the_sampling_script_knows(trained: Path) -> None:
    saved = load_checkpoint(trained / RUN)
    assert saved.step == 24 and saved.state["family"] == "llama" and saved.state["settings"]["n_kv_head"] == 1
    assert saved.tensors["model"]["layers.0.self_attn.k_proj.weight"].shape == (8, 16)
    result = finish("sample.py", RUN, "--prompt", "The ", "--chars", 20, "--seed", 1, cwd=trained)
    assert result.stdout.startswith("The ")


@pytest.mark.long
def test_a_run_is_resumed_by_its_own_script(trained: Path) -> None:
    assert_refused(run("train_char_gpt.py", "--resume", cwd=trained), 2, "is a run of train_llama_char.py")


def test_sizes_that_do_not_fit_and_the_help(tmp_path: Path) -> None:
    assert_refused(run(TRAIN, "--n-kv-head", 3, cwd=tmp_path), 2, "n_head=4 is not a multiple of n_kv_head=3")
    shown = finish(TRAIN, "--help", cwd=tmp_path).stdout
    assert "default runs/char-llama" in shown and "runs/char-gpt" not in shown
