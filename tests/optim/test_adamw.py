"""AdamW: PyTorch's numbers, per-parameter step counts, groups, exact resume, and refusals that change nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from optimizer_cases import bits, make_grads, make_params

import minigrad
from minigrad.grad_store import GradStore
from minigrad.optim import AdamW, AdamWConfig, decay_groups
from minigrad.tensor import Tensor


def reference(
    p: np.ndarray, grads: list[np.ndarray], lr: float, betas: tuple[float, float], eps: float, wd: float
) -> Any:
    """Algorithm 2 of the paper, as it is printed there, in float64."""
    p, m, v = p.astype(np.float64), 0.0, 0.0
    for t, g in enumerate((g.astype(np.float64) for g in grads), start=1):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        p = p - lr * wd * p
        p = p - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
    return p


# ---------------------------------------------------------------------- the numbers


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-14)])
def test_agrees_with_the_paper_in_float64(dtype: Any, tolerance: float) -> None:
    params = make_params(dtype)
    start = [p.data.copy() for p in params]
    optimizer = AdamW(params, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    history = [make_grads(params, step) for step in range(12)]
    for grads in history:
        optimizer.step(grads)
    for p, p0 in zip(params, start, strict=True):
        expected = reference(p0, [grads[p].data for grads in history], 0.01, (0.8, 0.95), 1e-6, 0.1)
        # 12 updates of at most 3 lr each are rounded relative to values of order 1.
        np.testing.assert_allclose(p.data, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("implementation", ["foreach", "fused"])
def test_agrees_with_torch(dtype: Any, implementation: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    params = make_params(dtype)
    theirs = [torch.nn.Parameter(torch.tensor(p.data)) for p in params]
    options: list[dict[str, Any]] = [{"lr": 3e-3}, {"weight_decay": 0.2, "betas": (0.8, 0.99)}, {"eps": 1e-5}]
    ours_groups = [{"params": params[2 * i : 2 * i + 2], **options[i]} for i in range(3)]
    their_groups = [{"params": theirs[2 * i : 2 * i + 2], **options[i]} for i in range(3)]
    ours = AdamW(ours_groups, lr=1e-2)
    their = torch.optim.AdamW(their_groups, lr=1e-2, **{implementation: True})
    for step in range(15):
        skip = (3, 4) if step < 3 else ()
        grads = make_grads(params, step, skip)
        for p, q in zip(params, theirs, strict=True):
            grad = grads.get(p)
            q.grad = None if grad is None else torch.tensor(grad.data)
        ours.step(grads)
        their.step()
        if step == 8:
            ours.set_lr(5e-3)
            for group in their.param_groups:
                group["lr"] = 5e-3
    ulp = np.finfo(dtype).eps
    for p, q in zip(params, theirs, strict=True):
        state, their_state = ours.state[p.id], their.state[q]
        assert state.step == their_state["step"].item()
        # Where PyTorch contracts a multiplication and an addition, or the reverse, one rounding differs in each step.
        for name in ("exp_avg", "exp_avg_sq"):
            scale = np.max(np.abs(their_state[name].numpy()), initial=0.0)
            np.testing.assert_allclose(
                state.arrays[name], their_state[name].numpy(), rtol=8 * ulp, atol=2 * ulp * scale
            )
        np.testing.assert_allclose(p.data, q.detach().numpy(), rtol=8 * ulp, atol=8 * ulp)


def test_epsilon_is_outside_the_bias_correction() -> None:
    (p,) = make_params(np.float64, shapes=[(1,)])
    before = p.data.copy()
    grads = GradStore()
    grads.insert(p, Tensor(np.array([1e-8])))
    AdamW([p], lr=1.0, weight_decay=0.0).step(grads)
    # The first step is lr * g / (|g| + eps): half of lr. With an uncorrected root it would be a quarter of a percent.
    np.testing.assert_allclose(before - p.data, 0.5, rtol=1e-6)


# ---------------------------------------------------------------------- state and memory


def test_reset_forgets_moments_and_counts() -> None:
    params, again = make_params(), make_params()
    optimizer, fresh = AdamW(params), AdamW(again)
    optimizer.step(make_grads(params, 0))
    optimizer.reset()
    assert optimizer.timestep == 0
    for p, q in zip(params, again, strict=True):
        p.data[...] = q.data
    for o, ps in ((optimizer, params), (fresh, again)):
        o.step(make_grads(ps, 1))
    assert bits(optimizer, params) == bits(fresh, again)


def test_versions_tell_autograd_of_the_change() -> None:
    w, x = Tensor([[1.0, 2.0]], requires_grad=True), Tensor([[3.0, 4.0]], requires_grad=True)
    optimizer = AdamW([w])
    loss = (w * x).sum()
    optimizer.step(make_grads([w], 0))
    assert (w.version, x.version) == (1, 0)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_strided_gradients_are_taken_as_what_they_show() -> None:
    (p,), (q,) = make_params(shapes=[(4, 5)]), make_params(shapes=[(4, 5)])
    grads = make_grads([q], 0)
    strided = GradStore()
    strided.insert(p, Tensor.wrap(np.asfortranarray(grads[q].data)))
    AdamW([p]).step(strided)
    AdamW([q]).step(grads)
    np.testing.assert_array_equal(p.data, q.data)


def test_float32_and_float64_parameters_together() -> None:
    small, large = make_params(np.float32), make_params(np.float64)
    mixed = [*small, *large]
    AdamW(mixed).step(make_grads(mixed, 0))
    assert [p.dtype for p in mixed] == [np.float32] * len(small) + [np.float64] * len(large)


def test_a_parameter_of_another_shape_is_refused_before_anything_changes() -> None:
    params = make_params(shapes=[(3,), (4, 5)])
    optimizer = AdamW(params)
    optimizer.step(make_grads(params, 0))
    params[1].data = params[1].data[:2].copy()
    first = params[0].data.copy()
    with pytest.raises(ValueError, match=r"parameter 1 now has shape \(2, 5\), its exp_avg \(4, 5\)"):
        optimizer.step(make_grads(params, 1))
    np.testing.assert_array_equal(params[0].data, first)
    assert ([optimizer.state[p.id].step for p in params], optimizer.timestep) == ([1, 1], 1)


# ---------------------------------------------------------------------- groups and options


def test_groups_and_options() -> None:
    a, b, c = make_params(shapes=[(2,), (3,), (4,)])
    optimizer = AdamW([{"params": [a], "lr": 0.1}, {"params": b, "weight_decay": 0.0}], lr=0.01)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
    assert optimizer.lr == 0.1
    optimizer.set_lr(0.5)
    optimizer.add_param_group({"params": [c], "betas": [0.5, 0.9]})
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5, 0.5]
    assert optimizer.param_groups[2]["betas"] == (0.5, 0.9)
    assert "group 2: 1 parameters, lr=0.5, betas=(0.5, 0.9)" in repr(optimizer)
    assert AdamW({a.id: a, b.id: b}).param_groups[0]["params"] == [a, b]  # boostr's parameters


def test_config() -> None:
    config = AdamWConfig()
    assert (config.lr, config.beta1, config.beta2, config.eps, config.weight_decay) == (1e-3, 0.9, 0.999, 1e-8, 0.01)
    config = AdamWConfig(0.1, 0.5, 0.6, 1e-3, 0.2)
    params, same = make_params(), make_params()
    optimizer = AdamW.from_config(config, params)
    assert optimizer.config == config
    optimizer.step(make_grads(params, 0))
    other = AdamW(same, 0.1, (0.5, 0.6), 1e-3, 0.2)
    other.step(make_grads(same, 0))
    assert bits(optimizer, params) == bits(other, same)
    empty = AdamW.from_config(config)
    empty.set_lr(0.3)
    empty.add_param_group({"params": same})
    assert (empty.lr, empty.config.lr, empty.param_groups[0]["lr"]) == (0.3, 0.3, 0.3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr is -1.0, expected a finite number >= 0"),
        ({"lr": math.nan}, "lr is nan"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\] is 1.0, expected a number below 1 and >= 0"),
        ({"betas": 0.9}, "betas is 0.9, expected two numbers"),
        ({"eps": -1e-8}, "eps is -1e-08"),
        ({"weight_decay": math.inf}, "weight_decay is inf"),
        ({"weightdecay": 0.1}, "AdamW has no option 'weightdecay'; it has lr, betas, eps, weight_decay"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    p, q = make_params(shapes=[(2,), (2,)])
    optimizer = AdamW([p])
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [q], **options})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [q]})  # nothing of the refused group is left
    optimizer.param_groups[0].update(options)
    with pytest.raises(ValueError, match=message):
        optimizer.step(make_grads([p, q], 0))
    assert optimizer.timestep == 0


def test_what_is_no_parameter_is_named() -> None:
    p, q = make_params(shapes=[(2,), (3,)])
    for params, error, message in [
        (p, TypeError, "params is a Tensor; pass a list"),
        ({p, q}, TypeError, "params is a set, whose order changes"),
        ([p, 1.0], TypeError, "parameter 1 is a float"),
        ([("w", p), ("v", None)], TypeError, "parameter 'v' is a NoneType"),
        ([(1, p)], TypeError, "parameter 0 has the name 1"),
        ([p, q, p], ValueError, r"parameter 2 of shape \(2,\) is already in a group"),
        (
            [{"params": [p]}, {"params": [("again", p)]}],
            ValueError,
            "parameter 'again' of shape .* is already in a group",
        ),
        ([("w", p), ("w", q)], ValueError, "two parameters have the name 'w'"),
        ([p, Tensor([1.0])], ValueError, r"parameter 1 of shape \(1,\) does not require grad"),
        ([p * 2.0], ValueError, "was computed by an operation; only leaves"),
        ([{"lr": 0.1}], TypeError, "a dict with the key 'params'"),
    ]:
        with pytest.raises(error, match=message):
            AdamW(params)


def test_decay_groups() -> None:
    named = [("w", (4, 5)), ("b", (5,)), ("norm", (5,)), ("emb", (10, 4)), ("scale", ())]
    entries = [(name, Tensor(np.zeros(shape, np.float32), requires_grad=True)) for name, shape in named]
    entries.append(("frozen", Tensor(np.zeros((4, 4), np.float32))))
    decay, rest = decay_groups(entries, 0.1)
    assert ([name for name, _ in decay["params"]], decay["weight_decay"]) == (["w", "emb"], 0.1)
    assert ([name for name, _ in rest["params"]], rest["weight_decay"]) == (["b", "norm", "scale"], 0.0)
    optimizer = AdamW([decay, rest], lr=0.1)
    assert optimizer.name_of(entries[3][1]) == "emb"
    assert decay_groups([p for _, p in entries], 0.1)[0]["params"] == [entries[0][1], entries[3][1]]


# ---------------------------------------------------------------------- resume


def test_a_saved_state_does_not_change_with_training() -> None:
    params = make_params()
    optimizer = AdamW(params)
    optimizer.step(make_grads(params, 0))
    arrays, meta = optimizer.state_dict()
    before = {name: a.copy() for name, a in arrays.items()}
    optimizer.step(make_grads(params, 1))
    optimizer.load_state_dict(arrays, meta)
    optimizer.step(make_grads(params, 2))
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])


def test_names_make_the_order_irrelevant() -> None:
    params = make_params()
    optimizer = AdamW([(f"p{i}", p) for i, p in enumerate(params)])
    optimizer.step(make_grads(params, 0))
    other = AdamW([(f"p{i}", p) for i, p in reversed(list(enumerate(params)))])
    other.load_state_dict(*optimizer.state_dict())
    for p in params:
        np.testing.assert_array_equal(other.state[p.id].arrays["exp_avg"], optimizer.state[p.id].arrays["exp_avg"])


def test_a_state_that_does_not_fit_is_reported_and_nothing_is_changed() -> None:
    params = make_params(shapes=[(2,), (3,)])
    optimizer = AdamW([("a", params[0]), ("b", params[1])])
    optimizer.step(make_grads(params, 0))
    arrays, meta = optimizer.state_dict()
    group = meta["param_groups"][0]
    wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (arrays, {}, "optimizer is None, expected a str"),
        (arrays, {**meta, "optimizer": "SGD"}, "it is of 'SGD', this is AdamW"),
        (arrays, {**meta, "timestep": -1}, "timestep is -1"),
        (arrays, {**meta, "param_groups": []}, "it has 0 parameter groups, this optimizer 1"),
        (arrays, {**meta, "param_groups": [3]}, "group 0: it is saved without a list of parameters"),
        (arrays, {**meta, "param_groups": [{**group, "lr": -1}]}, "group 0: lr is -1"),
        (
            arrays,
            {**meta, "param_groups": [{**group, "params": ["a", "c"]}]},
            "parameter 'b' is not in the saved group",
        ),
        (arrays, {**meta, "param_groups": [{**group, "params": ["a", "b", "c"]}]}, "the saved parameter 'c' is not in"),
        (arrays, {**meta, "param_groups": [{"params": ["a", "b"]}]}, "saved without betas, eps, lr, weight_decay"),
        (arrays, {**meta, "steps": {"a": 1, "b": 1.5}}, "parameter 'b': its step is 1.5"),
        (arrays, {**meta, "steps": {"a": 1}}, "array 'exp_avg.b' belongs to no parameter"),
        (arrays, {**meta, "steps": {**meta["steps"], "z": 1}}, "step count of 'z'"),
        ({**arrays, "exp_avg.a": arrays["exp_avg.b"]}, meta, r"'exp_avg.a' has shape \(3,\)"),
        ({**arrays, "exp_avg.a": arrays["exp_avg.a"].astype(np.float64)}, meta, "dtype float64, the parameter has"),
        ({k: v for k, v in arrays.items() if k != "exp_avg_sq.b"}, meta, "array 'exp_avg_sq.b' is missing"),
    ]
    before = bits(optimizer, params)
    for bad_arrays, bad_meta, message in wrong:
        with pytest.raises(ValueError, match=f"(?s)does not fit.*{message}"):
            optimizer.load_state_dict(bad_arrays, bad_meta)
        assert bits(optimizer, params) == before


def test_the_moments_of_all_parameters_lie_in_one_flat_array() -> None:
    params = [Tensor(np.ones(shape, np.float32), requires_grad=True) for shape in [(3, 4), (5,), ()]]
    optimizer = AdamW(params)
    grads = GradStore()
    for p in params:
        grads.insert(p, Tensor(np.ones(p.shape, np.float32)))
    optimizer.step(grads)
    for kind in ("exp_avg", "exp_avg_sq"):
        arrays = [optimizer.state[p.id].arrays[kind] for p in params]
        assert all(a.base is arrays[0].base for a in arrays)
        assert arrays[0].base.shape == (12 + 8 + 4,)  # each begins at a multiple of four elements
        assert all((a.ctypes.data - arrays[0].ctypes.data) % 16 == 0 for a in arrays)
    optimizer.load_state_dict(*optimizer.state_dict())
    assert optimizer.state[params[0].id].arrays["exp_avg"].base.size == 24


def test_bfloat16_is_pytorchs_fused_step() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    start = np.random.default_rng(0).standard_normal((40, 30)).astype(minigrad.bfloat16)
    mine = Tensor(start, requires_grad=True)
    theirs = torch.tensor(start.astype(np.float32)).bfloat16().requires_grad_()
    optimizer, reference = AdamW([mine], lr=0.03), torch.optim.AdamW([theirs], lr=0.03, fused=True)
    for step in range(5):
        grads = make_grads([mine], step)
        theirs.grad = torch.tensor(grads[mine].float().data).bfloat16()
        optimizer.step(grads)
        reference.step()
        found, expected = mine.float().data, theirs.detach().float().numpy()
        assert (found == expected).mean() > 0.98  # else one unit: PyTorch orders the arithmetic differently
        np.testing.assert_allclose(found, expected, rtol=2.0**-7, atol=1e-6)
