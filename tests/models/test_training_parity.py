"""The same GPT trained 100 steps here and in PyTorch: the curves agree at every step (see tests/gpt_training.py).

The tolerances leave room for another order of summation, whose differences training amplifies; a wrong factor anywhere
in model, loss, gradients, clipping, schedule or optimizer is far outside of them.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from gpt_training import STEPS, train_minigrad

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "gpt_training.json").read_text())


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("float64", 1e-9)])
def test_the_curves_are_pytorchs(dtype: str, tolerance: float) -> None:
    """As tests/golden/make_gpt_training.py has stored them."""
    found, want = train_minigrad(dtype), GOLDEN[dtype]
    losses, norms = found["losses"], found["grad_norms"]
    assert len(losses) == STEPS
    np.testing.assert_allclose(losses, want["losses"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(norms, want["grad_norms"], rtol=10 * tolerance, atol=0)
    # It learns and it clips: otherwise the comparison would say little.
    assert losses[-1] < 0.6 * losses[0] and max(norms) > 1 > min(norms)
