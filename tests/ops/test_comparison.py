"""Comparisons and logic: bool results without gradients, PyTorch's promotion, NaN unequal to everything."""

import numpy as np
from harness import binary, booleans, dyadic, every_check, integers, unary
from refusals import raises

import minigrad as mg

GRID = dyadic(-0.1, 0.1)  # few values, so that some are equal


def with_specials(rng, shape):
    return rng.choice([1.0, -2.0, 0.0, np.nan, np.inf, -np.inf], shape)


SPECIALS = {"domains": with_specials, "differentiable": False}


def compare(name, run, reference):
    return binary(name, run, reference, run, domains=GRID, differentiable=False)


def check_of(name):
    call = lambda x: getattr(x, name)()  # noqa: E731
    return unary(name, call, getattr(np, name), call, **SPECIALS)


def bitwise(name, run, reference):
    return binary(name, run, reference, run, domains=integers(-9, 9))


def logical(name, run, reference):
    return binary(name, run, reference, run, **SPECIALS)


OPS = [
    compare("eq", lambda x, y: x == y, np.equal),
    compare("ne", lambda x, y: x != y, np.not_equal),
    compare("lt", lambda x, y: x < y, np.less),
    compare("le", lambda x, y: x <= y, np.less_equal),
    compare("gt", lambda x, y: x > y, np.greater),
    compare("ge", lambda x, y: x >= y, np.greater_equal),
    binary("and", lambda x, y: x & y, np.logical_and, lambda x, y: x & y, domains=booleans),
    binary("or", lambda x, y: x | y, np.logical_or, lambda x, y: x | y, domains=booleans),
    binary("xor", lambda x, y: x ^ y, np.logical_xor, lambda x, y: x ^ y, domains=booleans),
    unary("not", lambda x: ~x, np.logical_not, lambda x: ~x, domains=booleans),
    bitwise("bitwise_and", lambda x, y: x & y, np.bitwise_and),
    bitwise("bitwise_or", lambda x, y: x | y, np.bitwise_or),
    bitwise("bitwise_xor", lambda x, y: x ^ y, np.bitwise_xor),
    unary("bitwise_not", lambda x: ~x, np.invert, lambda x: ~x, domains=integers(-9, 9)),
    logical("logical_and", lambda x, y: x.logical_and(y), np.logical_and),
    logical("logical_or", lambda x, y: x.logical_or(y), np.logical_or),
    logical("logical_xor", lambda x, y: x.logical_xor(y), np.logical_xor),
    unary("logical_not", lambda x: x.logical_not(), np.logical_not, lambda x: x.logical_not(), **SPECIALS),
    check_of("isnan"),
    check_of("isinf"),
    check_of("isfinite"),
    check_of("isposinf"),
    check_of("isneginf"),
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
