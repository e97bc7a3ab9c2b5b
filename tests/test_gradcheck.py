"""gradcheck finds what is wrong, and refuses what it cannot judge."""

import pytest
from graph_cases import leaf
from refusals import raises

import minigrad as mg
from minigrad import Function, GradcheckError, gradcheck


class PlantedError(Function):
    """y = x^2 with a gradient that is wrong by one part in a hundred at one element."""

    def forward(self, x):
        self.saved = (x,)
        return x * x

    def backward(self, dy):
        dx = 2 * self.saved[0] * dy
        dx[1, 2] *= 1.01
        return dx


def test_a_planted_error_is_found_with_its_place() -> None:
    with pytest.raises(GradcheckError, match=r"input 1, element \(1, 2\): backward gives .*finite difference is"):
        gradcheck(lambda c, x: PlantedError.apply(x) * c, [mg.ones(2, 3, dtype="float64"), leaf(2, 3)])


def test_right_gradients_pass() -> None:
    assert gradcheck(lambda x, y: (x @ y).tanh(), [leaf(2, 3), leaf(3, 2, seed=1)])
    assert gradcheck(lambda x: [x * 2, x.exp(), x.sum()], [leaf(3)])
    assert gradcheck(lambda x: x * x, [leaf()])
    assert gradcheck(lambda x: x * 2, [leaf(0)])


def test_a_missing_gradient_is_found() -> None:
    raises(GradcheckError, "backward gives 0,", lambda: gradcheck(lambda x: x.detach() * 2, [leaf(2)]))
    assert gradcheck(lambda x: mg.ones(2), [leaf(2)])  # a gradient of zero is right here


def test_what_cannot_be_judged_is_an_error() -> None:
    double, plain = mg.ones(2, dtype="float64"), lambda x: x
    raises(GradcheckError, "nan", lambda: gradcheck(lambda x: x * float("nan"), [leaf(2)]))
    single = mg.ones(2, requires_grad=True)
    raises(ValueError, "input 0 is float32; finite differences need float64", lambda: gradcheck(plain, [single]))
    raises(ValueError, "no input requires grad", lambda: gradcheck(plain, [double]))
    raises(ValueError, "writable leaf", lambda: gradcheck(plain, [leaf(2) * 2]))


def test_values_are_put_back_and_the_mode_does_not_matter() -> None:
    x = leaf(3)
    before = x.tolist()
    with mg.no_grad():
        assert gradcheck(lambda x: x.exp(), [x])
    assert x.tolist() == before
    calls = iter(range(3))
    raises(StopIteration, "", lambda: gradcheck(lambda x: x * (2 + 0 * next(calls)), [x]))
    assert x.tolist() == before and next(calls, None) is None
