"""Matrix products and linear layers."""

from __future__ import annotations

import numpy as np
import pytest
from harness import CHECKS, Op, check_name, host

import minigrad as mg
import minigrad.nn.functional as F

from harness import torch  # isort: skip

PRODUCTS = [
    ((4,), (4,)),
    ((3, 4), (4,)),
    ((4,), (4, 2)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 3)),
    ((3, 4), (4, 2)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 2)),
    ((1, 3, 4), (2, 4, 1)),
    ((17, 33), (33, 19)),
    ((70, 65), (65, 90)),
]
EMPTY_PRODUCTS = [((3, 0), (0, 2)), ((0, 4), (4, 2)), ((3, 4), (4, 0)), ((0, 3, 4), (4, 2)), ((0,), (0,))]
LAYERS = [
    ((5, 3), (4, 3)),
    ((3,), (4, 3)),
    ((2, 5, 3), (4, 3)),
    ((33, 65), (70, 65)),
    ((0, 3), (4, 3)),
    ((2, 0), (4, 0)),
]

OPS = [
    Op(
        "matmul",
        lambda a, b: a @ b,
        np.matmul,
        lambda a, b: a @ b,
        [*PRODUCTS, *EMPTY_PRODUCTS],
        rounding=64,
    ),
    Op("linear", F.linear, lambda x, w: x @ w.T, lambda x, w: torch.nn.functional.linear(x, w), LAYERS, rounding=64),
    Op(
        "linear_bias",
        F.linear,
        lambda x, w, b: x @ w.T + b,
        lambda x, w, b: torch.nn.functional.linear(x, w, b),
        [(*shapes, shapes[1][:1]) for shapes in LAYERS],
        rounding=64,
    ),
]


@pytest.mark.parametrize("check", CHECKS, ids=check_name)
@pytest.mark.parametrize("op", OPS, ids=str)
def test_op(op, check, device):
    check(op, device)


def test_a_transposed_factor_is_no_copy_but_the_same(device):
    """x^T x and x x^T: both factors are views of one tensor."""
    rng = np.random.default_rng(0)
    x = mg.tensor(rng.standard_normal((5, 3)), device=device, requires_grad=True)
    w = rng.standard_normal((3, 3))
    grad = ((x.T @ x) * mg.tensor(w, device=device)).sum().backward()[x]
    np.testing.assert_allclose(host(grad), host(x) @ (w + w.T), rtol=1e-12)


def test_linear_equals_its_parts(device):
    rng = np.random.default_rng(0)
    x, w, b = (
        mg.tensor(rng.standard_normal(shape), device=device, requires_grad=True) for shape in ((2, 5, 3), (4, 3), (4,))
    )
    fused, parts = F.linear(x, w, b), x @ w.T + b
    np.testing.assert_allclose(host(fused), host(parts), rtol=1e-12)
    one, two = fused.square().sum().backward(), parts.square().sum().backward()
    for t in (x, w, b):
        np.testing.assert_allclose(host(one[t]), host(two[t]), rtol=1e-12)


def test_integers_and_promotion(device):
    x = mg.tensor([[1, 2], [3, 4]], device=device)
    assert (x @ x).tolist() == [[7, 10], [15, 22]]
    assert (x @ x).dtype == mg.int64
    assert (x @ mg.ones(2, device=device)).dtype == mg.float32
    assert x.matmul(x).tolist() == (x @ x).tolist()
    assert (np.eye(2, dtype=np.float32) @ x.float()).tolist() == x.tolist()


def test_nan_reaches_its_row_only(device):
    a = mg.ones(2, 3, device=device)
    a[0, 1] = float("nan")
    y = host(a @ mg.ones(3, 2, device=device))
    assert np.isnan(y[0]).all()
    assert (y[1] == 3).all()


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3), (2, 3)), r"(?s)^MatMul: inner dimensions differ: 3 and 2.*\(2, 3\) float32.*\(2, 3\) float32"),
        (((3,), (4,)), r"(?s)^MatMul: inner dimensions differ: 3 and 4"),
        (((2, 3, 4), (3, 4, 5)), r"(?s)^MatMul: .*\(2, 3, 4\) float32.*\(3, 4, 5\) float32"),
        (((), (3,)), r"@ of shapes \(\) and \(3,\): a 0-d tensor has no matrix product; use \*"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, message, device):
    a, b = (mg.ones(*shape, device=device) for shape in shapes)
    with pytest.raises(ValueError, match=message):
        a @ b


def test_numbers_have_no_matrix_product(device):
    with pytest.raises(TypeError, match=r"use \*"):
        mg.ones(2, 2, device=device) @ 2


@pytest.mark.parametrize("shapes", [((5, 2), (4, 3)), ((5, 3), (3,)), ((5, 3), (4, 3), (3,)), ((), (4, 3))])
def test_linear_names_its_shapes(shapes, device):
    with pytest.raises(ValueError, match=r"linear: x \(.*weight \(.*expected x \(\.\.\., in\), weight \(out, in\)"):
        F.linear(*(mg.ones(*shape, device=device) for shape in shapes))
