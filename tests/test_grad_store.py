"""GradStore and TensorId: every method."""

import gc
import warnings

import numpy as np
import pytest
from refusals import raises

import minigrad as mg
from minigrad import GradStore, Tensor, TensorId


@pytest.fixture
def params() -> list[Tensor]:
    return [mg.ones(2, requires_grad=True) for _ in range(3)]


def test_ids_are_unique_increasing_integers() -> None:
    a, b = mg.ones(1).id, mg.ones(1).id
    c = TensorId.new()
    assert a < b < c and isinstance(a, int) and repr(a) == f"TensorId({int(a)})"
    assert TensorId.from_raw(a.raw()) == a and type(a.raw()) is int and hash(a) == hash(a.raw())
    assert mg.ones(1).id > c


def test_an_id_outlives_in_place_changes_but_is_not_inherited() -> None:
    x = mg.ones(2)
    id = x.id
    x.add_(1)
    assert x.id == id and x.detach().id != id and x.clone().id != id and x[:].id != id


def test_get_by_tensor_and_by_id(params: list[Tensor]) -> None:
    a, b, _ = params
    grads = (a * 2).sum().backward()
    assert grads[a] is grads[a.id] is grads.get(a) is grads.get(a.id)
    assert grads.get(b) is None and grads.get(b.id) is None
    raises(KeyError, f"no gradient for tensor {int(b.id)}: .*use .get", lambda: grads[b])


@pytest.mark.parametrize("key", ["w", 3, None, 1.5])
def test_other_keys_are_refused(key) -> None:
    store = GradStore()
    for use in (store.get, store.__getitem__, store.contains, store.remove):
        raises(TypeError, "indexed by a Tensor or a TensorId", use, key)


def test_insert_replaces_and_remove_takes_out(params: list[Tensor]) -> None:
    a, b, _ = params
    store = GradStore()
    assert store.is_empty() and len(store) == 0 and repr(store) == "GradStore(0 gradients)"
    first, second = mg.ones(2), mg.zeros(2)
    store.insert(a, first)
    store.insert(a.id, second)
    assert store[a] is second and len(store) == 1 and not store.is_empty()
    assert store.remove(a) is second and store.remove(a) is None and store.remove(b.id) is None
    assert store.is_empty()
    store.update({a: first, b.id: second})
    assert store.pop(a) is first and store.pop(a, None) is None and store.pop(b.id, None) is second
    raises(KeyError, "no gradient for tensor", store.pop, a)


def test_accumulate_adds_without_writing_to_either(params: list[Tensor]) -> None:
    a = params[0]
    store = GradStore()
    first, second = mg.tensor([1.0, 2.0]), mg.tensor([10.0, 20.0])
    store.accumulate(a, first)
    assert store[a] is first
    store.accumulate(a.id, second)
    assert store[a].tolist() == [11, 22]
    assert first.tolist() == [1, 2] and second.tolist() == [10, 20]


def test_accumulate_with_another_addition(params: list[Tensor]) -> None:
    a = params[0]
    store = GradStore()
    store.accumulate(a, mg.ones(2), add=lambda old, new: pytest.fail("nothing to add to"))
    store.accumulate(a, mg.ones(2), add=lambda old, new: old - 3 * new)
    raises(ZeroDivisionError, "", lambda: store.accumulate(a, mg.ones(2), add=lambda old, new: 1 / 0))
    assert store[a].tolist() == [-2, -2]


def test_contains_iteration_and_clear(params: list[Tensor]) -> None:
    a, b, c = params
    store = GradStore()
    for p in (b, a):
        store.insert(p, p.detach())
    assert a in store and b.id in store and c not in store and store.contains(a) and not store.contains(c.id)
    assert store.keys() == [b.id, a.id] == list(store) and all(isinstance(k, TensorId) for k in store)
    pairs = zip(store.items(), store.keys(), store.values(), strict=True)
    assert all(k == key and v is value is store[key] for (k, v), key, value in pairs)
    for key in store:  # a copy of the keys: the store may change meanwhile
        store.remove(key)
    store.insert(a, a.detach())
    store.clear()
    assert store.is_empty() and len(store) == 0


def test_select_and_take_give_those_that_there_are_in_the_order_asked_for(params: list[Tensor]) -> None:
    a, b, c = params
    grads = (a * 2 + b * 3).sum().backward()
    grad_a, grad_b = grads[a], grads[b]
    numbers = [b.id, c.id, a.id, b.id]
    for found in (grads.select(numbers), grads.select(numbers)):
        assert list(found) == [b.id, a.id] and found[b.id] is grad_b and found[a.id] is grad_a
    assert {*grads.numbers()} == {a.id, b.id} and all(type(number) is int for number in grads.numbers())
    taken = grads.take([c.id, a.id, a.id])
    assert list(taken) == [a.id] and taken[a.id] is grad_a
    assert list(grads.numbers()) == [b.id]


def test_stores_add_assign_scale_and_tell_norm_and_names() -> None:
    model = mg.nn.Linear(2, 1)
    w, b = model.weight, model.bias
    one, two = (w * 3).sum().backward(), (w * 4 + b).sum().backward()
    total = one + two
    assert total[w].tolist() == [[7, 7]] and total[b].tolist() == [2] and len(one) == 1
    assert (total + one)[b] is not total[b] and (one + total)[w].tolist() == [[10, 10]]
    assert total.norm() == pytest.approx(102**0.5) == mg.optim.grad_norm(total) and GradStore().norm() == 0
    assert total.scale_(0.5) is total and one[w].tolist() == [[3, 3]]
    total[b] += 1
    total[w] = total[w] * 2
    named = total.named(model)
    assert list(named) == ["weight", "bias"] and named["weight"] is total[w] and named["bias"].tolist() == [2]
    assert list(one.named(model)) == ["weight"]
    raises(TypeError, "unsupported operand", lambda: one + 1)


def test_stores_times_and_divided_by_numbers() -> None:
    w = mg.tensor([1.0, 3.0], requires_grad=True)
    for factor in (4, -0.5, np.float32(0.25), mg.tensor(3.0), np.array(2.0)):
        number, (store, one, other) = float(factor), ((w * w).sum().backward() for _ in range(3))
        kept, kept_too = one, other
        one *= factor
        other /= factor
        assert one is kept and other is kept_too
        for times in (store * factor, number * store, np.float64(number) * store, one):
            np.testing.assert_allclose(times[w].numpy(), number * np.array([2, 6]), rtol=1e-6)
        for part in (store / factor, other):
            np.testing.assert_allclose(part[w].numpy(), np.array([2, 6]) / number, rtol=1e-6)
        assert store[w].tolist() == [2, 6]
    assert sum((w * w).sum().backward() for _ in range(3))[w].tolist() == [6, 18]
    for wrong in (lambda: store / 0, lambda: store * "a", lambda: store * float("nan"), lambda: store.scale_(None)):
        raises(ValueError, r"grads\.scale_\(x\): x=.*; expected a finite number", wrong)
    raises(RuntimeError, "expected one element", lambda: store * w)


def accumulate_as_in_pytorch(w: Tensor, optimizer: mg.optim.Optimizer) -> None:
    for _ in range(3):
        for _ in range(4):
            grads = (w * w).sum().backward()
        optimizer.step(grads)


@pytest.mark.filterwarnings("always")
def test_a_store_that_is_dropped_unread_is_a_warning_once_for_each_line() -> None:
    w = mg.ones(2, requires_grad=True)
    hook = type("Hook", (), {"on_leaf_grad_ready": lambda self, id, grad: None})()
    with warnings.catch_warnings(record=True) as caught:
        accumulate_as_in_pytorch(w, mg.optim.SGD([w]))
        first = accumulate_as_in_pytorch.__code__.co_firstlineno
        assert [(str(c.filename), c.lineno) for c in caught] == [(__file__, first + 3)]
        assert "GradAccumulator" in str(caught[0].message)
        for read in (
            len,
            GradStore.values,
            lambda grads: grads + grads,
            lambda grads: w in grads,
            repr,
            mg.optim.grad_norm,
        ):
            read((w * w).sum().backward())
        accumulator = mg.optim.GradAccumulator(2)
        accumulator.accumulate((w * w).sum().backward(), 0.0)
        (w * w).sum().backward(hook=hook)
        (w.detach() * mg.ones(2, requires_grad=True)).sum()
        gc.collect()
    assert len(caught) == 1
