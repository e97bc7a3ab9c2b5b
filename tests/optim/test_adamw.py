"""AdamW, for example: state, groups and resume; float32 masters of half parameters."""

from typing import Any

import numpy as np
import pytest
from optimizer_cases import bits, make_grads, make_params
from refusals import raises

import minigrad as mg
from minigrad.optim import AdamW, decay_groups
from minigrad.tensor import Tensor

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


def test_decay_groups() -> None:
    named = [("w", (4, 5)), ("b", (5,)), ("norm", (5,)), ("emb", (10, 4)), ("scale", ())]
    entries = [(name, Tensor(np.zeros(shape, np.float32), requires_grad=True)) for name, shape in named]
    entries.append(("frozen", Tensor(np.zeros((4, 4), np.float32))))
    decay, rest = decay_groups(entries, 0.1)
    assert ([name for name, _ in decay["params"]], decay["weight_decay"]) == (["w", "emb"], 0.1)
    assert ([name for name, _ in rest["params"]], rest["weight_decay"]) == (["b", "norm", "scale"], 0.0)
    assert AdamW([decay, rest], lr=0.1).name_of(entries[3][1]) == "emb"
    assert decay_groups([p for _, p in entries], 0.1)[0]["params"] == [entries[0][1], entries[3][1]]


# ---------------------------------------------------------------------- resume


def test_names_make_the_order_irrelevant() -> None:
    params = make_params()
    optimizer = AdamW([(f"p{i}", p) for i, p in enumerate(params)])
    optimizer.step(make_grads(params, 0))
    other = AdamW([(f"p{i}", p) for i, p in reversed(list(enumerate(params)))])
    other.load_state_dict(*optimizer.state_dict())
    for p in params:
        np.testing.assert_array_equal(other.state[p.id].arrays["exp_avg"], optimizer.state[p.id].arrays["exp_avg"])


def test_the_learning_rate_can_be_set_and_a_state_read_as_in_pytorch() -> None:
    params = make_params()
    optimizer = AdamW([{"params": params[:1], "lr": 0.1}, {"params": params[1:]}])
    optimizer.lr = 0.5
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5] and optimizer.defaults["lr"] == 0.5
    with pytest.raises(ValueError, match="lr is -1"):
        optimizer.lr = -1
    state = optimizer.state_dict()
    assert state["param_groups"] is state.meta["param_groups"] is state[1]["param_groups"] and state[0] is state.arrays
    raises(ValueError, r"'state'; expected one of optimizer, timestep, .*; moments: \.arrays", lambda: state["state"])


def test_a_state_that_does_not_fit_is_reported_and_nothing_is_changed() -> None:
    params = make_params(shapes=[(2,), (3,)])
    optimizer = AdamW([("a", params[0]), ("b", params[1])])
    optimizer.step(make_grads(params, 0))
    arrays, meta = optimizer.state_dict()
    group = meta["param_groups"][0]
    other = {**group, "params": ["a", "c"]}
    wrong = [
        (arrays, {}, "optimizer is None, expected a str"),
        (arrays, {**meta, "optimizer": "SGD"}, "it is of 'SGD', this is AdamW"),
        (arrays, {**meta, "timestep": -1}, "timestep is -1"),
        (arrays, {**meta, "param_groups": []}, "it has 0 parameter groups, this optimizer 1"),
        (arrays, {**meta, "param_groups": [3]}, "group 0: it is saved without a list of parameters"),
        (arrays, {**meta, "param_groups": [{**group, "lr": -1}]}, "group 0: lr is -1"),
        (arrays, {**meta, "param_groups": [other]}, "parameter 'b' is not in the saved group"),
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
        raises(ValueError, f"(?s)does not fit.*{message}", optimizer.load_state_dict, bad_arrays, bad_meta)
        assert bits(optimizer, params) == before


def test_the_moments_of_all_parameters_lie_in_one_flat_array() -> None:
    params = make_params(shapes=[(3, 4), (5,), ()])
    optimizer = AdamW(params)
    optimizer.step(make_grads(params, 0))
    for kind in ("exp_avg", "exp_avg_sq"):
        arrays = [optimizer.state[p.id].arrays[kind] for p in params]
        assert all(a.base is arrays[0].base for a in arrays)
        assert arrays[0].base.shape == (12 + 8 + 4,)  # each begins at a multiple of four elements
        assert all((a.ctypes.data - arrays[0].ctypes.data) % 16 == 0 for a in arrays)
    optimizer.load_state_dict(*optimizer.state_dict())
    assert optimizer.state[params[0].id].arrays["exp_avg"].base.size == 24


# ---------------------------------------------------------------------- float32 masters of half parameters


def with_masters(params: list[Tensor], **options: Any) -> AdamW:
    return AdamW(params, weight_decay=0.1, master_weights=True, **options)


@pytest.mark.parametrize("half", [mg.bfloat16, mg.float16])
def test_a_step_is_the_float32_step_of_the_master_rounded_once(half) -> None:
    params = make_params(half)
    wide = [Tensor(p.data.astype(np.float32), requires_grad=True) for p in params]
    optimizer, reference = with_masters(params), AdamW(wide, weight_decay=0.1)
    for step in range(5):
        grads = make_grads(params, step)
        optimizer.step(grads)
        reference.step(mg.GradStore({q._id: grads[p].float() for p, q in zip(params, wide, strict=True)}))
    for p, q in zip(params, wide, strict=True):
        assert p.data.tobytes() == q.data.astype(half).tobytes()
        state, expected = optimizer.state[p._id].arrays, reference.state[q._id].arrays
        assert state["master"].tobytes() == q.data.tobytes()
        for kind in ("exp_avg", "exp_avg_sq"):
            assert state[kind].dtype == np.float32 and state[kind].tobytes() == expected[kind].tobytes()


@pytest.mark.parametrize("dtype", [mg.float32, mg.float64])
def test_wide_parameters_are_their_own_masters(dtype) -> None:
    """The option changes neither weights nor state of a model without half parameters."""
    found = []
    for masters in (False, True):
        params = make_params(dtype)
        optimizer = AdamW(params, master_weights=masters)
        for step in range(2):
            optimizer.step(make_grads(params, step))
        found.append(bits(optimizer, params))
    assert found[0] == found[1]


def test_a_resumed_run_equals_the_uninterrupted_one_and_states_without_masters_are_refused() -> None:
    params = make_params(mg.bfloat16)
    optimizer = with_masters(params)
    for step in range(2):
        optimizer.step(make_grads(params, step))
    arrays, meta = optimizer.state_dict()
    assert {a.dtype for a in arrays.values()} == {np.dtype(np.float32)} and "master.0" in arrays
    others = [Tensor(p.data.copy(), requires_grad=True) for p in params]
    resumed, less = with_masters(others), {k: v for k, v in arrays.items() if k != "master.0"}
    raises(ValueError, r"(?s).*'master.0' is missing", resumed.load_state_dict, less, meta)
    raises(ValueError, r"(?s).*'master.0' belongs to no parameter", AdamW(others).load_state_dict, arrays, meta)
    resumed.load_state_dict(arrays, meta)
    for step in (2, 3):
        optimizer.step(make_grads(params, step))
        resumed.step(make_grads(others, step))
    assert bits(optimizer, params) == bits(resumed, others)


def test_a_parameter_that_the_program_changes_is_its_own_master_again() -> None:
    (p,) = params = make_params(mg.bfloat16, shapes=[(4,)])
    optimizer = with_masters(params, lr=0.0)
    optimizer.step(make_grads(params, 0))
    p.detach().copy_(mg.full((4,), 3.0).to(mg.bfloat16))
    optimizer.step(make_grads(params, 1))
    assert p.detach().float().tolist() == optimizer.state[p._id].arrays["master"].tolist() == [3.0] * 4
