"""Gradient clipping: the norm, the factor, what is left alone, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from refusals import raises

from minigrad import optim
from minigrad.grad_store import GradStore, TensorId
from minigrad.tensor import Tensor


def make(*arrays, dtype=np.float32) -> tuple[list[Tensor], GradStore]:
    params = [Tensor(np.zeros(np.shape(a), dtype), requires_grad=True) for a in arrays]
    return params, GradStore({p._id: Tensor(np.asarray(a, dtype)) for p, a in zip(params, arrays, strict=True)})


def values(params: list[Tensor], grads: GradStore) -> list[np.ndarray]:
    return [grads[p].data.copy() for p in params]


def test_the_norm_alone_changes_nothing() -> None:
    params, grads = make([3.0, 0.0], [[4.0]])
    assert (optim.grad_norm(grads), optim.grad_norm(grads, params[1:]), optim.grad_norm(GradStore())) == (5.0, 4.0, 0.0)
    np.testing.assert_array_equal(grads[params[0]].data, [3.0, 0.0])
    assert [grads[p].version for p in params] == [0, 0]
    assert math.isnan(optim.grad_norm(make([math.nan, 1.0])[1]))
    assert optim.grad_norm(make([math.inf, 1.0])[1]) == math.inf


@pytest.mark.parametrize("max_norm", [5.0, 5.1, math.inf])
def test_a_norm_that_is_not_greater_changes_no_bit(max_norm: float) -> None:
    params, grads = make([3.0, 0.0], [[4.0]])
    before = values(params, grads)
    assert optim.clip_grad_norm(grads, max_norm) == 5.0
    for a, b in zip(values(params, grads), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [grads[p].version for p in params] == [0, 0]


@given(
    st.lists(st.lists(st.floats(-1e3, 1e3, width=32), max_size=50), min_size=1, max_size=5),
    st.floats(1e-3, 1e4),
    st.sampled_from([np.float32, np.float64]),
)
def test_the_norm_is_that_of_one_long_vector(data: list[list[float]], max_norm: float, dtype) -> None:
    params, grads = make(*data, dtype=dtype)
    vector = np.concatenate([g.ravel() for g in values(params, grads)]).astype(np.float64)
    norm = optim.clip_grad_norm(grads, max_norm)
    assert norm == pytest.approx(np.linalg.norm(vector), rel=1e-12)
    clipped = np.concatenate([g.ravel() for g in values(params, grads)]).astype(np.float64)
    assert np.linalg.norm(clipped) <= max(max_norm, 1e-30) * (1 + 1e-6)
    factor = max_norm / (norm + 1e-6) if norm > max_norm else 1.0
    assert {grads[p].version for p in params} == {int(norm > max_norm)}
    tiny = np.finfo(dtype).tiny  # below it, the product is rounded absolutely
    np.testing.assert_allclose(clipped, vector * factor, rtol=2 * np.finfo(dtype).eps, atol=tiny)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_large_and_small_gradients_neither_overflow_nor_vanish(scale: float) -> None:
    assert optim.clip_grad_norm(make([3 * scale], [4 * scale])[1], 1.0) == pytest.approx(5 * scale, rel=1e-6)


def test_the_order_of_the_store_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    params, grads = make(*[rng.standard_normal(n) * 10.0**n for n in range(1, 9)])
    shuffled = GradStore({p._id: Tensor(grads[p].data) for p in reversed(params)})
    assert optim.clip_grad_norm(grads, 1.0) == optim.clip_grad_norm(shuffled, 1.0)
    for p in params:
        np.testing.assert_array_equal(grads[p].data, shuffled[p].data)


def test_params_choose() -> None:
    params, grads = make([3.0], [4.0], [12.0])
    assert optim.clip_grad_norm(grads, 1.0, [params[1], params[0].id, params[0]]) == 5.0
    assert grads[params[2]].data[0] == 12.0
    assert grads[params[0]].data[0] == pytest.approx(0.6, rel=1e-6)
    assert optim.clip_grad_norm(grads, 1.0, [Tensor([1.0]), TensorId(10**15)]) == 0.0
    assert optim.clip_grad_norm(GradStore(), 1.0) == 0.0
    none = Tensor(np.zeros((0, 4)), requires_grad=True)
    assert optim.clip_grad_norm((none.sum() + params[0].sum()).backward(), 0.5) == pytest.approx(1)


def test_an_array_that_two_gradients_share_is_scaled_once() -> None:
    params, grads = make([3.0], [0.0])
    grads.insert(params[1], grads[params[0]])
    assert optim.clip_grad_norm(grads, 1.0) == pytest.approx(math.sqrt(18))
    assert grads[params[0]].data[0] == pytest.approx(3 / math.sqrt(18), rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("clip", [optim.clip_grad_norm, optim.clip_grad_norm_per_param])
def test_a_norm_that_is_not_finite_raises_before_anything_is_scaled(clip, bad: float) -> None:
    params, grads = make([30.0, 1.0], [40.0, bad], [50.0])
    before = values(params, grads)
    message = rf"norm is (nan|inf); 1 of 3 gradients are not finite, the first is that of tensor {int(params[1].id)} "
    assert not math.isfinite(raises(optim.NonFiniteGradientError, message, clip, grads, 1.0).norm)
    for a, b in zip(values(params, grads), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_norm_that_is_not_finite_may_be_asked_for() -> None:
    for bad in (np.nan, np.inf):
        params, grads = make([30.0], [40.0, bad])
        assert not math.isfinite(optim.clip_grad_norm(grads, 1.0, error_if_nonfinite=False))
        assert grads[params[0]].data[0] == 30.0
        norms = optim.clip_grad_norm_per_param(grads, 1.0, error_if_nonfinite=False)
        assert norms[0] == (params[0].id, 30.0)
        assert grads[params[0]].data[0] == pytest.approx(1.0, rel=1e-6)
        np.testing.assert_array_equal(grads[params[1]].data, np.float32([40.0, bad]))


def test_each_parameter_by_itself() -> None:
    params, grads = make([3.0, 4.0], [0.1], [0.0, -20.0])
    norms = dict(optim.clip_grad_norm_per_param(grads, 1.0))
    assert list(norms) == [p.id for p in params] and list(norms.values()) == pytest.approx([5.0, 0.1, 20.0], rel=1e-7)
    for got, expected in zip(values(params, grads), ([0.6, 0.8], [0.1], [0.0, -1.0]), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_by_value() -> None:
    params, grads = make([3.0, -0.25, -7.0, np.nan, np.inf], [[0.5]])
    optim.clip_grad_value(grads, 0.5)
    np.testing.assert_array_equal(grads[params[0]].data, np.float32([0.5, -0.25, -0.5, np.nan, 0.5]))
    assert grads[params[1]].data[0, 0] == 0.5
    assert grads[params[0]].version == 1
    optim.clip_grad_value(grads, 0.1, [params[1]])
    assert grads[params[0]].data[0] == 0.5


def test_with_a_norm_measured_elsewhere() -> None:
    params, grads = make([3.0, 4.0], [12.0])
    optim.clip_grads_with_norm(grads, 50.0, 50.0)
    assert grads[params[0]].version == 0
    optim.clip_grads_with_norm(grads, 1.0, 100.0, [params[0]])
    np.testing.assert_allclose(grads[params[0]].data, [0.03, 0.04], rtol=1e-6)
    assert grads[params[1]].data[0] == 12.0
    raises(ValueError, "total_norm is nan", lambda: optim.clip_grads_with_norm(grads, 1.0, math.nan))


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("clip", [optim.clip_grad_norm, optim.clip_grad_norm_per_param, optim.clip_grad_value])
def test_the_limit_is_positive(clip, limit: float) -> None:
    raises(ValueError, "expected a number > 0", lambda: clip(GradStore(), limit))
