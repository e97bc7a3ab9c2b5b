"""Linear layers, alone and with a residual, a GELU or a loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
from harness import CHECKS, Op, check_name, host, integers, needs_torch, simulated, uniform

import minigrad as mg
import minigrad.nn.functional as F
from minigrad.ops import linear as linear_ops

from harness import torch  # isort: skip

LAYERS = [
    ((5, 3), (4, 3)),
    ((3,), (4, 3)),
    ((2, 5, 3), (4, 3)),
    ((33, 65), (70, 65)),
    ((0, 3), (4, 3)),
    ((2, 0), (4, 0)),
]
SMALL_LAYERS = [*LAYERS[:3], ((9, 33), (20, 33)), *LAYERS[4:]]  # more results than a block has threads


def with_bias(shapes):
    return [(x, w, w[:1]) for x, w in shapes]


def with_residual(shapes):
    return [(x, w, w[:1], (*x[:-1], w[0])) for x, w in shapes]


def two_layers(shapes):
    return [(x, w, w[:1], (3, w[0]), (3,), (*x[:-1], 3)) for x, w in shapes]


def gelu(x, approximate):
    if approximate == "tanh":
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    return x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2


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


def log_likelihood(x, w, targets):
    z = x @ w.T
    top = z.max(-1, keepdims=True, initial=-np.inf)
    return top[..., 0] + np.log(np.exp(z - top).sum(-1)) - np.take_along_axis(z, targets[..., None], -1)[..., 0]


OPS = [
    Op(
        "linear",
        F.linear,
        lambda x, w: x @ w.T,
        lambda x, w: torch.nn.functional.linear(x, w),
        LAYERS,
        rounding=64,
        small_shapes=SMALL_LAYERS,
    ),
    Op(
        "linear_bias",
        F.linear,
        lambda x, w, b: x @ w.T + b,
        lambda x, w, b: torch.nn.functional.linear(x, w, b),
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
    Op(
        "linear_cross_entropy",
        F.linear_cross_entropy,
        lambda x, w, t: log_likelihood(x, w, t).mean(),
        lambda x, w, t: torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(x, w).reshape(-1, 5), t.reshape(-1)
        ),
        [((6, 4), (5, 4), (6,)), ((2, 3, 4), (5, 4), (2, 3)), ((4,), (5, 4), ())],
        (uniform(-2, 2), uniform(-2, 2), integers(0, 5)),
        rounding=256,
        half_rounding=16,  # PyTorch rounds the logits
    ),
]


@pytest.mark.parametrize("check", CHECKS, ids=check_name)
@pytest.mark.parametrize("op", OPS, ids=str)
def test_op(op, check, device):
    check(op, device)


def draw(device, *shapes, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [mg.tensor(rng.standard_normal(s).astype(dtype), device=device, requires_grad=True) for s in shapes]


def test_linear_equals_its_parts(device):
    x, w, b = draw(device, (2, 5, 3), (4, 3), (4,))
    fused, parts = F.linear(x, w, b), x @ w.T + b
    np.testing.assert_allclose(host(fused), host(parts), rtol=1e-12)
    one, two = fused.square().sum().backward(), parts.square().sum().backward()
    for t in (x, w, b):
        np.testing.assert_allclose(host(one[t]), host(two[t]), rtol=1e-12)


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
    with pytest.raises(ValueError, match="feed_forward: x .* expected x"):
        F.feed_forward(x, w.T, b, w.T, None)
    with pytest.raises(ValueError, match="approximate='fast'"):
        F.feed_forward(x, w, b, w.T, None, "fast")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_the_loss_in_chunks_is_the_loss(reduction, chunk, device, monkeypatch):
    """Rows in chunks of 1, 3 and all; some are ignored; a scaled loss scales the gradients, and twice is twice."""
    rows = 4 if simulated(device) else 7
    for limit in ("CHUNK_BYTES", "DEVICE_CHUNK_BYTES"):
        monkeypatch.setattr(linear_ops, limit, chunk * 6 * 8)
    x, w = draw(device, (rows, 5), (6, 5))
    targets = mg.tensor(np.arange(rows) % 6, device=device)
    targets[1] = 2
    options = {"ignore_index": 2, "reduction": reduction}
    loss = F.linear_cross_entropy(x, w, targets, **options)
    plain = F.cross_entropy(F.linear(x, w), targets, **options)
    np.testing.assert_allclose(host(loss), host(plain), rtol=1e-12)
    with mg.no_grad():
        np.testing.assert_allclose(host(F.linear_cross_entropy(x, w, targets, **options)), host(plain), rtol=1e-12)
    expected = (3 * plain).backward()
    scaled = 3 * loss
    for _ in range(2):
        found = scaled.backward(retain_graph=True)
        for t in (x, w):
            np.testing.assert_allclose(host(found[t]), host(expected[t]), rtol=1e-11, atol=1e-14)
    w.requires_grad = False
    found = F.linear_cross_entropy(x, w, targets, **options).backward()
    np.testing.assert_allclose(3 * host(found[x]), host(expected[x]), rtol=1e-11, atol=1e-14)
    assert w not in found


def test_a_tied_weight_gets_both_gradients(device):
    """The head's gradient and the embedding's are added, and not into each other's memory."""
    (w,) = draw(device, (6, 4))
    tokens = mg.tensor([1, 5, 1], device=device)
    for _ in range(2):
        found = F.linear_cross_entropy(F.embedding(tokens, w), w, tokens).backward()[w]
    expected = F.cross_entropy(F.linear(F.embedding(tokens, w), w), tokens).backward()[w]
    np.testing.assert_allclose(host(found), host(expected), rtol=1e-12)


def test_no_target_at_all_is_nan(device):
    x, w = draw(device, (2, 3), (4, 3))
    loss = F.linear_cross_entropy(x, w, mg.full((2,), -100, dtype=mg.int64, device=device))
    assert np.isnan(host(loss))
    assert not host(loss.backward()[x]).any()
    x, w = draw(device, (0, 3), (4, 3))
    assert np.isnan(host(F.linear_cross_entropy(x, w, mg.zeros(0, dtype=mg.int64, device=device))))


def test_half_floats_and_autocast_give_the_loss_of_the_parts(device):
    for dtype in (mg.bfloat16, mg.float16):
        x, w = (t.detach().to(dtype).requires_grad_() for t in draw(device, (3, 4), (5, 4), dtype=np.float32))
        targets = mg.tensor([0, 4, 2], device=device)
        loss, plain = F.linear_cross_entropy(x, w, targets), F.cross_entropy(F.linear(x, w), targets)
        assert loss.dtype == plain.dtype == dtype
        assert float(loss) == pytest.approx(float(plain), rel=0.02)
        assert loss.backward()[w].dtype == dtype
        x, w = x.detach().float(), w.detach().float().requires_grad_()
        with mg.autocast(x.device.type, dtype):
            loss, plain = F.linear_cross_entropy(x, w, targets), F.cross_entropy(F.linear(x, w), targets)
        assert loss.dtype == plain.dtype == mg.float32
        assert float(loss) == pytest.approx(float(plain), rel=0.02)
        one, two = loss.backward()[w], plain.backward()[w]
        np.testing.assert_allclose(host(one), host(two), atol=0.02)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_half_floats_add_up_over_chunks_in_float32(dtype, device, monkeypatch):
    """Against float64, of a scaled loss: chunks of one row are as exact as one rounding of each row's share."""
    for limit in ("CHUNK_BYTES", "DEVICE_CHUNK_BYTES"):
        monkeypatch.setattr(linear_ops, limit, 1)
    rows, dtype = 12 if simulated(device) else 400, getattr(mg, dtype)
    x = mg.ones(rows, 8, device=device).to(dtype).requires_grad_()
    w = mg.zeros(8, 8, device=device).to(dtype).requires_grad_()
    targets = mg.zeros(rows, dtype=mg.int64, device=device)
    found = (F.linear_cross_entropy(x, w, targets).float() * 1024).backward()
    expected = np.full((8, 8), 1024 / 8)
    expected[0] = -1024 * 7 / 8  # each row adds as much: a sum in half floats would stop early
    np.testing.assert_allclose(host(found[w].double()), expected, rtol=2e-3)
    np.testing.assert_array_equal(host(found[x].double()), 0)


def test_the_loss_names_wrong_targets(device):
    x, w = draw(device, (2, 3), (4, 3))
    with pytest.raises(IndexError, match="linear_cross_entropy: target 4 at position 1 is out of range for 4 classes"):
        F.linear_cross_entropy(x, w, mg.tensor([0, 4], device=device))
    with pytest.raises(TypeError, match="targets are class indices, not float32"):
        F.linear_cross_entropy(x, w, mg.ones(2, device=device))
    with pytest.raises(ValueError, match=r"linear_cross_entropy: input \(2, 3\), .*target \(3,\)"):
        F.linear_cross_entropy(x, w, mg.tensor([0, 1, 2], device=device))
    with pytest.raises(ValueError, match="reduction='none'; expected 'mean' or 'sum'"):
        F.linear_cross_entropy(x, w, mg.tensor([0, 1], device=device), reduction="none")


@needs_torch
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
