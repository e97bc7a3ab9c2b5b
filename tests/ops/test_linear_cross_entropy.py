"""The loss of a linear layer's outputs, in chunks and at once."""

import numpy as np
import pytest
from harness import Op, draw, every_check, host, integers, simulated, torch, uniform
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F


def log_likelihood(x, w, targets):
    z = x @ w.T
    top = z.max(-1, keepdims=True, initial=-np.inf)
    return top[..., 0] + np.log(np.exp(z - top).sum(-1)) - np.take_along_axis(z, targets[..., None], -1)[..., 0]


OPS = [
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
    )
]


test_op = every_check(OPS)


@pytest.mark.compiled
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_the_loss_in_chunks_is_the_loss(reduction, chunk, device, monkeypatch):
    """Rows in chunks of 1, 3 and all; some are ignored; a scaled loss scales the gradients, and twice is twice."""
    rows = 4 if simulated(device) else 7
    monkeypatch.setattr(mg.Device(device).kernels.linear_cross_entropy, "CHUNK_BYTES", chunk * 6 * 8)
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


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_half_floats_add_up_over_chunks_in_float32(dtype, device, monkeypatch):
    """Against float64, of a scaled loss: chunks of one row are as exact as one rounding of each row's share."""
    monkeypatch.setattr(mg.Device(device).kernels.linear_cross_entropy, "CHUNK_BYTES", 1)
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
    for error, words, targets, reduction in (
        (IndexError, "target 4 at position 1 is out of range for 4 classes", [0, 4], "mean"),
        (TypeError, "targets are class indices, not float32", [1.0, 1.0], "mean"),
        (ValueError, r"linear_cross_entropy: input \(2, 3\), .*target \(3,\)", [0, 1, 2], "mean"),
        (ValueError, "reduction='none'; expected 'mean' or 'sum'", [0, 1], "none"),
    ):
        raises(error, words, F.linear_cross_entropy, x, w, mg.tensor(targets, device=device), reduction=reduction)
