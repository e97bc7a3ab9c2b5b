"""Embedding kernels against NumPy indexing, with duplicates, and for every number of threads."""

import numpy as np
import pytest

from minigrad.cpu_kernels import embedding

CASES = [(5, 3, (0,)), (5, 3, ()), (7, 1, (4, 2)), (65, 100, (30, 20)), (50_000, 48, (600,)), (3, 0, (4,))]


def inputs(V, C, shape, dtype):
    rng = np.random.default_rng(0)
    indices = np.asarray(rng.integers(0, V, shape))
    return rng.normal(size=(V, C)).astype(dtype), indices, rng.normal(size=(*shape, C)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("V", "C", "shape"), CASES)
def test_gather_and_scatter(V, C, shape, dtype):
    weight, indices, dy = inputs(V, C, shape, dtype)
    y = embedding.forward(weight, indices)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, weight[indices])
    dweight = np.full((V, C), 0.5, dtype)
    expected = dweight.astype(np.float64)
    np.add.at(expected, indices, dy)
    embedding.backward_into(dy, indices, dweight)
    # at most a few dozen duplicates of size 1
    np.testing.assert_allclose(dweight, expected, rtol=1e-5 if dtype == np.float32 else 1e-13, atol=1e-5)


def test_sum_is_in_order_of_positions():
    weight, indices, dy = inputs(9, 300, (500,), np.float32)
    expected = np.zeros_like(weight)
    for i, index in enumerate(indices):
        expected[index] += dy[i]
    dweight = np.zeros_like(weight)
    embedding.backward_into(dy, indices, dweight)
    np.testing.assert_array_equal(dweight, expected)


def test_a_table_in_another_order_is_refused():
    _, indices, dy = inputs(6, 6, (4, 5), np.float32)
    with pytest.raises(ValueError, match="C-contiguous"):
        embedding.backward_into(dy, indices, np.zeros((6, 6), np.float32).T)


def test_half_width_gradients_are_added_to_what_is_there():
    dweight = np.full((3, 2), 4.0, np.float16)
    embedding.backward_into(np.ones((2, 2), np.float16), np.array([1, 1]), dweight)
    np.testing.assert_array_equal(dweight, [[4, 4], [6, 6], [4, 4]])


@pytest.mark.parametrize(
    ("indices", "position"), [([], -1), ([0, 4], -1), ([0, 5], 1), ([2, -1, 9], 1), ([[0, 1], [7, 0]], 2)]
)
def test_check_indices(indices, position):
    assert embedding.check_indices(np.array(indices, np.int64), 5) == position
