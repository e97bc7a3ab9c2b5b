"""The AdamW kernel gives the same bits wherever tasks and vectors are cut: plain_kernels/test_families.py has which."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from minigrad.cpu_kernels import adamw
from minigrad.cpu_kernels.toolbox import multi_tensor, threads

ROW = [0.999, 0.1, 0.99, 0.01, 0.04, 0.17, 1e-8]


def make(size: int, seed: int = 0) -> list[np.ndarray]:
    p, g, m, v = np.random.default_rng(seed).standard_normal((4, size)).astype(np.float32)
    return [p, g, m, v * v]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40_000), max_size=6), st.integers(0, 2**32 - 1))
def test_cutting_a_parameter_in_pieces_changes_no_bit(cuts: list[int], seed: int) -> None:
    """Of 40,000 elements, which are several tasks."""
    whole = make(40_000, seed)
    pieces = [np.split(x.copy(), sorted(cuts)) for x in whole]
    for p, g, m, v in ([[x] for x in whole], pieces):
        adamw.step(adamw.Table(p, m, v), g, np.array([ROW] * len(p)))
    for a, b in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(a, np.concatenate(b))


def test_no_parameters_and_read_only_gradients() -> None:
    adamw.step(adamw.Table([], [], []), [], np.empty((0, len(adamw.SCALARS))))
    p, g, m, v = make(3)
    g.flags.writeable = False
    before = p.copy()
    adamw.step(adamw.Table([p], [m], [v]), [g], np.array([ROW]))
    assert (p != before).all()


@pytest.mark.parametrize(
    "sizes", [[], [3], [16384], [4160, 2048, 12288, 4096, 16384, 16384, 64, 12288, 4096, 16384, 16384], [10**6, 1, 5]]
)
def test_threads_get_equally_many_tasks_of_equally_much_work(sizes: list[int]) -> None:
    table = multi_tensor.Table([np.zeros(size, np.float32) for size in sizes])
    tasks, elements, count = table.tasks, table.runs[:, 2], threads.get_num_threads()
    assert tasks[0] == 0 and tasks[-1] == len(table.runs) and (np.diff(tasks) >= 0).all()
    assert elements.sum() == sum(sizes)
    if sum(sizes) <= multi_tensor.RUN:
        assert len(tasks) == 1 + bool(sizes)
        return
    assert (len(tasks) - 1) % count == 0
    shares = [elements[a:b].sum() for a, b in itertools.pairwise(tasks[:: (len(tasks) - 1) // count])]
    assert max(shares) - min(shares) <= 2 * multi_tensor.RUN
