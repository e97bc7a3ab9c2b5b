"""Cross-entropy kernels against the plain ones in float64, and PyTorch."""

import numpy as np
import pytest

from minigrad.cpu_kernels import cross_entropy

IGNORE = -100


def test_special_rows():
    logits = np.random.default_rng(0).normal(size=(8, 50)).astype(np.float32)
    targets = np.arange(8)
    logits[0, 9] = np.nan
    logits[1, 9] = np.inf
    logits[2] = -np.inf
    logits[3, 3] = -np.inf  # the target: certain to be wrong
    logits[4, 20:] = -np.inf  # masked classes
    logits[5, 9] = np.nan
    targets[5] = IGNORE
    logits[6, 6] = 1e30
    losses, lse = cross_entropy.forward(logits, targets, (IGNORE, 0.0, None))
    assert np.isnan(losses[:3]).all()
    assert losses[3] == np.inf
    assert np.isfinite(losses[4])
    assert losses[5] == 0
    assert losses[6] == 0
    dlogits = cross_entropy.backward(np.ones(8, np.float32), logits, targets, lse, (IGNORE, 0.0, None))
    assert np.isnan(dlogits[:3]).all()
    assert dlogits[3, 3] == -1
    assert (dlogits[4, 20:] == 0).all()
    assert (dlogits[5] == 0).all()
    np.testing.assert_allclose(dlogits[[3, 4, 6, 7]].sum(1), 0, atol=1e-6)


@pytest.mark.parametrize(
    ("targets", "position"),
    [([], -1), ([0, 4], -1), ([0, 5, 9], 1), ([0, -1], 1), ([IGNORE, 2], -1), ([IGNORE, 2, -3], 2)],
)
def test_check_targets(targets, position):
    assert cross_entropy.check_targets(np.array(targets, np.int64), 5, IGNORE) == position


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_one_pass_is_forward_and_backward(smoothing: float, weighted: bool, in_place: bool) -> None:
    rng = np.random.default_rng(0)
    logits, targets, dlosses = 3 * rng.standard_normal((40, 9)), rng.integers(0, 9, 40), rng.standard_normal(40)
    targets[::7] = IGNORE
    logits[3, 2], logits[4, targets[4]], logits[7] = -np.inf, np.nan, np.nan
    options = IGNORE, smoothing, rng.random(9) if weighted else None
    losses, lse = cross_entropy.forward(logits, targets, options)
    dlogits = cross_entropy.backward(dlosses, logits, targets, lse, options)
    target = logits.copy() if in_place else None
    source = logits if target is None else target
    found = cross_entropy.forward_backward(dlosses, source, targets, options, dlogits=target)
    for ours, parts in zip(found, (losses, lse, dlogits), strict=True):
        np.testing.assert_allclose(ours, parts, rtol=1e-12, atol=1e-14)
    assert target is None or found[2] is target
    with pytest.raises(ValueError, match=r"dlogits must be a contiguous float64 array of shape \(40, 9\)"):
        cross_entropy.forward_backward(dlosses, logits, targets, options, dlogits=logits.T)


def test_the_sum_of_a_long_row_keeps_its_many_small_terms() -> None:
    logits = 5 * np.random.default_rng(0).standard_normal((2, 200_000), np.float32)
    targets, ones = logits.argmax(1), np.ones(2, np.float32)
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    exact = np.log(np.exp(shifted).sum(1))
    for losses in (
        cross_entropy.forward(logits, targets, (IGNORE, 0.0, None))[0],
        cross_entropy.forward_backward(ones, logits, targets, (IGNORE, 0.0, None))[0],
    ):
        np.testing.assert_allclose(losses, exact, rtol=0, atol=1e-6)


def test_backward_takes_statistics_and_gradients_of_any_layout_and_width():
    rng = np.random.default_rng(3)
    logits, targets = rng.standard_normal((300, 200)).astype(np.float32), rng.integers(0, 200, 300)
    dlosses = rng.standard_normal(300).astype(np.float32)
    options = (-100, 0.0, None)
    _, lse = cross_entropy.forward(logits, targets, options)
    expected = cross_entropy.backward(dlosses, logits, targets, lse, options)
    found = cross_entropy.backward(dlosses.astype(np.float64), logits, targets, np.repeat(lse, 2)[::2], options)
    np.testing.assert_array_equal(found, expected)
