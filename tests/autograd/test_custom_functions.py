"""Functions of one's own: values, gradients that gradcheck judges, and what is wrong with them."""

import numpy as np
import pytest
from graph_cases import Cube, Passes, leaf
from refusals import raises

import minigrad as mg
from minigrad import Function, GradcheckError, gradcheck


def test_the_cube_of_the_documentation() -> None:
    x = leaf(4)
    assert mg.gradcheck(Cube.apply, [x])
    np.testing.assert_allclose(Cube.apply(x).sum().backward()[x].numpy(), 3 * x.detach().numpy() ** 2)


def test_an_op_with_parameters_and_several_inputs() -> None:
    class ScaledDifference(mg.Function):
        """z = c (x - y);  dx = c dz, dy = -c dz, summed back over broadcast dimensions by autograd."""

        def forward(self, x, y, *, c: float):
            self.c = c
            return c * (x - y)

        def backward(self, dz):
            return self.c * dz if self.needs[0] else None, -self.c * dz if self.needs[1] else None

    assert mg.gradcheck(lambda x, y: ScaledDifference.apply(x, y, c=3.0), [leaf(2, 3), leaf(3, seed=1)])


def test_numpy_scalars_from_forward_and_backward_become_arrays() -> None:
    class Total(mg.Function):
        """y = sum of x;  dx = dy everywhere."""

        def forward(self, x):
            self.saved = (x.shape,)
            return x.sum()  # a NumPy scalar

        def backward(self, dy):
            return np.broadcast_to(dy, self.saved[0])  # read-only

    x = leaf(2, 3)
    y = Total.apply(x)
    assert isinstance(y.data, np.ndarray) and y.shape == ()
    grad = (y + y).backward()[x]
    grad.add_(1)
    np.testing.assert_array_equal(grad.numpy(), np.full((2, 3), 3.0))


def test_none_means_zero() -> None:
    class Stops(Passes):
        """y = a + b, but no gradient to a."""

        def backward(self, dy):
            return None, dy

    a, b = leaf(3), leaf(3)
    grads = Stops.apply(a * 2, b).sum().backward()
    assert a not in grads and b in grads
    for stopped in (a, a * 2):  # also a node that no gradient reaches, below which the leaf still becomes final
        grads = (Stops.apply(stopped, b) + a).sum().backward()
        np.testing.assert_array_equal(grads[a].numpy(), np.ones(3))


SHAPE = r"a gradient of .* for input 1 of \(3,\)"
COUNT = r"Wrong\.backward returned \d gradients for 2 inputs"


RESULTS = [
    *((lambda dy, count=count: (dy,) * count, COUNT) for count in (0, 1, 3)),
    (lambda dy: dy, COUNT),
    *((lambda dy, shape=shape: (dy, np.ones(shape)), SHAPE) for shape in ((2,), (3, 3, 1), ())),
]


@pytest.mark.parametrize(("result", "message"), RESULTS)
def test_gradients_of_the_wrong_number_or_shape(result, message: str) -> None:
    class Wrong(Passes):
        def backward(self, dy):
            return result(dy)

    raises(RuntimeError, message, lambda: Wrong.apply(leaf(3), leaf(3)).sum().backward())


def test_missing_methods_are_named() -> None:
    class Empty(mg.Function):
        pass

    class NoBackward(mg.Function):
        def forward(self, x):
            return x * 1

    class NoBackwardInto(NoBackward):
        adds_in_place = True

    raises(NotImplementedError, "Empty has no forward", lambda: Empty.apply(leaf(2)))
    raises(NotImplementedError, "NoBackward has no backward", lambda: NoBackward.apply(leaf(2)).sum().backward())
    raises(NotImplementedError, "NoBackwardInto has no backward_into", NoBackwardInto.apply(leaf(2)).sum().backward)


def test_an_op_that_adds_in_place_meets_gradients_from_elsewhere() -> None:
    class Row(mg.Function):
        """y = x[i];  dx[i] += dy."""

        adds_in_place = True

        def forward(self, x, i: int):
            self.i = i
            return x[i].copy()

        def backward_into(self, dy, dx) -> None:
            dx[self.i] += dy

    x = leaf(3, 2)
    outer = mg.tensor(np.full((3, 2), 10.0))
    for before in (True, False):  # the dense gradient arrives before or after the sparse ones
        y = x * 1 if before else None
        rows = Row.apply(x, 0) + Row.apply(x, 2) + Row.apply(x, 2)
        y = x * 1 if y is None else y
        loss = (y * outer).sum() + rows.sum()
        np.testing.assert_array_equal(loss.backward()[x].numpy(), [[11, 11], [10, 10], [12, 12]])
    seed = mg.tensor(np.full((3, 2), 5.0))
    row = Row.apply(x, 1).expand(3, 2)
    total = Passes.apply(Passes.apply(x, x.detach()), row)  # dx is the seed itself: it must be copied, not added to
    np.testing.assert_array_equal(total.backward(seed)[x].numpy(), [[5, 5], [20, 20], [5, 5]])
    np.testing.assert_array_equal(seed.numpy(), np.full((3, 2), 5.0))


def test_apply_without_a_tensor() -> None:
    raises(TypeError, "Cube: expected at least one Tensor", lambda: Cube.apply(np.ones(3)))


def test_apply_returns_tensors_not_cores() -> None:
    assert type(Cube.apply(leaf(2))) is mg.Tensor
    assert mg.autograd.TensorCore.tensor_type is mg.Tensor


def test_forward_must_return_one_array() -> None:
    class Two(mg.Function):
        def forward(self, x):
            return x, x

    raises(TypeError, r"Two.forward returned a tuple; expected one array", lambda: Two.apply(mg.ones(3)))


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


def test_the_operations_of_the_library_have_slots_alone() -> None:
    kinds = [mg.Function]
    for kind in kinds:  # grows while it is walked
        kinds += kind.__subclasses__()
    ours = [kind for kind in kinds if kind.__module__.startswith("minigrad.")]
    assert len(ours) > 100 and not [kind for kind in ours if kind.__dictoffset__]
    assert vars(Cube()) == {}
