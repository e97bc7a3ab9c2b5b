"""What integers and bool, which have no gradient, give in reductions, places and masks: the same as in NumPy."""

import numpy as np
import pytest
from harness import host

import minigrad as mg

rng = np.random.default_rng(5)
SMALL = ["uint8", "int32", "int64"]


def numbers(dtype, *shape):
    return rng.integers(0, 2 if dtype == "bool" else 6, shape).astype(dtype)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("dtype", ["bool", *SMALL][::-1])
@pytest.mark.parametrize("dim", [0, 1])
def test_reductions(dtype, dim, device):
    x = numbers(dtype, 5, 40)
    x[2, 7] = True if dtype == "bool" else 5
    y = mg.tensor(x, device=device)
    for found, expected in (
        (y.sum(dim), x.sum(dim, np.int64)),
        ((y + 1).prod(dim), (x + np.int64(1)).astype((y + 1).dtype).prod(dim, np.int64)),
        *[(y.amax(dim), x.max(dim)), (y.amin(dim), x.min(dim)), (y.argmin(dim), x.argmin(dim))],
        (y.argmax(dim), x.argmax(dim)),
    ):
        np.testing.assert_array_equal(host(found), expected)
        assert host(found).dtype == expected.dtype


@pytest.mark.parametrize("dtype", [*SMALL, "bool"])
def test_places(dtype, device):
    x, source = numbers(dtype, 3, 6), numbers(dtype, 3, 9)
    index = rng.integers(0, 6, (3, 9))
    y, added, at = (mg.tensor(array, device=device) for array in (x, source, index))
    np.testing.assert_array_equal(host(y.gather(1, at)), np.take_along_axis(x, index, 1))
    for reduce, add in (("sum", np.add), ("prod", np.multiply), ("amax", np.maximum), ("amin", np.minimum)):
        expected = x.copy()
        add.at(expected, (np.arange(3)[:, None], index), source)
        np.testing.assert_array_equal(host(y.scatter_reduce(1, at, added, reduce)), expected)


@pytest.mark.parametrize("dtype", [*SMALL, "bool"])
def test_triangles_and_logic(dtype, device):
    x, other = numbers(dtype, 2, 5, 7), numbers(dtype, 2, 5, 7)
    y, z = mg.tensor(x, device=device), mg.tensor(other, device=device)
    np.testing.assert_array_equal(host(y.tril(1)), np.tril(x, 1))
    np.testing.assert_array_equal(host(y.triu(-1)), np.triu(x, -1))
    np.testing.assert_array_equal(host(y.logical_xor(z)), np.logical_xor(x, other))
    if dtype != "bool":
        np.testing.assert_array_equal(host((y << z) >> 1), (x << other) >> 1)
