"""Initialisation: distributions, bounds, generators, and that autograd is not involved."""

import math

import numpy as np
import pytest
from refusals import raises

import minigrad as mg
from minigrad.nn import Parameter, init


def drawn(fill, *args, shape: tuple[int, ...] = (300, 200), **kwargs) -> np.ndarray:
    x = Parameter(mg.empty(shape))
    assert fill(x, *args, generator=mg.Generator(5), **kwargs) is x
    assert x.requires_grad and x.is_leaf and x.version == 1
    array: np.ndarray = x.detach().numpy()
    return array


def test_constants() -> None:
    x = Parameter(mg.empty(3))
    assert init.zeros_(x).tolist() == [0] * 3 and init.ones_(x).tolist() == [1] * 3 and x.is_leaf
    assert init.constant_(x, 2.5).tolist() == [2.5] * 3 and x.is_leaf
    for shape in ((2, 3), (3, 2), (2, 2), (0, 2)):
        np.testing.assert_array_equal(init.eye_(mg.empty(shape)).numpy(), np.eye(*shape))
    raises(ValueError, r"eye_ of shape \(3,\): expected a matrix", init.eye_, x)


def test_normal_with_the_variance_of_the_sizes() -> None:
    for fill, args, std in [
        (init.normal_, (2.0, 0.5), 0.5),
        (init.kaiming_normal_, (), math.sqrt(2 / 200)),
        (init.kaiming_normal_, (2.0,), math.sqrt(0.4 / 200)),
        (init.xavier_normal_, (), math.sqrt(2 / 500)),
        (init.xavier_normal_, (3.0,), 3 * math.sqrt(2 / 500)),
    ]:
        v = drawn(fill, *args) - (2.0 if fill is init.normal_ else 0.0)
        assert abs(v.mean()) < 0.02 * std and abs(v.std() / std - 1) < 0.01 and np.abs(v).max() > 3.5 * std


@pytest.mark.parametrize(("mean", "std", "a", "b"), [(0, 1, -2, 2), (1, 2, 2, 2.5), (0, 0.02, -2, 2), (5, 2, -1, 1.5)])
def test_truncated_normal(mean: float, std: float, a: float, b: float) -> None:
    v = drawn(init.trunc_normal_, mean, std, a, b)
    assert v.min() >= a and v.max() <= b
    grid = np.linspace(max(a, mean - 9 * std), min(b, mean + 9 * std), 100_001)
    density = np.exp(-(((grid - mean) / std) ** 2) / 2)
    want = (grid * density).sum() / density.sum()
    spread = math.sqrt(((grid - want) ** 2 * density).sum() / density.sum())
    assert abs(v.mean() - want) < 0.02 * spread and abs(v.std() / spread - 1) < 0.02


def test_truncation_that_leaves_next_to_nothing_is_refused() -> None:
    for mean, std, a, b in ((-5, 1, 0, 1), (9, 1, 2, -2), (0, 0, -1, 1), (0, math.nan, -1, 1)):
        with pytest.raises(ValueError, match="expected an interval that holds at least 1% of the distribution"):
            init.trunc_normal_(mg.empty(3), mean, std, a, b)


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (4, 3, 2), (1, 4), (2, 0)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    v = drawn(init.orthogonal_, 2.0, shape=shape).reshape(shape[0], -1)
    gram = v @ v.T if v.shape[0] <= v.shape[1] else v.T @ v
    np.testing.assert_allclose(gram, 4 * np.eye(len(gram)) if v.size else 0, atol=1e-5)


def test_orthogonal_matrices_are_drawn_uniformly() -> None:
    generator = mg.Generator(0)
    x = np.stack([init.orthogonal_(mg.empty(2, 2), generator=generator).numpy() for _ in range(2000)])
    assert np.abs(x.mean(0)).max() < 0.05  # QR alone would give the diagonal a sign
    assert abs((np.linalg.det(x) > 0).mean() - 0.5) < 0.05


def test_uniform_bounds() -> None:
    for fill, args, bound in [
        (init.uniform_, (-0.5, 0.5), 0.5),
        (init.kaiming_uniform_, (), math.sqrt(6 / 200)),
        (init.kaiming_uniform_, (math.sqrt(5),), 1 / math.sqrt(200)),
        (init.xavier_uniform_, (), math.sqrt(6 / 500)),
        (init.xavier_uniform_, (2.0,), 2 * math.sqrt(6 / 500)),
    ]:
        v = drawn(fill, *args)
        assert np.abs(v).max() <= bound * (1 + 1e-6) and v.max() > 0.999 * bound and v.min() < -0.999 * bound
        assert abs(v.std() - bound / math.sqrt(3)) < 0.01 * bound


def test_fan_in() -> None:
    assert init.fan_in(mg.empty(5, 3)) == 3 and init.fan_in(mg.empty(5, 3, 2)) == 6
    assert init.fan_out(mg.empty(5, 3)) == 5 and init.fan_out(mg.empty(5, 3, 2)) == 10
    drawn_by_fan = ["kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_", "orthogonal_"]
    for name in ["fan_in", "fan_out", *drawn_by_fan]:
        raises(ValueError, r"shape \(3,\): expected a weight of at least two", getattr(init, name), mg.empty(3))


def test_the_generator_decides() -> None:
    a, b = drawn(init.normal_), drawn(init.normal_)
    np.testing.assert_array_equal(a, b)
    mg.manual_seed(5)
    np.testing.assert_array_equal(init.normal_(mg.empty(300, 200)).numpy(), a)
