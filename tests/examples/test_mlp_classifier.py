"""Two spirals: the accuracy is that of the network, and the drawing shows what it says."""

import importlib.util
import re
import sys

import numpy as np
import pytest
from example_scripts import finish, load, recorded
from refusals import raises

import minigrad

SPIRALS = "mlp_classifier.py"


def by_hand(model, x: np.ndarray) -> np.ndarray:
    """The classes, computed in float64 from the weights."""
    w = {name: p.detach().numpy().astype(np.float64) for name, p in model.named_parameters()}
    for layer in (0, 2):
        x = np.tanh(x @ w[f"{layer}.weight"].T + w[f"{layer}.bias"])
    return (x @ w["4.weight"].T + w["4.bias"]).argmax(1)


def test_the_accuracy_is_that_of_new_points(monkeypatch, tmp_path):
    spirals = load(SPIRALS, monkeypatch)
    seen = recorded(monkeypatch, spirals, "train")
    shown = finish(SPIRALS, "--steps", 150, "--points", 300, "--seed", 3, cwd=tmp_path).stdout
    model, known = seen[:2]
    rng = np.random.default_rng(3)
    first, _ = spirals.two_spirals(300, 0.02, rng)
    x, y = spirals.two_spirals(300, 0.02, rng)
    assert np.array_equal(first, known) and not np.isin(x, known).any()
    right = int((by_hand(model, x.astype(np.float64)) == y).sum())
    assert shown.splitlines()[-1].startswith(f"{right} of 300 new points right: {right / 3:.1f} % ")
    assert shown.startswith("4,482 parameters; about 0.3 GB of memory, ")
    assert 180 < right < 300  # it has learned something and not everything, so the number means something


@pytest.mark.long
def test_it_learns_the_spirals(tmp_path):
    shown = finish(SPIRALS, "--steps", 700, "--width", 0, cwd=tmp_path).stdout
    (right,) = re.findall(r"^(\d+) of 400 new points right", shown, re.MULTILINE)
    assert int(right) >= 380


def test_the_drawing_is_what_the_network_says(monkeypatch):
    spirals = load(SPIRALS, monkeypatch)

    class Right(minigrad.nn.Module):
        """Class 1 above the falling diagonal."""

        def forward(self, x: minigrad.Tensor) -> minigrad.Tensor:
            return minigrad.stack([x[:, 0] * 0, x.sum(1)], dim=1)

    x = np.array([[-1, 0.9], [1, 1], [-1, -1], [-1, -1.05]], np.float32)
    drawn = spirals.drawing(Right(), x, np.array([0, 1, 1, 0]), 8).splitlines()
    assert drawn[:-1] == ["o::::::x", "...:::::", ".....:::", "!......:"]  # a mistake is not hidden by what is right


def test_the_points_are_two_spirals(monkeypatch):
    x, y = load(SPIRALS, monkeypatch).two_spirals(1000, 0.0, np.random.default_rng(0))
    radius, angle = np.hypot(*x.T), np.arctan2(x[:, 1], x[:, 0])
    turned = angle - 3.5 * np.pi * radius - np.pi * y
    np.testing.assert_allclose(np.cos(turned), 1, atol=1e-4)
    assert y.sum() == 500 and radius.max() <= 1


def test_the_picture_is_drawn_or_said_to_be_missing(monkeypatch, tmp_path):
    arguments = ("--steps", 1, "--points", 4, "--width", 0, "--png", "new/plane.png")
    shown = finish(SPIRALS, *arguments, cwd=tmp_path).stdout
    if importlib.util.find_spec("matplotlib") is not None:
        assert "picture: new/plane.png" in shown
        assert (tmp_path / "new/plane.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed
    assert "no picture: matplotlib is not installed" in finish(SPIRALS, *arguments, cwd=tmp_path).stdout


def test_what_does_not_fit_is_refused(monkeypatch):
    script = load(SPIRALS, monkeypatch, "--hidden", 10**6)
    told = r"1,000,006,000,002 parameters .* need about 16,0.*GB of memory.*; --hidden 16384 fits$"
    monkeypatch.setattr(sys.modules["estimate"], "free_memory", lambda device: 2**33)
    raises(script.UsageError, told, script.main)
    both = load(SPIRALS, monkeypatch, "--hidden", 10**6, "--points", 10**9)
    raises(script.UsageError, r"; --hidden \d+ --points \d+ fit$", both.main)
