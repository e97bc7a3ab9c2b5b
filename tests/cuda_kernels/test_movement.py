"""Strided copies and transposes: each way of copying against NumPy, in shuffled thread orders."""

import itertools

import numpy as np
import pytest
from refusals import raises
from simulated import ordered

from minigrad.cuda_kernels import movement as cuda
from minigrad.cuda_kernels.ladders import ladder_transpose as ladder
from minigrad.cuda_kernels.platform import array
from minigrad.cuda_kernels.rowwise import transposes

DTYPES = ["uint8", "float16", "float32", "float64"]
RUNGS = [ladder.naive, ladder.tile, transposes.PADDED_TILES[4], transposes.WIDE_TILES[4][0]]


def draw(shape, dtype):
    return np.random.default_rng(0).integers(0, 250, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (4, 6), (3, 5, 7), (1, 4, 1, 6), (8, 2, 16), (2,) * 7], ids=str)
def test_copies_of_any_strides(shape, dtype):
    x = draw(shape, dtype)
    for order in list(itertools.permutations(range(x.ndim)))[:6]:
        expected = x.transpose(order)
        found = array.from_host(x).transpose(*order)
        np.testing.assert_array_equal(array.to_host(array.copy(found)), expected)
        repeated = found.view((3, *found.shape), (0, *found.strides))
        np.testing.assert_array_equal(array.to_host(array.copy(repeated)), np.broadcast_to(expected, repeated.shape))
        if x.ndim > 1:
            to, target = np.zeros_like(expected), array.from_host(np.zeros_like(expected))
            to[::-1, 1::2] = expected[::-1, 1::2][::-1]
            cuda.copy_into(target[::-1, 1::2], found[::-1, 1::2][::-1])
            np.testing.assert_array_equal(array.to_host(target), to)


def test_wide_words_where_runs_are_kept(launched):
    x = draw((6, 4, 8), "float32")
    y = array.to_host(array.copy(array.from_host(x).transpose(1, 0, 2)))
    np.testing.assert_array_equal(y, x.transpose(1, 0, 2))
    array.copy(array.from_host(x)[:, :, 1:])
    assert launched == ["strided_copy.copy_fours_uint32", "strided_copy.copy_uint32"]


SHAPES = [
    ((70, 65), (1, 0), "uint8", "padded_8_bits"), ((70, 65), (1, 0), "float16", "padded_16_bits"),
    ((72, 64), (1, 0), "float16", "wide_16_bits"), ((70, 65), (1, 0), "float32", "padded_32_bits"),
    ((3, 40, 36), (0, 2, 1), "float32", "wide_32_bits"), ((17, 3, 90), (2, 1, 0), "float64", "padded_64_bits"),
    ((2, 33, 2, 32), (2, 3, 0, 1), "int32", "padded_32_bits"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "order", "dtype", "name"), SHAPES)
def test_transposes_go_through_tiles(shape, order, dtype, name, launched):
    x = draw(shape, dtype)
    with ordered(1):
        y = array.copy(array.from_host(x).transpose(*order))
    np.testing.assert_array_equal(array.to_host(y), x.transpose(order))
    assert set(launched) == {f"transposes.{name}"}


@pytest.mark.parametrize("rung", RUNGS, ids=lambda k: k.name)
def test_each_rung_of_the_ladder(rung):
    rows, columns = 36, 40
    x = draw((2, rows, columns), "float32")
    y = array.from_host(np.full((2, columns, rows), -1, np.float32))
    rung.launch((2, 2, 2), y, array.from_host(x), rows, columns, rows, columns, rows * columns, rows * columns)
    np.testing.assert_array_equal(array.to_host(y), x.swapaxes(1, 2))


def test_what_differs_is_named():
    x = array.empty((2, 3), np.float32)
    raises(ValueError, r"got float32 \(2, 3\) and float32 \(3, 2\)", lambda: cuda.copy_into(x, x.T))
    raises(ValueError, r"got float32 \(2, 3\) and int32 \(2, 3\)", cuda.copy_into, x, array.empty((2, 3), np.int32))
