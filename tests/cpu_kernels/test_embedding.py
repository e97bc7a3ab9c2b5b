"""Embedding kernels against NumPy indexing, with duplicates, and for every number of threads."""

import numpy as np
from refusals import raises

from minigrad.cpu_kernels import embedding


def inputs(V, C, shape, dtype):
    rng = np.random.default_rng(0)
    indices = np.asarray(rng.integers(0, V, shape))
    return rng.normal(size=(V, C)).astype(dtype), indices, rng.normal(size=(*shape, C)).astype(dtype)


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
    raises(ValueError, "C-contiguous", lambda: embedding.backward_into(dy, indices, np.zeros((6, 6), np.float32).T))
