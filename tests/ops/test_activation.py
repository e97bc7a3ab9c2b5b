"""Leaky ReLU, ELU, softplus."""

from __future__ import annotations

import numpy as np
import pytest
from harness import CHECKS, check_name, dyadic, host, needs_torch, torch, unary

import minigrad as mg
import minigrad.nn.functional as F

SIDES = dyadic(-3, 3)  # nowhere near 0


def activation(name, reference, domain=SIDES, **params):
    return unary(
        "-".join([name, *map(str, params.values())]),
        lambda x: getattr(F, name)(x, **params),
        reference,
        lambda x: getattr(torch.nn.functional, name)(x, **params),
        domains=domain,
    )


OPS = [
    activation("leaky_relu", lambda x: np.where(x > 0, x, 0.01 * x)),
    activation("leaky_relu", lambda x: np.where(x > 0, x, -0.5 * x), negative_slope=-0.5),
    activation("elu", lambda x: np.where(x > 0, x, np.expm1(x))),
    activation("elu", lambda x: np.where(x > 0, x, 2 * np.expm1(x)), alpha=2.0),
    activation("softplus", lambda x: np.log1p(np.exp(x))),
    activation("softplus", lambda x: np.where(2 * x > 3, x, np.log1p(np.exp(2 * x)) / 2), beta=2.0, threshold=3.0),
]


@pytest.mark.parametrize("check", CHECKS, ids=check_name)
@pytest.mark.parametrize("op", OPS, ids=str)
def test_op(op, check, device):
    check(op, device)


@needs_torch
@pytest.mark.parametrize("name", ["leaky_relu", "elu", "softplus"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_values_are_pytorchs(name, dtype, device):
    values = np.array([0.0, -0.0, np.inf, -np.inf, 1e30, -1e30, 200, -200, 30, -30, 1e-6, -1e-6], dtype)
    x = mg.tensor(values, device=device, requires_grad=True)
    z = torch.tensor(values, requires_grad=True)
    y, expected = getattr(F, name)(x), getattr(torch.nn.functional, name)(z)
    rtol = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(host(y), expected.detach().numpy(), rtol=rtol, atol=rtol)
    assert getattr(F, name)(x.detach() * np.nan).isnan().all()
    expected.sum().backward()
    np.testing.assert_allclose(host(y.sum().backward()[x]), z.grad.numpy(), rtol=rtol, atol=rtol)
