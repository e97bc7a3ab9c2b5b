"""Philox: known answers, one mapping from index to number whatever the cut and the thread count."""

import numpy as np
import pytest

from minigrad import bfloat16
from minigrad.cpu_kernels import dropout, random
from minigrad.cpu_kernels.toolbox.jit import kernel
from minigrad.plain_kernels.random import philox4x32

SEED, OFFSET = 2**63 + 12345, 2**40 + 7


@kernel
def _philox(words):
    return random.philox4x32(words[0], words[1], words[2], words[3], words[4], words[5])


def philox(counter, key):
    return [int(word) for word in philox4x32([np.uint64(word) for word in counter], key)]


KNOWN_ANSWERS = [  # counter and key, result: kat_vectors of Random123
    ("00000000 00000000 00000000 00000000 00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def from_hex(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("inputs", "result"), KNOWN_ANSWERS)
def test_known_answers(inputs, result):
    words = from_hex(inputs)
    assert list(_philox(np.array(words, np.uint32))) == from_hex(result)
    assert philox(words[:4], words[4:]) == from_hex(result)


def test_block_counter_carries_into_its_high_word():
    row = np.empty(8, np.uint32)
    random.fill_bits(row, np.uint64(2**32 - 1), np.uint64(1), np.uint64(2))
    assert row[:4].tolist() == philox((2**32 - 1, 0, 2, 0), (1, 0))
    assert row[4:].tolist() == philox((0, 1, 2, 0), (1, 0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_fill_dropout_at_any_start(dtype, p):
    uniform = random.uniform(600, np.float32, 3, 4)
    with np.errstate(divide="ignore"):
        expected = np.where(uniform >= np.float32(p), dtype(1) / (dtype(1) - dtype(p)), dtype(0))
    for start, n in ((0, 600), (1, 599), (2, 1), (2, 0), (3, 2), (5, 300), (7, 64), (4, 401)):
        row = np.full(n, np.nan, dtype)
        random.fill_dropout(row, start, np.uint64(3), np.uint64(4), p)
        np.testing.assert_array_equal(row, expected[start : start + n])


def test_dropout_of_half_floats_is_that_of_float32_rounded():
    x = np.random.default_rng(0).normal(size=(300, 100)).astype(bfloat16).T
    wide = dropout.forward(x.astype(np.float32), 0.4, SEED, OFFSET)
    np.testing.assert_array_equal(dropout.forward(x, 0.4, SEED, OFFSET), wide.astype(bfloat16))


def test_draws_are_formulas_of_the_words_of_a_seed_and_an_offset_above_32_bits():
    words = [philox((b, 0, OFFSET % 2**32, OFFSET >> 32), (SEED % 2**32, SEED >> 32)) for b in range(3)]
    halves = np.array(words).reshape(-1, 2).tolist()
    wide = [low + (high << 32) for low, high in halves]
    assert random.uniform(6, np.float64, SEED, OFFSET).tolist() == [(word >> 11) / 2**53 for word in wide]
    assert random.integers(-5, 10**12, 6, SEED, OFFSET).tolist() == [-5 + (w * (10**12 + 5) >> 64) for w in wide]
    pairs = [np.sqrt(-2 * np.log((a + 0.5) / 2**32)) * np.exp(2j * np.pi * b / 2**32) for a, b in halves]
    np.testing.assert_allclose(random.normal(12, np.float64, SEED, OFFSET), np.array(pairs).view(float), rtol=1e-11)
