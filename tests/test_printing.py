"""repr is PyTorch's, for every kind of tensor and option; the table for notebooks."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from harness import needs_torch, torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from refusals import raises

import minigrad as mg

rng = np.random.default_rng(0)

ARRAYS = {
    "0-d": np.float32(1.5),
    "0-d int": np.int64(-7),
    "whole": np.float32([1, -2, 3]),
    "decimals": np.float32([1.23456, -2.5, 0.001]),
    "ratio of 1000": np.float32([1, 1000]),
    "ratio above 1000": np.float32([1, 1001]),
    "scientific whole": np.float32([1, -2e9]),
    "tiny": np.float32([9e-5, 1e-4]),
    "not quite tiny": np.float32([1.1e-4, 2e-4]),
    "zeros": np.zeros((2, 3), np.float32),
    "negative zero": np.float32([-0.0, 1.5]),
    "not finite": np.float32([np.nan, np.inf, -np.inf]),
    "some not finite": np.float32([np.nan, 1, -np.inf]),
    "not finite decimals": np.float32([np.nan, 1.25, -np.inf, 0]),
    "not finite scientific": np.float32([np.nan, 1.25e-7, -np.inf, 0]),
    "four dimensions": rng.integers(0, 9, (2, 1, 2, 3)),
    "long row": np.arange(100),
    "long decimals": np.linspace(0, 1, 37, dtype=np.float32),
    "threshold": np.arange(1000),
    "summary": np.arange(1001),
    "summary of floats": np.linspace(0, 1, 2000, dtype=np.float32),
    "summary of rows": rng.standard_normal((600, 2)).astype(np.float32),
    "summary of columns": rng.standard_normal((2, 600)).astype(np.float32),
    "summary of a cube": rng.standard_normal((20, 20, 20)).astype(np.float32),
    "the middle does not count": np.where(np.arange(2001) == 1000, 1e9, 1.0).astype(np.float32),
    "bools": np.array([[True, False], [False, False]]),
    "largest int": np.array([2**63 - 1, -(2**63)]),
    "float64": np.array([1.123456789, 2]),
    "float16": np.float16([1.1, 65504]),
    "uint8": np.uint8([[1], [255]]),
    "empty": np.zeros(0, np.float32),
    "empty matrix": np.zeros((0, 3), np.float32),
    "a note on a new line": rng.standard_normal(7),
    "notes that fit": rng.standard_normal(5),
}


def theirs(array) -> str:
    return repr(torch.tensor(array)).replace("dtype=torch.", "dtype=")


def one_line(text: str) -> str:
    """Without the line before ``dtype=``: whether there is room for it depends on PyTorch's longer name."""
    return re.sub(r",\s+dtype=", ", dtype=", text)


@pytest.fixture(autouse=True)
def default_options():
    yield
    mg.set_printoptions(profile="default")
    if torch is not None:
        torch.set_printoptions(profile="default")


@needs_torch
@pytest.mark.parametrize("name", ARRAYS)
def test_repr_is_pytorchs(name: str) -> None:
    array = ARRAYS[name]
    assert repr(mg.tensor(array)) == theirs(array)
    assert str(mg.tensor(array)) == theirs(array)


@needs_torch
@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.bool_]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    )
)
def test_repr_of_anything_is_pytorchs(array: np.ndarray) -> None:
    assert repr(mg.tensor(array)) == theirs(array)


@needs_torch
def test_bfloat16() -> None:
    x = [1.1, 2.0, -300.0]
    assert repr(mg.tensor(x).to("bfloat16")) == repr(torch.tensor(x).bfloat16()).replace("torch.", "")


OPTIONS = [
    *({"precision": n} for n in (2, 0, 9)),
    *({"threshold": 10}, {"threshold": 10, "edgeitems": 1}, {"threshold": 3, "edgeitems": 0}),
    *({"linewidth": 40}, {"linewidth": 10}, {"sci_mode": True}, {"sci_mode": False}),
    *({"profile": "short"}, {"profile": "full"}, {"profile": "short", "precision": 6}),
]


@needs_torch
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_are_pytorchs(options) -> None:
    mg.set_printoptions(**options)
    torch.set_printoptions(**options)
    for name, array in ARRAYS.items():
        if "summary" not in name or options.get("threshold") or options.get("precision"):
            assert one_line(repr(mg.tensor(array))) == one_line(theirs(array)), name


def test_unknown_profile() -> None:
    raises(ValueError, "profile='tiny'; expected 'default', 'short' or 'full'", mg.set_printoptions, profile="tiny")


def test_the_default_dtype_is_not_named() -> None:
    mg.set_default_dtype("float64")
    try:
        assert repr(mg.tensor(np.float32([1]))) == "tensor([1.], dtype=float32)"
        assert repr(mg.tensor([1.0])) == "tensor([1.])"
    finally:
        mg.set_default_dtype("float32")


def cells_and_text(tensor: mg.Tensor) -> tuple[list[list[str | None]], str]:
    """The cells of a tensor's table, by row, and the text beside it."""
    page = ElementTree.fromstring(f"<page>{tensor._repr_html_()}</page>")  # fails on what is not closed
    rows = [[cell.text for cell in row.iter("td")] for row in page.iter("tr")]
    return rows, "".join(page.itertext()).removeprefix("".join(cell for row in rows for cell in row if cell))


def test_the_table_for_notebooks() -> None:
    rows, text = cells_and_text(mg.tensor([[1.0, 2.5], [-3.0, 0.0]], requires_grad=True))
    assert rows == [["1.0000", "2.5000"], ["-3.0000", "0.0000"]]
    assert text == "shape (2, 2), float32, cpu, requires grad"
    assert cells_and_text(mg.arange(3))[0] == [["0", "1", "2"]]
    rows, text = cells_and_text(mg.ones(2, 2, 2, requires_grad=True) * 2)
    assert rows == [] and "grad_fn=<Mul>" in text and "shape (2, 2, 2)" in text  # < was escaped
    assert cells_and_text(mg.zeros(0, 3))[0] == []
    rows, _ = cells_and_text(mg.arange(10_000).reshape(100, 100))
    assert len(rows) == 7 and rows[3] == ["..."] * 7
    assert rows[0] == ["0", "1", "2", "...", "97", "98", "99"] and rows[6][-1] == "9999"


@needs_torch
def test_a_note_goes_to_a_new_line_where_pytorchs_does() -> None:
    for linewidth in range(20, 70):
        mg.set_printoptions(linewidth=linewidth)
        torch.set_printoptions(linewidth=linewidth)
        assert repr(mg.tensor([1.5, 2.5], requires_grad=True)) == repr(torch.tensor([1.5, 2.5], requires_grad=True))
