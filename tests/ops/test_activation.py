"""Leaky ReLU, ELU, softplus, and what is made of them and of norms: SELU, mish, normalize, cosine similarity."""

import numpy as np
from harness import activation, dyadic, every_check, functional, torch, unary

import minigrad as mg
import minigrad.nn.functional as F

ALPHA, SCALE = 1.6732632423543772, 1.0507009873554805
INTEGERS = ("int64", "int32", "uint8", "bool")
SIDES = dyadic(-3, 3)  # nowhere near 0
OPS = [
    activation("hardtanh", lambda x: np.clip(x, -1, 1), SIDES, INTEGERS),
    activation("hardtanh", lambda x: np.clip(x, -0.5, 2.75), SIDES, INTEGERS, min_val=-0.5, max_val=2.75),
    activation("relu6", lambda x: np.clip(x, 0, 6), dyadic(-9, 9), INTEGERS),
    unary(
        "hardsigmoid",
        F.hardsigmoid,
        lambda x: np.clip(x + 3, 0, 6) / 6,
        lambda x: torch.nn.functional.relu6(x + 3) / 6,  # the gradient of its hardsigmoid has 1/6 in float32
        domains=dyadic(-4, 4),
        refuses=INTEGERS,
    ),
    activation("hardswish", lambda x: x * np.clip(x + 3, 0, 6) / 6, dyadic(-4, 4), INTEGERS),
    activation("softsign", lambda x: x / (1 + np.abs(x)), SIDES),
    activation("tanhshrink", lambda x: x - np.tanh(x), SIDES),
    activation("leaky_relu", lambda x: np.where(x > 0, x, 0.01 * x), SIDES),
    activation("leaky_relu", lambda x: np.where(x > 0, x, -0.5 * x), SIDES, negative_slope=-0.5),
    activation("elu", lambda x: np.where(x > 0, x, np.expm1(x)), SIDES),
    activation("elu", lambda x: np.where(x > 0, x, 2 * np.expm1(x)), SIDES, alpha=2.0),
    activation("selu", lambda x: SCALE * np.where(x > 0, x, ALPHA * np.expm1(x)), SIDES, INTEGERS),
    activation("mish", lambda x: x * np.tanh(np.log1p(np.exp(x))), SIDES, INTEGERS),
    functional(
        "softmin",
        lambda f, x: f.softmin(x, 1),
        lambda x: np.exp(-x) / np.exp(-x).sum(1, keepdims=True),
        [((3, 4),), ((2, 3, 2),)],
        rounding=64,
    ),
    *(
        functional(
            f"normalize-{p}-{dim}",
            lambda f, x, p=p, dim=dim: f.normalize(x, p, dim),
            lambda x, p=p, dim=dim: x / (np.abs(x) ** p).sum(dim, keepdims=True) ** (1 / p),
            [((3, 4),), ((2, 3, 2),)],
            SIDES,
            rounding=64,
        )
        for p, dim in ((2.0, 1), (1.0, 0), (3.0, -1))
    ),
    functional(
        "cosine_similarity",
        lambda f, x, y: f.cosine_similarity(x, y, -1),
        lambda x, y: (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1)),
        [((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((4,), (4,))],
        SIDES,
        rounding=64,
    ),
    activation("softplus", lambda x: np.log1p(np.exp(x)), SIDES),
    activation("softplus", lambda x: np.where(2 * x > 3, x, np.log1p(np.exp(2 * x)) / 2), SIDES, beta=2.0, threshold=3),
]


test_op = every_check(OPS)


def test_vectors_of_length_0_have_no_direction(device):
    x = mg.zeros(2, 3, device=device, requires_grad=True)
    assert F.normalize(x).tolist() == F.normalize(x, 1.0, 0).tolist() == [[0] * 3] * 2
    y = F.cosine_similarity(x, mg.ones(2, 3, device=device))
    assert y.tolist() == [0, 0]
    assert y.sum().backward()[x].isfinite().all()
