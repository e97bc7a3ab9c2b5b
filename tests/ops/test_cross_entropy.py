"""Cross-entropy with all its options, negative log-likelihood, squared error."""

import itertools

import numpy as np
import pytest
from harness import Op, every_check, functional, host, integers, needs_torch, torch, uniform
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F

WEIGHTS = np.array([0.5, 2.0, 1.0, 0.25, 3.0])


def reference(logits, targets, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """The definition, classes last."""
    w = np.ones(logits.shape[-1]) if weight is None else weight
    top = logits.max(-1, keepdims=True, initial=-np.inf)
    log_p = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    kept = targets != ignore_index
    t = np.where(kept, targets, 0)
    picked = -np.take_along_axis(log_p, t[..., None], -1)[..., 0] * w[t]
    losses = (1 - label_smoothing) * picked - label_smoothing / logits.shape[-1] * (log_p * w).sum(-1)
    losses = np.where(kept, losses, 0.0)
    if reduction == "none":
        return losses
    return losses.sum() / (w[t] * kept).sum() if reduction == "mean" else losses.sum()


def case(reduction, label_smoothing, weighted, ignore_index):
    options = {"reduction": reduction, "label_smoothing": label_smoothing, "ignore_index": ignore_index}
    return functional(
        f"cross_entropy-{reduction}-{label_smoothing}{'-weighted' * weighted}-ignore{ignore_index}",
        lambda f, x, t: f.cross_entropy(x, t, x.new_tensor(WEIGHTS) if weighted else None, **options),
        lambda x, t: reference(x, t, WEIGHTS if weighted else None, **options),
        [((6, 5), (6,)), ((5,), ()), ((30, 5), (30,))],
        (uniform(-4, 4), integers(0, 5)),
        rounding=64,
        small_shapes=[((6, 5), (6,)), ((5,), ())],  # two blocks, and one row
    )


OPS = [
    *(case(*options) for options in itertools.product(("mean", "sum", "none"), (0.0, 0.25), (False, True), (-100, 2))),
    functional(
        "cross_entropy-spatial",
        lambda f, x, t: f.cross_entropy(x, t, reduction="none"),
        lambda x, t: reference(np.moveaxis(x, 1, -1), t, reduction="none"),
        [((2, 5, 3), (2, 3)), ((2, 5, 3, 2), (2, 3, 2)), ((2, 5, 0), (2, 0))],
        (uniform(-4, 4), integers(0, 5)),
        rounding=64,
    ),
    Op(
        "cross_entropy-large",
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        lambda x, t: reference(x, t, label_smoothing=0.1),
        # PyTorch sums all rows' smoothing before it divides, which is too much for float16.
        lambda x, t: torch.nn.functional.cross_entropy(
            x.float() if x.dtype == torch.float16 else x, t, label_smoothing=0.1
        ).to(x.dtype),
        [((70, 300), (70,))],
        (uniform(-4, 4), integers(0, 300)),
        rounding=64,
        small_shapes=[((5, 300), (5,))],  # two blocks of four rows
    ),
    *(
        functional(
            f"nll_loss-{reduction}-ignore{ignored}",
            lambda f, x, t, r=reduction, i=ignored: f.nll_loss(x, t, ignore_index=i, reduction=r),
            lambda x, t, r=reduction, i=ignored: _nll(x, t, r, i),
            [((6, 5), (6,))],
            (uniform(-4, 0), integers(0, 5)),
        )
        for reduction in ("mean", "sum", "none")
        for ignored in (-100, 2)
    ),
    *(
        functional(
            f"mse_loss-{reduction}",
            lambda f, x, y, r=reduction: f.mse_loss(x, y, reduction=r),
            lambda x, y, r=reduction: {"mean": np.mean, "sum": np.sum, "none": lambda v: v}[r]((x - y) ** 2),
            [((3, 4), (3, 4)), ((5,), (5,)), ((), ())],
            rounding=32,
        )
        for reduction in ("mean", "sum", "none")
    ),
]


def _nll(x, t, reduction, ignored):
    losses = np.where(t == ignored, 0, -np.take_along_axis(x, t[:, None], 1)[:, 0])
    if reduction == "none":
        return losses
    return losses.sum() / ((t != ignored).sum() if reduction == "mean" else 1)


test_op = every_check(OPS)


# Semantics ------------------------------------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_of_ignored_targets(reduction, weighted, device):
    """Nothing to average: NaN for the mean, 0 else, as in PyTorch. Ignored rows have gradient 0 unless that is NaN."""
    x = mg.ones(3, 5, device=device, requires_grad=True)
    t = torch.ones(3, 5, requires_grad=True)
    w = (mg.tensor(WEIGHTS.astype("f4"), device=device), torch.tensor(WEIGHTS).float()) if weighted else (None, None)
    y = F.cross_entropy(x, mg.tensor([-100] * 3, device=device), w[0], reduction=reduction)
    z = torch.nn.functional.cross_entropy(t, torch.tensor([-100] * 3), w[1], reduction=reduction)
    np.testing.assert_array_equal(host(y), z.detach().numpy())
    z.sum().backward()
    np.testing.assert_array_equal(np.nan_to_num(host(y.sum().backward()[x])), np.nan_to_num(t.grad.numpy()))


@np.errstate(all="ignore")
def test_special_rows(device):
    """A target and classes at -inf, masked classes, an ignored row of NaN, and a logit beyond all others."""
    inf, large = np.inf, np.float32(1e30)
    rows = [[0, -inf, 0, -inf], [-inf, 0, 0, -inf], [np.nan] * 4, [large, 0, 0, 0], [large, 0, 0, 0]]
    x = mg.tensor(np.array(rows, "f4"), device=device, requires_grad=True)
    for logits in (x, x.detach()):
        losses = F.cross_entropy(logits, mg.tensor([1, 2, -100, 0, 1], device=device), reduction="none")
        np.testing.assert_allclose(host(losses), [inf, np.log(2), 0, 0, large], rtol=1e-6)
        if logits is x:
            dx = [[0.5, -1, 0.5, 0], [0, 0.5, -0.5, 0], [0] * 4, [0] * 4, [1, -1, 0, 0]]
            np.testing.assert_allclose(host(losses.sum().backward()[x]), dx, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_targets_of_any_integer_dtype(dtype, device):
    x = mg.tensor(np.eye(3, dtype=np.float32), device=device)
    targets = np.array([0, 1, 2])
    loss = F.cross_entropy(x, mg.tensor(targets.astype(dtype), device=device))
    assert loss.item() == F.cross_entropy(x, mg.tensor(targets, device=device)).item()


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_targets_out_of_range(loss, device):
    x = mg.ones(3, 5, device=device)
    raises(IndexError, "5.* is out of range for", lambda: loss(x, mg.tensor([0, 5, 1], device=device)))
    raises(IndexError, "-1.* is out of range for", lambda: loss(x, mg.tensor([0, 1, -1], device=device)))
    assert np.isfinite(loss(x, mg.tensor([0, 1, -1], device=device), ignore_index=-1).item())


def test_errors(device):
    x, t = mg.ones(3, 5, device=device), mg.tensor([0, 1, 2], device=device)
    raises(TypeError, "targets are class indices, not bool", F.cross_entropy, x, t > 1)
