"""grad_norm: the float64 sum of squares over many arrays and scaling in place, for any cut and thread count."""

import numpy as np
import pytest
from refusals import raises

from minigrad.cpu_kernels import grad_norm


def arrays(dtypes=(np.float32, np.float64)):
    rng = np.random.default_rng(0)
    sizes = [0, 1, 3, grad_norm.CHUNK, grad_norm.CHUNK + 1, 3 * grad_norm.CHUNK - 1, 17]
    return [rng.normal(size=n).astype(dtypes[i % len(dtypes)]) for i, n in enumerate(sizes)]


def test_sum_of_squares():
    xs = arrays()
    expected = sum((x.astype(np.float64) ** 2).sum() for x in xs)
    assert grad_norm.sum_of_squares(xs) == pytest.approx(expected, rel=1e-13)
    assert grad_norm.sum_of_squares(iter(xs)) == grad_norm.sum_of_squares(xs)
    assert grad_norm.sum_of_squares([]) == 0.0
    assert isinstance(grad_norm.sum_of_squares(xs), float)


def test_other_layouts_and_dtypes():
    x = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)
    expected = (x[:, ::3].astype(np.float64) ** 2).sum()
    assert grad_norm.sum_of_squares([x[:, ::3]]) == pytest.approx(expected, rel=1e-13)
    half = x.astype(np.float16)
    assert grad_norm.sum_of_squares([half]) == pytest.approx((half.astype(np.float64) ** 2).sum(), rel=1e-13)


def test_scale():
    xs = [*arrays(), np.ones((4, 6), np.float32).T, np.ones(5, np.float16), np.ones((), np.float32)]
    expected = [x * x.dtype.type(0.3) for x in xs]
    grad_norm.scale_(xs, 0.3)
    for x, y in zip(xs, expected, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
    grad_norm.scale_([], 0.5)


def test_a_half_that_becomes_too_large_is_infinite():
    x = np.array([1.0, 6e4, np.inf], np.float16)
    grad_norm.scale_([x], 2.0)
    np.testing.assert_array_equal(x, np.array([2.0, np.inf, np.inf], np.float16))


def test_scale_checks_before_it_writes():
    x, fixed = np.ones(3, np.float32), np.ones(2, np.float32)
    fixed.flags.writeable = False
    raises(ValueError, "array 1", lambda: grad_norm.scale_([x, fixed], 2.0))
    np.testing.assert_array_equal(x, 1)
