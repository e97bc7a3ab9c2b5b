"""What holds for every optimizer: skipped parameters, groups, threads, changes between steps, resume, refusals."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from optimizer_cases import CASES, Case, bits, make_grads, make_params
from refusals import raises

import minigrad
from minigrad import grad_store, optim
from minigrad.grad_store import GradStore
from minigrad.optim.multi_tensor import MultiTensorOptimizer
from minigrad.tensor import Tensor


@pytest.fixture(params=CASES, name="case")
def each_case(request: pytest.FixtureRequest) -> Case:
    """Every optimizer in turn."""
    return CASES[request.param]


def test_parameters_without_gradients_stay_as_they_are(case: Case) -> None:
    params = make_params(shapes=case.shapes)
    params[1].requires_grad_(False)  # frozen
    optimizer = case.make(params)
    before = [p.data.copy() for p in params]
    optimizer.step(make_grads(params, 0, skip=(1, 2)))
    for i, (p, old) in enumerate(zip(params, before, strict=True)):
        assert (p.version, p.id in optimizer.state) == ((0, False) if i in (1, 2) else (1, True))
        assert bool(np.array_equal(p.data, old)) == (i in (1, 2) or p.numel() == 0)
    optimizer.step(grad_store.GradStore())
    assert optimizer.timestep == 2
    case.make().step(grad_store.GradStore())  # nor does it need parameters


def test_a_late_parameter_is_updated_as_a_new_one(case: Case) -> None:
    params, late = (make_params(shapes=case.shapes[1:3]) for _ in range(2))
    optimizer, fresh = case.make(params), case.make([late[1]])
    for step in range(3):
        optimizer.step(make_grads(params, step, skip=(1,)))
    for step in range(3, 6):
        optimizer.step(make_grads(params, step))
        fresh.step(make_grads(late, step))
    np.testing.assert_array_equal(params[1].data, late[1].data)
    assert [optimizer.state[p.id].step for p in params] == [6, 3]
    assert (optimizer.timestep, fresh.timestep) == (6, 3)


def test_a_step_in_parts_is_the_same_step(case: Case) -> None:
    whole, parts = (make_params(shapes=[*case.shapes, (300, 200)]) for _ in range(2))
    one, many = case.make(whole), case.make(parts)
    for step in range(3):
        one.step(make_grads(whole, step))
        for part in ({1, 4}, set(), {0, 2, 6}, {3, 5}):
            many.update(make_grads(parts, step, skip=tuple({0, 1, 2, 3, 4, 5, 6} - part)))
        many.timestep += 1
    assert bits(one, whole) == bits(many, parts)


def test_groups_have_their_own_options(case: Case) -> None:
    params, alone = (make_params(shapes=case.shapes[1:3]) for _ in range(2))
    optimizer = case.make([{"params": params[:1]}, {"params": params[1:], "lr": 0.3, "weight_decay": 0.0}])
    others = case.make(alone[:1]), case.make(alone[1:], lr=0.3, weight_decay=0.0)
    for step in range(3):
        optimizer.step(make_grads(params, step))
        for other in others:
            other.step(make_grads(alone, step))
    for p, q in zip(params, alone, strict=True):
        np.testing.assert_array_equal(p.data, q.data)


def test_does_not_depend_on_the_number_of_threads(case: Case, set_threads) -> None:
    results = []
    for count in (minigrad.get_num_threads(), 1):
        set_threads(count)
        params = make_params(shapes=[(200, 300), (7, 9), (5, 9000)])
        optimizer = case.make(params)
        for step in range(2):
            optimizer.step(make_grads(params, step))
        results.append(bits(optimizer, params))
    assert results[0] == results[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_resumed_equals_uninterrupted_bit_for_bit(case: Case, dtype) -> None:
    def build() -> tuple[list[Tensor], optim.Optimizer]:
        params = make_params(dtype, shapes=case.shapes)
        named = [(f"layer.{i}", p) for i, p in enumerate(params)] if dtype == np.float32 else params
        return params, case.make([{"params": named[:3], "lr": 0.05}, {"params": named[3:]}])

    params, optimizer = build()
    for step in range(3):
        optimizer.step(make_grads(params, step, skip=(1, 5) if step < 2 else (1,)))
    optimizer.param_groups[1]["lr"] = 0.03
    arrays, meta = optimizer.state_dict()
    saved = {name: a.copy() for name, a in arrays.items()}
    weights, snapshot = [p.data.copy() for p in params], bits(optimizer, params)
    for step in range(3, 6):
        optimizer.step(make_grads(params, step))
    again, resumed = build()
    resumed.step(make_grads(again, 99))  # what it had before does not matter
    for p, w in zip(again, weights, strict=True):
        p.data[...] = w
    resumed.load_state_dict(arrays, json.loads(json.dumps(meta)))
    assert bits(resumed, again) == snapshot
    for step in range(3, 6):
        resumed.step(make_grads(again, step))
    assert bits(resumed, again) == bits(optimizer, params)
    for name, array in arrays.items():  # a saved state does not change with training
        np.testing.assert_array_equal(array, saved[name])


def test_what_cannot_be_updated_is_refused_before_anything_changes(case: Case) -> None:
    params = make_params(shapes=[(3, 2), (4, 5)])
    optimizer = case.make([("a", params[0]), ("b", params[1])])
    for step in range(2):
        optimizer.step(make_grads(params, step))
    good, first = params[1].data, params[0].data.copy()
    for data, error, message in [
        (np.asfortranarray(good), ValueError, "parameter b of shape .* is not contiguous"),
        (good.astype(np.int64), TypeError, "parameter b is int64; .* updates floating ones"),
    ]:
        params[1].data = data
        raises(error, message, lambda: optimizer.step(make_grads(params, 2)))
        np.testing.assert_array_equal(params[0].data, first)
    params[1].data = good
    before = bits(optimizer, params)
    for bad, error, message in [
        (np.zeros((5, 4), np.float32), ValueError, r"parameter b has shape \(4, 5\), its gradient \(5, 4\)"),
        (np.zeros((4, 5), np.float64), TypeError, "parameter b has dtype float32, its gradient float64"),
    ]:
        grads = make_grads(params, 2)
        grads.insert(params[1], Tensor(bad))
        raises(error, message, optimizer.step, grads)
        assert bits(optimizer, params) == before
    np.testing.assert_array_equal(params[0].data, first)
    assert ([optimizer.state[p.id].step for p in params], optimizer.timestep) == ([2, 2], 2)


@pytest.mark.parametrize("dtype", [minigrad.float16, minigrad.bfloat16], ids=str)
def test_half_width_parameters_are_updated_in_float32_and_rounded_once(case: Case, dtype) -> None:
    params = make_params(dtype, shapes=case.shapes)
    optimizer = case.make(params)
    optimizer.step(make_grads(params, 0, smallest=-2))
    for step in (1, 2):
        grads = make_grads(params, step, smallest=-2)
        wide = [Tensor(p.data.astype(np.float32), requires_grad=True) for p in params]
        exact = case.make(wide)
        arrays, meta = optimizer.state_dict()
        exact.load_state_dict({name: a.astype(np.float32) for name, a in arrays.items()}, meta)
        wide_grads = grad_store.GradStore({w._id: grads[p].float() for p, w in zip(params, wide, strict=True)})
        optimizer.step(grads)
        exact.step(wide_grads)
        exact_arrays, _ = exact.state_dict()
        for name, array in optimizer.state_dict()[0].items():
            assert array.dtype == dtype
            np.testing.assert_array_equal(array, exact_arrays[name].astype(dtype), err_msg=name)
        for p, w in zip(params, wide, strict=True):
            assert p.dtype == dtype
            np.testing.assert_array_equal(p.data, w.data.astype(dtype))


def test_an_optimizer_that_would_train_nothing_is_refused(case: Case) -> None:
    for empty in ([], (), iter(()), {}, [{"params": []}]):
        raises(ValueError, "optimizer got an empty parameter list", case.make, empty)
    p, other = (minigrad.ones(2, 2, requires_grad=True) for _ in range(2))
    foreign, both = other.sum().backward(), (p * other).sum().backward()
    optimizer = case.make([{"params": [p]}, {"params": []}])
    raises(ValueError, "none of the 1 gradients .* the optimizer's 1 parameters", lambda: optimizer.step(foreign))
    optimizer.step(both)
    assert optimizer.timestep == 1
    raises(ValueError, "any of the optimizer's 0 parameters", lambda: case.make().step(foreign))


Change = Callable[[MultiTensorOptimizer, list[Tensor]], Any]


def option(name: str, value: float) -> Change:
    return lambda optimizer, params: optimizer.param_groups[0].update({name: value})


def replace(dtype: Any, count: int) -> Change:
    def change(optimizer: MultiTensorOptimizer, params: list[Tensor]) -> None:
        for p in params[:count]:
            p.data = np.array(p.data, dtype)

    return change


def move(optimizer: MultiTensorOptimizer, params: list[Tensor]) -> None:
    optimizer.param_groups[1]["params"].append(optimizer.param_groups[0]["params"].pop())


CHANGES: dict[str, Change] = {
    "learning rate": option("lr", 0.5),
    "weight decay": option("weight_decay", 0.7),
    "momentum": option("momentum", 0.0),
    "other memory": replace(np.float32, 4),
    "float64": replace(np.float64, 4),
    "one in float64": replace(np.float64, 1),
    "another group": move,
    "a parameter less": lambda optimizer, params: optimizer.param_groups[0]["params"].pop(0),
    "a group more": lambda optimizer, params: optimizer.add_param_group({"params": params[4:], "lr": 0.5}),
    "a group less": lambda optimizer, params: optimizer.param_groups.pop(),
    "another state": lambda optimizer, params: optimizer.load_state_dict(*optimizer.state_dict()),
    "no state of one": lambda optimizer, params: optimizer.state.pop(params[1].id),
    "no state": lambda optimizer, params: optimizer.reset(),
}
WITHOUT_EFFECT = "other memory", "another state"


def run(kind: str, change: Change | None, forgetful: bool) -> list[bytes]:
    """Five steps with a change after the second; ``forgetful``: nothing is kept from one step to the next."""
    params = make_params(shapes=[(3,), (4, 5), (2, 2), (33, 70), (5,)])
    optimizer = CASES[kind].make([{"params": params[:3]}, {"params": params[3:4], "lr": 0.1}])
    assert isinstance(optimizer, MultiTensorOptimizer)
    for step in range(5):
        if step == 2 and change is not None:
            change(optimizer, params)
        if forgetful:
            optimizer._batches.clear()
        optimizer.step(make_grads(params, step))
    return bits(optimizer, params)


KINDS = "SGD momentum", "AdamW"


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in KINDS for n in CHANGES if (k, n) != ("AdamW", "momentum")])
def test_a_change_between_two_steps_counts(kind: str, name: str) -> None:
    changed = run(kind, CHANGES[name], forgetful=False)
    assert changed == run(kind, CHANGES[name], forgetful=True)
    assert (changed == run(kind, None, forgetful=True)) == (name in WITHOUT_EFFECT)


def test_strided_gradients_are_taken_as_what_they_show() -> None:
    ours, theirs = make_params(shapes=[(4, 5)]), make_params(shapes=[(4, 5)])
    optimizer, reference = CASES["AdamW"].make(ours), CASES["AdamW"].make(theirs)
    for step in range(4):
        grad = np.random.default_rng(step).standard_normal((8, 5)).astype(np.float32)[::2]
        optimizer.step(GradStore({ours[0]._id: Tensor.wrap(grad.copy() if step == 1 else grad)}))
        reference.step(GradStore({theirs[0]._id: Tensor.wrap(grad.copy())}))
    assert bits(optimizer, ours) == bits(reference, theirs)
