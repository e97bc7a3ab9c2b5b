"""Linear layers, alone and with a residual or a GELU."""

import math

import numpy as np
import pytest
from harness import Op, draw, every_check, functional, gelu, host, torch, uniform
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F
from minigrad import nn

LAYERS = [*((s, (4, 3)) for s in [(5, 3), (3,), (2, 5, 3)]), ((33, 65), (70, 65)), ((0, 3), (4, 3)), ((2, 0), (4, 0))]
SMALL_LAYERS = [*LAYERS[:3], ((9, 33), (20, 33)), *LAYERS[4:]]  # more results than a block has threads


def with_bias(shapes):
    return [(x, w, w[:1]) for x, w in shapes]


def with_residual(shapes):
    return [(x, w, w[:1], (*x[:-1], w[0])) for x, w in shapes]


def two_layers(shapes):
    return [(x, w, w[:1], (3, w[0]), (3,), (*x[:-1], 3)) for x, w in shapes]


def feed_forward(approximate):
    def run_torch(x, w, b, w2, b2, r):
        f = torch.nn.functional
        return r + f.linear(f.gelu(f.linear(x, w, b), approximate=approximate), w2, b2)

    shapes = [*LAYERS[:3], ((33, 20), (70, 20)), ((0, 3), (4, 3))]
    return Op(
        f"feed_forward-{approximate}",
        lambda x, w, b, w2, b2, r: F.feed_forward(x, w, b, w2, b2, approximate, residual=r),
        lambda x, w, b, w2, b2, r: r + gelu(x @ w.T + b, approximate) @ w2.T + b2,
        run_torch,
        two_layers(shapes),
        uniform(-0.5, 0.5),
        rounding=256,
        half_rounding=4,  # PyTorch rounds between the layers
        small_shapes=two_layers([LAYERS[0], LAYERS[2], ((0, 3), (4, 3))]),
    )


OPS = [
    functional(
        "linear", lambda f, x, w: f.linear(x, w), lambda x, w: x @ w.T, LAYERS, rounding=64, small_shapes=SMALL_LAYERS
    ),
    functional(
        "linear_bias",
        lambda f, x, w, b: f.linear(x, w, b),
        lambda x, w, b: x @ w.T + b,
        with_bias(LAYERS),
        rounding=64,
        small_shapes=with_bias(SMALL_LAYERS),
    ),
    Op(
        "linear_residual",
        lambda x, w, b, r: F.linear(x, w, b, residual=r),
        lambda x, w, b, r: r + x @ w.T + b,
        lambda x, w, b, r: r + torch.nn.functional.linear(x, w, b),
        with_residual(LAYERS),
        rounding=64,
        half_rounding=4,  # PyTorch rounds before it adds
        small_shapes=with_residual(SMALL_LAYERS[:2]),
    ),
    feed_forward("tanh"),
    feed_forward("none"),
]


test_op = every_check(OPS)


@pytest.mark.parametrize("shapes", [((5, 2), (4, 3)), ((5, 3), (3,)), ((5, 3), (4, 3), (3,)), ((), (4, 3))])
def test_linear_names_its_shapes(shapes, device):
    with pytest.raises(ValueError, match=r"linear: x \(.*weight \(.*expected x \(\.\.\., in\), weight \(out, in\)"):
        F.linear(*(mg.ones(*shape, device=device) for shape in shapes))


@pytest.mark.parametrize("wanted", range(1, 16))
def test_each_gradient_alone(wanted, device):
    """Whatever inputs are frozen, the others' gradients are the same."""
    tensors = draw(device, (6, 4), (5, 4), (5,), (6, 5))
    whole = F.linear(*tensors[:3], residual=tensors[3]).square().sum().backward()
    for i, t in enumerate(tensors):
        t.requires_grad = bool(wanted >> i & 1)
    some = F.linear(*tensors[:3], residual=tensors[3]).square().sum().backward()
    for t in tensors:
        assert (t in some) == t.requires_grad
        if t.requires_grad:
            np.testing.assert_allclose(host(some[t]), host(whole[t]), rtol=1e-12)


def test_a_residual_that_broadcasts_or_is_wider_is_added_as_always(device):
    x, w, r = draw(device, (6, 4), (5, 4), (5,), dtype=np.float32)
    np.testing.assert_array_equal(host(F.linear(x, w, residual=r)), host(r + F.linear(x, w)))
    wide = mg.tensor(np.full((6, 5), 1e-9), device=device)
    y = F.linear(x, w, residual=wide)
    assert y.dtype == mg.float64
    np.testing.assert_array_equal(host(y), host(wide + F.linear(x, w)))
    with mg.autocast(x.device.type, mg.bfloat16):
        y = F.linear(x, w, residual=mg.ones(6, 5, device=device))
        assert y.dtype == mg.float32
        assert F.feed_forward(x, w, None, w.T, None, residual=x).dtype == mg.float32


def test_feed_forward_names_its_shapes(device):
    x, w, b = draw(device, (6, 4), (5, 4), (5,))
    with pytest.raises(ValueError, match=r"feed_forward: weight2 \(4, 4\), bias2 None; expected weight2 \(out, 5\)"):
        F.feed_forward(x, w, b, mg.ones(4, 4, device=device), None)
    raises(ValueError, "feed_forward: x .* expected x", lambda: F.feed_forward(x, w.T, b, w.T, None))
    raises(ValueError, "approximate='fast'", lambda: F.feed_forward(x, w, b, w.T, None, "fast"))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_nan_and_infinity_pass(approximate, device):
    """They reach the rows that have them, and only those."""
    x, w, w2 = draw(device, (4, 6), (5, 6), (3, 5))
    with mg.no_grad():
        x[1, 2] = math.nan
        x[2, 3] = math.inf
    y = host(F.feed_forward(x, w, None, w2, None, approximate))
    assert np.isfinite(y[[0, 3]]).all()
    assert np.isnan(y[1]).all()
    assert not np.isfinite(y[2]).any()


def test_layers_are_made_on_a_device_in_a_dtype(device):
    made = {"device": device, "dtype": "float64"}
    layers = [nn.Linear(3, 2, **made), nn.Embedding(3, 2, **made), nn.LayerNorm(3, **made), nn.RMSNorm(3, **made)]
    layers += [nn.GroupNorm(1, 3, **made), nn.BatchNorm1d(3, **made)]
    tensors = [t for layer in layers for t in (*layer.parameters(), *layer.buffers()) if t.ndim]
    assert len(tensors) == 12
    assert {(t.device, t.dtype) for t in tensors} == {(mg.Device(device), mg.float64)}
