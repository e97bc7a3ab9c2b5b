"""Matrix products."""

import numpy as np
import pytest
from harness import Op, assert_like_torch, every_check, host, same, torch
from refusals import raises

import minigrad as mg

PRODUCTS = [
    *[((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3))],
    *[((3, 4), (4, 2)), ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 2))],
    *[((1, 3, 4), (2, 4, 1)), ((17, 33), (33, 19)), ((70, 65), (65, 90))],
]
EMPTY_PRODUCTS = [((3, 0), (0, 2)), ((0, 4), (4, 2)), ((3, 4), (4, 0)), ((0, 3, 4), (4, 2)), ((0,), (0,))]
EINSUMS = [
    ("ij,jk->ik", [((3, 4), (4, 2)), ((3, 0), (0, 2))]),
    ("ij,jk", [((3, 4), (4, 2))]),
    ("ba,ca", [((3, 4), (2, 4))]),
    ("bhid,bhjd->bhij", [((2, 3, 4, 5), (2, 3, 6, 5))]),
    ("ij,kl->ljki", [((2, 3), (4, 5)), ((1, 1), (1, 1))]),
    ("ij,ij->", [((3, 4), (3, 4))]),
    ("ij,ij->ij", [((3, 4), (3, 4)), ((0, 4), (0, 4))]),
    ("i,i", [((5,), (5,)), ((0,), (0,))]),
    ("i,j->ij", [((5,), (3,))]),
    ("ijk,lj->il", [((2, 3, 4), (5, 3))]),
    ("ii", [((3, 3),), ((0, 0),)]),
    ("ii->i", [((3, 3),)]),
    ("iijj->ji", [((2, 2, 3, 3),)]),
    ("iii->i", [((3, 3, 3),)]),
    ("ij->ji", [((3, 4),)]),
    ("ji", [((3, 4),)]),
    ("ij->", [((3, 4),), ((2, 0),)]),
    ("ii,ij->j", [((3, 3), (3, 2))]),
    (
        "...ij,...jk->...ik",
        [((2, 3, 4), (2, 4, 5)), ((7, 2, 3, 4), (4, 5)), ((2, 1, 3, 4), (6, 4, 2)), ((3, 4), (4, 2))],
    ),
    ("i...,i...", [((3, 2, 4), (3, 4)), ((3,), (3,))]),
    ("...,...", [((2, 3), (3,)), ((), ())]),
    ("b...->...b", [((2, 3, 4),), ((2,),)]),
    ("ij,jk,kl->il", [((2, 3), (3, 4), (4, 5))]),
    ("ijk,ia,jb,kc->abc", [((2, 3, 2), (2, 4), (3, 2), (2, 3))]),
    ("i,i,i->i", [((3,), (3,), (3,))]),
    ("a,b,c", [((2,), (3,), (2,))]),
    ("bn,anm,bm->ba", [((2, 5), (3, 5, 4), (2, 4))]),
    (" i j , j -> i ", [((3, 4), (4,))]),
]


def einsum(equation, shapes):
    def run(*x):
        return mg.einsum(equation, *x)

    def reference(*x):
        return np.einsum(equation, *x)

    return Op(f"einsum({equation})", run, reference, lambda *x: torch.einsum(equation, *x), shapes, rounding=64)


def of_two(name, shapes, *options):
    """A function of minigrad, NumPy and PyTorch."""
    runs = (lambda a, b, m=m: getattr(m, name)(a, b, *options) for m in (mg, np, torch))
    return Op(f"{name}{list(options)}", *runs, shapes, rounding=64)


OPS = [
    same(
        "matmul",
        lambda a, b: a @ b,
        np.matmul,
        [*PRODUCTS, *EMPTY_PRODUCTS],
        rounding=64,
        small_shapes=[*PRODUCTS[:-1], *EMPTY_PRODUCTS],
    ),
    same("mm", lambda a, b: a.mm(b), np.matmul, [((3, 4), (4, 2)), ((0, 4), (4, 2)), ((3, 0), (0, 2))], rounding=64),
    same("bmm", lambda a, b: a.bmm(b), np.matmul, [((2, 3, 4), (2, 4, 5)), ((0, 3, 4), (0, 4, 5))], rounding=64),
    same("mv", lambda a, b: a.mv(b), np.matmul, [((3, 4), (4,)), ((3, 0), (0,))], rounding=64),
    same("dot", lambda a, b: a.dot(b), np.dot, [((5,), (5,)), ((0,), (0,))], rounding=64),
    same("outer", lambda a, b: a.outer(b), np.outer, [((3,), (4,)), ((0,), (4,))], rounding=64),
    of_two("kron", [((2, 3), (3, 2)), ((2,), (2, 1, 3)), ((), (3,)), ((0,), (2,))]),
    of_two("tensordot", [((2, 3, 4), (3, 4, 2)), ((3, 4), (3, 4))], 2),
    of_two("tensordot", [((2, 3, 4), (4, 5, 3))], ([-1, 1], [0, 2])),
    of_two("tensordot", [((2,), (3, 2))], 0),
    *(einsum(equation, shapes) for equation, shapes in EINSUMS),
]


test_op = every_check(OPS)


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


EQUATIONS = [
    ("ij,jk->ik", [(3, 1), (4, 2)]),  # a size of 1 broadcasts
    ("i,i->i", [(1,), (4,)]),
    ("i,i", [(4,), (1,)]),
    ("...i->i", [(2, 3, 4)]),  # what "..." stands for may be summed
    ("bij,bj->b", [(1, 2, 3), (5, 3)]),
    ("a,bA->A", [(2,), (3, 4)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum_broadcasts_and_sums_as_in_pytorch(equation, shapes, device):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    assert_like_torch(lambda m, *x: m.einsum(equation, *x), *arrays, rtol=1e-12, differentiate=True, device=device)


def test_einsum_takes_its_operands_in_one_list():
    a, b = mg.tensor([[1.0, 2.0]]), mg.tensor([[3.0], [4.0]])
    assert mg.einsum("ij,jk", [a, b]).tolist() == [[11.0]]
    for operands, names in (([a.numpy()], "ndarray"), ([a, 2], "Tensor, int"), ([[a, 2]], "Tensor, int")):
        raises(TypeError, rf"operands {names}; expected a string, and tensors", mg.einsum, "ij,jk", *operands)


def test_wrong_products_are_named(device):
    raises(ValueError, "expected equal batches", mg.ones(2, 3, 4, device=device).bmm, mg.ones(1, 4, 3, device=device))


def test_kronecker_product_with_long_rows():
    a, b = (np.arange(n * m, dtype=np.float32).reshape(n, m) for n, m in ((30, 40), (5, 7)))
    assert np.array_equal(mg.kron(mg.tensor(a), mg.tensor(b)).numpy(), np.kron(a, b))
