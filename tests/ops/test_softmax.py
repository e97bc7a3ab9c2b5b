"""Softmax and log-softmax along any dimension."""

import numpy as np
from harness import every_check, functional, uniform
from refusals import raises

import minigrad as mg

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
        functional(
            f"{name}-{dim}",
            lambda f, x, dim=dim: getattr(f, name)(x, dim),
            lambda x, dim=dim: reference(x, dim),
            SHAPES,
            uniform(-4, 4),
            rounding=32,
            small_shapes=SMALL_SHAPES,
        )
        for dim in (0, -1)
    ]


OPS = [*along("softmax", softmax), *along("log_softmax", lambda x, axis: np.log(softmax(x, axis)))]


test_op = every_check(OPS)


def test_integers_count_as_floats(device):
    assert mg.tensor([1, 1], device=device).softmax(0).tolist() == [0.5, 0.5]
    half = mg.tensor([1.0, 2.0], dtype="float16", device=device)
    assert half.softmax(0, mg.float32).equal(half.float().softmax(0)) and half.log_softmax(0, "float64").dtype == "d"


def test_a_dimension_that_is_not_there(device):
    x = mg.ones(2, 3, device=device)
    raises(IndexError, r"softmax: dim 2 is out of range for a tensor of 2 dimensions \(-2 to 1\)", lambda: x.softmax(2))
