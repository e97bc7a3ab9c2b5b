"""The gradient of a table (its kernels: ``test_indexing.py``)."""

import numpy as np
import pytest

import minigrad
from minigrad.cuda_kernels import embedding
from minigrad.cuda_kernels.platform import array


@pytest.mark.parametrize("chunk_edge", [31, 32, 33, 64, 96])
def test_an_index_that_ends_at_a_chunks_edge(chunk_edge):
    indices = np.array([0] * 3 + [1] * (chunk_edge - 3) + [2] * 5)
    dweight = array.from_host(np.zeros((3, 1), np.float32))
    embedding.backward_into(array.from_host(np.ones((len(indices), 1), np.float32)), array.from_host(indices), dweight)
    assert array.to_host(dweight).ravel().tolist() == [3, chunk_edge - 3, 5]


def test_indices_on_another_device_are_refused() -> None:
    with pytest.raises(RuntimeError, match="embedding: indices on cpu, weight on cuda:0; move them to one"):
        minigrad.nn.functional.embedding(minigrad.tensor([1]), minigrad.ones(3, 2, device="cuda"))
