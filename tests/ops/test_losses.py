"""Absolute error, binary cross-entropy, Kullback-Leibler divergence, cross-entropy against probabilities."""

import itertools

import numpy as np
import pytest
from harness import NORMAL, POSITIVE, distinct, dyadic, every_check, functional, host, needs_torch, torch, uniform
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F

REDUCTIONS = {"mean": np.mean, "sum": np.sum, "none": lambda v: v}
SAME = [((3, 4), (3, 4)), ((5,), (5,)), ((), ())]
WEIGHTS = np.array([0.5, 2.0, 1.0, 0.25, 3.0])


def log_softmax(x, axis):
    top = x.max(axis, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(axis, keepdims=True))


def binary(x, t, weight=1.0, pos_weight=1.0):
    return weight * (pos_weight * t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x))


def binary_of_probabilities(p, t, weight=1.0):
    return -weight * (t * np.log(p) + (1 - t) * np.log1p(-p))


def binary_case(function, losses, domain, reduction, weights):
    return functional(
        "-".join([function, reduction, *weights]),
        lambda f, x, t, *w: getattr(f, function)(x, t, reduction=reduction, **dict(zip(weights, w))),
        lambda x, t, *w: REDUCTIONS[reduction](losses(x, t, **dict(zip(weights, w)))),
        [(*s, *(s[0][-1:],) * len(weights)) for s in SAME],
        (domain, uniform(0, 1), *(POSITIVE,) * len(weights)),
        rounding=64,
        differentiable=(True, True, *(False,) * len(weights)),
        refuses=("int64", "int32", "uint8", "bool"),
    )


def huber(x, t, delta):
    d = np.abs(x - t)
    return np.where(d <= delta, d * d / 2, delta * (d - delta / 2))


def robust_case(name, parameter, value, reduction, reference):
    return functional(
        f"{name}-{value}-{reduction}",
        lambda f, x, t: getattr(f, name)(x, t, reduction=reduction, **{parameter: value}),
        lambda x, t: REDUCTIONS[reduction](reference(x, t)),
        SAME,
        (dyadic(-3, 3), dyadic(-3, 3, odd=False)),  # differences are odd: not 0, and not at the knee
    )


def soft_case(reduction, smoothing, weighted):
    def run(f, x, t):
        w = x.new_tensor(WEIGHTS) if weighted else None
        return f.cross_entropy(x, t, w, reduction=reduction, label_smoothing=smoothing)

    def reference(x, t):
        axis = 0 if x.ndim == 1 else 1
        w = (WEIGHTS if weighted else np.ones(5)).reshape(-1, *(1,) * (x.ndim - axis - 1))
        losses = -((t * (1 - smoothing) + smoothing / 5) * log_softmax(x, axis) * w).sum(axis)
        return REDUCTIONS[reduction](losses)

    return functional(
        f"cross_entropy-{reduction}-{smoothing}{'-weighted' * weighted}",
        run,
        reference,
        [((3, 5), (3, 5)), ((5,), (5,)), ((2, 5, 3), (2, 5, 3))],
        (uniform(-4, 4), uniform(0, 1)),
        rounding=64,
    )


OPS = [
    *(
        functional(
            f"l1_loss-{r}",
            lambda f, x, y, r=r: f.l1_loss(x, y, reduction=r),
            lambda x, y, reduced=reduced: reduced(np.abs(x - y)),
            SAME,
            (distinct(-2, 2), distinct(3, 4)),
        )
        for r, reduced in REDUCTIONS.items()
    ),
    *(
        binary_case("binary_cross_entropy_with_logits", binary, uniform(-5, 5), r, weights)
        for r, weights in itertools.product(REDUCTIONS, [(), ("weight",), ("pos_weight",), ("weight", "pos_weight")])
    ),
    *(
        functional(
            f"kl_div-{r}{'-log' * log}",
            lambda f, x, t, r=r, log=log: f.kl_div(x, t, reduction=r, log_target=log),
            lambda x, t, r=r, log=log: (
                (lambda v: v.sum() / (len(x) if x.ndim else 1)) if r == "batchmean" else REDUCTIONS[r]
            )(np.exp(t) * (t - x) if log else t * (np.log(t) - x)),
            SAME[:-1] if r == "batchmean" else SAME,
            (NORMAL, NORMAL if log else POSITIVE),
            rounding=64,
        )
        for r in (*REDUCTIONS, "batchmean")
        for log in (False, True)
    ),
    *(
        robust_case("huber_loss", "delta", delta, r, lambda x, t, delta=delta: huber(x, t, delta))
        for r, delta in itertools.product(REDUCTIONS, (0.5, 2.0))
    ),
    *(
        robust_case("smooth_l1_loss", "beta", beta, r, lambda x, t, beta=beta: huber(x, t, beta) / beta)
        for r, beta in itertools.product(REDUCTIONS, (0.5, 2.0))
    ),
    robust_case("smooth_l1_loss", "beta", 0.0, "mean", lambda x, t: np.abs(x - t)),
    *(
        binary_case("binary_cross_entropy", binary_of_probabilities, uniform(0.05, 0.95), r, weights)
        for r, weights in itertools.product(REDUCTIONS, [(), ("weight",)])
    ),
    *(soft_case(*options) for options in itertools.product(REDUCTIONS, (0.0, 0.25), (False, True))),
]


# The warning is PyTorch's, of kl_div.
test_op = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")(every_check(OPS))


def test_confident_logits(device):
    """Neither overflow nor a loss that vanishes too early, and the right slope at 0."""
    x = mg.tensor([-200.0, -30.0, 0.0, 30.0, 200.0], device=device, requires_grad=True)
    for target in (0.0, 1.0):
        losses = F.binary_cross_entropy_with_logits(x, mg.full((5,), target, device=device), reduction="none")
        exact = np.logaddexp(0, host(x).astype("f8") * (1 - 2 * target))
        np.testing.assert_allclose(host(losses), exact, rtol=1e-6, atol=1e-45)
        slope = 1 / (1 + np.exp(-host(x).astype("f8"))) - target
        np.testing.assert_allclose(host(losses.sum().backward()[x]), slope, atol=1e-7)


@needs_torch
def test_probabilities_of_exactly_0_and_1(device):
    """PyTorch's losses, which end at 100, and its slope wherever that is a number of ordinary size."""
    p, t = np.float32([0, 0, 1, 1, 0.5, 1e-45, 1]), np.float32([0, 1, 0, 1, 1, 1, 0.25])
    ours, theirs = mg.tensor(p, device=device, requires_grad=True), torch.tensor(p, requires_grad=True)
    y = F.binary_cross_entropy(ours, mg.tensor(t, device=device), reduction="none")
    z = torch.nn.functional.binary_cross_entropy(theirs, torch.tensor(t), reduction="none")
    np.testing.assert_allclose(host(y), z.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(host(y.sum().backward()[ours]), [1, 0, 0, -1, -2, 0, -0.25])


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_an_empty_batch_and_sums_of_half_floats(device):
    x = mg.zeros(0, 5, device=device)
    for loss in (F.l1_loss, F.binary_cross_entropy_with_logits, F.kl_div, F.cross_entropy):
        assert np.isnan(loss(x, x).item())
        assert loss(x, x, reduction="sum").item() == 0
    x = mg.full((100,), 256.0, dtype=mg.bfloat16, device=device)
    assert F.l1_loss(x, -x / 256, reduction="sum").item() == 25728  # of 257 each, which bfloat16 does not have
    wide = F.mse_loss(x, x.float() + 1.0625), F.l1_loss(x, target=x.float() + 1), F.kl_div(x, x.float())
    assert [loss.dtype for loss in (*wide, F.mse_loss(x, x))] == [mg.float32] * 3 + [mg.bfloat16]


def test_errors(device):
    x, y = mg.ones(2, 3, device=device), mg.ones(3, device=device)
    binary_losses = F.binary_cross_entropy, F.binary_cross_entropy_with_logits
    for loss in (F.l1_loss, F.huber_loss, F.smooth_l1_loss, *binary_losses, F.kl_div):
        name = loss.__name__
        raises(ValueError, rf"{name}: input \(2, 3\) and target \(3,\) differ in shape", loss, x, y)
        raises(ValueError, rf"{name}: reduction='max'; expected 'mean'", lambda loss=loss: loss(x, x, reduction="max"))
    raises(ValueError, "reduction='batchmean'; expected 'mean', 'sum' or 'none'", lambda: F.l1_loss(x, x, "batchmean"))
    raises(TypeError, "expects floating tensors, not float32 and", F.binary_cross_entropy_with_logits, x, x.long())
    with pytest.raises(ValueError, match=r"binary_cross_entropy: expected probabilities in \[0, 1\], not 1.0 to 2.0"):
        F.binary_cross_entropy(mg.tensor([1.0, 2.0], device=device), mg.ones(2, device=device))
    raises(ValueError, "huber_loss: delta=0; expected a number above 0", lambda: F.huber_loss(x, x, delta=0))
    raises(ValueError, "smooth_l1_loss: beta=-1; expected a number not below 0", F.smooth_l1_loss, x, x, beta=-1)
    raises(ValueError, r"cross_entropy: weight of shape \(2,\); expected \(3,\)", F.cross_entropy, x, x, x[:, 0])
