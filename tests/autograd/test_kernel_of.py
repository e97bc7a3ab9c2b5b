"""Which operations are called as one kernel, and what of numbers that are of other classes than Python's."""

import enum

import numpy as np
import pytest

import minigrad as mg
from minigrad.autograd import Function
from minigrad.methods.combine import of_each, of_two
from minigrad.nn import functional as F

X = [1.0, 2.0]
FORWARDS = {
    "one kernel": (lambda k, x: k.elementwise.neg(x), [-1, -2]),
    "changed after it": (lambda k, x: added(k, k.copy(x)), [2, 3]),
    "two kernels": (lambda k, x: k.elementwise.exp(k.elementwise.neg(x)), np.exp([-1, -2])),
    "a number beside it": (lambda k, x: k.elementwise.add(x, 3), [4, 5]),
    "twice the same": (lambda k, x: k.elementwise.mul(x, x), [1, 4]),
    "a question": (lambda k, x: k.elementwise.neg(x) if x.size == 2 else x, [-1, -2]),
}


def added(k, y):
    k.elementwise.add_into(y, 1)
    return y


@pytest.mark.parametrize("name", FORWARDS)
def test_a_forward_does_all_that_it_says_at_each_call(name):
    forward, expected = FORWARDS[name]
    op = type("Op", (Function,), {"forward": lambda self, x: forward(self.kernels, x), "backward": lambda self, dy: dy})
    for _ in range(3):
        np.testing.assert_allclose(of_each(op, "", "op")(mg.tensor(X)).numpy(), expected, rtol=1e-6)


def test_the_order_of_two_inputs_is_that_of_forward():
    reversed_sub = type("Op", (Function,), {"forward": lambda self, x, y: self.kernels.elementwise.sub(y, x)})
    for _ in range(3):
        assert of_two(reversed_sub, "op")(mg.tensor(X), mg.tensor([5.0, 5.0])).tolist() == [4, 3]


class Number(enum.IntEnum):
    TWO = 2


@pytest.mark.parametrize("two", [np.float64(2), np.float32(2), Number.TWO, type("Two", (float,), {})(2)])
def test_numbers_of_other_classes_do_not_widen(two):
    x = mg.tensor([-3.0, 3.0])
    found = x + two, x % two, x.clamp(max=two), F.hardtanh(x, -two, two), x.nan_to_num(two), x.var(correction=two)
    assert [y.dtype for y in (*found, x.add(x, alpha=two), x.clone().add_(two), x**two)] == [mg.float32] * 9
