"""Indexing in all its forms, gather, sorting, one-hot; each with the gradient of repeated positions."""

from functools import partial

import numpy as np
import pytest
from harness import NORMAL, Op, assert_like_torch, distinct, every_check, host, integers, same, torch, weights_like
from refusals import raises

import minigrad as mg


def best(x, k):
    return -np.sort(-x, -1)[..., :k] if x.ndim else x


def gather(x, i):
    return np.take_along_axis(x[tuple(slice(n) for n in i.shape[:-1])], i, -1)


def places(rng, shape):
    """Along the last dimension no place twice: PyTorch promises nothing there."""
    return rng.permuted(np.broadcast_to(np.arange(4), (*shape[:-1], 4)), axis=-1)[..., : shape[-1]]


def scatter(x, i, y, add=0):
    found = x.copy()
    for at in np.ndindex(i.shape):
        place = (at[0], i[at], *at[2:])
        found[place] = y[at] + add * found[place]
    return found


REDUCE = {"sum": np.sum, "prod": np.prod, "mean": np.mean, "amax": np.max, "amin": np.min}


def scatter_reduce(x, i, y, reduce, include_self):
    """Along dimension 1: each place's values in a list, reduced as a whole."""
    lists = {at: [x[at]] if include_self else [] for at in np.ndindex(x.shape)}
    for at in np.ndindex(i.shape):
        lists[(at[0], i[at])].append(y[at])
    found = [REDUCE[reduce](v) if v else x[at] for at, v in lists.items()]
    return np.array(found, x.dtype).reshape(x.shape)


def reducing(reduce, include_self):
    def run(x, i, y):
        return x.scatter_reduce(1, i, y, reduce, include_self=include_self)

    name = f"scatter_{reduce}{'' if include_self else '_without_self'}"
    op = scattering(name, run, lambda x, i, y: scatter_reduce(x, i, y, reduce, include_self), integers(0, 4))
    apart = distinct(0.5, 2.5), integers(0, 4), distinct(-2.75, -0.25)  # no source is near another or near x
    return Op(**{**vars(op), "domains": apart, "rounding": 64, "half_rounding": 2})


def index_put(x, where, y, accumulate=False):
    found = x.copy()
    if accumulate:
        np.add.at(found, where, y)
    else:
        found[where] = y
    return found


def scattering(name, run, reference, places):
    shapes = [((3, 4), (3, 4), (3, 4)), ((3, 4), (2, 3), (3, 4)), ((2, 4), (2, 0), (2, 1)), ((0, 4), (0, 2), (0, 2))]

    def run_torch(x, i, y):  # PyTorch's gradient needs a source of the shape of the index
        return run(x, i, y[tuple(slice(n) for n in i.shape)])

    return Op(name, run, reference, run_torch, shapes, (NORMAL, places, NORMAL))


PLACES = distinct(-2, 2), integers(0, 4)


def argsort(x):
    return np.argsort(x, -1) if x.ndim else np.int64(0)


def permuted(rng, shape):
    """Places of a vector, none twice."""
    return rng.permutation(4)[: shape[0]]


# By name: the call and NumPy's, the shapes, and what the inputs are drawn from.
CALLS = {
    "gather": (lambda x, i: x.gather(-1, i), gather),
    "gather_0": (lambda x, i: x.gather(0, i), lambda x, i: np.take_along_axis(x, i, 0)),
    "take_along_dim": (lambda x, i: x.take_along_dim(i, 1), lambda x, i: np.take_along_axis(x, i, 1)),
    "take_along_dim_flat": (lambda x, i: x.take_along_dim(i), lambda x, i: x.reshape(-1)[i.reshape(-1)]),
    "index_select": (lambda x, i: x.index_select(1, i), lambda x, i: x[:, i]),
    "index_put": (lambda x, i, y: x.index_put((i, i), y), lambda x, i, y: index_put(x, (i, i), y)),
    "index_put_accumulate": (lambda x, i, y: x.index_put((i,), y, True), lambda x, i, y: index_put(x, (i,), y, True)),
    "index_copy": (lambda x, i, y: x.index_copy(1, i, y), lambda x, i, y: index_put(x, (slice(None), i), y)),
    "index_fill": (lambda x, i: x.index_fill(1, i, 3), lambda x, i: index_put(x, (slice(None), i), 3)),
    "index_fill_tensor": (lambda x, i, y: x.index_fill(0, i, y), lambda x, i, y: index_put(x, (i,), y)),
    "scatter_number": (lambda x, i: x.scatter(0, i, 1.5), lambda x, i: scatter(x.T, i.T, np.full(i.T.shape, 1.5)).T),
    "topk_2_smallest": (lambda x: x.topk(2, 0, largest=False).values, lambda x: np.sort(x, 0)[:2]),
    "sort": (lambda x: x.sort().values, lambda x: np.sort(x, -1) if x.ndim else x),
    "sort_descending": (lambda x: x.sort(-1, descending=True).values, lambda x: best(x, None)),
    "topk": (lambda x: x.topk(1).values, lambda x: best(x, 1)),
}
SHAPES = {
    "gather": [((3, 4), (2, 6)), ((4,), (3,)), ((2, 3, 4), (2, 3, 2)), ((2, 4), (2, 0)), ((2, 4), (0, 3))],
    "gather_0": [((4, 3), (6, 3)), ((4,), (9,))],
    "take_along_dim": [((3, 4), (3, 6)), ((3, 4), (1, 2)), ((1, 4), (3, 2)), ((2, 4, 3), (1, 2, 3)), ((0, 4), (1, 2))],
    "take_along_dim_flat": [((2, 3), (4,)), ((6,), (2, 2))],
    "index_select": [((3, 4), (6,)), ((3, 4), (0,)), ((2, 4, 3), (2,)), ((0, 4), (3,))],
    "index_put": [((4, 4), (3,), (3,)), ((4, 4, 2), (3,), (3, 2)), ((4, 4, 2), (2,), (2,)), ((4, 4), (0,), (0,))],
    "index_put_accumulate": [((4,), (6,), (6,)), ((4, 3), (2, 2), (3,)), ((4, 3), (5,), ())],
    "index_copy": [((3, 4), (2,), (3, 2)), ((2, 4, 3), (4,), (2, 4, 3)), ((2, 4), (0,), (2, 0))],
    "index_fill": [((3, 4), (2,)), ((2, 4, 3), (9,)), ((2, 4), (0,))],
    "index_fill_tensor": [((4, 2), (3,), ()), ((4,), (2,), ())],
    "scatter_number": [((4, 3), (3, 2)), ((4, 1), (9, 1))],
    "topk_2_smallest": [((5,),), ((3, 4),)],
    **{name: [((5,),), ((3, 4),), ((),)] for name in ("sort", "sort_descending", "topk", "argsort")},
}
DOMAINS = {
    "take_along_dim_flat": (distinct(-2, 2), integers(0, 6)), "index_put": (NORMAL, permuted, NORMAL),
    "index_put_accumulate": (NORMAL, integers(0, 4), NORMAL), "index_copy": (NORMAL, permuted, NORMAL),
    "index_fill": (NORMAL, integers(-4, 4)), "index_fill_tensor": (NORMAL, permuted, NORMAL),
}  # fmt: skip
OPS = [
    *(same(name, *calls, s := SHAPES[name], DOMAINS.get(name, PLACES[: len(s[0])])) for name, calls in CALLS.items()),
    scattering("scatter", lambda x, i, y: x.scatter(1, i, y), scatter, places),
    scattering("scatter_add", lambda x, i, y: x.scatter_add(1, i, y), partial(scatter, add=1), integers(0, 4)),
    *(reducing(reduce, include_self) for reduce in REDUCE for include_self in (True, False)),
    same("diag_of_vector", lambda x: x.diag(-1), lambda x: np.diag(x, -1), [((3,),), ((1,),)]),
    same("diag_of_matrix", lambda x: x.diag(1), lambda x: np.diag(x, 1), [((3, 4),), ((3, 2),)]),
    same("argsort", lambda x: x.argsort(), argsort, SHAPES["argsort"], PLACES[0], differentiable=False),
]


test_op = every_check(OPS)


# x[...] of shape (3, 4, 5) --------------------------------------------------------------------------------------------

MASK = np.arange(60).reshape(3, 4, 5) % 3 == 1
INDICES = {"int": 1, "negative": -1, "ints": (0, -2, 3), "slice": slice(1, 3)}
INDICES |= {"slices": (slice(None), slice(None, -1), slice(1, None, 2)), "empty slice": slice(2, 2)}
INDICES |= {"None": (None, 0, None), "Ellipsis": (Ellipsis, 2), "Ellipsis within": (1, Ellipsis, slice(0, 2))}
INDICES |= {"nothing": (), "True": True, "False": False, "list": [2, 0, 0], "range": range(2), "empty list": []}
INDICES |= {"list of bool": [True, False, True], "array": np.array([2, 0, 2, -1]), "matrix": np.array([[0, 1], [1, 1]])}
INDICES |= {"arrays": (np.array([0, 0, 2]), np.array([1, 1, 3]))}
INDICES |= {"arrays that broadcast": (np.array([[0], [2]]), np.array([1, 1, 3]))}
INDICES |= {"array and slice": (np.array([1, 1]), slice(0, 2))}
INDICES |= {"slice and array": (slice(1, None), np.array([3, 3, 0]))}
INDICES |= {"arrays apart": (np.array([0, 0]), slice(None), np.array([4, 4])), "int and array": (1, np.array([3, 3]))}
INDICES |= {"int, slice, array": (0, slice(None), np.array([1, 0, 3]))}
INDICES |= {"array, slice, int": (np.array([1, 0, 1]), slice(1, 3), -1)}
INDICES |= {"int, None, array": (2, None, np.array([1, 1])), "0-d array": np.array(2)}
INDICES |= {"0-d array, slice, array": (np.array(1), slice(None), np.array([0, 0])), "mask": MASK}
INDICES |= {"mask of rows": np.array([True, False, True]), "mask of rows and columns": MASK[..., 0]}
INDICES |= {"slice and mask": (slice(None), np.array([True, False, True, False]))}
INDICES |= {"mask and int": (np.array([False, True, True]), 1), "int, slice, mask": (1, slice(None), MASK[0, 0])}
INDICES |= {"mask of nothing": np.zeros(3, bool), "0-d mask": np.array(True), "NumPy int": np.int64(1)}


def as_index(where, make):
    """The index with its arrays made tensors."""
    if isinstance(where, tuple):
        return tuple(as_index(part, make) for part in where)
    return make(where) if isinstance(where, np.ndarray) else where


# Integers select before arrays are applied, as in PyTorch; NumPy would move the dimension of the arrays to the front.
SELECT_FIRST = {
    "int, slice, array": lambda a: a[0][:, [1, 0, 3]], "array, slice, int": lambda a: a[..., -1][[1, 0, 1], 1:3],
    "int, None, array": lambda a: a[2][None, [1, 1]], "0-d array, slice, array": lambda a: a[1][:, [0, 0]],
    "int, slice, mask": lambda a: a[1][:, MASK[0, 0]],
}  # fmt: skip


def distinct_positions(name):
    """Whether no element is named twice, so that an assignment has one meaning."""
    chosen = SELECT_FIRST.get(name, lambda a: a[INDICES[name]])(np.arange(60).reshape(3, 4, 5))
    return len(np.unique(chosen)) == chosen.size


@pytest.mark.parametrize("as_tensors", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize("name", INDICES)
def test_values_gradients_and_assignment(name, as_tensors, device):
    """The gradient of an element is the sum over the places it was read to; an assignment writes where that reads;
    all three as PyTorch's, where it is installed."""
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    read = SELECT_FIRST.get(name, lambda a: a[INDICES[name]])
    positions = np.asarray(read(np.arange(60).reshape(3, 4, 5)))
    w = weights_like(positions).astype(np.float32)
    where = as_index(INDICES[name], lambda i: mg.tensor(i, device=device)) if as_tensors else INDICES[name]
    x = mg.tensor(array, device=device, requires_grad=True)
    y = x[where]
    np.testing.assert_array_equal(host(y), read(array))
    grad = y.backward(mg.tensor(w, device=device))[x]
    expected = np.bincount(positions.ravel(), w.ravel(), 60).reshape(array.shape)
    np.testing.assert_allclose(host(grad), expected, rtol=1e-6, atol=1e-7)
    changed, assigned = mg.tensor(array, device=device), array.copy()
    if distinct_positions(name):
        changed[where] = mg.tensor(w, device=device)
        assigned.reshape(-1)[positions.ravel()] = w.ravel()
        np.testing.assert_array_equal(host(changed), assigned)
    if torch is None:
        return
    t = torch.tensor(array, requires_grad=True)
    theirs = as_index(INDICES[name], torch.tensor)
    np.testing.assert_array_equal(t[theirs].detach().numpy(), host(y))
    t[theirs].backward(torch.tensor(w))
    np.testing.assert_allclose(t.grad.numpy(), expected, rtol=1e-6, atol=1e-7)
    if distinct_positions(name):
        copied = torch.tensor(array)
        copied[theirs] = torch.tensor(w)
        np.testing.assert_array_equal(copied.numpy(), assigned)


def test_steps_may_be_negative(device):
    """As in NumPy; PyTorch has none."""
    x = mg.tensor(np.arange(12.0).reshape(3, 4), device=device, requires_grad=True)
    y = x[::-1, ::-2]
    assert y.tolist() == [[11, 9], [7, 5], [3, 1]]
    w = mg.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], device=device)
    assert (y * w).sum().backward()[x].tolist() == [[0, 6, 0, 5], [0, 4, 0, 3], [0, 2, 0, 1]]
    assert (y.contiguous() @ mg.ones(2, device=device)).tolist() == [20, 12, 4]


def test_several_indexings_of_one_tensor(device):
    x = mg.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    loss = x[0] + x[1:].sum() * 2 + x[[0, 0]].sum() + x.square().sum() + x[x > 2].sum()
    assert loss.backward()[x].tolist() == [1 + 2 + 2, 2 + 4, 2 + 6 + 1]


def test_wrong_indices(device):
    for where, error, message in [
        (3, IndexError, "index 3 is out of bounds"),
        ((0, 0, 0), IndexError, "too many indices"),
        ([0, 3], IndexError, "index 3 is out of bounds"),
        (mg.tensor([0, 3], device=device), IndexError, "index 3 is out of bounds"),
        ((slice(None), mg.tensor([0, -5], device=device)), IndexError, "index -5 is out of bounds"),
        (([0, 1], [0, 1, 2]), IndexError, "broadcast"),
        (np.array([-4]), IndexError, "index -4 is out of bounds"),
        (1.5, TypeError, r"indexed by integers, slices, None, \.\.\., masks or arrays, not 1\.5"),
        ("a", TypeError, "not 'a'"),
        (np.array([0.0]), TypeError, r"must be integer or bool, not float64.*\.long\(\)"),
        (np.array([True, False]), IndexError, "boolean index did not match"),
        ((Ellipsis, Ellipsis), IndexError, "single ellipsis"),
    ]:
        x = mg.ones(3, 4, device=device)
        raises(error, message, lambda where=where, x=x: x[where])
        raises(error, message, x.__setitem__, where, 0.0)
        assert (x == 1).all()


# Assignment -----------------------------------------------------------------------------------------------------------


def test_assignment_broadcasts_and_casts(device):
    x = mg.zeros(2, 3, device=device)
    x[0] = 1
    x[:, 2] = mg.tensor([5, 6], device=device)
    x[1, :2] = [7.0, 8.0]
    x[x == 1] = -1.0
    assert x.tolist() == [[-1, -1, 5], [7, 8, 6]]
    x[0, :, None] = mg.tensor([[9.0]], device=device)
    assert x[0].tolist() == [9, 9, 9]
    y = mg.tensor([1, 2, 3], device=device)
    y[0] = 2.9
    assert y.tolist() == [2, 2, 3]
    y[1:] = y[:-1]
    assert y.tolist() == [2, 2, 2]


# Gather, sort, one-hot ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True])
def test_sorting_is_stable_and_places_nan(descending, device):
    values = np.float32([1, 0, np.nan, 1, -np.inf, 0, np.nan, np.inf])
    assert_like_torch(lambda m, x: x.sort(stable=True, descending=descending), values, rtol=0, device=device)
    assert mg.tensor([3, 1, 2], device=device).argsort(descending=descending).dtype == mg.int64


def test_topk_indices(device):
    x, number = mg.tensor([[1.0, 3.0, 2.0], [6.0, 5.0, 4.0]], device=device), mg.tensor(2.0, device=device)
    assert [found.tolist() for found in x.topk(2)] == [[[3, 2], [6, 5]], [[1, 2], [0, 1]]]
    assert x.topk(0).values.shape == (2, 0)
    assert (number.topk(1).indices.item(), number.gather(0, mg.tensor(0, device=device)).item()) == (0, 2)


def test_one_hot(device):
    x = mg.tensor([[0, 2], [1, 0]], device=device)
    np.testing.assert_array_equal(host(mg.one_hot(x)), np.eye(3)[host(x)])
    assert (mg.one_hot(x).dtype, mg.one_hot(x, 5).shape) == (mg.int64, (2, 2, 5))
    assert mg.one_hot(mg.zeros(0, device=device).long(), 4).shape == (0, 4)


# Scattering -----------------------------------------------------------------------------------------------------------


def test_the_last_of_several_values_stays_and_gets_the_gradient(device):
    x = mg.zeros(1, 3, device=device, requires_grad=True)
    y = mg.tensor([[1.0, 2.0, 3.0]], device=device, requires_grad=True)
    z = x.scatter(1, mg.tensor([[2, 0, 2]], device=device), y)
    assert z.tolist() == [[2, 0, 3]]
    grads = z.backward(mg.tensor([[5.0, 6.0, 7.0]], device=device))
    assert [grads[x].tolist(), grads[y].tolist()] == [[[0, 6, 0]], [[0, 5, 7]]]


def test_scattering_in_place(device):
    index = mg.tensor([[0, 2], [1, 1]], device=device)
    values = mg.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    x = mg.zeros(2, 3, device=device)
    assert x.scatter_(1, index, values) is x
    assert x.tolist() == [[1, 0, 2], [0, 4, 0]]
    assert x.scatter_add_(1, index, values).tolist() == [[2, 0, 4], [0, 11, 0]]
    assert x.scatter_(1, index[:, :1], 9.0).tolist() == [[9, 0, 4], [0, 9, 0]]
    with pytest.raises(RuntimeError, match="scatter_ changes a tensor in place where gradients are recorded"):
        x.scatter_(1, index, mg.ones(2, 2, device=device, requires_grad=True))


def test_scattering_from_its_own_memory() -> None:
    """On the CPU, as if from a copy."""
    places, x = mg.tensor([1, 2, 3, 4, 5, 0]), mg.arange(6)
    y, z, i = x.clone(), x.clone(), places.clone()
    assert y.scatter_(0, places, y).tolist() == i.scatter_(0, i, x).tolist() == [5, 0, 1, 2, 3, 4]
    assert z.scatter_add_(0, places, z).tolist() == [5, 1, 3, 5, 7, 9]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"])
def test_a_number_where_a_mask_holds(dtype, device):
    """In more elements than a block has threads."""
    values = np.random.default_rng(0).integers(0, 100, (9, 33))
    x, number = mg.tensor(values, dtype=dtype, device=device), 0 if dtype == "bool" else 200
    x[mg.tensor(values % 3 == 0, device=device)] = number
    expected = np.where(values % 3 == 0, number, values > 0 if dtype == "bool" else values)
    np.testing.assert_array_equal(host(x.double()), expected)


def test_index_put_and_masked_fill_in_place(device):
    x = mg.zeros(2, 3, device=device)
    rows, columns = mg.tensor([0, 1, 0], device=device), mg.tensor([1, 2, 1], device=device)
    assert x.index_put_((rows, columns), 5.0) is x
    assert x.tolist() == [[0, 5, 0], [0, 0, 5]]
    x.index_put_((rows, columns), mg.tensor([1.0, 2.0, 3.0], device=device), accumulate=True)
    assert x.tolist() == [[0, 9, 0], [0, 0, 7]]
    z = x.clone().index_put_((rows, mg.tensor(1, device=device)), 1.0, accumulate=True)  # a 0-d index is a number
    assert z.tolist() == [[0, 11, 0], [0, 1, 7]]
    raises(TypeError, r"index_put_: values are int64, the tensor float32", x.index_put_, (rows,), rows, accumulate=True)
    x.index_put_((x > 8,), mg.tensor([-1.0], device=device))
    x[x == 0] = mg.tensor([1.0, 2.0, 3.0, 4.0], device=device)
    assert x.tolist() == [[1, -1, 2], [3, 4, 7]]
    assert x.masked_fill_(mg.tensor([True, False, False], device=device), 0).tolist() == [[0, -1, 2], [0, 4, 7]]
    raises(RuntimeError, "masked_fill_ changes a tensor in place", lambda: x.requires_grad_().masked_fill_(x > 1, 0))


def test_assignment_to_a_0d_index_beside_an_array(device):
    x = mg.zeros(2, 3, device=device)
    x[mg.tensor([0, 1], device=device), mg.tensor(1, device=device)] = 5.0
    x[mg.tensor(0, device=device), 2:] = 7.0
    assert x.tolist() == [[0, 5, 7], [0, 5, 0]]
    x[mg.tensor(1, device=device)].fill_(1.0)  # a view, as with a number
    assert x.tolist() == [[0, 5, 7], [1, 1, 1]]


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCE)
def test_scatter_reduce_of_zeros_and_ties(reduce, include_self, device):
    """The product's gradient is right with one zero and with two, and ties share: PyTorch's numbers."""
    arrays = [np.array([[0.0, 2.0, 0.0, 3.0, 5.0]]), np.array([[2.0, 0.0, 4.0, 0.0, 0.0, 3.0, 3.0]])]
    index = np.array([[0, 0, 1, 2, 2, 3, 3]])
    ours = [mg.tensor(x, device=device, requires_grad=True) for x in arrays]
    theirs = [torch.tensor(x, requires_grad=True) for x in arrays]
    if reduce in ("amax", "amin") and not include_self:  # PyTorch counts what was there among the ties
        theirs[0] = torch.tensor([[7.5, 7.5, 7.5, 7.5, 5.0]], dtype=torch.float64, requires_grad=True)
    y = ours[0].scatter_reduce(1, mg.tensor(index, device=device), ours[1], reduce, include_self=include_self)
    z = theirs[0].scatter_reduce(1, torch.tensor(index), theirs[1], reduce, include_self=include_self)
    np.testing.assert_allclose(host(y), z.detach().numpy())
    w = weights_like(host(y))
    (z * torch.tensor(w)).sum().backward()
    grads = (y * mg.tensor(w, device=device)).sum().backward()
    for x, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(host(grads[x]), expected.grad.numpy(), rtol=1e-14)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
@pytest.mark.parametrize("reduce", ["amax", "amin", "mean"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce_of_integers(reduce, dtype, include_self, device):
    """The mean is rounded down; what was there does not count if not asked."""
    if (reduce, dtype) == ("mean", "bool"):
        pytest.skip("PyTorch has no mean of bool")

    def run(m, x, y):
        index = m.tensor([0, 0, 1, 1], device=x.device)
        return x.scatter_reduce(0, index, y, reduce, include_self=include_self)

    x, y = np.array([-4, 5, 1]).astype(dtype), np.array([-3, -3, 0, 1]).astype(dtype)
    assert_like_torch(run, x, y, rtol=0, device=device)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (7,), (3, 4), (2, 0, 3), (2, 3, 4)], ids=str)
def test_nonzero_and_unique_are_pytorchs(shape, device):
    def run(m, x):
        places = x.nonzero(as_tuple=True)
        chosen = [x[places]] if shape else []
        return [x.nonzero(), *places, *x.unique(return_inverse=True, return_counts=True), x.unique(), *chosen]

    values = np.random.default_rng(0).integers(-1, 2, shape)
    for dtype in ("float32", "int64", "bool"):
        assert_like_torch(run, values.astype(dtype), rtol=0, device=device)


def test_every_nan_is_unique(device):
    x = mg.tensor([np.nan, 1.0, np.nan, 1.0], device=device, requires_grad=True)
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(host(values), np.array([1, np.nan, np.nan], np.float32))
    assert inverse.tolist() == [1, 0, 2, 0]
    assert counts.tolist() == [2, 1, 1]
    assert not values.requires_grad


def test_masked_scatter_broadcasts_and_works_in_place(device):
    mask = mg.tensor([True, False, True], device=device)
    x, values = mg.ones(2, 3, device=device), mg.arange(2, 8, device=device).float()
    expected = [[2, 1, 3], [4, 1, 5]]
    assert mg.ones(3, device=device).masked_scatter(mask.expand(2, 3), values).tolist() == expected
    assert x.masked_scatter_(mask, values) is x
    assert x.tolist() == expected
    assert x.version == 1


def test_wrong_arguments_are_named(device):
    x, index, wide = (mg.tensor(a, device=device) for a in (np.ones((2, 3)), np.array([0, 1]), np.array([[0, 2]])))
    for error, call, message in (
        (ValueError, lambda: x.__setitem__(0, x[0, :2]), "does not broadcast"),
        (IndexError, lambda: x.gather(1, wide - 1), "index -1 is out of range for size 3"),
        (IndexError, lambda: x.scatter(0, wide, 1.0), "index 2 is out of range for size 2"),
        (IndexError, lambda: x.index_select(0, wide[0]), "index 2 is out of range for size 2"),
        (IndexError, lambda: x.index_fill(0, index + 1, 5), "index 2 is out of bounds for axis 0 with size 2"),
        (ValueError, lambda: mg.one_hot(index, 1), "one_hot: 1 classes cannot hold index 1"),
    ):
        raises(error, message, call)
