"""Which dtype an operation computes in: PyTorch's promotion, for every pair of dtypes, of dimensions and of numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from refusals import raises

import minigrad as mg
from minigrad import dtypes

NAMES = ("bool", "uint8", "int32", "int64", "float16", "float32", "float64")


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    mg.set_default_dtype(mg.float64)
    yield
    mg.set_default_dtype(mg.float32)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
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
    ],
)
def test_promotion(values: tuple[Any, Any], expected: str) -> None:
    a, b = (np.ones((2,) * v[0], v[1]) if isinstance(v, tuple) else v for v in values)
    assert dtypes.result_dtype((a, b)) == expected
    assert dtypes.result_dtype((b, a)) == expected


@pytest.mark.parametrize("dims", list(itertools.product((0, 1), repeat=2)), ids=str)
def test_promotion_is_pytorchs(dims: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    for a, b in itertools.product(NAMES, repeat=2):
        x, y = (torch.ones((2,) * n, dtype=getattr(torch, name)) for n, name in zip(dims, (a, b), strict=True))
        found = dtypes.result_dtype((x.numpy(), y.numpy()))
        assert str(found) == str(torch.result_type(x, y)).removeprefix("torch."), (a, b)
    for a, number in itertools.product(NAMES, (True, 2, 2.0)):
        x = torch.ones((2,) * dims[0], dtype=getattr(torch, a))
        found = dtypes.result_dtype((x.numpy(), number))
        assert str(found) == str(torch.result_type(x, number)).removeprefix("torch."), (a, number)


def test_the_default_dtype_is_that_of_numbers(float64_by_default: None) -> None:
    assert (mg.tensor([1, 2]) + 0.5).dtype == mg.float64
    assert (mg.tensor([1, 2]) / 2).dtype == mg.float64
    assert mg.tensor([1, 2]).exp().dtype == mg.float64
    assert mg.tensor(0.5).dtype == mg.zeros(1).dtype == mg.float64
    assert (mg.tensor([1.0], dtype=mg.float32) + 0.5).dtype == mg.float32


@pytest.mark.parametrize("dtype", ["float16", "int64"])
def test_a_default_dtype_that_cannot_be(dtype: str) -> None:
    raises(ValueError, "expected float32 or float64", lambda: mg.set_default_dtype(dtype))
    assert mg.default_dtype() == mg.float32


def test_no_values_no_dtype() -> None:
    assert dtypes.as_dtype(float) == mg.float32
    raises(TypeError, "unsupported dtype None", lambda: dtypes.as_dtype(None))


def test_bfloat16_promotes_as_in_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    half = mg.ones(2, dtype="bfloat16")
    for name in (*NAMES, "bfloat16"):
        other = mg.ones(2, dtype=name)
        expected = str(torch.promote_types(torch.bfloat16, getattr(torch, name))).removeprefix("torch.")
        assert str((half + other).dtype) == str((other + half).dtype) == expected, name
    assert (half * 2.5).dtype == (2 + half).dtype == (half + mg.tensor(1.0)).dtype == mg.bfloat16
    assert (half + mg.ones(1, dtype="float16")).dtype == mg.float32


def test_pytorchs_other_names_of_dtypes() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    for name in ("bool", "double", "float", "half", "int", "long"):
        assert str(getattr(mg, name)) == str(getattr(torch, name)).removeprefix("torch."), name
        assert name not in mg.__all__
        assert mg.ones(2).to(getattr(mg, name)).dtype == getattr(mg, name)
