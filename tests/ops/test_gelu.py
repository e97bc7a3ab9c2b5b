"""GELU, exact and by tanh."""

import numpy as np
import pytest
from harness import activation, assert_like_torch, every_check, gelu, uniform
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F

OPS = [
    activation("gelu", gelu, uniform(-4, 4)),
    activation("gelu", lambda x: gelu(x, "tanh"), uniform(-4, 4), approximate="tanh"),
]


test_op = every_check(OPS)


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
