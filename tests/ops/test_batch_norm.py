"""Batch normalisation: training and evaluation, running statistics."""

import numpy as np
from harness import NORMAL, POSITIVE, Op, every_check, functional, host, per_channel, torch, uniform
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F

EPS = 1e-3  # large enough to be seen


def train(x, weight=1.0, bias=0.0):
    axes = (0, *range(2, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    xhat = centred / np.sqrt((centred**2).mean(axes, keepdims=True) + EPS)
    return xhat * per_channel(x, weight) + per_channel(x, bias)


def evaluate(x, mean, var, weight, bias):
    mean, var, weight, bias = (per_channel(x, p) for p in (mean, var, weight, bias))
    return (x - mean) / np.sqrt(var + EPS) * weight + bias


SHAPES = [(3, 4), (2, 4, 3), (2, 4, 3, 2), (300, 4), (5, 3, 700)]
FEW = [(1, 3), (0, 4), (2, 3, 0)]
SMALL_SHAPES = [*SHAPES[:3], (70, 4), (2, 3, 300)]  # channels that threads share; more than one block along S

OPS = [
    functional(
        name,
        lambda f, x, *p: f.batch_norm(x, None, None, *p, training=True, eps=EPS),
        train,
        [(s, *(s[1:2],) * parameters) for s in SHAPES],
        (NORMAL, uniform(0.5, 2), NORMAL)[: parameters + 1],
        rounding=64,
        equal_rows=False,
        small_shapes=[(s, *(s[1:2],) * parameters) for s in SMALL_SHAPES],
    )
    for name, parameters in (("plain", 0), ("affine", 2))
] + [
    Op(
        "evaluation",
        lambda x, mean, var, *p: F.batch_norm(x, mean, var, *p, eps=EPS),
        evaluate,
        lambda x, mean, var, *p: torch.nn.functional.batch_norm(x, mean.detach(), var.detach(), *p, eps=EPS),
        [(s, *(s[1:2],) * 4) for s in [*SHAPES, *FEW]],
        (NORMAL, NORMAL, POSITIVE, uniform(0.5, 2), NORMAL),
        rounding=64,
        differentiable=(True, False, False, True, True),
        small_shapes=[(s, *(s[1:2],) * 4) for s in [*SMALL_SHAPES, *FEW]],
        refuses=("int64", "int32", "uint8", "bool"),
    )
]


test_op = every_check(OPS)


def test_evaluation_changes_nothing(device):
    mean, var = mg.zeros(3, device=device), mg.ones(3, device=device)
    F.batch_norm(mg.ones(2, 3, device=device), mean, var)
    assert mean.version == var.version == 0


def test_a_large_mean_does_not_hide_the_variance(device):
    x = np.float32(10_000 + np.random.default_rng(0).standard_normal((64, 4)))
    y = F.batch_norm(mg.tensor(x, device=device), None, None, training=True)
    exact = x.astype(np.float64) - x.mean(0, dtype=np.float64)
    exact /= np.sqrt((exact**2).mean(0) + 1e-5)
    np.testing.assert_allclose(host(y), exact, atol=5e-3)  # the mean itself is rounded by 1e-3


def test_errors(device):
    raises(ValueError, "needs running_mean and running_var", F.batch_norm, mg.ones(2, 3, device=device), None, None)
