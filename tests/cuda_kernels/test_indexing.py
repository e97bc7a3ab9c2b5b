"""Sorting over several tiles, the same bits in any thread order, indices that x cannot hold, large shapes in parts."""

import numpy as np
import pytest

from minigrad.cuda_kernels import indexing as cuda
from minigrad.cuda_kernels.platform import array
from minigrad.cuda_kernels.rowwise import gather_scatter, index_arrays, sorting
from minigrad.plain_kernels import indexing as plain


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
def test_sorting_is_stable_and_places_nan_and_zeros(dtype, descending):
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (2, 5), (3, 17), (0, 4), (3, 0)):
        x = rng.integers(-3, 3, shape).astype(dtype)
        if x.dtype.kind == "f" and x.size > 3:
            x[:, ::3], x[0, 1], x[0, -1], x[-1, -1] = np.nan, -0.0, -np.inf, np.inf
        for axis in (0, 1):
            found = cuda.argsort(array.from_host(x), axis, descending)
            np.testing.assert_array_equal(array.to_host(found), plain.argsort(x, axis, descending))
    limits = np.iinfo(dtype) if dtype in ("int32", "int64", "uint8") else None
    if limits is not None:
        x = np.array([0, limits.max, limits.min, 1], dtype)
        np.testing.assert_array_equal(array.to_host(cuda.argsort(array.from_host(x), 0, False)), x.argsort())


@pytest.mark.parametrize("n", [17, 63, 100])
def test_sorted_tiles_are_merged(n, monkeypatch, order):
    monkeypatch.setattr(sorting, "SORTED", 8)
    monkeypatch.setattr(sorting, "MOST_ROWS", 2)
    x = np.random.default_rng(0).integers(-9, 9, (3, n)).astype(np.float32)
    keys, order = sorting.sort_rows(array.from_host(x))
    np.testing.assert_array_equal(array.to_host(order), x.argsort(1, kind="stable"))
    assert (np.diff(array.to_host(keys).astype(np.int64), axis=1) >= 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_repeated_places_give_the_same_bits_in_any_order(dtype, order):
    """Those of sums in order, as long as a place's values are in one chunk."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((5, 3)).astype(dtype), rng.standard_normal((2, 16, 3)).astype(dtype)
    where = rng.integers(-5, 5, (2, 16))
    expected = x.astype(np.float32)
    np.add.at(expected, where, y.astype(np.float32))
    found = array.from_host(x)
    cuda.add_at(found, array.from_host(where), array.from_host(y))
    np.testing.assert_array_equal(array.to_host(found), expected.astype(dtype))
    expected[where] = y
    cuda.assign_at(found, array.from_host(where), array.from_host(y))
    np.testing.assert_array_equal(array.to_host(found), expected.astype(dtype))


@pytest.mark.parametrize(("reduce", "dtype", "width"), gather_scatter._REDUCE)
def test_places_that_span_chunks(reduce, dtype, width, order):
    """By each kernel. Whole numbers, so that no order of sums shows; an odd first size, so that blocks have a rest."""
    rng = np.random.default_rng(0)
    where, y = np.where(rng.random(101) < 0.8, 3, rng.integers(0, 6, 101)), rng.integers(-1, 2, (3, 101, 2 * width))
    x, y = np.ones((3, 6, y.shape[2])).astype(dtype), y.astype(dtype)
    if x.dtype.kind == "f":
        y[0, 2] = np.nan
    expected = x.astype(np.float64) if dtype != "bool" else x.copy()
    combine = {"sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}[reduce]
    with np.errstate(invalid="ignore"):
        combine.at(expected, (slice(None), where), y.astype(expected.dtype))
    found = array.from_host(x)
    gather_scatter.reduce_at(found, array.from_host(where), array.from_host(y), reduce)
    expected = expected % 256 if dtype == "uint8" else expected
    np.testing.assert_array_equal(array.to_host(found).astype(expected.dtype), expected)


def test_views_are_written_through():
    x = np.arange(24.0).reshape(4, 6)
    base = array.from_host(x)
    where, y = np.array([2, 0, 2]), np.arange(6.0).reshape(3, 2)
    cuda.assign_at(base[1:, ::3], array.from_host(where), array.from_host(y))
    x[1:, ::3][where] = y
    cuda.scatter_add(base.T, 0, array.from_host(where[:, None]), array.from_host(y[:, :1]))
    plain.scatter_add(x.T, 0, where[:, None], y[:, :1])
    cuda.assign_at(base, (array.from_host(where[:2]), slice(None, 2)), base[1:3, 2:4])
    x[where[:2], :2] = x[1:3, 2:4].copy()
    cuda.assign_at(base, array.from_host(np.array([2, 1])), base[1:3])  # whose memory is written
    x[[2, 1]] = x[1:3].copy()
    np.testing.assert_array_equal(array.to_host(base), x)


def test_places_of_masks(order):
    for density in (0.0, 0.3, 1.0):
        mask = np.random.default_rng(0).random((7, 50)) < density
        for chosen, moved in ((mask, array.from_host(mask)), (mask.T, array.from_host(mask).T)):
            np.testing.assert_array_equal(array.to_host(index_arrays.nonzero(moved)), np.flatnonzero(chosen))


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_what_a_launch_cannot_address_goes_in_parts(dtype, monkeypatch):
    monkeypatch.setattr(gather_scatter, "MOST_WORDS", 13)
    x, where = np.arange(60, dtype=dtype).reshape(3, 4, 5), np.array([3, 0, 3, 1])
    moved = array.from_host(x)
    np.testing.assert_array_equal(array.to_host(cuda.index(moved, (slice(None), array.from_host(where)))), x[:, where])
    cuda.assign_at(moved, (slice(None), array.from_host(where[1:])), 7.0)
    x[:, where[1:]] = 7
    np.testing.assert_array_equal(array.to_host(moved), x)


def test_gather_of_many_dimensions():
    x = np.random.default_rng(0).standard_normal((3,) * 7)
    indices = np.random.default_rng(1).integers(-3, 3, (2,) * 6 + (4,))
    expected = np.take_along_axis(x[(slice(2),) * 6], indices, 6)
    found = cuda.gather(array.from_host(x), 6, array.from_host(indices))
    np.testing.assert_array_equal(array.to_host(found), expected)
