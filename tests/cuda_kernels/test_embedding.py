"""The gradient of a table: indices that span chunks, wide and narrow rows, the same bits in any thread order."""

import numpy as np
import pytest
from simulated import ordered

import minigrad
from minigrad import bfloat16
from minigrad.cuda_kernels import embedding
from minigrad.cuda_kernels.platform import array


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", bfloat16], ids=str)
@pytest.mark.parametrize("columns", [3, 8])
def test_sums_over_chunks(columns, dtype):
    rng = np.random.default_rng(0)
    indices = np.where(rng.random(150) < 0.7, 4, rng.integers(0, 9, 150))  # row 4 spans several chunks
    dy = rng.standard_normal((150, columns)).astype(dtype)
    start = rng.standard_normal((9, columns)).astype(dtype)
    expected = start.astype(np.float64)
    np.add.at(expected, indices, dy.astype(np.float64))
    found = []
    for seed in (None, 1, 2):
        with ordered(seed):
            dweight = array.from_host(start)
            embedding.backward_into(array.from_host(dy), array.from_host(indices), dweight)
            found.append(array.to_host(dweight))
    tolerance = {"float32": 1e-5, "float64": 1e-14, "float16": 1e-3}.get(dtype, 8e-3)
    np.testing.assert_allclose(found[0].astype(np.float64), expected, rtol=tolerance, atol=tolerance)
    for again in found[1:]:
        np.testing.assert_array_equal(again.view(np.uint8), found[0].view(np.uint8))


@pytest.mark.parametrize("chunk_edge", [31, 32, 33, 64, 96])
def test_an_index_that_ends_at_a_chunks_edge(chunk_edge):
    indices = np.array([0] * 3 + [1] * (chunk_edge - 3) + [2] * 5)
    dweight = array.from_host(np.zeros((3, 1), np.float32))
    embedding.backward_into(array.from_host(np.ones((len(indices), 1), np.float32)), array.from_host(indices), dweight)
    assert array.to_host(dweight).ravel().tolist() == [3, chunk_edge - 3, 5]


def test_indices_on_another_device_are_refused() -> None:
    with pytest.raises(RuntimeError, match="embedding: indices on cpu, weight on cuda:0; move them to one"):
        minigrad.nn.functional.embedding(minigrad.tensor([1]), minigrad.ones(3, 2, device="cuda"))
