"""LAMB and LARS: the paper's algorithms in NumPy, the limits of the trust ratio."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from optimizer_cases import make_grads, make_params

from minigrad.grad_store import GradStore
from minigrad.optim import Lamb, LambConfig
from minigrad.tensor import Tensor


def reference(p: np.ndarray, grads: list[np.ndarray], c: LambConfig) -> np.ndarray:
    """Algorithm 2 of the paper, or 1 without Adam, in float64."""
    p, m, v = p.astype(np.float64), 0.0, 0.0
    for t, g in enumerate((g.astype(np.float64) for g in grads), start=1):
        if c.use_adam:
            m = c.beta1 * m + (1 - c.beta1) * g
            v = c.beta2 * v + (1 - c.beta2) * g**2
            u = (m / (1 - c.beta1**t)) / (np.sqrt(v / (1 - c.beta2**t)) + c.eps) + c.weight_decay * p
        else:
            u = m = c.beta1 * m + (1 - c.beta1) * (g + c.weight_decay * p)
        of_p, of_u = np.linalg.norm(p), np.linalg.norm(u)
        ratio = of_p / of_u if of_p > 0 and of_u > 0 else 1.0
        p = p - c.lr * min(ratio, math.inf if c.max_trust_ratio is None else c.max_trust_ratio) * u
    return p


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-5), (np.float64, 1e-13)])
@pytest.mark.parametrize(
    "config",
    [
        LambConfig(),
        LambConfig(0.05, 0.8, 0.95, 1e-4, 0.1, None),
        LambConfig(0.05, max_trust_ratio=0.3),
        LambConfig.lars(),
        LambConfig(0.05, 0.8, weight_decay=0.1, max_trust_ratio=None, use_adam=False),
    ],
)
def test_agrees_with_the_paper_in_float64(config: LambConfig, dtype: Any, tolerance: float) -> None:
    params = make_params(dtype, shapes=[(), (3,), (4, 5), (0, 2), (2, 3, 4), (150, 300)])
    start, history = [p.data.copy() for p in params], [make_grads(params, step, smallest=-2) for step in range(15)]
    optimizer = Lamb.from_config(config, params)
    assert optimizer.config == config
    for grads in history:
        optimizer.step(grads)
    for p, p0 in zip(params, start, strict=True):
        expected = reference(p0, [grads[p].data for grads in history], config)
        np.testing.assert_allclose(p.data, expected, rtol=tolerance, atol=tolerance * np.max(np.abs(p0), initial=0.0))


def test_the_options_are_boostrs() -> None:
    assert LambConfig() == LambConfig(1e-3, 0.9, 0.999, 1e-6, 0.01, 10.0, True)
    assert LambConfig.lars() == LambConfig(0.1, 0.9, 0.0, 1e-6, 1e-4, 10.0, False)
    for options, message in [
        ({"max_trust_ratio": -1.0}, "max_trust_ratio is -1.0"),
        ({"use_adam": 1}, "use_adam is 1, expected True"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\] is 1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            Lamb(**options)  # type: ignore[arg-type]


def test_lars_keeps_the_direction_of_the_gradient() -> None:
    (p,) = make_params(np.float64, shapes=[(2,)])
    before, grads = p.data.copy(), GradStore()
    grads.insert(p, Tensor(np.array([3.0, 4.0])))
    Lamb([p], lr=0.1, betas=(0.0, 0.0), weight_decay=0.0, max_trust_ratio=None, use_adam=False).step(grads)
    # Division by the root of the squares would make both elements' steps equally long.
    np.testing.assert_allclose(before - p.data, 0.1 * np.linalg.norm(before) * np.array([0.6, 0.8]), rtol=1e-12)


@pytest.mark.parametrize("use_adam", [True, False])
def test_a_norm_of_zero_makes_the_ratio_one(use_adam: bool) -> None:
    zero = Tensor(np.zeros(3), requires_grad=True)
    grads = GradStore()
    grads.insert(zero, Tensor(np.array([1.0, -2.0, 0.0])))
    Lamb([zero], lr=0.1, betas=(0.0, 0.0), eps=0.5, use_adam=use_adam).step(grads)
    step = np.array([1.0 / 1.5, -2.0 / 2.5, 0.0]) if use_adam else np.array([1.0, -2.0, 0.0])
    np.testing.assert_allclose(zero.data, -0.1 * step, rtol=1e-12)
    still = Tensor(np.ones(3), requires_grad=True)
    grads.insert(still, Tensor(np.zeros(3)))
    Lamb([still], weight_decay=0.0, use_adam=use_adam).step(grads)
    np.testing.assert_array_equal(still.data, np.ones(3))
