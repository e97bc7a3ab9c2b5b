"""Tables of the rotary embedding, and rotations of many dimensions, equal the plain kernels'."""

import numpy as np
import pytest

from minigrad.cuda_kernels import rope
from minigrad.cuda_kernels.platform import array
from minigrad.plain_kernels import rope as plain

RNG = np.random.default_rng(0)


def test_angles_keep_their_digits():
    """To the rounding of float64 where the angle itself is exact, at a million radians too."""
    positions = np.array([0, 1, 3, 1_000_000, -2_000_003], np.int64)
    cos, sin = rope.angle_tables(array.from_host(positions), np.array([1.0, 0.5]), np.float64)
    angles = positions[:, None] * np.array([1.0, 0.5])
    np.testing.assert_allclose(array.to_host(cos), np.cos(angles), rtol=0, atol=1e-15)
    np.testing.assert_allclose(array.to_host(sin), np.sin(angles), rtol=0, atol=1e-15)


@pytest.mark.parametrize("interleaved", [False, True])
def test_more_dimensions_than_a_launch_takes(interleaved):
    x, (cos, sin) = RNG.standard_normal((2, 3, 2, 2, 4)), RNG.standard_normal((2, 2, 1, 1, 1, 2))
    axes = (3, 1, 0, 2, 4)
    stored = array.from_host(np.ascontiguousarray(x.transpose(axes))).transpose(*np.argsort(axes))
    y = rope.rotate(stored, array.from_host(cos), array.from_host(sin), interleaved)
    assert y.contiguous
    np.testing.assert_allclose(array.to_host(y), plain.rotate(x, cos, sin, interleaved), rtol=1e-12)
