"""Root-mean-square normalisation over the last dimensions."""

from functools import partial

import numpy as np
import pytest
from harness import NORMAL, assert_like_torch, every_check, functional, host, uniform
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F

EPS = 1e-3  # large enough to be seen


def normalise(x, weight=1.0, last=1):
    return x / np.sqrt((x**2).mean(tuple(range(-last, 0)), keepdims=True) + EPS) * weight


def rms(f, x, *weight, last=1):
    return f.rms_norm(x, x.shape[x.ndim - last :], *weight, eps=EPS)


ROWS = [(5,), (3, 4), (2, 3, 7), (70, 3), (40, 500), (0, 4)]
SMALL_ROWS = [(5,), (3, 4), (2, 3, 7), (17, 3), (5, 300), (0, 4)]  # several blocks of rows; rows of several warps

WEIGHT = (NORMAL, uniform(0.5, 2))


def weighted(shapes, last=1):
    return [(s, s[-last:]) for s in shapes]


RMS = rms, normalise
BOTH = [partial(run, last=2) for run in RMS]
OPS = [
    functional("plain", *RMS, [(s,) for s in ROWS], rounding=64, small_shapes=[(s,) for s in SMALL_ROWS]),
    functional("weighted", *RMS, weighted(ROWS), WEIGHT, rounding=64, small_shapes=weighted(SMALL_ROWS)),
    functional("two_dimensions", *BOTH, weighted([(3, 4), (2, 3, 4)], 2), WEIGHT, rounding=64),
]


test_op = every_check(OPS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_default_eps_is_pytorchs(dtype, device):
    x = (np.random.default_rng(0).standard_normal((3, 4)) * 1e-4).astype(dtype)
    assert_like_torch(lambda m, x: m.nn.functional.rms_norm(x, (4,)), x, rtol=1e-5, device=device)


def test_zero_rows_and_empty_rows(device):
    x = mg.zeros(2, 4, device=device, requires_grad=True)
    y = F.rms_norm(x, 4)
    assert y.tolist() == [[0] * 4] * 2
    assert np.isfinite(host(y.sum().backward()[x])).all()
    assert F.rms_norm(mg.ones(2, 0, device=device), 0).shape == (2, 0)


def test_nan_and_infinity_reach_the_result(device):
    x = np.ones((3, 4), np.float32)
    x[0, 1], x[1, 2] = np.nan, np.inf
    y = host(F.rms_norm(mg.tensor(x, device=device), 4))
    assert np.isnan(y[0]).all() and np.isnan(y[1, 2]) and (y[1, :2] == 0).all() and (y[2] == y[2, 0]).all()


def test_errors(device):
    x, p = mg.ones(2, 3, device=device), mg.ones(2, device=device)
    words = r"rms_norm: x of shape \(2, 3\) does not end in normalized_shape \(2,\)"
    raises(ValueError, words, lambda: F.rms_norm(x, 2))
    raises(ValueError, r"rms_norm: weight has shape \(2,\), expected \(3,\)", lambda: F.rms_norm(x, 3, p))
    raises(TypeError, "rms_norm expects a floating tensor, not int64", lambda: F.rms_norm(x.long(), 3))
