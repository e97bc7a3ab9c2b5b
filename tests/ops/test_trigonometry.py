"""Inverse trigonometric and hyperbolic functions."""

from __future__ import annotations

import numpy as np
import pytest
from harness import binary, every_check, host, needs_torch, torch, unary, uniform

import minigrad as mg

NUMPY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh"}
NUMPY |= {"atanh": "arctanh"}
INSIDE = uniform(-0.9, 0.9)
DOMAINS = {"asin": INSIDE, "acos": INSIDE, "atanh": INSIDE, "acosh": uniform(1.25, 4)}


def function(name):
    return unary(
        name,
        lambda x: getattr(x, name)(),
        getattr(np, NUMPY.get(name, name)),
        lambda x: getattr(x, name)(),
        domains=DOMAINS.get(name, uniform(-2, 2)),
        rounding=64,
    )


NAMES = ("sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh")
OPS = [
    *map(function, NAMES),
    binary("atan2", lambda x, y: x.atan2(y), np.arctan2, lambda x, y: x.atan2(y), rounding=64),
]


test_op = every_check(OPS)


@needs_torch
@pytest.mark.parametrize("name", NAMES)
def test_special_values(name, device):
    """At the ends of the domain, outside of it, and at infinity: PyTorch's values and gradients."""
    array = np.array([-np.inf, -2.0, -1.0, -0.0, 0.0, 1.0, 2.0, np.inf, np.nan])
    if name == "acosh":  # no value at -1, and a slope there is a matter of the sign of 0
        array = array[array != -1]
    x, z = mg.tensor(array, device=device, requires_grad=True), torch.tensor(array, requires_grad=True)
    y, expected = getattr(x, name)(), getattr(z, name)()
    expected.sum().backward()
    np.testing.assert_allclose(host(y), expected.detach().numpy(), rtol=1e-14)
    np.testing.assert_allclose(host(y.sum().backward()[x]), z.grad.numpy(), rtol=1e-14)


@needs_torch
def test_atan2_on_the_axes(device):
    """Every quadrant, the axes, and the origin, which has no slope."""
    points = np.array([(a, b) for a in (-1.0, -0.0, 0.0, 1.0) for b in (-2.0, -0.0, 0.0, 2.0)]).T
    ours = [mg.tensor(p, device=device, requires_grad=True) for p in points]
    theirs = [torch.tensor(p, requires_grad=True) for p in points]
    y, z = ours[0].atan2(ours[1]), theirs[0].atan2(theirs[1])
    z.sum().backward()
    grads = y.sum().backward()
    np.testing.assert_allclose(host(y), z.detach().numpy(), rtol=1e-14)
    for x, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(host(grads[x]), expected.grad.numpy(), rtol=1e-14)
