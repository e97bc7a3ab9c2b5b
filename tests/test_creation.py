"""Tensors made from data, shapes and numbers; their dtypes, promotion and defaults."""

import itertools

import numpy as np
import pytest
from harness import DTYPES, needs_torch, torch
from refusals import raises

import minigrad as mg
from minigrad import dtypes

NUMPYS = ["float32", "float64", "float16", "int64", "int32", "uint8", "bool"]


def test_the_dtype_of_tensor() -> None:
    for data, dtype in [
        *((data, "float32") for data in (1.5, [1, 2.0], [], [[]], (1.0, 2.0))),
        *(([1, 2], "int64"), (range(3), "int64"), ([True, False], "bool"), (np.int32(3), "int32")),
        *((np.ones(2), "float64"), (np.float64(1), "float64"), (np.ones(2, np.uint8), "uint8")),
    ]:
        x = mg.tensor(data)
        assert x.dtype == dtype and x.is_contiguous() and x.is_leaf and not x.requires_grad
        np.testing.assert_array_equal(x.numpy(), np.asarray(data))


def test_tensor_copies() -> None:
    array = np.arange(6.0).reshape(2, 3)
    x, y = mg.tensor(array), mg.tensor(array.T)
    array[:] = 0
    assert x.numpy()[1, 2] == 5 and y.numpy()[2, 1] == 5 and y.is_contiguous()
    z = mg.tensor(x)
    x.zero_()
    assert z.numpy()[1, 2] == 5 and mg.tensor(mg.ones(2, requires_grad=True)).requires_grad is False
    assert mg.tensor([mg.tensor(1.0), mg.tensor(2.0)]).tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["banana", "float128x", "complex64", "uint16", object, "cudax"])
def test_unknown_dtypes(dtype) -> None:
    for make in (lambda: mg.tensor([1.0], dtype=dtype), lambda: mg.zeros(2, dtype=dtype), lambda: mg.ones(2).to(dtype)):
        raises(TypeError, "expected one of float32, float64", make)


@pytest.mark.parametrize("dtype", NUMPYS)
def test_dtypes_by_name_type_and_object(dtype: str) -> None:
    for spelling in (dtype, np.dtype(dtype), np.dtype(dtype).type):
        assert mg.ones(2, dtype=spelling).dtype == dtype
        assert mg.tensor([0, 1], dtype=spelling).to("float64").tolist() == [0, 1]
    assert mg.ones(2, dtype=float).dtype == np.float32 and mg.ones(2, dtype=int).dtype == np.int64


def test_from_numpy_shares_memory() -> None:
    array = np.zeros((2, 3))
    x = mg.from_numpy(array)
    array[0, 0] = 5
    assert x[0, 0].item() == 5
    x.add_(1)
    assert array[1, 2] == 1
    assert mg.from_numpy(array.T).shape == (3, 2)
    raises(TypeError, r"not list; use minigrad\.tensor", lambda: mg.from_numpy([1.0]))
    raises(TypeError, "complex", lambda: mg.from_numpy(np.ones(2, complex)))
    raises(ValueError, "negative strides", lambda: mg.from_numpy(array[::-1]))
    frozen = np.ones(2)
    frozen.flags.writeable = False
    raises(RuntimeError, "read-only", lambda: mg.from_numpy(frozen).zero_())


@pytest.mark.parametrize("make", [mg.zeros, mg.ones, mg.empty, mg.rand, mg.randn])
def test_shapes_spread_or_as_one(make) -> None:
    for x in (make(2, 3), make((2, 3)), make([2, 3]), make(np.int64(2), 3), make(*mg.ones(2, 3).shape)):
        assert x.shape == (2, 3) and x.dtype == np.float32
    assert make(()).shape == make().shape == () and make(0, 3).shape == (0, 3) and make(4).shape == (4,)
    assert make(2, dtype="float64", requires_grad=True).requires_grad
    for bad in ((2.5,), ("a",), (None,)):
        raises(TypeError, "", lambda bad=bad: make(*bad))
    raises(ValueError, "", make, -1)


def test_values() -> None:
    assert mg.zeros(2).tolist() == [0, 0] and mg.ones(2).tolist() == [1, 1]
    for value, dtype in ((1.5, "float32"), (3, "int64"), (True, "bool")):
        x = mg.full((2, 1), value)
        assert x.dtype == dtype and x.tolist() == [[value], [value]]
    assert mg.full((2,), 3, dtype="float64").dtype == np.float64 and mg.full(2, 1.5).shape == (2,)


def test_like() -> None:
    x = mg.ones(2, 3, dtype="float64")
    for y, value in ((mg.zeros_like(x), 0), (mg.ones_like(x), 1), (mg.full_like(x, 7), 7), (mg.empty_like(x), None)):
        assert y.shape == (2, 3) and y.dtype == np.float64 and not np.shares_memory(x.data, y.data)
        assert value is None or (y.numpy() == value).all()
    assert mg.zeros_like(x, dtype="int64").dtype == np.int64
    assert mg.ones_like(mg.arange(3)).dtype == np.int64
    assert mg.zeros_like(x, requires_grad=True).requires_grad


def test_arange() -> None:
    for args in ((5,), (2, 5), (5, 0, -2), (3, 3), (-2,)):
        x = mg.arange(*args)
        assert x.tolist() == list(range(*args)) and x.dtype == np.int64
    x = mg.arange(0, 1, 0.25)
    assert x.tolist() == [0, 0.25, 0.5, 0.75] and x.dtype == np.float32 and mg.arange(3.0).dtype == np.float32
    assert mg.arange(3, dtype="float64").dtype == np.float64
    for end, step in ((np.float32(1), np.float32(0.25)), (mg.tensor(1.0), 0.25), (np.float16(1), np.float16(0.25))):
        assert mg.arange(0, end, step).tolist() == [0, 0.25, 0.5, 0.75]
    raises(ValueError, "step must not be 0", lambda: mg.arange(0, 3, 0))


def test_linspace_and_eye() -> None:
    assert mg.linspace(0, 1, 5).tolist() == [0, 0.25, 0.5, 0.75, 1] and mg.linspace(0, 1, 5).dtype == np.float32
    assert mg.linspace(3, 9, 1).tolist() == [3]
    np.testing.assert_array_equal(mg.eye(3).numpy(), np.eye(3, dtype=np.float32))
    assert mg.eye(2, 3, dtype="int64").tolist() == [[1, 0, 0], [0, 1, 0]]


def test_logspace() -> None:
    assert mg.logspace(0, 2, 3).tolist() == [1, 10, 100] and mg.logspace(0, 2, 3).dtype == np.float32
    assert mg.logspace(0, 3, 4, base=2, dtype="int64").tolist() == [1, 2, 4, 8]
    np.testing.assert_allclose(mg.logspace(-1, 1, 5, dtype="float64").numpy(), np.logspace(-1, 1, 5))


def test_as_tensor_copies_only_if_it_must() -> None:
    array = np.zeros(3, np.float32)
    x = mg.as_tensor(array)
    array[0] = 5
    assert x.tolist() == [5, 0, 0]
    assert mg.as_tensor(x) is x
    wide = mg.as_tensor(array, dtype=mg.float64)
    array[0] = 7
    assert wide.dtype == mg.float64 and wide.tolist() == [5, 0, 0]
    assert mg.as_tensor([1, 2]).dtype == mg.int64 and mg.as_tensor(1.5, dtype="float64").shape == ()
    raises(TypeError, "unsupported dtype complex128", lambda: mg.as_tensor(np.zeros(2, complex)))


@pytest.mark.parametrize("shape", [(), (2,), (0,), (2, 3), (2, 3, 4)], ids=str)
def test_hstack_and_vstack_are_numpys(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape)
    a = mg.tensor(x, requires_grad=True)
    for ours, theirs in ((mg.hstack, np.hstack), (mg.vstack, np.vstack)):
        np.testing.assert_array_equal(ours([a, a + 1]).detach().numpy(), theirs([x, x + 1]))
        assert (ours([a, a]) * 3).sum().backward()[a].tolist() == np.full(shape, 6.0).tolist()
        for wrong, found in (([], "list"), (a, "Tensor"), ([1, 2], "int"), (3, "int")):
            raises(
                TypeError, rf"^.stack of {found}; expected a non-empty list of tensors, such as .stack\(", ours, wrong
            )


@pytest.mark.parametrize("indexing", ["ij", "xy"])
@pytest.mark.parametrize("sizes", [(3,), (2, 3), (2, 3, 4), (0, 2)], ids=str)
def test_meshgrid_is_numpys(indexing, sizes: tuple[int, ...]) -> None:
    vectors = [np.arange(n, dtype=np.float64) + 10 * n for n in sizes]
    tensors = [mg.tensor(v, requires_grad=True) for v in vectors]
    grids = mg.meshgrid(*tensors, indexing=indexing)
    for x, y, z in zip(grids, mg.meshgrid(tensors, indexing=indexing), np.meshgrid(*vectors, indexing=indexing)):
        np.testing.assert_array_equal(x.detach().numpy(), z)
        np.testing.assert_array_equal(y.detach().numpy(), z)
    assert grids[0].sum().backward()[tensors[0]].tolist() == [float(np.prod(sizes[1:]))] * sizes[0]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(300, "uint8"), (-1, "uint8"), (2**40, "int32"), (1e10, "int32"), (float("nan"), "int64"), (2.0**63, "int64")],
)
def test_numbers_that_do_not_fit_are_refused(value: float, dtype: str) -> None:
    for data in (value, [0, value]):
        raises(OverflowError, f"does not fit {dtype}, which holds", lambda data=data: mg.tensor(data, dtype=dtype))


def test_numbers_that_fit_their_dtype() -> None:
    assert mg.tensor([0, 255.9, 255], dtype="uint8").tolist() == [0, 255, 255]
    assert mg.tensor([-(2**63), 2**63 - 1], dtype="int64").tolist() == [-(2**63), 2**63 - 1]
    assert mg.tensor([], dtype="uint8").shape == (0,) and mg.tensor([3, -2], dtype="bool").tolist() == [True, True]
    assert mg.tensor([70000.0, 1.0], dtype="float16").tolist() == [float("inf"), 1.0]  # without a warning
    assert mg.tensor(np.array([300]), dtype="uint8").tolist() == [44]  # an array is cast, as by .to


def test_a_number_that_an_operand_cannot_hold_is_named_with_the_operation() -> None:
    with pytest.raises(OverflowError, match=r"a . b: Python integer -2 out of bounds for uint8\n  inputs: \(2,\) "):
        mg.ones(2, dtype="uint8") + -2


def test_a_shape_or_a_dimension_that_is_given_twice_is_refused():
    raises(TypeError, r"the shape \(2,\) or size=3, not both", mg.zeros, 2, size=3)
    for join in (mg.cat, mg.stack):
        raises(TypeError, "dim or axis .* not both", join, [mg.ones(2, 2)] * 2, dim=1, axis=0)


def test_promotion() -> None:
    for values, expected in [
        (((1, "float32"), (0, "float64")), "float32"),  # a 0-d tensor does not widen one of its own kind
        (((0, "float64"), (1, "float32")), "float32"),
        (((1, "int32"), (0, "int64")), "int32"),
        (((1, "int64"), (0, "float64")), "float64"),  # but one of a higher kind decides
        (((1, "bool"), (0, "uint8")), "uint8"),
        (((0, "float32"), (0, "float64")), "float64"),
        (((1, "float32"), (1, "int64")), "float32"),
        (((1, "float16"), (1, "float32")), "float32"),
        (((1, "uint8"), (1, "int32")), "int32"),
        (((1, "float16"), 2.0), "float16"),
        (((0, "float16"), 2.0), "float16"),
        (((1, "int32"), 2), "int32"),
        (((1, "int32"), 2.0), "float32"),
        (((1, "bool"), 2), "int64"),
        (((1, "bool"), True), "bool"),
        (((1, "uint8"), True), "uint8"),
    ]:
        a, b = (np.ones((2,) * v[0], v[1]) if isinstance(v, tuple) else v for v in values)
        assert dtypes.result_dtype((a, b)) == expected
        assert dtypes.result_dtype((b, a)) == expected


@needs_torch
@pytest.mark.parametrize("first", [*DTYPES, "float64", "float32"])
def test_types_of_results_are_pytorchs(first: str) -> None:
    for second in (*DTYPES, "float64", "float32"):
        theirs = torch.promote_types(getattr(torch, first), getattr(torch, second))
        assert f"torch.{mg.promote_types(first, second)}" == str(theirs)
        assert mg.promote_types(getattr(mg, first), second) == mg.promote_types(second, first)
        for shapes in itertools.product(((), 3), repeat=2):
            ours = [mg.ones(s, dtype=d) for s, d in zip(shapes, (first, second), strict=True)]
            others = [torch.ones(s, dtype=getattr(torch, d)) for s, d in zip(shapes, (first, second), strict=True)]
            assert f"torch.{mg.result_type(*ours)}" == str(torch.result_type(*others))
    for shape, number in itertools.product(((), 2), (True, 2, 2.0)):
        theirs = torch.result_type(torch.ones(shape, dtype=getattr(torch, first)), number)
        assert f"torch.{mg.result_type(mg.ones(shape, dtype=first), number)}" == str(theirs)


def test_the_default_dtype_is_that_of_numbers() -> None:
    mg.set_default_dtype("float64")
    try:
        assert mg.default_dtype() == mg.get_default_dtype() == mg.float64
        for x in (mg.tensor(0.5), mg.zeros(2), mg.rand(2), mg.arange(0.0, 1, 0.5), mg.nn.Linear(2, 2).weight):
            assert x.dtype == mg.float64
        for x in (mg.tensor([1, 2]) + 0.5, mg.tensor([1, 2]) / 2, mg.tensor([1, 2]).exp()):
            assert x.dtype == mg.float64
        assert (mg.tensor([1.0], dtype=mg.float32) + 0.5).dtype == mg.float32
        for bad in ("float16", "int64"):
            raises(ValueError, "expected float32 or float64", mg.set_default_dtype, bad)
        assert mg.default_dtype() == mg.float64
    finally:
        mg.set_default_dtype(mg.float32)
    assert mg.tensor(1.0).dtype == mg.float32


def test_no_values_no_dtype() -> None:
    assert dtypes.as_dtype(float) == mg.float32
    raises(TypeError, "unsupported dtype None", lambda: dtypes.as_dtype(None))


@needs_torch
def test_pytorchs_other_names_of_dtypes() -> None:
    for name in ("bool", "double", "float", "half", "int", "long"):
        assert str(getattr(mg, name)) == str(getattr(torch, name)).removeprefix("torch."), name
        assert name not in mg.__all__
        assert mg.ones(2).to(getattr(mg, name)).dtype == getattr(mg, name)
