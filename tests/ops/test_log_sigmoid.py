"""Logarithm of the sigmoid."""

import numpy as np
import pytest
from harness import activation, every_check, host, uniform

import minigrad as mg
import minigrad.nn.functional as F

OPS = [activation("logsigmoid", lambda x: -np.logaddexp(0, -x), uniform(-30, 30))]


test_op = every_check(OPS)


def test_far_from_zero(device):
    x = mg.tensor(np.float32([-np.inf, -1e30, -100, 0, 100, 1e30, np.inf, np.nan]), device=device, requires_grad=True)
    y = F.logsigmoid(x)
    expected = np.float32([-np.inf, -1e30, -100, np.log(0.5), -np.exp(-100.0), 0, 0, np.nan])
    np.testing.assert_allclose(host(y), expected, rtol=1e-6, atol=1e-45)
    np.testing.assert_allclose(host(y.sum().backward()[x]), [1, 1, 1, 0.5, np.exp(-100.0), 0, 0, np.nan], atol=1e-43)


def test_integers_are_refused(device):
    with pytest.raises(TypeError, match=r"logsigmoid expects a floating tensor, not int64; convert with \.float\(\)"):
        F.logsigmoid(mg.arange(3, device=device))
