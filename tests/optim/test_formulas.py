"""Every optimizer is its published formula, computed in float64; PyTorch's numbers; the options of each."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from harness import needs_torch, torch
from optimizer_cases import MATRICES, SHAPES, bits, make_grads, make_params
from refusals import raises

from minigrad.grad_store import GradStore
from minigrad.optim import SGD, AdaGrad, AdaGradConfig, Adam, AdamW, AdamWConfig, Lamb, LambConfig, Muon, SgdConfig
from minigrad.optim.optimizers import orthogonalize
from minigrad.tensor import Tensor

# ---------------------------------------------------------------------- the formulas: the t-th update of p, in float64


def sgd(p: Any, g: Any, state: Any, t: int, of: Any) -> Any:
    g = g + of.weight_decay * p
    if of.momentum:
        b = state["b"] = g if t == 1 else of.momentum * state["b"] + (1 - of.dampening) * g
        g = g + of.momentum * b if of.nesterov else b
    return p - of.lr * g


def direction(g: Any, state: Any, t: int, of: Any) -> Any:
    """Adam's."""
    beta1, beta2 = of.betas
    m = state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * g
    v = state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * g * g
    return (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + of.eps)


def adam(p: Any, g: Any, state: Any, t: int, of: Any) -> Any:
    return p - of.lr * direction(g + of.weight_decay * p, state, t, of)


def adamw(p: Any, g: Any, state: Any, t: int, of: Any) -> Any:
    return p - of.lr * of.weight_decay * p - of.lr * direction(g, state, t, of)


def adagrad(p: Any, g: Any, state: Any, t: int, of: Any) -> Any:
    g = g + of.weight_decay * p
    s = state["s"] = state.get("s", of.initial_accumulator_value) + g * g
    return p - of.lr / (1 + (t - 1) * of.lr_decay) * g / (np.sqrt(s) + of.eps)


def lamb(p: Any, g: Any, state: Any, t: int, of: Any) -> Any:
    """Algorithm 2 of the paper, or 1 without Adam."""
    if of.use_adam:
        u = direction(g, state, t, of) + of.weight_decay * p
    else:
        u = state["m"] = of.betas[0] * state.get("m", 0.0) + (1 - of.betas[0]) * (g + of.weight_decay * p)
    of_p, of_u = np.linalg.norm(p), np.linalg.norm(u)
    ratio = of_p / of_u if of_p > 0 and of_u > 0 else 1.0
    return p - of.lr * (ratio if of.max_trust_ratio is None else min(ratio, of.max_trust_ratio)) * u


def muon(p: Any, g: Any, state: Any, t: int, of: Any) -> Any:
    """The listing of the publication."""
    b = state["b"] = of.momentum * state.get("b", 0.0) + g
    x = g + of.momentum * b if of.nesterov else b
    x = x / (np.linalg.norm(x) + 1e-7)
    tall = p.shape[0] > p.shape[1]
    x = x.T if tall else x
    for _ in range(of.ns_steps):
        A = x @ x.T
        x = 3.4445 * x + (-4.7750 * A + 2.0315 * A @ A) @ x
    return p * (1 - of.lr * of.weight_decay) - of.lr * max(1, p.shape[0] / p.shape[1]) ** 0.5 * (x.T if tall else x)


class Row(NamedTuple):
    kind: Any
    update: Callable[..., Any]
    options: dict[str, Any]
    shapes: list[tuple[int, ...]] = SHAPES
    smallest: int = -2  # gradients
    tolerance: tuple[float, float] = (2e-5, 1e-13)  # float32, float64


LARGE: Any = {"shapes": [*SHAPES, (150, 300)]}
ORTHOGONAL: Any = {"shapes": MATRICES, "smallest": 0, "tolerance": (1e-4, 1e-11)}
ROWS = [
    Row(SGD, sgd, {"lr": 0.02}),
    Row(SGD, sgd, {"lr": 0.02, "weight_decay": 0.1}),
    Row(SGD, sgd, {"lr": 0.02, "momentum": 0.9}),
    Row(SGD, sgd, {"lr": 0.02, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    Row(SGD, sgd, {"lr": 0.02, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
    Row(Adam, adam, {"lr": 0.01, "betas": (0.4, 0.95), "eps": 1e-6, "weight_decay": 0.1}),
    Row(Adam, adam, {"lr": 0.01}),
    Row(AdamW, adamw, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}),
    Row(AdamW, adamw, {"lr": 3e-3}),
    Row(AdaGrad, adagrad, {"lr": 0.02}),
    Row(AdaGrad, adagrad, {"lr": 0.1, "lr_decay": 0.3}),
    Row(AdaGrad, adagrad, {"lr": 0.02, "eps": 1e-3, "weight_decay": 0.1, "initial_accumulator_value": 0.5}),
    Row(Lamb, lamb, {}, **LARGE),
    Row(Lamb, lamb, {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-4, "max_trust_ratio": None}, **LARGE),
    Row(Lamb, lamb, {"lr": 0.05, "weight_decay": 0.1, "max_trust_ratio": 0.3}, **LARGE),
    Row(Lamb, lamb, {"lr": 0.1, "betas": (0.9, 0.0), "weight_decay": 1e-4, "use_adam": False}, **LARGE),
    Row(Lamb, lamb, {"lr": 0.05, "weight_decay": 0.1, "max_trust_ratio": None, "use_adam": False}, **LARGE),
    Row(Muon, muon, {}, **ORTHOGONAL),
    Row(Muon, muon, {"nesterov": False, "weight_decay": 0.1, "momentum": 0.8, "ns_steps": 3}, **ORTHOGONAL),
]


KINDS: list[Any] = [SGD, Adam, AdamW, AdaGrad, Lamb, Muon]


def row_id(row: Row) -> str:
    return " ".join([row.kind.__name__, *row.options])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_is_the_formula(row: Row, dtype: Any) -> None:
    params = make_params(dtype, shapes=row.shapes)
    expected, states = [p.data.astype(np.float64) for p in params], [{} for _ in params]
    optimizer = row.kind(params, **row.options)
    options = SimpleNamespace(**optimizer.defaults)
    for t in range(1, 16):
        grads = make_grads(params, t, smallest=row.smallest)
        for i, p in enumerate(params):
            g = grads[p].data.astype(np.float64)
            expected[i] = row.update(expected[i], g, states[i], t, options)
        optimizer.step(grads)
    tolerance = row.tolerance[dtype is np.float64]
    for p, q in zip(params, expected, strict=True):
        np.testing.assert_allclose(p.data, q, rtol=tolerance, atol=tolerance)


@needs_torch
@pytest.mark.parametrize("row", [row for row in ROWS if row.kind not in (Lamb, Muon)], ids=row_id)
def test_agrees_with_torch(row: Row) -> None:
    params = make_params(np.float64)
    copies = [torch.nn.Parameter(torch.tensor(p.data)) for p in params]
    theirs = {"AdaGrad": "Adagrad"}.get(row.kind.__name__, row.kind.__name__)
    optimizer, their = row.kind(params, **row.options), getattr(torch.optim, theirs)(copies, **row.options)
    for step in range(15):
        grads = make_grads(params, step, skip=(3, 4) if step < 3 else ())
        for p, q in zip(params, copies, strict=True):
            q.grad = torch.tensor(grads[p].data) if p in grads else None
        optimizer.step(grads)
        their.step()
    for p, q in zip(params, copies, strict=True):
        np.testing.assert_allclose(p.data, q.detach().numpy(), rtol=1e-13, atol=1e-13)


# ---------------------------------------------------------------------- what is special to one of them


def one_step(optimizer: Any, p: Tensor, g: list[float]) -> np.ndarray:
    """How a gradient changes p."""
    before = p.data.copy()
    optimizer.step(GradStore({p._id: Tensor(np.array(g))}))
    return p.data - before


@pytest.mark.parametrize("use_adam", [True, False])
def test_a_norm_of_zero_makes_lambs_ratio_one(use_adam: bool) -> None:
    zero, still = (Tensor(values, requires_grad=True) for values in (np.zeros(3), np.ones(3)))
    found = one_step(Lamb([zero], lr=0.1, betas=(0.0, 0.0), eps=0.5, use_adam=use_adam), zero, [1.0, -2.0, 0.0])
    step = [1.0 / 1.5, -2.0 / 2.5, 0.0] if use_adam else [1.0, -2.0, 0.0]
    np.testing.assert_allclose(found, -0.1 * np.array(step), rtol=1e-12)
    assert not one_step(Lamb([still], weight_decay=0.0, use_adam=use_adam), still, [0.0] * 3).any()


@pytest.mark.parametrize("shape", [(20, 20), (8, 50), (50, 8)])
def test_orthogonalize_makes_singular_values_about_one(shape: tuple[int, int]) -> None:
    x = Tensor(np.random.default_rng(0).standard_normal(shape))
    u, s, v = np.linalg.svd(x.data, full_matrices=False)
    y = orthogonalize(x * 1e-3)
    values = np.diag(u.T @ y.data @ v.T)
    assert np.all(values[s > 0.05 * s[0]] > 0.6) and np.all(values < 1.3)
    np.testing.assert_allclose(y.data, u @ np.diag(values) @ v, atol=1e-10)  # the same singular vectors


def test_muon_takes_matrices_only_and_nothing_is_left_of_a_refused_group() -> None:
    w, b = make_params(shapes=[(2, 3), (3,)])
    raises(ValueError, r"parameter bias of shape \(3,\) is no matrix; give it to", Muon, [("weight", w), ("bias", b)])
    optimizer = Muon()
    raises(ValueError, "no matrix", lambda: optimizer.add_param_group({"params": [w, b]}))
    optimizer.add_param_group({"params": [w]})
    assert len(optimizer.param_groups) == 1
    raises(ValueError, r"a matrix, not shape \(3,\)", lambda: orthogonalize(b))


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


# ---------------------------------------------------------------------- options


CONFIGS = [
    (SGD, SgdConfig(0.1, 0.9, 0.2, 0.3), SgdConfig(0.01, 0.0, 0.0, 0.0, False)),
    (AdamW, AdamWConfig(0.1, 0.5, 0.6, 1e-3, 0.2), AdamWConfig(1e-3, 0.9, 0.999, 1e-8, 0.01)),
    (AdaGrad, AdaGradConfig(0.1, 1e-3, 0.2, 0.3, 0.4), AdaGradConfig(0.01, 1e-10, 0.0, 0.0, lr_decay=0.0)),
    (Lamb, LambConfig(0.05, 0.8, 0.95, 1e-4, 0.1, None), LambConfig(1e-3, 0.9, 0.999, 1e-6, 0.01, 10.0, True)),
    (Lamb, LambConfig.lars(), LambConfig(1e-3, 0.9, 0.999, 1e-6, 0.01, 10.0, True)),
]


@pytest.mark.parametrize(("kind", "config", "defaults"), CONFIGS)
def test_configs_are_boostrs(kind: Any, config: Any, defaults: Any) -> None:
    assert type(config)() == defaults
    params = make_params(shapes=[(2, 2)])
    optimizer, empty = kind.from_config(config, params), kind.from_config(config)
    assert optimizer.config == empty.config == config
    options = {name: value for name, value in vars(config).items() if not name.startswith("beta")}
    assert options.items() <= optimizer.param_groups[0].items()
    if "betas" in optimizer.defaults:
        assert optimizer.param_groups[0]["betas"] == (config.beta1, config.beta2)
    empty.set_lr(0.3)
    empty.add_param_group({"params": params})
    assert (empty.lr, empty.config.lr, empty.param_groups[0]["lr"]) == (0.3, 0.3, 0.3)


def test_options_of_lars() -> None:
    assert LambConfig.lars() == LambConfig(0.1, 0.9, 0.0, 1e-6, 1e-4, 10.0, False)


def test_adams_defaults_and_adagrads_positions_are_pytorchs() -> None:
    assert Adam(make_params()).defaults == {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    options = {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.3, "initial_accumulator_value": 0.4, "eps": 0.5}
    assert AdaGrad(make_params(), 0.1, 0.2, 0.3, 0.4, 0.5).defaults == options


BAD_OPTIONS = [
    *((kind, {"lr": math.nan}, "lr is nan, expected a finite number >= 0") for kind in KINDS),
    (AdamW, {"betas": 0.9}, "betas is 0.9, expected two numbers"),
    (Lamb, {"use_adam": "yes"}, "use_adam is 'yes', expected True"),
    (Muon, {"ns_steps": 0}, "ns_steps is 0, expected an integer >= 1"),
    (SGD, {"nesterov": True, "momentum": 0.0}, "it needs momentum > 0 and dampening = 0"),
]


@pytest.mark.parametrize(("kind", "options", "message"), BAD_OPTIONS)
def test_bad_options_are_named_and_change_nothing(kind: Any, options: dict[str, Any], message: str) -> None:
    p, q = make_params(shapes=[(2, 2), (2, 2)])
    optimizer = kind([p])
    raises(ValueError, message, lambda: optimizer.add_param_group({"params": [q], **options}))
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [q]})  # nothing of the refused group is left
    optimizer.step(make_grads([p, q], 0))
    before = bits(optimizer, [p, q])
    good = optimizer.param_groups[0].copy()
    optimizer.param_groups[0].update(options)  # also in a later step
    raises(ValueError, message, lambda: optimizer.step(make_grads([p, q], 1)))
    optimizer.param_groups[0] = good
    assert bits(optimizer, [p, q]) == before
