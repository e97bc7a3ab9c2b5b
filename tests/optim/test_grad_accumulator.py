"""GradAccumulator: means over windows, nothing aliased, nothing half done, windows that are saved or cut short."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from optimizer_cases import make_grads, make_params
from refusals import raises

from minigrad.grad_store import GradStore
from minigrad.optim import GradAccumulator
from minigrad.tensor import Tensor

SHAPES: list[tuple[int, ...]] = [(3,), (2, 4), ()]


@pytest.fixture
def params() -> list[Tensor]:
    return make_params(shapes=SHAPES)


def filled(accumulator: GradAccumulator, stores: list[GradStore], loss: float = 0.0, **options):
    """What the window gives whose last gradients are these."""
    for store in stores:
        result = accumulator.accumulate(store, loss, **options)
    assert result is not None
    return result


def mean(p: Tensor, stores: list[GradStore]) -> np.ndarray:
    present = [store[p].data for store in stores if p in store]
    return np.asarray(sum(g.astype(np.float64) for g in present) / len(stores))


@given(st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_returns_the_means_of_each_window(n: int, windows: int, take: bool) -> None:
    params = make_params(shapes=SHAPES)
    accumulator = GradAccumulator(n)
    found = []
    for window in range(windows):
        skips = [(0,) if i == 1 else () for i in range(n)]  # what has no gradient counts with zero
        stores, copies = ([make_grads(params, 10 * window + i, skips[i]) for i in range(n)] for _ in range(2))
        for i, store in enumerate(stores):
            assert accumulator.current_step == i
            result = accumulator.accumulate(store, float(i), take=take)
            assert (result is None) == (i < n - 1)
        assert accumulator.current_step == 0 and result is not None
        assert result[1] == (n - 1) / 2
        found.append((result[0], copies))
        for store, copy in [] if take else zip(stores, copies):  # which are only read
            for p in (p for p in params if p in copy):
                np.testing.assert_array_equal(store[p].data, copy[p].data)
                assert not np.shares_memory(store[p].data, result[0][p].data)
    for grads, copies in found:  # which do not change with the next window
        for p in params:
            # n additions and a scaling in float32, of values below 64.
            np.testing.assert_allclose(grads[p].data, mean(p, copies), rtol=0, atol=(n + 1) * 64 * 2.0**-24)


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a[:], lambda a: a[::-1]], ids=["array", "view", "reversed"])
def test_gradients_that_share_memory_are_scaled_once(view) -> None:
    p, q = make_params(shapes=[(4,), (4,)])
    arrays = [np.full(4, value, np.float32) for value in (2.0, 6.0)]
    stores = [GradStore({p._id: Tensor.wrap(array), q._id: Tensor.wrap(view(array))}) for array in arrays]
    result = filled(GradAccumulator(2), stores, take=True, weight=3.0)
    assert result[0][p].tolist() == result[0][q].tolist() == [4.0] * 4


def test_take_spares_the_copy(params: list[Tensor]) -> None:
    store = make_grads(params, 0)
    result = filled(GradAccumulator(1), [store], take=True)
    assert result[0][params[1]].data is store[params[1]].data


def test_flush_averages_what_there_is(params: list[Tensor]) -> None:
    accumulator = GradAccumulator(4)
    assert accumulator.flush() is None
    stores = [make_grads(params, i) for i in range(3)]
    for loss, store in zip((1.0, 2.0, 6.0), stores, strict=True):
        accumulator.accumulate(store, Tensor(np.array(loss)))  # type: ignore[arg-type]  # a scalar tensor is a number
    result = accumulator.flush()
    assert result is not None
    assert result[1] == 3.0
    for p in params:
        np.testing.assert_allclose(result[0][p].data, mean(p, stores), rtol=1e-5, atol=1e-7)
    assert (accumulator.current_step, accumulator.flush()) == (0, None)


def test_a_refused_micro_batch_changes_nothing(params: list[Tensor]) -> None:
    accumulator = GradAccumulator(3)
    accumulator.accumulate(make_grads(params, 0), 1.0)
    before, meta = accumulator.state_dict(params)
    for bad in (np.zeros((4, 2), np.float32), np.zeros((2, 4), np.float64)):
        store = make_grads(params, 1)
        store.insert(params[1], Tensor(bad))
        with pytest.raises(ValueError, match=rf"tensor {int(params[1].id)} has shape .* this window it had \(2, 4\)"):
            accumulator.accumulate(store, 1.0)
    raises(ValueError, "could not convert", lambda: accumulator.accumulate(make_grads(params, 1), "low"))
    after, meta_after = accumulator.state_dict(params)
    assert meta_after == meta
    assert {k: v.tobytes() for k, v in after.items()} == {k: v.tobytes() for k, v in before.items()}


def test_a_window_that_does_not_fit_is_refused(params: list[Tensor]) -> None:
    accumulator = GradAccumulator(2)
    accumulator.accumulate(make_grads(params, 0), 1.0)
    arrays, meta = accumulator.state_dict(params)
    raises(ValueError, "not among the 1 params", lambda: accumulator.state_dict(params[:1]))
    fresh = GradAccumulator(2)
    for bad_arrays, bad_meta, message in [
        (arrays, {**meta, "accum_steps": 3}, "accum_steps 3, this one 2"),
        (arrays, {**meta, "current_step": 2}, "current_step is 2, expected an integer from 0 to 1"),
        (arrays, {**meta, "loss_sum": "1"}, "loss_sum is '1'"),
        (arrays, {**meta, "weight": None}, "weight is None"),
        ({"grad.7": arrays["grad.0"]}, meta, "array 'grad.7' belongs to none of the 3 params"),
        ({"grad.1": arrays["grad.0"]}, meta, r"array 'grad.1' is \(3,\), float32; its parameter \(2, 4\)"),
    ]:
        raises(ValueError, message, fresh.load_state_dict, bad_arrays, bad_meta, params)
        assert (fresh.current_step, fresh.flush()) == (0, None)


@pytest.mark.parametrize("n", [0, -1, 1.0, True])
def test_the_number_of_steps_is_checked(n) -> None:
    raises(ValueError, "accum_steps is .*, expected an integer >= 1", lambda: GradAccumulator(n))
    assert GradAccumulator(3).accum_steps == 3


def test_weights_make_the_mean_that_of_the_samples():
    p, batches = Tensor(np.zeros(3, np.float64), requires_grad=True), [(5, 1.0), (1, 4.0), (0, math.nan)]
    rng = np.random.default_rng(3)
    grads = [rng.standard_normal(3) for _ in batches]
    for take in (False, True):
        accumulator = GradAccumulator(3)
        for (weight, loss), grad in zip(batches, grads):
            store = GradStore({p._id: Tensor(grad.copy())})
            window = accumulator.accumulate(store, loss, take=take, weight=weight)
            if not take:
                np.testing.assert_array_equal(store[p].data, grad)
        assert window is not None and accumulator.weight == 0.0
        np.testing.assert_allclose(window[0][p].data, (5 * grads[0] + grads[1]) / 6, rtol=1e-15)
        assert window[1] == pytest.approx(1.5)  # a loss of weight 0 does not count, even if it is NaN
    for weight in (-1.0, math.inf, math.nan, True, "1"):
        raises(ValueError, "weight is", lambda weight=weight: accumulator.add(GradStore(), 1.0, weight=weight))
    assert accumulator.current_step == 0


def test_a_full_window_may_grow_until_it_is_flushed_and_sums_can_be_taken_out():
    p, q = (Tensor(np.zeros(2, np.float64), requires_grad=True) for _ in range(2))
    accumulator = GradAccumulator(2)
    stores = [GradStore({t._id: Tensor(np.full(2, float(i))) for t in (p, q)}) for i in range(3)]
    full = [accumulator.add(store, float(i)) for i, store in enumerate(stores)]
    assert full == [False, True, True]
    taken = accumulator.pop(q)
    assert taken is not None and taken.tolist() == [3.0, 3.0] and accumulator.pop(q.id) is None
    window = accumulator.flush()
    assert window is not None and window[0][p].tolist() == [1.0, 1.0] and q not in window[0] and window[1] == 1.0


def test_repr() -> None:
    accumulator = GradAccumulator(3)
    accumulator.accumulate(GradStore(), 1.0)
    assert repr(accumulator) == "GradAccumulator(3, 1 in the window)"
