"""The AdamW kernel: bit for bit the plain one, wherever tasks and vectors are cut."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigrad.cpu_kernels import adamw
from minigrad.cpu_kernels.toolbox import multi_tensor, threads
from minigrad.plain_kernels import adamw as plain

Arrays = list[np.ndarray]


def row(t: int, lr: float = 1e-2, beta1: float = 0.9, beta2: float = 0.99, decay: float = 0.1) -> list[float]:
    return [
        1 - lr * decay, 1 - beta1, beta2, 1 - beta2, lr / (1 - beta1**t), math.sqrt(1 - beta2**t), 1e-8,
    ]  # fmt: skip


def make(shapes: list[tuple[int, ...]], dtype: type, seed: int = 0) -> tuple[Arrays, Arrays, Arrays, Arrays]:
    rng = np.random.default_rng(seed)
    p, g, m, v = ([np.asarray(rng.standard_normal(s), dtype) for s in shapes] for _ in range(4))
    return p, g, m, [np.asarray(x * x) for x in v]


SHAPES = [(), (1,), (0, 3), (17,), (129, 257), (5, 3), (40_000,), (16_384,), (31,)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("beta1", [0.9, 0.3])  # the two forms of lerp
def test_is_the_formula_bit_for_bit(dtype: type, beta1: float) -> None:
    p, g, m, v = make(SHAPES, dtype)
    tables = [kernels.Table(*([x.copy() for x in column] for column in (p, m, v))) for kernels in (adamw, plain)]
    for t in range(1, 4):
        scalars = np.array([row(t + i, lr=0.01 * (i + 1), beta1=beta1) for i in range(len(p))])  # each has its own
        for kernels, table in zip((adamw, plain), tables, strict=True):
            kernels.step(table, g, scalars)
        for found, expected in zip(*(table.arrays for table in tables), strict=True):
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a, b)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40_000), max_size=6), st.integers(0, 2**32 - 1))
def test_cutting_a_parameter_in_pieces_changes_no_bit(cuts: list[int], seed: int) -> None:
    whole = make([(40_000,)], np.float32, seed)
    pieces = [np.split(x[0].copy(), sorted(cuts)) for x in whole]
    scalars = np.array([row(3)])
    adamw.step(adamw.Table(whole[0], whole[2], whole[3]), whole[1], scalars)
    p, g, m, v = pieces
    adamw.step(adamw.Table(p, m, v), g, np.repeat(scalars, len(p), axis=0))
    for a, b in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(a[0], np.concatenate(b))


def test_no_parameters_and_read_only_gradients() -> None:
    adamw.step(adamw.Table([], [], []), [], np.empty((0, len(adamw.SCALARS))))
    p, g, m, v = make([(3,)], np.float32)
    g[0].flags.writeable = False
    before = p[0].copy()
    adamw.step(adamw.Table(p, m, v), g, np.array([row(1)]))
    assert (p[0] != before).all()


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
