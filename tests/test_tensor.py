"""The Tensor surface: what it shows, converts to, refuses. Single operations are tested in tests/ops."""

import copy
import functools
import operator

import numpy as np
import pytest
from processes import python
from refusals import raises

import minigrad as mg
from minigrad import Tensor, nn


def test_repr() -> None:
    for x, want in [
        (mg.tensor(1.5), "tensor(1.5000)"),
        (mg.tensor([[1, 2], [3, 4]]), "tensor([[1, 2],\n        [3, 4]])"),
        (mg.tensor([True, False]), "tensor([ True, False])"),
        (mg.tensor([float("nan"), float("inf")]), "tensor([nan, inf])"),
        (mg.zeros(0, dtype="int64"), "tensor([], dtype=int64)"),
        (mg.arange(2000), "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])"),
        (mg.tensor([0.123456, 1.0]), "tensor([0.1235, 1.0000])"),
        (mg.tensor([1.0], dtype="float64"), "tensor([1.], dtype=float64)"),
        (mg.tensor([1.0], requires_grad=True), "tensor([1.], requires_grad=True)"),
        (mg.tensor([1.0], requires_grad=True) * 2, "tensor([2.], grad_fn=<Mul>)"),
        (mg.zeros(2, 0), "tensor([], size=(2, 0))"),
        (nn.Parameter([1.0]), "Parameter containing:\ntensor([1.], requires_grad=True)"),
    ]:
        assert repr(x) == str(x) == want


def test_what_it_is() -> None:
    x = mg.ones(2, 3)
    assert x.shape == x.size() == (2, 3) and x.size(-1) == 3 and x.ndim == x.dim() == 2
    assert x.numel() == 6 and x.element_size() == 4 and len(x) == 2 and x.is_floating_point()
    assert x.is_contiguous() and not x.T.is_contiguous() and x.T.contiguous().is_contiguous()
    assert x.contiguous() is x
    raises(IndexError, "dim 2 is out of range for a tensor of 2 dimensions", lambda: x.size(2))
    raises(TypeError, "0-d", lambda: len(mg.tensor(1.0)))


# ---------------------------------------------------------------------- into NumPy and Python


def test_numpy_shares_memory() -> None:
    x = mg.zeros(2)
    x.numpy()[0] = 5
    assert x.tolist() == [5, 0]
    assert np.shares_memory(np.asarray(x), x.data)
    y = mg.ones(2, requires_grad=True)
    for convert in (lambda: y.numpy(), lambda: np.asarray(y), lambda: np.array(y)):
        raises(RuntimeError, r"use \.detach\(\)\.numpy\(\)", convert)
    elsewhere = Tensor.wrap(np.ones(2), mg.Device("cuda"))
    raises(RuntimeError, r"on cuda:0; use \.cpu\(\)\.numpy\(\)", lambda: elsewhere.numpy())


def test_array_protocol() -> None:
    x = mg.tensor([1.5, 2.5])
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    copied = np.array(x)
    copied[0] = 9
    assert x.tolist() == [1.5, 2.5]
    raises(ValueError, "", lambda: np.asarray(x, dtype=np.float64, copy=False))
    assert np.isclose(np.sin(x)[0], np.sin(1.5)) and np.stack([x, x]).shape == (2, 2)


def test_numpy_operands_on_either_side() -> None:
    x, array = mg.ones(2, requires_grad=True), np.array([1, 2], np.float32)
    for y in (array + x, np.float32(2) * x, x - np.int64(1), array @ x, [1.0, 2.0] * x, 2 / x):
        assert isinstance(y, Tensor) and y.requires_grad
    for comparison in (array < x, x == array, array != x):
        assert isinstance(comparison, Tensor) and comparison.dtype == bool


@pytest.mark.parametrize("other", ["a", None, {}, 1j, object()])
def test_operands_that_do_not_combine(other) -> None:
    for use in (operator.add, operator.mul, operator.lt, operator.matmul):
        raises(TypeError, "", lambda use=use: use(mg.ones(2), other))
        raises(TypeError, "", lambda use=use: use(other, mg.ones(2)))


def test_item_and_conversions() -> None:
    assert mg.tensor([[2.5]]).item() == 2.5
    assert type(mg.tensor(1).item()) is int and type(mg.tensor(True).item()) is bool
    assert float(mg.tensor(2)) == 2.0 and int(mg.tensor(2.7)) == 2 and [10, 20][mg.tensor(1)] == 20
    assert mg.tensor(1.5, requires_grad=True).item() == 1.5
    raises(RuntimeError, r"item\(\) of a tensor of shape \(2,\)", lambda: mg.ones(2).item())
    raises(RuntimeError, "shape", lambda: mg.zeros(0).item())
    raises(TypeError, "float32 tensor is not an index", lambda: [1, 2][mg.tensor(1.0)])


def test_iteration() -> None:
    x = mg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    rows = list(x)
    assert [row.tolist() for row in rows] == [[1, 2], [3, 4]]
    a, b = x
    assert (a * b * 2).sum().backward()[x].tolist() == [[6, 8], [2, 4]]
    assert np.shares_memory(rows[0].data, x.data) and list(mg.zeros(0, 3)) == []
    raises(TypeError, "0-d", lambda: iter(mg.tensor(1.0)))


def test_truth() -> None:
    assert mg.tensor([1.0]) and not mg.tensor(0) and mg.tensor(True)
    for x in (mg.ones(2), mg.zeros(0)):
        raises(RuntimeError, r"ambiguous; use \.any\(\) or \.all\(\)", bool, x)
    with pytest.raises(RuntimeError, match="ambiguous"):
        assert 0 < mg.ones(2) < 2  # a chained comparison is an `and`


def test_unknown_attributes_cannot_be_set() -> None:
    raises(AttributeError, "", setattr, mg.ones(2), "grad", 1)  # gradients are in the GradStore


def test_to_takes_a_device_a_dtype_or_a_tensor() -> None:
    x = mg.tensor([0.0, 1.7, -1.7])
    assert x.to(mg.float32) is x and x.to("cpu", "int64").dtype == x.to(int).dtype == mg.int64
    assert x.to(dtype=mg.float16).dtype == mg.float16 and x.to(mg.ones(1, dtype=mg.float64)).dtype == mg.float64


def test_formatting_a_number_and_asking_for_grad() -> None:
    loss = mg.tensor(1.23456, requires_grad=True) * 1
    assert f"{loss:.3f}" == "1.235" and f"{mg.tensor([1, 2])}" == "tensor([1, 2])"
    raises(AttributeError, "grads = loss.backward", getattr, loss, "grad")
    assert not hasattr(loss, "grad") and "grad" not in dir(loss)
    raises(AttributeError, "grads = loss.backward", setattr, loss, "grad", None)
    raises(AttributeError, "no attribute 'nonsense'", getattr, loss, "nonsense")


def test_python_says_which_method_was_meant() -> None:
    done = python("-c", "import minigrad; minigrad.ones(2).sofmax(0)")
    assert done.returncode == 1 and "Did you mean: 'softmax'?" in done.stderr


def test_stride_format_and_axis():
    x = mg.randn(2, 3, 4)
    assert x.stride() == (12, 4, 1) and x.transpose(0, 2).stride() == (1, 4, 12) and x.stride(-2) == 4
    assert f"{mg.ones(1):>13}" == " tensor([1.])"
    raises(ValueError, r"format '.2f' is for one number, not for a tensor of shape \(2,\)", lambda: f"{mg.ones(2):.2f}")
    for softmax in (mg.softmax, mg.log_softmax, mg.nn.functional.softmax, Tensor.log_softmax):
        assert (softmax(x, axis=1) == softmax(x, dim=1)).all() and not (softmax(x, axis=1) == softmax(x, 2)).all()
        raises(TypeError, "wants a dimension, such as dim=-1", softmax, x)
        raises(TypeError, "pass dim or axis", functools.partial(softmax, x, 1, axis=1))


def test_each_operation_is_defined_once() -> None:
    names = [name for base in (Tensor, *Tensor.__bases__) for name in vars(base)]
    own = {"__module__", "__doc__", "__slots__", "__init__", "__weakref__", "__static_attributes__", "__firstlineno__"}
    own |= {"__annotations__", "__annotate_func__", "__hash__"}  # __hash__ is None where == is defined
    assert sorted(name for name in set(names) - own if names.count(name) > 1) == []
    assert not hasattr(mg.ones(1), "__dict__")


def test_pythons_own_errors_name_the_class_tensor() -> None:
    x = mg.ones(2)
    for call in (lambda: x.sum(0, True, 1), lambda: x.narrow(0), lambda: x.to(1, nothing=2), lambda: x.numel(1)):
        raises(TypeError, r"^Tensor\.\w+\(\) ", call)


# Copies ---------------------------------------------------------------------------------------------------------------


def test_copy_shares_the_memory_and_deepcopy_does_not() -> None:
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    shallow, deep = copy.copy(x), copy.deepcopy(x)
    for other in (shallow, deep):
        assert other is not x and other.id != x.id and other.is_leaf and other.requires_grad and type(other) is Tensor
    with mg.no_grad():
        x[0] = 7.0
    assert (shallow.tolist(), deep.tolist()) == ([7, 2], [1, 2])
    assert shallow.version == x.version == 1 and deep.version == 0
    assert x not in (shallow * shallow).sum().backward()
    parameter = nn.Parameter(mg.ones(2))
    assert type(copy.copy(parameter)) is nn.Parameter and type(copy.deepcopy(parameter)) is nn.Parameter
    y = x * 2
    assert copy.copy(y).is_leaf and copy.copy(y).requires_grad
    raises(RuntimeError, "deepcopy of a tensor that an operation computed", lambda: copy.deepcopy(y))
