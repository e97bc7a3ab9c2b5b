"""Elementwise operations: arithmetic, functions, selection, casts."""

import math
import operator

import numpy as np
import pytest
from harness import POSITIVE, alike, assert_close, booleans, dyadic, every_check, host, same, torch, unary, uniform
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


STEPS = dyadic(-3, 3)  # nowhere near a jump
AWAY = (dyadic(-3, 3), dyadic(0.5, 2.5, odd=False))  # an odd number is no multiple of an even one
UNEQUAL = (dyadic(-2, 2), dyadic(-2, 2, odd=False))
WHERE = [((3, 4), (3, 4), (3, 4)), ((3, 1), (4,), (2, 1, 1)), ((), (), (5,)), ((0, 2), (2,), (1, 2)), ((2,), (), ())]
CHOICES = (uniform(-2, 2), uniform(-2, 2), booleans)
MASKED = [((3, 4), (3, 4)), ((2, 3), (3,)), ((3,), (2, 1)), ((), ()), ((0,), (1,))]

OPS = [
    alike("add", lambda x, y: x + y, np.add),
    alike("sub", lambda x, y: x - y, np.subtract),
    alike("mul", lambda x, y: x * y, np.multiply),
    alike("div", lambda x, y: x / y, np.divide, domains=(uniform(-2, 2), POSITIVE)),
    alike("floor_div", lambda x, y: x // y, np.floor_divide, domains=AWAY, differentiable=False),
    alike("remainder", lambda x, y: x % y, np.remainder, domains=AWAY, rounding=64),
    alike("fmod", lambda x, y: x.fmod(y), np.fmod, domains=AWAY, rounding=64),
    alike("pow", lambda x, y: x**y, np.power, domains=(POSITIVE, uniform(-2, 2)), rounding=32),
    alike("maximum", lambda x, y: x.maximum(y), np.maximum, domains=UNEQUAL),
    alike("minimum", lambda x, y: x.minimum(y), np.minimum, domains=UNEQUAL),
    same("where", lambda x, y, c: x.where(c, y), lambda x, y, c: np.where(c, x, y), WHERE, CHOICES),
    same("masked_fill", lambda x, c: x.masked_fill(c, -7.0), lambda x, c: np.where(c, -7.0, x), MASKED, CHOICES[1:]),
    alike("add_number", lambda x: 1.5 + x + 2, lambda x: x + 3.5),
    alike("sub_number", lambda x: 1.5 - x - 2, lambda x: -0.5 - x),
    alike("mul_number", lambda x: 1.5 * x * 2, lambda x: x * 3),
    alike("div_number", lambda x: (3 / x) / 2, lambda x: 1.5 / x, domains=POSITIVE),
    alike("remainder_number", lambda x: x % 0.75, lambda x: x % 0.75, domains=uniform(0.8, 1.4)),
    alike("number_remainder", lambda x: 7 % x, lambda x: 7 % x, domains=uniform(2.4, 3.4), torch_differentiates=False),
    alike("number_floor_div", lambda x: 7 // x, lambda x: 7 // x, domains=STEPS, differentiable=False),
    alike("pow_0", lambda x: x**0, np.ones_like),
    alike("pow_1", lambda x: x**1, lambda x: x),
    *(unary(f"pow_{n}", lambda x, n=n: x**n, lambda x, n=n: np.power(x, n), lambda x, n=n: x**n) for n in (2, 3, 4, 5)),
    *(
        unary(f"pow_{n}", lambda x, n=n: x**n, lambda x, n=n: x**n, lambda x, n=n: x**n, domains=POSITIVE)
        for n in (-2, -1.5, -1, -0.5, 0.5)
    ),
    alike("number_pow", lambda x: 3**x, lambda x: 3**x),
    alike("clamp", lambda x: x.clamp(-1, 1.25), lambda x: x.clip(-1, 1.25), domains=STEPS),
    alike("clamp_min", lambda x: x.clamp(min=0), lambda x: x.clip(0), domains=STEPS),
    alike("clamp_max", lambda x: x.clamp(max=0), lambda x: x.clip(None, 0), domains=STEPS),
    alike("neg", lambda x: -x, np.negative),
    *map(unary, ("square", "exp", "exp2", "expm1", "sin", "cos", "tanh")),
    *(unary(name, domains=POSITIVE) for name in ("reciprocal", "log", "log2", "log10", "sqrt")),
    *(unary(name, domains=STEPS) for name in ("abs", "sign", "floor", "ceil", "round", "trunc")),
    unary("log1p", domains=uniform(-0.5, 2)),
    unary("tan", domains=uniform(-1.25, 1.25), rounding=64),
    alike("rsqrt", lambda x: x.rsqrt(), lambda x: 1 / np.sqrt(x), domains=POSITIVE),
    alike("erf", lambda x: x.erf(), np.vectorize(math.erf, otypes=[float]), domains=uniform(-5, 5)),
    unary("nan_to_num"),
    alike("sigmoid", lambda x: x.sigmoid(), sigmoid),
    unary("silu", F.silu, lambda x: x * sigmoid(x), lambda x: torch.nn.functional.silu(x)),
    alike("relu", lambda x: x.relu(), lambda x: x.clip(0), domains=STEPS),
    alike("clone", lambda x: x.clone(), lambda x: x),
    alike("contiguous", lambda x: x.contiguous() * 1, lambda x: x),
]


test_op = every_check(OPS)


# Dtypes ---------------------------------------------------------------------------------------------------------------

VALUES = {name: np.array([1, 2], name) for name in ("float32", "float64", "float16", "int64", "int32", "uint8")}
VALUES |= {f"0-d {x.dtype}": x for x in (np.array(1.5, "float32"), np.array(1.5), np.array(2), np.array(True))}
VALUES |= {"bool": np.array([True, False]), "float": 1.5, "int": 2, "True": True}
PROMOTING = operator.add, operator.mul, operator.truediv, operator.pow, operator.floordiv, operator.mod, operator.lt


@pytest.mark.parametrize("op", PROMOTING)
def test_promotion_is_pytorchs(op, device):
    """Every pair of dtypes, dimensions and kinds of Python numbers, in either order."""
    torch, name = pytest.importorskip("torch"), op.__name__
    for first, x in VALUES.items():
        for second, y in VALUES.items():
            if not isinstance(x, np.ndarray) and not isinstance(y, np.ndarray):
                continue
            theirs = [torch.tensor(v) if isinstance(v, np.ndarray) else v for v in (x, y)]
            ours = [mg.tensor(v, device=device) if isinstance(v, np.ndarray) else v for v in (x, y)]
            try:
                z = op(*theirs)
            except (RuntimeError, NotImplementedError):  # PyTorch has no such operation
                continue
            if name in ("floordiv", "mod", "pow") and "bool" in str(theirs[0]) + str(z.dtype):
                continue
            if name in ("floordiv", "mod") and not np.asarray(y).all():
                continue
            found = op(*ours)
            assert str(found.dtype) == str(z.dtype).removeprefix("torch."), f"{first} {name} {second}"
            rounding = 4 if found.dtype.kind == "f" else 0
            assert_close(host(found), z.numpy(), rounding, f"{first} {name} {second}")


@pytest.mark.parametrize(
    "op", [lambda x: x - x, lambda x: -x, lambda x: x // x, lambda x: x % x, lambda x: x**x, lambda x: x**True]
)
def test_arithmetic_that_bool_has_not_is_refused(op, device):
    """NumPy would answer in int8, which is no dtype of a tensor."""
    raises(TypeError, r"of bool tensors has no value; convert with \.long", op, mg.tensor([True, False], device=device))


def test_integer_powers_below_zero_are_refused(device):
    raises(ValueError, "negative integer powers", lambda: mg.tensor([2], device=device) ** -1)


# Special values -------------------------------------------------------------------------------------------------------


def test_small_arguments_keep_their_digits(device):
    x = mg.tensor([1e-8, -1e-8], device=device)
    np.testing.assert_allclose(host(x.expm1()), [1e-8, -1e-8], rtol=1e-6)
    np.testing.assert_allclose(host(x.log1p()), [1e-8, -1e-8], rtol=1e-6)


def test_gradient_of_zero_to_a_power(device):
    """0 to a positive or zero power has finite gradients: 0 log 0 counts as 0."""
    x = mg.tensor([0.0, 0.0, 2.0], device=device, requires_grad=True)
    y = mg.tensor([0.0, 2.0, 0.0], device=device, requires_grad=True)
    grads = (x**y).sum().backward()
    assert grads[x].tolist() == [0, 0, 0]
    np.testing.assert_allclose(host(grads[y]), [0, 0, np.log(2)], rtol=1e-6)


# Selection ------------------------------------------------------------------------------------------------------------


def test_where_takes_numbers_and_stops_nan(device):
    c = mg.tensor([True, False], device=device)
    x = mg.tensor([2.0, 0.0], device=device, requires_grad=True)
    assert mg.where(c, 1.5, 2).tolist() == [1.5, 2]
    assert mg.where(c, 1, 2).dtype == mg.int64
    assert mg.where(c, mg.tensor([1, 2], device=device), 0.5).dtype == mg.float32
    assert mg.where(c, 0, x).tolist() == [0, 0]
    grads = mg.where(c, 1 / x, 0.0).sum().backward()
    assert np.isnan(host(grads[x])[1])  # 0 times the infinite slope of 1 / x, as in PyTorch
    grads = mg.where(c, x, 0.0).sum().backward()
    assert grads[x].tolist() == [1, 0]


def test_masked_fill_with_infinity(device):
    x = mg.tensor([1.0, 2.0], device=device, requires_grad=True)
    mask = mg.tensor([True, False], device=device)
    y = x.masked_fill(mask, float("-inf"))
    assert y.tolist() == [float("-inf"), 2]
    assert y.exp().sum().backward()[x].tolist() == pytest.approx([0, np.exp(2)])
    raises(ValueError, r"masked_fill: no int64 is -inf; .*\.float\(\)", x.long().masked_fill, mask, float("-inf"))


def test_clamp_of_integers_and_its_errors(device):
    x = mg.tensor([1, 5], device=device)
    assert x.clamp(2, 3).dtype == mg.int64
    assert x.clamp(2.5).tolist() == [2.5, 5]
    assert x.clamp(2.5).dtype == mg.float32
    assert x.clamp(4, 2).tolist() == [2, 2]  # max wins
    raises(ValueError, "expected min, max or both", lambda: x.clamp())
    assert x.clamp(min=mg.tensor([3, 0], device=device)).tolist() == [3, 5]


def test_bounds_of_clamp_pass_the_gradient(device):
    x = mg.tensor([-1.0, 1.0, 2.0], device=device, requires_grad=True)
    assert x.clamp(-1, 1).sum().backward()[x].tolist() == [1, 1, 0]


# Casts and copies -----------------------------------------------------------------------------------------------------


def test_clone_and_contiguous_own_their_memory(device):
    x = mg.tensor(np.arange(6.0).reshape(2, 3), device=device)
    y = x.T.contiguous()
    assert y.is_contiguous()
    assert x.contiguous() is x
    x.zero_()
    assert y.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_methods_and_operators_agree(device):
    x, y = mg.tensor([5.0, -3.0], device=device), mg.tensor([2.0, 4.0], device=device)
    for method, sign in (
        *((x.add(y), x + y), (x.sub(y), x - y), (x.mul(y), x * y), (x.div(y), x / y), (x.remainder(y), x % y)),
        *((y.pow(2), y**2), (x.neg(), -x), (x.abs(), abs(x)), (+x, x)),
        *((F.relu(x), x.relu()), (F.sigmoid(x), x.sigmoid()), (F.tanh(x), x.tanh())),
    ):
        np.testing.assert_array_equal(host(method), host(sign))


@pytest.mark.parametrize("divide", [lambda x, y: x // y, lambda x, y: x % y], ids=["floor_div", "remainder"])
def test_an_integer_is_not_divided_by_zero(divide, device):
    ints = mg.tensor([1, -2, 3], device=device)
    for x, y in ((ints, 0), (ints, mg.tensor([1, 0, 2], device=device)), (7, mg.tensor([0], device=device))):
        raises(ZeroDivisionError, "integer division by 0", divide, x, y)
    assert divide(ints[:0], 5).shape == (0,)
    found = host(divide(mg.tensor([1.0, 0.0], device=device), 0.0))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, divide(np.float32([1, 0]), np.float32(0)))


def test_logaddexp_of_large_values_divides_the_gradient() -> None:
    x, y = (mg.tensor([1e4, 1e8, value], requires_grad=True) for value in (np.inf, 5.0))
    grads = x.logaddexp(y).sum().backward()
    assert [grads[x].tolist(), grads[y].tolist()] == [[0.5, 0.5, 1], [0.5, 0.5, 0]]
