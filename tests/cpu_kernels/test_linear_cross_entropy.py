"""Losses and gradients of the last layer in one launch have the bits of the operations one by one."""

import numpy as np
import pytest

import minigrad as mg
import minigrad.nn.functional as F
from minigrad.cpu_kernels import cross_entropy, linear, linear_cross_entropy

IGNORED = -100


def inputs(rows: int, classes: int, channels: int, dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    targets = rng.integers(0, classes, rows)
    targets[::7] = IGNORED
    x, weight = rng.standard_normal((rows, channels)), rng.standard_normal((classes, channels))
    return x.astype(dtype), weight.astype(dtype), targets


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sizes", [(256, 65, 64), (777, 131, 40), (40, 33, 32)])
@pytest.mark.parametrize("special", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("threads", [1, 2])
def test_bits_of_the_single_operations(sizes, dtype, special, threads, set_threads):
    set_threads(min(threads, mg.get_num_threads()))
    x, weight, targets = inputs(*sizes, dtype)
    if special:
        x[3, 5] = special
    assert linear_cross_entropy._in_one_launch(x, weight)
    found = linear_cross_entropy._in_two_steps(x, weight, targets, IGNORED, np.full(len(x), 0.125, x.dtype))
    logits = linear.forward(x, weight)
    dlosses = np.full(len(x), 0.125, dtype)
    losses, _, dlogits = cross_entropy.forward_backward(dlosses, logits, targets, (IGNORED, 0.0, None))
    dx, dweight, _ = linear.backward(dlogits, x, weight, (True, True, False))
    for name, a, b in zip(("losses", "dx", "dweight"), found, (losses, dx, dweight), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
        assert a.dtype == dtype and np.isnan(a).any() == bool(special)


def test_what_is_not_one_launch():
    x, weight, _ = inputs(64, 65, 64, np.float32)
    assert not linear_cross_entropy._in_one_launch(x, weight)  # more classes than rows
    x, weight, _ = inputs(300, 65, 64, np.float32)
    assert linear_cross_entropy._in_one_launch(x, weight)
    assert not linear_cross_entropy._in_one_launch(x.astype(np.float64), weight)
    assert not linear_cross_entropy._in_one_launch(np.asfortranarray(x), weight)
    assert not linear_cross_entropy._in_one_launch(x, weight[:2])


def test_the_operation_is_one_launch(monkeypatch):
    """Of small operands with both gradients: the operation tells the kernels so."""
    calls, launch = [], linear_cross_entropy._in_two_steps
    monkeypatch.setattr(linear_cross_entropy, "_in_two_steps", lambda *given: calls.append(1) or launch(*given))
    x, w = mg.ones(40, 20).requires_grad_(), mg.ones(30, 20).requires_grad_()
    F.linear_cross_entropy(x, w, mg.zeros(40, dtype=mg.int64))
    assert calls
