"""Layer normalisation over the last dimensions."""

from functools import partial

import numpy as np
from harness import NORMAL, every_check, functional, host, uniform
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F

EPS = 1e-3  # large enough to be seen


def normalise(x, weight=1.0, bias=0.0, last=1):
    axes = tuple(range(-last, 0))
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + EPS) * weight + bias


def layer(f, x, *parameters, last=1):
    return f.layer_norm(x, x.shape[x.ndim - last :], *parameters, eps=EPS)


ROWS = [(5,), (3, 4), (2, 3, 7), (70, 3), (40, 500), (0, 4)]
SMALL_ROWS = [(5,), (3, 4), (2, 3, 7), (17, 3), (5, 300), (0, 4)]  # several blocks of rows; rows of several warps
AFFINE = (NORMAL, uniform(0.5, 2), NORMAL)


def affine(shapes, last=1):
    return [(s, s[-last:], s[-last:]) for s in shapes]


LAYER = layer, normalise
BOTH = [partial(run, last=2) for run in LAYER]
OPS = [
    functional("plain", *LAYER, [(s,) for s in ROWS], rounding=64, small_shapes=[(s,) for s in SMALL_ROWS]),
    functional("affine", *LAYER, affine(ROWS), AFFINE, rounding=64, small_shapes=affine(SMALL_ROWS)),
    functional("two_dimensions", *BOTH, affine([(3, 4), (2, 3, 4)], 2), AFFINE, rounding=64),
]


test_op = every_check(OPS)


def test_one_parameter_only(device):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 4)), rng.standard_normal(4)
    for weight, bias in ((w, None), (None, w)):
        p = mg.tensor(w, device=device, requires_grad=True)
        args = [None if weight is None else p, None if bias is None else p]
        y = F.layer_norm(mg.tensor(x, device=device), 4, *args, eps=EPS)
        expected = normalise(x, 1.0 if weight is None else w, 0.0 if bias is None else w)
        np.testing.assert_allclose(host(y), expected, rtol=1e-12)
        direction = normalise(x) if bias is None else np.ones_like(x)
        np.testing.assert_allclose(host(y.sum().backward()[p]), direction.sum(0), atol=1e-12)


def test_a_large_mean_does_not_hide_the_variance(device):
    """One pass (mean of squares minus square of the mean) would give noise here."""
    x = np.float32(10_000 + np.random.default_rng(0).standard_normal((4, 64)))
    y = F.layer_norm(mg.tensor(x, device=device), 64)
    exact = x.astype(np.float64) - x.mean(-1, dtype=np.float64, keepdims=True)
    exact /= np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(host(y), exact, atol=5e-3)  # the mean itself is rounded by 1e-3


def test_constant_rows_and_empty_rows(device):
    x = mg.full((2, 4), 3.0, device=device, requires_grad=True)
    y = F.layer_norm(x, 4)
    assert y.tolist() == [[0] * 4] * 2
    assert np.isfinite(host(y.square().sum().backward()[x])).all()
    assert F.layer_norm(mg.ones(2, 0, device=device), 0).shape == (2, 0)


def test_errors(device):
    x, p = mg.ones(2, 3, device=device), mg.ones(2, device=device)
    raises(ValueError, "does not end in", lambda: F.layer_norm(x, (1, 2, 3)))
    raises(ValueError, r"layer_norm: weight has shape \(2,\), expected \(3,\)", lambda: F.layer_norm(x, 3, p))
    raises(ValueError, r"layer_norm: bias has shape \(2,\), expected \(3,\)", lambda: F.layer_norm(x, 3, None, p))
    raises(TypeError, "layer_norm expects a floating tensor, not int64", lambda: F.layer_norm(x.long(), 3))
