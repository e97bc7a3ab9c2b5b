"""Random numbers and dropout masks are those of the CPU backend, whatever the size."""

import numpy as np
import pytest
from refusals import raises

from minigrad import cuda_kernels, plain_kernels
from minigrad.cuda_kernels import to_host as host

SIZES = [0, 1, 2, 3, 4, 5, 127, 1030, 2100 if cuda_kernels.simulated() else 5000]  # of tiles to sort: up to 3
STATES = [(0, 0), (2**64 - 1, 3), (0x0123_4567_89AB_CDEF, 2**40)]


@pytest.mark.parametrize(("seed", "offset"), STATES)
@pytest.mark.parametrize("n", SIZES)
def test_words_uniform_numbers_and_integers_are_the_cpus(n: int, seed: int, offset: int) -> None:
    cpu, cuda = plain_kernels.random, cuda_kernels.random
    np.testing.assert_array_equal(host(cuda.philox_bits(n, seed, offset)), cpu.philox_bits(n, seed, offset))
    for dtype in ("float32", "float64"):
        expected = cpu.uniform((n,), dtype, seed, offset)
        found = host(cuda.uniform((n,), dtype, seed, offset))
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    for low, high in ((0, 10), (-3, 2**62), (-(2**63), 2**63 - 1)):
        expected = cpu.integers(low, high, (n,), seed, offset)
        np.testing.assert_array_equal(host(cuda.integers(low, high, (n,), seed, offset)), expected)
    np.testing.assert_array_equal(host(cuda.permutation(n, seed, offset)), cpu.permutation(n, seed, offset))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_numbers_are_the_cpus_up_to_the_last_digits(dtype: str) -> None:
    for n in SIZES:
        found = host(cuda_kernels.random.normal((n,), dtype, 5, 6))
        expected = plain_kernels.random.normal(n, dtype, 5, 6)
        np.testing.assert_allclose(found, expected, rtol=4 * np.finfo(dtype).eps, atol=1e-14)


def test_what_cannot_be_drawn() -> None:
    random = cuda_kernels.random
    for call in (
        lambda: random.uniform(3, "float32", -1, 0),
        lambda: random.uniform(3, "float32", 0, 2**64),
        lambda: random.integers(3, 3, 2, 0, 0),
    ):
        raises(ValueError, "expected", call)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_dropout_of_what_is_not_aligned_is_the_cpus(dtype: str) -> None:
    x = np.random.default_rng(1).standard_normal(1201).astype(dtype)
    expected = plain_kernels.dropout.forward(x[1:].astype(np.promote_types(dtype, "f4")), 0.4, 11, 12).astype(dtype)
    found = cuda_kernels.dropout.forward(cuda_kernels.from_host(x)[1:], 0.4, 11, 12)
    np.testing.assert_array_equal(host(found), expected)
