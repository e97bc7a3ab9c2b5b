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


def test_dropped_nan_is_nan():
    assert np.isnan(dropout.forward(np.full(50, np.nan, np.float32), 0.5, 1, 2)).all()
