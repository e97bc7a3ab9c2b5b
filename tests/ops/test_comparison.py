"""Comparisons and logic: bool results without gradients, PyTorch's promotion, NaN unequal to everything."""

import itertools

import numpy as np
from harness import alike, booleans, dyadic, every_check, integers, unary
from refusals import raises

import minigrad as mg


def with_specials(rng, shape):
    return rng.choice([1.0, -2.0, 0.0, np.nan, np.inf, -np.inf], shape)


GRID = {"domains": dyadic(-0.1, 0.1), "differentiable": False}  # few values, so that some are equal
SPECIALS = {"domains": with_specials, "differentiable": False}
BITS = {"domains": integers(-9, 9)}


OPS = [
    alike("eq", lambda x, y: x == y, np.equal, **GRID),
    alike("ne", lambda x, y: x != y, np.not_equal, **GRID),
    alike("lt", lambda x, y: x < y, np.less, **GRID),
    alike("le", lambda x, y: x <= y, np.less_equal, **GRID),
    alike("gt", lambda x, y: x > y, np.greater, **GRID),
    alike("ge", lambda x, y: x >= y, np.greater_equal, **GRID),
    alike("and", lambda x, y: x & y, np.logical_and, domains=booleans),
    alike("or", lambda x, y: x | y, np.logical_or, domains=booleans),
    alike("xor", lambda x, y: x ^ y, np.logical_xor, domains=booleans),
    alike("not", lambda x: ~x, np.logical_not, domains=booleans),
    alike("bitwise_and", lambda x, y: x & y, np.bitwise_and, **BITS),
    alike("bitwise_or", lambda x, y: x | y, np.bitwise_or, **BITS),
    alike("bitwise_xor", lambda x, y: x ^ y, np.bitwise_xor, **BITS),
    alike("bitwise_not", lambda x: ~x, np.invert, **BITS),
    alike("logical_and", lambda x, y: x.logical_and(y), np.logical_and, **SPECIALS),
    alike("logical_or", lambda x, y: x.logical_or(y), np.logical_or, **SPECIALS),
    alike("logical_xor", lambda x, y: x.logical_xor(y), np.logical_xor, **SPECIALS),
    *(unary(name, **SPECIALS) for name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf")),
    unary("logical_not", **SPECIALS),
]


test_op = every_check(OPS)


def test_comparison_with_numbers_promotes(device):
    x = mg.tensor([1, 2, 3], device=device)
    assert (x > 1.5).tolist() == [False, True, True]
    assert (x > 2).tolist() == [False, False, True]
    assert (x == 2).tolist() == [False, True, False]
    assert (mg.tensor([0.1], device=device) == np.float64(0.1)).tolist() == [
        True
    ]  # compared in float32, as a number is


INTEGERS = {"uint8": [0, 44, 255], "int32": [-1, 0, 44, 300], "int64": [-1, 2**40, 44]}


def test_integers_of_two_dtypes_are_compared_as_numbers(device):
    """Also where one is a 0-d tensor, which does not widen others: -1 is below every uint8, and 300 is not 44."""
    for one, other in itertools.product(INTEGERS, repeat=2):
        y, numbers = mg.tensor(INTEGERS[other], dtype=other, device=device), INTEGERS[other]
        for number in INTEGERS[one]:
            x = mg.tensor(number, dtype=one, device=device)
            assert (x <= y).tolist() == [number <= n for n in numbers], (x, y)
            assert (y < x).tolist() == [n < number for n in numbers], (x, y)
            assert (x == y).tolist() == [number == n for n in numbers], (x, y)


def test_results_do_not_require_grad(device):
    x = mg.tensor([1.0, 2.0], device=device, requires_grad=True)
    assert not (x > 1).requires_grad
    assert (x > 1).dtype == mg.bool_


def test_bits_of_integers_and_logic_of_bool(device):
    x, mask = mg.tensor([1, 2], device=device), mg.tensor([True, False], device=device)
    assert (mask & x).tolist() == [1, 0]
    assert (6 ^ x).tolist() == [7, 4]
    assert (x | 4).tolist() == x.bitwise_or(4).tolist() == [5, 6]
    assert (mask & True).tolist() == [True, False]
    assert (~mask).dtype == mg.bool_
    y = mg.ones(2, device=device)
    for op in (lambda: ~y, lambda: y | mask, lambda: x ^ 1.5):
        raises(TypeError, r"is for integers and bool, not float\d\d; compare first", op)
