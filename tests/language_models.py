"""What the tests of GPT-2 and Llama share: weights and token ids."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

import minigrad as mg
from minigrad import Generator, Tensor
from minigrad.models import CausalLM

VOCAB = 19
Model = TypeVar("Model", bound=CausalLM)


def randomised(model: Model) -> Model:
    """float64, with large random weights, so that its choices are not all alike."""
    model.to(mg.float64).eval()
    rng = np.random.default_rng(0)
    model.load_state_dict({n: rng.standard_normal(t.shape) * 0.5 for n, t in model.state_dict().items()})
    return model


def tokens(B: int, T: int, seed: int = 0) -> Tensor:
    """Random ids (B, T)."""
    return mg.randint(0, VOCAB, (B, T), generator=Generator(seed))
