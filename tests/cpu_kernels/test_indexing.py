"""Sums at positions have the bits of the plain ones, and refuse what those refuse."""

import numpy as np
import pytest
import short_set
from refusals import raises

from minigrad import bfloat16, cpu_kernels, plain_kernels

DTYPES = [np.float32, np.float64, np.float16, np.int64, bfloat16]


def both(name: str, x: np.ndarray, *arguments) -> None:
    results = []
    for kernels in (cpu_kernels, plain_kernels):
        changed = x.copy()
        result = getattr(kernels.indexing, name)(changed, *arguments)
        results.append(changed if result is None else result)
    assert results[0].dtype == results[1].dtype
    np.testing.assert_array_equal(*results)


PLACES = ((5, 7, 3), 1), ((40,), 0), ((6, 4), 0), ((6, 4), 1)


@pytest.mark.parametrize(("place", "dtype"), short_set.pairs(PLACES, DTYPES))
def test_repeated_and_negative_positions(place: tuple[tuple[int, ...], int], dtype) -> None:
    (shape, axis), rng = place, np.random.default_rng(0)
    x = rng.integers(-9, 9, shape).astype(dtype)
    many = (*shape[:axis], 11, *shape[axis + 1 :])
    y = rng.normal(0, 5, many).astype(dtype)
    both("scatter_add", x, axis, rng.integers(0, shape[axis], many), y)
    both("scatter_add", x, axis, rng.integers(0, shape[axis], many)[:1], y[:1])
    rows = rng.integers(-shape[0], shape[0], (3, 4))
    y = rng.normal(0, 5, (3, 4, *shape[1:])).astype(dtype)
    both("add_at", x, rows, y)
    both("add_at", x, (rows,), y)
    both("add_at", x, (rows,), y[:1, :1, ...])  # y broadcasts


LARGE = ((90, 70), 1, 80), ((90, 70), 0, 99), ((9, 60, 40), 1, 70), ((9000,), 0, 9000)


@pytest.mark.parametrize(("sizes", "dtype"), short_set.pairs(LARGE, [*DTYPES, np.bool_]))
def test_large_arrays(sizes: tuple[tuple[int, ...], int, int], dtype) -> None:
    (shape, axis, n), rng = sizes, np.random.default_rng(0)
    x = rng.integers(-50, 50, shape).astype(dtype)
    places = rng.integers(0, shape[axis], (*shape[:axis], n, *shape[axis + 1 :]))
    layouts = (x, places), (np.asfortranarray(x), np.asfortranarray(places))
    for x, places in layouts:
        both("gather", x, axis, places)
        both("index", x, x > 3)
        both("index", x, (rng.integers(-shape[0], shape[0], (90, 50)),))
        both("scatter_add", np.ascontiguousarray(x), axis, places, rng.normal(0, 5, places.shape).astype(dtype))
        if x.dtype.kind == "f":
            x[x == 7] = np.nan
        for descending in (False, True):
            both("argsort", x, axis, descending, 3)


REPEATS = (), (0,), (2,), (3,), (2, 3), (0, 2, 3), (0, 1, 2, 3)


@pytest.mark.parametrize(("repeats", "dtype"), short_set.pairs(REPEATS, [*DTYPES, np.bool_]))
def test_places_that_repeat(repeats: tuple[int, ...], dtype) -> None:
    """In some dimensions; of places that occur twice the last value stays, whatever the number of threads."""
    rng = np.random.default_rng(0)
    shape, n = (3, 40, 5, 9), 50
    x = rng.integers(-50, 50, shape).astype(dtype)
    for axis in range(4):
        full = (*shape[:axis], n, *shape[axis + 1 :])
        few = [1 if i in repeats else size for i, size in enumerate(full)]
        places = np.broadcast_to(rng.integers(0, shape[axis], few), full)
        y = rng.normal(0, 5, full).astype(dtype)
        both("gather", x, axis, places)
        both("scatter", x, axis, places, y)
        both("scatter", x, axis, places, 1)
        both("scatter_add", x, axis, places, y)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((20000,), 0), ((40, 500), 1), ((500, 40), 0)])
def test_sorts_of_any_values(shape: tuple[int, ...], axis: int, descending: bool) -> None:
    """Of 64 bits, in one pass or two; the order of the plain ones, which is stable."""
    rng = np.random.default_rng(0)
    limits = [(-9, 9), (7, 2**32 + 6), (7, 2**32 + 7), (-(2**63), 2**63 - 1)]
    for x in [rng.choice([low, low + 1, low + 2, high - 1, high], shape) for low, high in limits]:
        both("argsort", x, axis, descending)
    for dtype in (np.float32, np.float64):
        x = rng.choice(np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3, -3]), shape)
        both("argsort", np.where(rng.random(shape) < 0.5, x, rng.normal(size=shape)).astype(dtype), axis, descending)


@pytest.mark.parametrize("place", [6, -7])
def test_positions_out_of_range_change_nothing(place: int) -> None:
    x = np.zeros((6, 3), np.float32)
    raises(IndexError, "", cpu_kernels.indexing.add_at, x, np.array([place]), np.ones((1, 3), np.float32))
    raises(IndexError, "", cpu_kernels.indexing.scatter_add, x, 0, np.full((1, 3), place), np.ones((1, 3), np.float32))
    assert not x.any()
