"""grad_norm: the float64 sum of squares over many arrays and scaling in place, for any cut and thread count."""

import numpy as np
import pytest
from refusals import raises

from minigrad.cpu_kernels import grad_norm


def arrays():
    """Of both dtypes and sizes about a chunk's, then of other layouts and of half width."""
    rng = np.random.default_rng(0)
    sizes = [0, 1, 3, grad_norm.CHUNK, grad_norm.CHUNK + 1, 3 * grad_norm.CHUNK - 1, 17]
    flat = [rng.normal(size=n).astype((np.float32, np.float64)[i % 2]) for i, n in enumerate(sizes)]
    x = rng.normal(size=(20, 30)).astype(np.float32)
    return [*flat, x[:, ::3], np.ones((4, 6), np.float32).T, x.astype(np.float16), np.ones((), np.float32)]


def test_sum_of_squares():
    xs = arrays()
    expected = sum((x.astype(np.float64) ** 2).sum() for x in xs)
    assert grad_norm.sum_of_squares(xs) == pytest.approx(expected, rel=1e-13)
    assert grad_norm.sum_of_squares(iter(xs)) == grad_norm.sum_of_squares(xs)
    assert grad_norm.sum_of_squares([]) == 0.0
    assert isinstance(grad_norm.sum_of_squares(xs), float)


def test_scale():
    xs = [*arrays(), np.array([1.0, 6e4, np.inf], np.float16)]  # the second becomes infinite, which is no warning
    wide = [np.promote_types(x.dtype, np.float32).type for x in xs]  # float16 would round the factor
    with np.errstate(over="ignore"):
        expected = [(real(x) * real(2.3)).astype(x.dtype) for x, real in zip(xs, wide, strict=True)]
    grad_norm.scale_(xs, 2.3)
    for x, y in zip(xs, expected, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
    grad_norm.scale_([], 0.5)


def test_scale_checks_before_it_writes():
    x, fixed = np.ones(3, np.float32), np.ones(2, np.float32)
    fixed.flags.writeable = False
    raises(ValueError, "array 1", lambda: grad_norm.scale_([x, fixed], 2.0))
    np.testing.assert_array_equal(x, 1)
