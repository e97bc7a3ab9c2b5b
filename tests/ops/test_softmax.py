"""Softmax and log-softmax along any dimension."""

import numpy as np
import pytest
from harness import Op, assert_like_torch, every_check, needs_torch, torch, uniform
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F

SHAPES = [((),), ((5,),), ((3, 4),), ((2, 3, 4),), ((130, 129),), ((2, 0),), ((0, 3),), ((1, 1),)]
# Rows of several warps, and blocks of columns whose threads share one, as (130, 129) has them.
SMALL_SHAPES = [*(s for s in SHAPES if s != ((130, 129),)), ((3, 129),), ((20, 35),)]


def softmax(x, axis):
    if not x.ndim:
        return np.ones(())
    e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    return e / e.sum(axis, keepdims=True)


def along(name, reference):
    return [
        Op(
            f"{name}-{dim}",
            lambda x, dim=dim: getattr(F, name)(x, dim),
            lambda x, dim=dim: reference(x, dim),
            lambda x, dim=dim: getattr(torch, name)(x, dim),
            SHAPES,
            uniform(-4, 4),
            rounding=32,
            small_shapes=SMALL_SHAPES,
        )
        for dim in (0, -1)
    ]


OPS = [*along("softmax", softmax), *along("log_softmax", lambda x, axis: np.log(softmax(x, axis)))]


test_op = every_check(OPS)


EXTREMES = [[-np.inf, 0, 1], [-np.inf] * 3, [np.inf, 0, 0], [np.nan, 0, 1], [200, 0, 0]]
EXTREMES += [[1e4, 1e4 - 1, 0], [-1e4, -1e4, -1e4]]


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("row", EXTREMES)
def test_extreme_rows_are_pytorchs(name, dtype, row, device):
    rows = np.array([row, [0, 1, 2]], dtype)
    rtol = 16 * float(np.finfo(dtype).eps)
    assert_like_torch(lambda m, x: getattr(x, name)(1), rows, rtol=rtol, atol=rtol, differentiate=True, device=device)


def test_integers_count_as_floats(device):
    assert mg.tensor([1, 1], device=device).softmax(0).tolist() == [0.5, 0.5]


def test_a_dimension_that_is_not_there(device):
    x = mg.ones(2, 3, device=device)
    raises(IndexError, r"softmax: dim 2 is out of range for a tensor of 2 dimensions \(-2 to 1\)", lambda: x.softmax(2))
