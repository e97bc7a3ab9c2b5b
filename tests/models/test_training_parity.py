"""The same GPT trained 100 steps here and in PyTorch: the curves agree at every step (see tests/gpt_training.py).

The tolerances leave room for another order of summation, whose differences training amplifies; a wrong factor anywhere
in model, loss, gradients, clipping, schedule or optimizer is far outside of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gpt_training import STEPS, Curves, train_minigrad, train_torch

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "gpt_training.json").read_text())
TOLERANCE = {"float32": 1e-3, "float64": 1e-9}


@pytest.fixture(scope="module", params=["float32", "float64"])
def run(request: pytest.FixtureRequest) -> tuple[str, Curves]:
    return request.param, train_minigrad(request.param)


def agree(found: Curves, want: Curves, tolerance: float) -> None:
    assert len(found["losses"]) == STEPS
    np.testing.assert_allclose(found["losses"], want["losses"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(found["grad_norms"], want["grad_norms"], rtol=10 * tolerance, atol=0)


def test_as_pytorch_did(run: tuple[str, Curves]) -> None:
    dtype, curves = run
    agree(curves, GOLDEN[dtype], TOLERANCE[dtype])


def test_as_pytorch_does(run: tuple[str, Curves]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed; the golden curves were compared")
    dtype, curves = run
    agree(curves, train_torch(dtype), TOLERANCE[dtype])


def test_it_learns_and_it_clips(run: tuple[str, Curves]) -> None:
    """Otherwise the comparison would say little."""
    _, curves = run
    assert curves["losses"][-1] < 0.6 * curves["losses"][0]
    assert max(curves["grad_norms"]) > 1 > min(curves["grad_norms"])
