"""Losses and small layers as modules: PyTorch's names, options and numbers."""

import numpy as np
import pytest
from refusals import raises

import minigrad
from minigrad import nn
from minigrad.nn import functional as F

RNG = np.random.default_rng(0)
LOGITS, LABELS = RNG.standard_normal((6, 4)), np.array([0, 3, -100, 1, 2, 3])
TARGET, P = RNG.uniform(0.1, 0.9, (6, 4)), RNG.uniform(0.05, 0.95, (6, 4))
WEIGHT = np.array([0.5, 2.0, 1.0, 0.25])
LOG_P = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))

CASES = [
    ("CrossEntropyLoss", {}, LOGITS, LABELS),
    ("CrossEntropyLoss", {"weight": WEIGHT, "label_smoothing": 0.1, "ignore_index": 3}, LOGITS, np.abs(LABELS % 4)),
    ("NLLLoss", {}, LOG_P, LABELS),
    ("NLLLoss", {"weight": WEIGHT}, LOG_P, LABELS),
    ("MSELoss", {}, LOGITS, TARGET),
    ("L1Loss", {}, LOGITS, TARGET),
    ("SmoothL1Loss", {"beta": 0.5}, LOGITS, TARGET),
    ("HuberLoss", {"delta": 0.7}, LOGITS, TARGET),
    ("BCELoss", {"weight": WEIGHT}, P, TARGET),
    ("BCEWithLogitsLoss", {"weight": WEIGHT, "pos_weight": WEIGHT + 1}, LOGITS, TARGET),
    ("KLDivLoss", {"log_target": True}, LOG_P, np.log(TARGET)),
]


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # PyTorch's advice to take "batchmean"
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("name", "options", "x", "target"), CASES, ids=[f"{c[0]}-{len(c[1])}" for c in CASES])
def test_it_is_pytorchs(name, options, x, target, reduction):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def loss(library, convert):
        values = {key: convert(value) if isinstance(value, np.ndarray) else value for key, value in options.items()}
        return getattr(library, name)(reduction=reduction, **values)(convert(x), convert(target))

    ours, theirs = loss(nn, minigrad.tensor), loss(torch.nn, torch.tensor)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-12)


def test_weights_move_with_the_module_and_options_show():
    loss = nn.CrossEntropyLoss(minigrad.tensor(WEIGHT), label_smoothing=0.1)
    assert [name for name, _ in loss.named_buffers()] == ["weight"] and not list(loss.parameters())
    assert loss.to(dtype=minigrad.float32).weight.dtype == minigrad.float32
    assert repr(nn.MSELoss("sum")) == "MSELoss(reduction='sum')"
    for module in (nn.MSELoss, nn.CrossEntropyLoss, nn.KLDivLoss):
        raises(ValueError, "reduction='average'; expected 'mean'", lambda module=module: module(reduction="average"))


def test_the_divergence_per_sample():
    x, target = minigrad.tensor(LOG_P), minigrad.tensor(TARGET / TARGET.sum(1, keepdims=True))
    expected = (target.numpy() * (np.log(target.numpy()) - LOG_P)).sum() / 6
    assert nn.KLDivLoss("batchmean")(x, target).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 4, 3), (2, 4, 3, 2), (0, 4)])
@pytest.mark.parametrize("weighted", [False, True])
def test_log_likelihood_of_any_number_of_dimensions_is_cross_entropys(shape, weighted):
    rng = np.random.default_rng(1)
    x = minigrad.tensor(rng.standard_normal(shape), requires_grad=True)
    dim = min(1, len(shape) - 1)
    labels = minigrad.tensor(rng.integers(0, 4, shape[:dim] + shape[dim + 1 :]))
    weight = minigrad.tensor(WEIGHT) if weighted else None
    for reduction in ("mean", "sum", "none"):
        losses = [
            F.cross_entropy(x, labels, weight, ignore_index=2, reduction=reduction),
            F.nll_loss(x.log_softmax(dim), labels, weight, ignore_index=2, reduction=reduction),
        ]
        np.testing.assert_allclose(*[loss.numpy(force=True) for loss in losses], rtol=1e-12)
        if x.numel():
            grads = [loss.sum().backward()[x].numpy() for loss in losses]
            np.testing.assert_allclose(*grads, rtol=1e-10, atol=1e-12)


def test_small_layers():
    x = minigrad.tensor(RNG.standard_normal((2, 3, 4)) * 10)
    assert nn.Identity()(x) is x
    assert nn.Flatten()(x).shape == (2, 12) and nn.Flatten(0, 1)(x).shape == (6, 4)
    assert repr(nn.Flatten()) == "Flatten(start_dim=1, end_dim=-1)"
    assert nn.Unflatten(1, (3, -1))(x).shape == (2, 3, 1, 4) and "(3, -1)" in repr(nn.Unflatten(1, (3, -1)))
