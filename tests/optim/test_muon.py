"""Muon: the algorithm in NumPy, what its iteration does to singular values, matrices only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from optimizer_cases import MATRICES, make_grads, make_params

from minigrad.optim import Muon, orthogonalize
from minigrad.tensor import Tensor


def newton_schulz(g: np.ndarray, steps: int) -> np.ndarray:
    """The listing of the publication, in float64."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (np.linalg.norm(g) + 1e-7)
    if g.shape[0] > g.shape[1]:
        x = x.T
    for _ in range(steps):
        A = x @ x.T
        x = a * x + (b * A + c * A @ A) @ x
    return x.T if g.shape[0] > g.shape[1] else x


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float64, 1e-11)])
@pytest.mark.parametrize("options", [{}, {"nesterov": False, "weight_decay": 0.1, "momentum": 0.8, "ns_steps": 3}])
def test_agrees_with_the_publication(options: dict[str, Any], dtype: Any, tolerance: float) -> None:
    params = make_params(dtype, shapes=MATRICES)
    history = [make_grads(params, step, smallest=0) for step in range(15)]
    expected = [p.data.astype(np.float64) for p in params]
    optimizer = Muon(params, **options)
    group = optimizer.param_groups[0]
    for i, p in enumerate(params):
        b: Any = 0.0
        for grads in history:
            g = grads[p].data.astype(np.float64)
            b = group["momentum"] * b + g
            u = newton_schulz(g + group["momentum"] * b if group["nesterov"] else b, group["ns_steps"])
            expected[i] = expected[i] * (1 - group["lr"] * group["weight_decay"])
            expected[i] = expected[i] - group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5 * u
    for grads in history:
        optimizer.step(grads)
    for p, q in zip(params, expected, strict=True):
        np.testing.assert_allclose(p.data, q, rtol=0, atol=tolerance)


def test_is_near_torch_whose_iteration_is_in_bfloat16() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    params = make_params(shapes=[(33, 70), (40, 8)])
    theirs = [torch.nn.Parameter(torch.tensor(p.data)) for p in params]
    ours = Muon(params, lr=0.02, weight_decay=0.1)
    their = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=True)
    for step in range(15):
        grads = make_grads(params, step, smallest=0)
        for p, q in zip(params, theirs, strict=True):
            q.grad = torch.tensor(grads[p].data)
        ours.step(grads)
        their.step()
    for p, q in zip(params, theirs, strict=True):
        # A step of length lr, wrong by about 2^-8 of itself in each of the iteration's products.
        np.testing.assert_allclose(p.data, q.detach().numpy(), rtol=0, atol=15 * 0.02 * 0.02)


@pytest.mark.parametrize("shape", [(20, 20), (8, 50), (50, 8)])
def test_singular_values_become_about_one(shape: tuple[int, int]) -> None:
    x = Tensor(np.random.default_rng(0).standard_normal(shape))
    u, s, v = np.linalg.svd(x.data, full_matrices=False)
    y = orthogonalize(x * 1e-3)
    values = np.diag(u.T @ y.data @ v.T)
    assert np.all(values[s > 0.05 * s[0]] > 0.6) and np.all(values < 1.3)
    np.testing.assert_allclose(y.data, u @ np.diag(values) @ v, atol=1e-10)  # the same singular vectors


def test_takes_matrices_only_and_nothing_is_left_of_a_refused_group() -> None:
    w, b = make_params(shapes=[(2, 3), (3,)])
    with pytest.raises(ValueError, match=r"parameter bias of shape \(3,\) is no matrix; give it to an AdamW"):
        Muon([("weight", w), ("bias", b)])
    optimizer = Muon()
    with pytest.raises(ValueError, match="no matrix"):
        optimizer.add_param_group({"params": [w, b]})
    optimizer.add_param_group({"params": [w]})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(ValueError, match=r"a matrix, not shape \(3,\)"):
        orthogonalize(b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"nesterov": None}, "nesterov is None"),
        ({"ns_steps": 0}, "ns_steps is 0, expected an integer >= 1"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Muon(**options)
