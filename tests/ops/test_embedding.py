"""Rows of a table by index."""

import numpy as np
import pytest
from harness import NORMAL, every_check, functional, host, integers
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F


def shapes(large):
    """With one large lookup."""
    wide = [((6, 4), (3,)), ((6, 4), ()), ((6, 4), (2, 5)), ((6, 4), (0,)), ((6, 4), (2, 0, 3))]
    return [*wide, ((6, 1), (40,)), large, ((6, 0), (3,))]


OPS = [
    functional(
        "embedding",
        lambda f, w, i: f.embedding(i, w),
        lambda w, i: w[i],
        shapes(((6, 300), (70,))),
        (NORMAL, integers(0, 6)),
        rounding=64,
        refuses=("int64", "int32", "uint8", "bool"),
        small_shapes=shapes(((6, 8), (70,))),  # an index over more than one chunk of positions, columns in fours
    )
]


test_op = every_check(OPS)


@pytest.mark.parametrize("fortran", [False, True])
def test_a_table_with_other_uses(fortran, device):
    """Tied weights: the lookup adds to a gradient that another operation began, whatever its layout."""
    values = np.random.default_rng(0).standard_normal((5, 3))
    w = mg.tensor(values.T if fortran else values, device=device)
    w = (w.T if fortran else w).detach().requires_grad_()
    i = mg.tensor([0, 2, 2], device=device)
    x = F.embedding(i, w)
    counts = np.bincount([0, 2, 2], minlength=5)[:, None]
    for loss, expected in (
        (x.sum() + (w * w).sum(), 2 * values + counts),
        ((w * w).sum() + x.sum(), 2 * values + counts),
        ((x @ w.T).sum(), counts * values.sum(0) + host(x).sum(0)),
        (x.sum() + F.embedding(i, w).sum(), 2 * counts * np.ones(3)),
    ):
        np.testing.assert_allclose(host(loss.backward(retain_graph=True)[w]), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_indices_of_any_integer_dtype(dtype, device):
    w = mg.tensor(np.arange(6.0).reshape(3, 2), device=device)
    assert F.embedding(mg.tensor(np.array([2, 0], dtype), device=device), w).tolist() == [[4, 5], [0, 1]]


def test_an_index_changed_before_backward_is_noticed(device):
    w, i = mg.ones(3, 2, device=device, requires_grad=True), mg.tensor([0, 1], device=device)
    loss = F.embedding(i, w).sum()
    i.fill_(2)
    raises(RuntimeError, "Embedding needs for its gradient was changed in place", lambda: loss.backward())


def test_errors(device):
    w, i = mg.ones(3, 2, device=device), mg.tensor([0, 3], device=device)
    raises(IndexError, "embedding: index 3 at position 1 is out of range for 3 rows", lambda: F.embedding(i, w))
    raises(IndexError, "embedding: index -1 at position 0 is out of range", lambda: F.embedding(i - 1, w))
    raises(ValueError, r"weight of shape \(3,\); expected \(num, dim\)", lambda: F.embedding(i, w[:, 0]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_width_gradients_of_a_tied_weight_add_up(dtype, device):
    weight = mg.ones(3, 2, dtype=dtype, device=device, requires_grad=True)
    x = F.embedding(mg.tensor([0, 0, 2], device=device), weight)
    loss = x.sum() + (weight * 4).sum() + F.embedding(mg.tensor([0], device=device), weight).sum()
    assert loss.backward()[weight].tolist() == [[7, 7], [4, 4], [5, 5]]
