"""Initialisation: distributions, bounds, generators, and that autograd is not involved."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigrad as mg
from minigrad import Generator
from minigrad.nn import Parameter, init


def drawn(fill: Callable[..., Any], *args: Any, shape: tuple[int, ...] = (300, 200), **kwargs: Any) -> np.ndarray:
    x = Parameter(mg.empty(shape))
    assert fill(x, *args, generator=Generator(5), **kwargs) is x
    assert x.requires_grad and x.is_leaf and x.version == 1
    array: np.ndarray = x.detach().numpy()
    return array


def test_constants() -> None:
    x = Parameter(mg.empty(3))
    assert init.zeros_(x).tolist() == [0] * 3 and init.ones_(x).tolist() == [1] * 3 and x.is_leaf


def test_normal() -> None:
    v = drawn(init.normal_, 2.0, 0.5)
    assert abs(v.mean() - 2) < 0.01 and abs(v.std() - 0.5) < 0.01


@pytest.mark.parametrize(
    ("fill", "args", "bound"),
    [
        (init.uniform_, (-0.5, 0.5), 0.5),
        (init.kaiming_uniform_, (), math.sqrt(6 / 200)),
        (init.kaiming_uniform_, (math.sqrt(5),), 1 / math.sqrt(200)),
        (init.xavier_uniform_, (), math.sqrt(6 / 500)),
        (init.xavier_uniform_, (2.0,), 2 * math.sqrt(6 / 500)),
    ],
)
def test_uniform_bounds(fill: Callable[..., Any], args: tuple[float, ...], bound: float) -> None:
    v = drawn(fill, *args)
    assert np.abs(v).max() <= bound * (1 + 1e-6) and v.max() > 0.999 * bound and v.min() < -0.999 * bound
    assert abs(v.std() - bound / math.sqrt(3)) < 0.01 * bound


def test_fan_in() -> None:
    assert init.fan_in(mg.empty(5, 3)) == 3 and init.fan_in(mg.empty(5, 3, 2)) == 6
    for fill in (init.fan_in, init.kaiming_uniform_, init.xavier_uniform_):
        with pytest.raises(ValueError, match=r"shape \(3,\): expected a weight of at least two dimensions"):
            fill(mg.empty(3))


def test_the_generator_decides() -> None:
    a, b = drawn(init.normal_), drawn(init.normal_)
    np.testing.assert_array_equal(a, b)
    mg.manual_seed(5)
    np.testing.assert_array_equal(init.normal_(mg.empty(300, 200)).numpy(), a)
