"""Dropout kernels: the mask is the draw of ``random``, the same in backward, at any size and thread count."""

import numpy as np
import pytest

from minigrad.cpu_kernels import dropout, random
from minigrad.plain_kernels import dropout as plain

LARGE = 2 * random.CHUNK + 7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 7), (LARGE,)])
def test_the_mask_is_the_uniform_draw(shape, p, dtype):
    x = np.asarray(np.random.default_rng(0).normal(size=shape), dtype)
    y = dropout.forward(x, p, 5, 6)
    assert y.shape == shape
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, plain.forward(x, p, 5, 6))
    np.testing.assert_array_equal(dropout.backward(x, p, 5, 6), y)


def test_keeps_the_mean_and_the_share():
    y = dropout.forward(np.ones(100_000, np.float32), 0.2, 1, 2)
    # binomial: five standard errors
    assert abs((y == 0).mean() - 0.2) < 5 * np.sqrt(0.16 / y.size)
    np.testing.assert_allclose(y[y != 0], 1.25, rtol=1e-6)


def test_strided_input():
    x = np.random.default_rng(0).normal(size=(300, 200)).astype(np.float32)
    y = dropout.forward(x.T, 0.5, 1, 2)
    np.testing.assert_array_equal(dropout.forward(x.T.copy(), 0.5, 1, 2), y)


def test_another_seed_or_offset_is_another_mask():
    x = np.ones(200, np.float32)
    masks = [dropout.forward(x, 0.5, seed, offset) for seed, offset in ((1, 2), (1, 3), (2, 2), (2**64 - 1, 2))]
    for i in range(4):
        for j in range(i):
            # masks of independent draws agree in half of the places: ten standard deviations
            assert abs((masks[i] == masks[j]).sum() - 100) < 71


def test_dropped_nan_is_nan():
    assert np.isnan(dropout.forward(np.full(50, np.nan, np.float32), 0.5, 1, 2)).all()


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_p_out_of_range(p):
    with pytest.raises(ValueError, match="from 0 to 1"):
        dropout.forward(np.ones(2, np.float32), p, 0, 0)
