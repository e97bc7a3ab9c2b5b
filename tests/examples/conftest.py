"""One small training run of the example, made once; tests work on copies of its folder."""

import shutil

import example_scripts
import pytest

import minigrad


@pytest.fixture
def same_generator():
    """Put the default generator back to where it was: a script's main seeds it."""
    state = minigrad.default_generator.state_dict()
    yield
    minigrad.default_generator.load_state_dict(state)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory):
    """A folder in which ``runs/char-gpt`` was trained to its end on the default corpus, and what the script printed."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, example_scripts.spawned("train_char_gpt.py", *example_scripts.TINY, cwd=folder)


@pytest.fixture
def home(finished, tmp_path):
    """A copy of that folder."""
    shutil.copytree(finished[0] / "runs", tmp_path / "runs")
    return tmp_path
