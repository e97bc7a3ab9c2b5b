"""Counting, searching and running extrema, and PyTorch's functions that are no methods: PyTorch's values and dtypes."""

import math

import numpy as np
import pytest
from harness import assert_like_torch
from refusals import raises

import minigrad as mg

torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")

RNG = np.random.default_rng(0)
NAN, INF = math.nan, math.inf
TIES = np.array(
    [[1.0, 3.0, 3.0, -2.0, 5.0, 5.0, 0.0], [NAN, 1.0, 2.0, NAN, INF, 1.0, NAN], [-INF, -INF, 0, 0, 1, 1, INF]]
)
ARRAYS = {
    "ties": TIES,
    "float32": TIES.astype(np.float32),
    "ints": RNG.integers(-3, 3, (4, 9)),
    "bool": RNG.random((3, 5)) > 0.5,
    "cube": RNG.standard_normal((2, 17, 3)),
    "one": np.ones((3, 1)),
    "empty": np.zeros((0, 3)),
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("name", ["cummax", "cummin", "diff"])
def test_along_each_dimension(name: str, kind: str) -> None:
    for dim in range(-2, 2):
        for order in ((1,), (2,), (9,)) if name == "diff" else ((),):
            assert_like_torch(lambda m, x, to=(*order, dim): getattr(m, name)(x, *to), ARRAYS[kind])


def test_running_extrema_of_a_number_and_of_a_transposed_tensor() -> None:
    assert_like_torch(lambda m, x: x.transpose(0, 1).cummax(0), ARRAYS["cube"])
    assert_like_torch(lambda m, x: x.cummin(0), 2.5)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_the_gradient_goes_to_the_index(name: str) -> None:
    array = np.array([[1.0, 3.0, 3.0, -2.0, 5.0], [2.0, 2.0, -1.0, -1.0, 2.0]])
    assert_like_torch(lambda m, x: getattr(x, name)(1), array, differentiate=True)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("minlength", [0, 3, 12])
def test_bincount(dtype, minlength: int) -> None:
    array = RNG.integers(0, 9, 40).astype(dtype)
    assert_like_torch(lambda m, x: x.bincount(minlength=minlength), array)
    assert_like_torch(lambda m, x: x.bincount(minlength=minlength), array[:0])
    for weights in (RNG.random(40), RNG.random(40).astype(np.float32), np.arange(40)):
        assert_like_torch(lambda m, x, w: m.bincount(x, w, minlength), array, weights)
        assert mg.bincount(mg.tensor(array[:0]), mg.tensor(weights[:0]), minlength).tolist() == [0] * minlength


def test_what_bincount_refuses() -> None:
    for bad in (mg.tensor([1.0]), mg.tensor([[1]]), mg.tensor([1, -1])):
        raises(ValueError, "bincount", bad.bincount)
    raises(ValueError, r"weights of shape \(3,\) for indices of shape \(2,\)", mg.tensor([1, 2]).bincount, mg.ones(3))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 9, 100])
@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(n: int, right: bool) -> None:
    rows = np.sort(RNG.integers(-5, 6, (3, n)).astype(np.float64))
    values = np.concatenate([RNG.integers(-7, 8, (3, 20)) / 2, np.array([[INF, -INF, NAN]] * 3)], 1)
    for sequence, v in ((rows[0], values), (rows, values), (rows[1], 2.0), (np.sort(np.arange(n) % 3), values)):
        assert_like_torch(lambda m, s, v: m.searchsorted(s, v, right=right), sequence, v)
    assert_like_torch(lambda m, v, s: m.bucketize(v, s, right=right), values, rows[0])
    side = "right" if right else "left"
    assert mg.searchsorted(mg.tensor(rows[0]), 1.0, side=side).item() == np.searchsorted(rows[0], 1.0, side)


def test_what_searchsorted_refuses() -> None:
    raises(ValueError, "expected one vector, or equal leading sizes", mg.searchsorted, mg.ones(2, 3), mg.ones(3, 1))
    raises(ValueError, "'left' or 'right', not both", mg.searchsorted, mg.ones(3), mg.ones(1), right=True, side="left")
    raises(ValueError, "expected a vector", lambda: mg.bucketize(mg.ones(2), mg.ones(2, 2)))


@pytest.mark.parametrize("arguments", [{}, {"beta": 0}, {"beta": 0.5, "alpha": 2}, {"alpha": -1}])
def test_products_added_to_a_tensor(arguments: dict[str, float]) -> None:
    a, b, c = (RNG.standard_normal(shape) for shape in ((2, 3, 4), (2, 4, 5), (5,)))
    bias = np.where(np.arange(5) == 1, NAN, c) if arguments.get("beta") == 0 else c
    for name, arrays in (
        ("addmm", (bias, a[0], b[0])),
        ("addmm", (2.0, a[0], b[0])),
        ("baddbmm", (bias, a, b)),
        ("addmv", (1.0, a[0], b[0, :, 0])),
    ):
        arrays = [np.float64(array) for array in arrays]
        assert_like_torch(lambda m, *x, n=name: getattr(m, n)(*x, **arguments), *arrays, rtol=1e-9, differentiate=True)
    with pytest.raises(ValueError, match=r"addmm: shape \(3, 1, 1\) does not broadcast to the product's, \(3, 5\)"):
        mg.ones(3, 1, 1).addmm(mg.ones(3, 4), mg.ones(4, 5))


def test_logaddexp() -> None:
    special = np.array([0.0, 1.0, -3.0, 1000.0, -1000.0, INF, -INF, NAN])
    for dtype in (np.float32, np.float64):
        assert_like_torch(lambda m, x, y: m.logaddexp(x, y), *np.meshgrid(special.astype(dtype), special.astype(dtype)))
    arrays = np.array([[0.0, 1.0], [500.0, 2.0]]), np.array([0.0, -700.0])
    assert_like_torch(lambda m, x, y: m.logaddexp(x, y), *arrays, rtol=1e-12, differentiate=True)
    raises(TypeError, "logaddexp of int64", lambda: mg.tensor([1]).logaddexp(mg.tensor([2])))


@pytest.mark.parametrize("name", ["std_mean", "var_mean"])
@pytest.mark.parametrize("arguments", [{}, {"dim": 1}, {"dim": (0, 1), "correction": 0}, {"dim": 0, "keepdim": True}])
def test_spread_and_mean(name: str, arguments) -> None:
    assert_like_torch(lambda m, x: getattr(m, name)(x, **arguments), RNG.standard_normal((4, 5)))


@pytest.mark.parametrize("name", ["tril_indices", "triu_indices"])
def test_indices_of_triangles(name: str) -> None:
    for arguments in ((3, 3), (2, 5, 1), (5, 2, -1), (3, 4, 9), (3, 4, -9), (0, 3)):
        assert_like_torch(lambda m, to=arguments: getattr(m, name)(*to))


def test_concat() -> None:
    x = mg.ones(2, 3)
    for function in (mg.concat, mg.concatenate):
        assert function([x, x], dim=1).shape == (2, 6) and function([x, x]).shape == (4, 3)


def test_questions() -> None:
    x = mg.ones(2, 3)
    assert mg.is_tensor(x) and mg.is_tensor(mg.nn.Parameter(x)) and not mg.is_tensor(np.ones(2))
    assert mg.numel(x) == 6 and mg.is_floating_point(x) and not mg.is_floating_point(mg.tensor(1))
    for dtype in ("int64", "int32", "uint8"):
        ours, theirs = mg.iinfo(dtype), torch.iinfo(getattr(torch, dtype))
        assert (ours.bits, ours.min, ours.max) == (theirs.bits, theirs.min, theirs.max)
    raises(TypeError, "finfo is for floating ones", lambda: mg.iinfo(mg.float32))
    y = mg.ones(2, dtype=mg.float16).new_empty(3, 4)
    assert y.shape == (3, 4) and y.dtype == mg.float16


def test_trace() -> None:
    array = RNG.standard_normal((3, 4))
    x = mg.tensor(array, requires_grad=True)
    assert x.trace().item() == pytest.approx(np.trace(array))
    np.testing.assert_array_equal(x.trace().backward()[x].numpy(), np.eye(3, 4))
    raises(ValueError, "expected a matrix", lambda: mg.ones(3).trace())
