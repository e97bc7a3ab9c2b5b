"""What the tests of GPT-2 and Llama share: weights and token ids."""

import os
from typing import TypeVar

import numpy as np

import minigrad as mg
from minigrad import Generator, Tensor, nn
from minigrad.modes import FAST_IS_OFF

VOCAB = 19
PLANS_RUN = not FAST_IS_OFF and os.environ.get("MINIGRAD_KERNELS") != "plain"
Model = TypeVar("Model", bound=nn.Module)


def randomised(model: Model) -> Model:
    """float64 and evaluating, with large random weights, those of norms too: its choices are not all alike."""
    model.to(mg.float64).eval()
    rng = np.random.default_rng(0)
    model.load_state_dict({n: rng.standard_normal(t.shape) * 0.5 for n, t in model.state_dict().items()})
    return model


def tokens(B: int, T: int, seed: int = 0) -> Tensor:
    """Random ids (B, T)."""
    return mg.randint(0, VOCAB, (B, T), generator=Generator(seed))
