"""GELU, exact and by tanh."""

import math

import numpy as np
import pytest
from harness import assert_like_torch, every_check, needs_torch, torch, unary, uniform
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F


def exact(x):
    return x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2


def by_tanh(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


OPS = [
    unary("gelu", F.gelu, exact, lambda x: torch.nn.functional.gelu(x), domains=uniform(-4, 4)),
    unary(
        "gelu_tanh",
        lambda x: F.gelu(x, "tanh"),
        by_tanh,
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        domains=uniform(-4, 4),
    ),
]


test_op = every_check(OPS)


@needs_torch
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_tails_and_special_values(approximate, device):
    """Far out it is 0 or x, and its slope 0 or 1. (At infinity the slope is inf times 0; PyTorch's is NaN too.)"""
    values = np.float32([-100, -15, -6, 0, 6, 15, 100, np.nan])

    def run(m, x):
        return m.nn.functional.gelu(x, approximate=approximate)

    # PyTorch's vector unit rounds 1 + erf near erf = -1: what it gives there is off by eps |x|.
    assert_like_torch(run, values, atol=2e-6, differentiate=True, device=device)


def test_errors(device):
    x = mg.ones(2, device=device)
    raises(ValueError, "gelu: approximate='erf'; expected 'none' or 'tanh'", lambda: F.gelu(x, "erf"))
    raises(TypeError, r"gelu expects a floating tensor, not int64; convert with \.float\(\)", lambda: F.gelu(x.long()))
