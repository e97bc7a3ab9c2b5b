"""Cross-entropy kernels against the plain ones in float64, and PyTorch."""

import numpy as np
import pytest

from minigrad.cpu_kernels import cross_entropy

IGNORE = -100


@pytest.mark.parametrize(
    ("targets", "position"),
    [([], -1), ([0, 4], -1), ([0, 5, 9], 1), ([0, -1], 1), ([IGNORE, 2], -1), ([IGNORE, 2, -3], 2)],
)
def test_check_targets(targets, position):
    assert cross_entropy.check_targets(np.array(targets, np.int64), 5, IGNORE) == position


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


def test_an_array_for_the_gradient_is_checked() -> None:
    arguments = np.ones(3), np.zeros((3, 2)), np.zeros(3, int), (IGNORE, 0.0, None), np.zeros((2, 3)).T
    with pytest.raises(ValueError, match=r"dlogits must be a contiguous float64 array of shape \(3, 2\)"):
        cross_entropy.forward_backward(*arguments)
