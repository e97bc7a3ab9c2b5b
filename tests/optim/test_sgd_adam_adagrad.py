"""SGD, Adam and AdaGrad: their formulas in float64, and PyTorch's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from optimizer_cases import make_grads, make_params

from minigrad.optim import SGD, AdaGrad, AdaGradConfig, Adam, SgdConfig
from minigrad.tensor import Tensor


def sgd(lr: float, momentum: float = 0, dampening: float = 0, weight_decay: float = 0, nesterov: bool = False) -> Any:
    def step(p: Any, g: Any, state: dict[str, Any], t: int) -> Any:
        g = g + weight_decay * p
        if momentum:
            b = state["b"] = g if t == 1 else momentum * state["b"] + (1 - dampening) * g
            g = g + momentum * b if nesterov else b
        return p - lr * g

    return step


def adam(lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> Any:
    def step(p: Any, g: Any, state: dict[str, Any], t: int) -> Any:
        g = g + weight_decay * p
        m = state["m"] = betas[0] * state.get("m", 0.0) + (1 - betas[0]) * g
        v = state["v"] = betas[1] * state.get("v", 0.0) + (1 - betas[1]) * g * g
        return p - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)

    return step


def adagrad(
    lr: float, lr_decay: float = 0, weight_decay: float = 0, initial_accumulator_value: float = 0, eps: float = 1e-10
) -> Any:
    def step(p: Any, g: Any, state: dict[str, Any], t: int) -> Any:
        g = g + weight_decay * p
        s = state["s"] = state.get("s", initial_accumulator_value) + g * g
        return p - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(s) + eps)

    return step


OPTIONS: list[tuple[Any, Callable[..., Any], str, dict[str, Any]]] = [
    (SGD, sgd, "SGD", {"lr": 0.02}),
    (SGD, sgd, "SGD", {"lr": 0.02, "weight_decay": 0.1}),
    (SGD, sgd, "SGD", {"lr": 0.02, "momentum": 0.9}),
    (SGD, sgd, "SGD", {"lr": 0.02, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    (SGD, sgd, "SGD", {"lr": 0.02, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
    (Adam, adam, "Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}),
    (Adam, adam, "Adam", {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}),
    (AdaGrad, adagrad, "Adagrad", {"lr": 0.02}),
    (AdaGrad, adagrad, "Adagrad", {"lr": 0.1, "lr_decay": 0.3}),
    (AdaGrad, adagrad, "Adagrad", {"lr": 0.02, "eps": 1e-3, "weight_decay": 0.1, "initial_accumulator_value": 0.5}),
]


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-5), (np.float64, 1e-13)])
@pytest.mark.parametrize(("ours", "reference", "theirs", "options"), OPTIONS)
def test_is_the_formula(ours: Any, reference: Any, theirs: str, options: Any, dtype: Any, tolerance: float) -> None:
    params = make_params(dtype)
    expected, states = [p.data.astype(np.float64) for p in params], [{} for _ in params]
    optimizer, update = ours(params, **options), reference(**options)
    for t in range(1, 16):
        grads = make_grads(params, t, smallest=-2)
        for i, p in enumerate(params):
            expected[i] = update(expected[i], grads[p].data.astype(np.float64), states[i], t)
        optimizer.step(grads)
    for p, q in zip(params, expected, strict=True):
        np.testing.assert_allclose(p.data, q, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("ours", "reference", "theirs", "options"), OPTIONS)
def test_agrees_with_torch(ours: Any, reference: Any, theirs: str, options: Any, dtype: Any) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    params = make_params(dtype)
    copies = [torch.nn.Parameter(torch.tensor(p.data)) for p in params]
    groups = [{"params": x[:2], "lr": 0.03} for x in (params, copies)], [{"params": x[2:]} for x in (params, copies)]
    optimizer = ours([groups[0][0], groups[1][0]], **options)
    their = getattr(torch.optim, theirs)([groups[0][1], groups[1][1]], **options)
    for step in range(15):
        grads = make_grads(params, step, skip=(3, 4) if step < 3 else (1,) if step == 7 else ())
        for p, q in zip(params, copies, strict=True):
            grad = grads.get(p)
            q.grad = None if grad is None else torch.tensor(grad.data)
        optimizer.step(grads)
        their.step()
    # 15 updates, each rounded relative to the largest value that the element passes through; PyTorch contracts some
    # multiplications and additions, so one rounding differs in most of them.
    bound = 16 * np.finfo(dtype).eps
    for p, q in zip(params, copies, strict=True):
        scale = max(1.0, np.max(np.abs(p.data), initial=0.0))
        np.testing.assert_allclose(p.data, q.detach().numpy(), rtol=bound, atol=bound * scale)
        for name, array in optimizer.state[p.id].arrays.items():
            other = their.state[q][name].numpy()
            scale = np.max(np.abs(other), initial=0.0)
            np.testing.assert_allclose(array, other, rtol=bound, atol=bound * scale)


def test_configs() -> None:
    config = SgdConfig()
    assert (config.lr, config.momentum, config.weight_decay, config.dampening, config.nesterov) == (
        0.01,
        0,
        0,
        0,
        False,
    )
    changed = SgdConfig(0.1, 0.9, 0.2, 0.3)
    sgd_ = SGD.from_config(changed, make_params())
    assert sgd_.config == changed
    assert sgd_.param_groups[0]["dampening"] == 0.3
    assert AdaGradConfig() == AdaGradConfig(0.01, 1e-10, 0.0, 0.0, lr_decay=0.0)
    assert AdaGrad.from_config(AdaGradConfig(0.1, 1e-3, 0.2, 0.3, 0.4)).config == AdaGradConfig(
        0.1, 1e-3, 0.2, 0.3, 0.4
    )


def test_adagrad_takes_pytorchs_positions() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    names = ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")
    defaults = AdaGrad(make_params(), 0.1, 0.2, 0.3, 0.4, 0.5).defaults
    theirs = torch.optim.Adagrad([torch.nn.Parameter(torch.ones(1))], 0.1, 0.2, 0.3, 0.4, 0.5).defaults
    assert {name: defaults[name] for name in names} == {name: theirs[name] for name in names}


def test_sgd_refuses_nesterov_without_plain_momentum() -> None:
    for options in ({"momentum": 0.0}, {"momentum": 0.9, "dampening": 0.1}):
        with pytest.raises(ValueError, match="it needs momentum > 0 and dampening = 0"):
            SGD(nesterov=True, **options)
    with pytest.raises(ValueError, match="nesterov is 1, expected True or False"):
        SGD(nesterov=1)  # type: ignore[arg-type]


def test_sgd_has_no_buffer_without_momentum_and_a_later_one_starts_from_zeros() -> None:
    params = make_params(shapes=[(4,), (5,)])
    optimizer = SGD([{"params": params[:1]}, {"params": params[1:], "momentum": 0.9}], lr=0.1)
    optimizer.step(make_grads(params, 0))
    assert list(optimizer.state_dict()[0]) == ["momentum_buffer.1"]
    optimizer.param_groups[0]["momentum"] = 0.5
    before, grads = params[0].data.copy(), make_grads(params, 1)
    arrays, meta = optimizer.state_dict()
    np.testing.assert_array_equal(arrays["momentum_buffer.0"], np.zeros(4))
    optimizer.load_state_dict(arrays, meta)
    optimizer.step(grads)
    np.testing.assert_allclose(params[0].data, before - 0.1 * grads[params[0]].data, rtol=1e-6)
    optimizer.step(make_grads(params, 2))
    assert optimizer.state[params[0].id].arrays["momentum_buffer"].any()
    optimizer.param_groups[0]["momentum"] = 0.0  # the buffer is kept, and saved
    optimizer.load_state_dict(*optimizer.state_dict())
    assert optimizer.state[params[0].id].arrays["momentum_buffer"].any()


def test_sgd_does_not_multiply_infinite_weights_by_a_decay_of_zero() -> None:
    p = Tensor(np.array([np.inf, 1.0], np.float32), requires_grad=True)
    SGD([p], lr=0.5).step(make_grads([p], 0))
    assert np.isinf(p.data[0]) and np.isfinite(p.data[1])
