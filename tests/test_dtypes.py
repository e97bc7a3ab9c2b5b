"""Which dtype an operation computes in: PyTorch's promotion, for every pair of dtypes, of dimensions and of numbers."""

import itertools

import numpy as np
import pytest
from harness import DTYPES, needs_torch, torch
from refusals import raises

import minigrad as mg
from minigrad import dtypes


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
