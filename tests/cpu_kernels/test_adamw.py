"""The AdamW kernel: bit for bit the formula in NumPy, wherever tasks and vectors are cut."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigrad.cpu_kernels import adamw, multi_tensor, threads

Arrays = list[np.ndarray]


def row(t: int, lr: float = 1e-2, beta1: float = 0.9, beta2: float = 0.99, decay: float = 0.1) -> list[float]:
    return [
        1 - lr * decay, 1 - beta1, beta2, 1 - beta2, lr / (1 - beta1**t), math.sqrt(1 - beta2**t), 1e-8,
    ]  # fmt: skip


def reference(p: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray, scalars: list[float]) -> Arrays:
    """The module's formula, in the order and the precision of the kernel."""
    decay, weight, beta2, rest2, step_size, root, eps = (p.dtype.type(s) for s in scalars)
    m = m + weight * (g - m) if weight < 0.5 else g - (g - m) * (p.dtype.type(1) - weight)
    v = v * beta2 + rest2 * g * g
    return [np.asarray(x) for x in (p * decay - step_size * m / (np.sqrt(v) / root + eps), m, v)]


def make(shapes: list[tuple[int, ...]], dtype: type, seed: int = 0) -> tuple[Arrays, Arrays, Arrays, Arrays]:
    rng = np.random.default_rng(seed)
    p, g, m, v = ([np.asarray(rng.standard_normal(s), dtype) for s in shapes] for _ in range(4))
    return p, g, m, [np.asarray(x * x) for x in v]


SHAPES = [(), (1,), (0, 3), (17,), (129, 257), (5, 3), (40_000,), (16_384,), (31,)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("beta1", [0.9, 0.3])  # the two forms of lerp
def test_is_the_formula_bit_for_bit(dtype: type, beta1: float) -> None:
    p, g, m, v = make(SHAPES, dtype)
    table = adamw.Table(p, m, v)
    for t in range(1, 4):
        scalars = [row(t + i, lr=0.01 * (i + 1), beta1=beta1) for i in range(len(p))]  # each parameter has its own
        expected = [reference(*x) for x in zip(p, g, m, v, scalars, strict=True)]
        adamw.step(table, g, np.array(scalars))
        for i, (p_, m_, v_) in enumerate(expected):
            np.testing.assert_array_equal(p[i], p_)
            np.testing.assert_array_equal(m[i], m_)
            np.testing.assert_array_equal(v[i], v_)


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


def test_does_not_depend_on_the_number_of_threads() -> None:
    results = []
    before = threads.get_num_threads()
    try:
        for n in {1, before}:
            threads.set_num_threads(n)
            p, g, m, v = make(SHAPES, np.float32)
            adamw.step(adamw.Table(p, m, v), g, np.array([row(1)] * len(p)))
            results.append([x.tobytes() for x in (*p, *m, *v)])
    finally:
        threads.set_num_threads(before)
    assert results[0] == results[-1]


def test_no_parameters_and_read_only_gradients() -> None:
    adamw.step(adamw.Table([], [], []), [], np.empty((0, len(adamw.SCALARS))))
    p, g, m, v = make([(3,)], np.float32)
    g[0].flags.writeable = False
    expected = reference(p[0], g[0], m[0], v[0], row(1))[0]
    adamw.step(adamw.Table(p, m, v), g, np.array([row(1)]))
    np.testing.assert_array_equal(p[0], expected)


def test_a_nan_stays_in_its_element() -> None:
    p, g, m, v = make([(100,)], np.float32)
    g[0][7] = np.nan
    adamw.step(adamw.Table(p, m, v), g, np.array([row(1)]))
    assert [np.flatnonzero(~np.isfinite(x[0])).tolist() for x in (p, m, v)] == [[7], [7], [7]]


def test_arrays_that_cannot_be_updated_through_their_address_are_refused() -> None:
    p, g, m, v = make([(4, 6)], np.float32)
    scalars = np.array([row(1)])
    for bad, error, message in [
        (p[0].T, ValueError, "not C-contiguous"),
        (p[0].astype(np.float16), TypeError, "float32 or float64"),
    ]:
        with pytest.raises(error, match=message):
            adamw.Table([bad], m, v)
    with pytest.raises(TypeError, match="array 0 has dtype float32, the table has float64"):
        adamw.Table([p[0].astype(np.float64)], m, v)
    with pytest.raises(ValueError, match="1 parameters, 0 first and 1 second moments"):
        adamw.Table(p, [], v)
    read_only = p[0].copy()
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        adamw.Table([read_only], m, v)
    table = adamw.Table(p, m, v)
    before = p[0].copy()
    for grads, given_scalars, error, message in [
        ([g[0].T.copy().T], scalars, ValueError, "not C-contiguous"),
        ([g[0][:3]], scalars, ValueError, "has 18 elements, its parameter has 24"),
        ([g[0].astype(np.float64)], scalars, TypeError, "dtype float64"),
        ([], scalars, ValueError, "0 gradients"),
        (g, scalars.astype(np.float32), ValueError, "float64 scalars of shape"),
    ]:
        with pytest.raises(error, match=message):
            adamw.step(table, grads, given_scalars)
    np.testing.assert_array_equal(p[0], before)


@pytest.mark.parametrize(
    "sizes",
    [[], [3], [16384], [4160, 2048, 12288, 4096, 16384, 16384, 64, 12288, 4096, 16384, 16384], [10**6, 1, 5]],
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
