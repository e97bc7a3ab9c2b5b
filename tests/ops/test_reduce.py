"""Reductions: sums, means, extrema, variances, norms, cumulative sums; over any dimensions, none and empty ones."""

import numpy as np
import pytest
from harness import NORMAL, Op, assert_like_torch, booleans, distinct, every_check, host, same, simulated, torch
from refusals import raises

import minigrad as mg

# dim and the shapes it fits
ALL = (None, [((),), ((5,),), ((2, 3, 4),), ((3, 1),)])
FIRST = (0, [((5,),), ((3, 4),), ((600, 3),), ((3, 0),)])  # 600 rows: several strips of the column sums
LAST = (-1, [((5,),), ((3, 4),), ((2, 3, 4),), ((0, 3),)])
OUTER = ((0, 2), [((2, 3, 4),), ((2, 3, 1),)])
LEADING = ((0, 1), [((2, 3, 4),), ((1, 1, 2),)])
EMPTY = (None, [((0,),), ((2, 0),)])


def reduction(name, numpy_function, dims, domains=NORMAL, torch_run=None, rounding=32, **params):
    """Ops for each of ``dims``, with and without keepdim."""
    theirs = torch_run or getattr(torch, name, None)
    return [
        Op(
            f"{name}-{dim}{'-keepdim' * keep}{''.join(f'-{v}' for v in params.values())}",
            lambda x, d=dim, k=keep: getattr(x, name)(dim=d, keepdim=k, **params),
            lambda x, d=dim, k=keep: numpy_function(x, axis=d, keepdims=k),
            lambda x, d=dim, k=keep: theirs(x, dim=tuple(range(x.ndim)) if d is None else d, keepdim=k, **params),
            shapes,
            domains,
            rounding=rounding,
            equal_rows=name != "std",
        )
        for dim, shapes in dims
        for keep in (False, True)
    ]


def logsumexp(x, axis, keepdims):
    return np.log(np.exp(x).sum(axis, keepdims=keepdims))


def norm(x, axis, keepdims):
    return np.sqrt((x * x).sum(axis, keepdims=keepdims))


def arg_reduction(name, numpy_function):
    return [
        same(
            f"{name}-{dim}",
            lambda x, dim=dim: getattr(x, name)(dim),
            lambda x, dim=dim: numpy_function(x, axis=dim),
            [((5,),), ((3, 4),), ((2, 3, 4),)],
            distinct(-2, 2),
            differentiable=False,
        )
        for dim in (None, 0, -1)
    ]


def pair(name, numpy_function):
    """``max``, ``min`` and ``median`` along a dimension: the values, which carry the gradient."""
    return same(
        f"{name}-values",
        lambda x: getattr(x, name)(1).values,
        lambda x: numpy_function(x, 1),
        [((3, 4),), ((2, 3, 4),), ((0, 2),)],
        distinct(-2, 2),
    )


def some_zeros(rng, shape):
    return rng.choice([0.0, 0.0, 0.5, -1.25, 2.0], shape)


def one_zero(rng, shape):
    x = rng.uniform(0.5, 2, shape)
    x.reshape(-1)[:1] = 0
    return x


def product(name, run, reference, domain):
    return same(name, run, reference, [((5,),), ((3, 4),), ((2, 3, 4),), ((1, 1),), ((2, 0),)], domain)


FULL = [ALL, FIRST, LAST, OUTER, LEADING]
MANY = [(d, [s for s in shapes if 0 not in s[0]]) for d, shapes in FULL]
SEVERAL = [(d, [s for s in shapes if min(s[0], default=0) > 1]) for d, shapes in FULL]  # a variance needs two values

SHARES = [0.0, 0.3, 1.0]

OPS = [
    *reduction("sum", np.sum, [*FULL, EMPTY], rounding=64),
    *reduction("mean", np.mean, MANY, rounding=64),
    *reduction("amax", np.max, MANY, distinct(-2, 2)),
    *reduction("amin", np.min, MANY, distinct(-2, 2)),
    *reduction("var", lambda x, axis, keepdims: np.var(x, axis, ddof=1, keepdims=keepdims), SEVERAL, rounding=64),
    *reduction(
        "var", lambda x, axis, keepdims: np.var(x, axis, ddof=0, keepdims=keepdims), MANY, rounding=64, correction=0
    ),
    *reduction("std", lambda x, axis, keepdims: np.std(x, axis, ddof=1, keepdims=keepdims), SEVERAL, rounding=64),
    *reduction(
        "norm", norm, MANY, torch_run=lambda x, dim, keepdim: torch.linalg.vector_norm(x, 2, dim, keepdim), rounding=64
    ),
    *reduction("logsumexp", logsumexp, MANY, rounding=64),
    *reduction("any", np.any, FULL, booleans),
    *reduction("all", np.all, FULL, booleans),
    *arg_reduction("argmax", np.argmax),
    *arg_reduction("argmin", np.argmin),
    pair("max", np.max),
    pair("min", np.min),
    *(
        Op(
            f"quantile-{dim}-{way}",
            lambda x, dim=dim, way=way: x.quantile(SHARES, dim, interpolation=way),
            lambda x, dim=dim, way=way: np.quantile(x, SHARES, dim, method=way),
            lambda x, dim=dim, way=way: x.quantile(torch.tensor(SHARES, dtype=x.dtype), dim, interpolation=way),
            shapes,
            distinct(-2, 2),
            rounding=32,
        )
        for dim, way, shapes in (
            *((None, "linear", [((),), ((3, 4),)]), (-1, "linear", [((2, 3, 4),)])),
            *((0, way, [((2, 3),)]) for way in ("linear", "lower", "higher", "nearest", "midpoint")),
        )
    ),
    pair("median", lambda x, axis: np.take(np.sort(x, axis), (x.shape[axis] - 1) // 2, axis)),
    *(
        same(
            f"cumsum-{dim}",
            lambda x, dim=dim: x.cumsum(dim),
            lambda x, dim=dim: np.cumsum(x, dim).reshape(x.shape),
            [((),), ((5,),), ((3, 4),), ((2, 3, 4),), ((0, 2),)],
            rounding=32,
        )
        for dim in (0, -1)
    ),
    *(
        product(f"{name}{suffix}", run, reference, domain)
        for suffix, domain in (("", NORMAL), ("_with_a_zero", one_zero))
        for name, run, reference in (
            ("prod", lambda x: x.prod(), np.prod),
            ("prod_first", lambda x: x.prod(0), lambda x: x.prod(0)),
            ("prod_last_keepdim", lambda x: x.prod(-1, keepdim=True), lambda x: x.prod(-1, keepdims=True)),
        )
    ),
    *(
        product(f"{name}{suffix}", run, reference, domain)
        for suffix, domain in (("", NORMAL), ("_with_zeros", some_zeros))
        for name, run, reference in (
            ("cumprod", lambda x: x.cumprod(-1), lambda x: x.cumprod(-1)),
            ("cumprod_first", lambda x: x.cumprod(0), lambda x: x.cumprod(0)),
        )
    ),
    same("prod_0d", lambda x: x.prod(), np.copy, [((),)]),
    same("cumprod_0d", lambda x: x.cumprod(0), np.copy, [((),)]),
]


test_op = every_check(OPS, long="half")  # for which 60 kernels are compiled


# Semantics ------------------------------------------------------------------------------------------------------------


def test_numpys_spellings(device):
    x = mg.tensor(np.arange(6.0).reshape(2, 3), device=device)
    for name in ("sum", "mean", "var", "std", "norm", "amax", "amin"):
        ours = getattr(x, name)(axis=1, keepdims=True)
        np.testing.assert_array_equal(host(ours), host(getattr(x, name)(dim=1, keepdim=True)))
        assert ours.shape == (2, 1)
    assert x.argmax(axis=0).tolist() == [1, 1, 1]
    assert x.max(axis=1).values.tolist() == [2, 5]
    assert x.any(axis=0).tolist() == [True, True, True]
    assert x.sum(()).tolist() == 15  # no dimension named: all, as in PyTorch


def test_dims_are_checked(device):
    x = mg.ones(2, 3, device=device)
    raises(ValueError, "names a dimension twice", lambda: x.sum((0, -2)))
    raises(TypeError, r"dim must be an integer, not 1\.0", lambda: x.sum(1.0))


@pytest.mark.parametrize("name", ["amax", "amin", "argmax", "argmin", "max", "min"])
def test_an_empty_extremum_has_no_value(name, device):
    raises(ValueError, r"over an empty dimension of shape \(2, 0\)", getattr(mg.ones(2, 0, device=device), name), 1)
    if name[:3] != "arg":
        assert getattr(mg.ones(2, 0, device=device), f"a{name[-3:]}")(0).shape == (0,)


def test_means_of_nothing_are_nan(device):
    x = mg.ones(0, device=device, requires_grad=True)
    assert np.isnan(x.mean().item())
    assert x.mean().backward()[x].shape == (0,)
    assert x.sum().item() == 0
    assert x.logsumexp(0).item() == float("-inf")
    assert not x.any()
    assert x.all()
    y = mg.tensor([2.0], device=device, requires_grad=True)
    assert np.isnan(y.var().item())
    assert np.isnan(y.var().backward()[y].item())


def test_ties_share_the_gradient_evenly_or_the_first_takes_it(device):
    x = mg.tensor([[3.0, 1.0, 3.0], [2.0, 2.0, 2.0]], device=device, requires_grad=True)
    assert x.amax(1).sum().backward()[x].tolist() == [[0.5, 0, 0.5], pytest.approx([1 / 3] * 3)]
    assert x.max().backward()[x].tolist() == [[0.5, 0, 0.5], [0, 0, 0]]
    values, indices = x.max(1)
    assert indices.tolist() == [0, 0]
    assert values.sum().backward()[x].tolist() == [[1, 0, 0], [1, 0, 0]]
    values, indices = x.min(dim=0, keepdim=True)
    assert values.tolist() == [[2, 1, 2]]
    assert indices.tolist() == [[1, 0, 1]]
    assert values.sum().backward()[x].tolist() == [[0, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize("name", ["norm", "std"])
def test_the_root_of_zero_has_gradient_zero(name, device):
    """The slope of the square root there is infinite; PyTorch takes 0 too."""
    x = mg.zeros(3, device=device, requires_grad=True)
    assert getattr(x, name)().backward()[x].tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["var", "std"])
def test_var_and_std_take_what_pytorchs_take(name):
    x = np.arange(12.0).reshape(3, 4) ** 2
    for dim, ddof, calls in [
        (None, 1, [{}]),
        (None, 0, [{"unbiased": False}, {"correction": 0}, {"dim": False}]),
        (1, 0, [{"dim": 1, "unbiased": False}, {"dim": 1, "correction": 0}]),
        (1, 2, [{"dim": 1, "correction": 2}]),
    ]:
        for options in calls:
            found = getattr(mg.tensor(x), name)(**options), getattr(mg, name)(mg.tensor(x), **options)
            for y in found:
                np.testing.assert_allclose(y.numpy(), getattr(np, name)(x, axis=dim, ddof=ddof))
    assert getattr(mg.tensor(x), name)(1, False, True).shape == (3, 1)  # PyTorch's order
    with pytest.raises(TypeError, match=f"{name}: pass correction=2 or unbiased=False, not both"):
        getattr(mg.tensor(x), name)(unbiased=False, correction=2)


def test_a_second_backward_of_std_and_norm(device):
    x = mg.tensor([1.0, 2.0, 4.0], device=device, requires_grad=True)
    for y in (x.std(), x.norm(), x.var()):
        first = y.backward(retain_graph=True)[x].tolist()
        assert y.backward()[x].tolist() == first


def test_0d_extrema(device):
    x = mg.tensor(3.0, device=device, requires_grad=True)
    values, indices = x.max(0)
    assert (values.item(), indices.item()) == (3, 0)
    assert values.backward()[x].item() == 1
    assert x.argmax().item() == x.argmin(0).item() == 0


@pytest.mark.compiled
def test_long_sums_are_accurate(device):
    """Sums of many equal numbers, along rows and columns: adding one by one would be off by 1e-3 of them."""
    n = 17_000 if simulated(device) else 100_000  # rows and columns that are cut into parts
    x = mg.tensor(np.full((n, 2), 0.1, np.float32), device=device)
    exact = n * float(np.float32(0.1))
    np.testing.assert_allclose(host(x.sum(0)), exact, rtol=2e-5)
    np.testing.assert_allclose(host(x.T.contiguous().sum(1)), exact, rtol=1e-6)
    np.testing.assert_allclose(host(x.mean()), float(np.float32(0.1)), rtol=1e-6)


def test_logsumexp_does_not_overflow(device):
    x = mg.tensor([1000.0, 1000.0], device=device, requires_grad=True)
    y = x.logsumexp(0)
    assert y.item() == pytest.approx(1000 + np.log(2))
    np.testing.assert_allclose(host(y.backward()[x]), 0.5, rtol=1e-4)  # y itself is rounded at 1000


def test_norm_is_euclidean_unless_told_otherwise(device):
    x = mg.tensor([3.0, 4.0], device=device)
    assert x.norm().item() == x.norm(2).item() == x.norm(2, 0).item() == 5
    assert x.norm(1).item() == 7 and x.norm(float("inf")).item() == 4 and x.norm(0).item() == 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int64"])
def test_many_short_rows(dtype):
    for n in (2, 3, 4, 5):
        x = np.random.default_rng(n).integers(-99, 99, (20000, n))
        y = mg.tensor(x).to(getattr(mg, dtype))
        assert y.sum(1).equal(mg.tensor(x.sum(1)).to(y.dtype)) and y.amax(1).equal(mg.tensor(x.max(1)).to(y.dtype))


def test_float16_sums_go_on_growing(device):
    x = mg.tensor(np.full((4, 5000), 1, np.float16), device=device)
    assert x.sum().item() == 20_000
    assert x.T.sum(0).tolist() == [5000] * 4
    assert x.T.contiguous().sum(0).dtype == mg.float16


def test_two_zeros_leave_no_gradient_of_a_product(device):
    x = mg.tensor([[0.0, 3.0, 0.0], [0.0, 3.0, 2.0]], device=device, requires_grad=True)
    assert x.prod(1).sum().backward()[x].tolist() == [[0, 0, 0], [6, 0, 0]]


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("name", ["nansum", "nanmean"])
def test_sums_and_means_without_nan(name, dim, device):
    values = np.array([[1.0, np.nan, 3.0], [np.nan, 2.0, np.inf]])
    assert_like_torch(lambda m, x: getattr(x, name)(dim), values, rtol=1e-7, differentiate=True, device=device)


# Median ---------------------------------------------------------------------------------------------------------------


def test_quantiles_of_one_share_with_nan_and_errors(device):
    x = mg.tensor([[1.0, 2.0, np.nan], [3.0, 5.0, 4.0]], device=device)
    assert str(x.quantile(0.25, 1, keepdim=True).tolist()) == "[[nan], [3.5]]"
    assert x[1].quantile(0.5).item() == 4 and np.isnan(x.quantile(0.5).item())
    assert x[1].quantile([0.5], keepdim=True).shape == (1, 1)
    assert mg.arange(301, device=device).float().quantile(np.uint8(1)).item() == 300
    assert mg.arange(5001, device=device).bfloat16().quantile(0.5).item() == 2496  # places are no bfloat16 numbers
    for q in (-0.1, [0.5, 1.5], np.nan, [[0.5]]):
        raises(ValueError, "expected values, and a share or a vector, 0 to 1", lambda q=q: x.quantile(q))
    raises(ValueError, "quantile over an empty dimension", lambda: mg.zeros(0, 3, device=device).quantile(0.5, 0))
    raises(TypeError, "quantile of int64", lambda: x.long().quantile(0.5))


def test_median_of_ties(device):
    x = mg.tensor([[1.0, 3.0, 2.0, 3.0], [0.0, 0.0, 5.0, 0.0]], device=device, requires_grad=True)
    values, indices = x.median(1, keepdim=True)
    assert values.tolist() == [[2], [0]] and indices.shape == (2, 1)
    np.testing.assert_array_equal(np.take_along_axis(host(x), host(indices), 1), host(values))
    expected = np.zeros((2, 4))
    np.put_along_axis(expected, host(indices), 1, 1)
    np.testing.assert_array_equal(host(values.sum().backward()[x]), expected)


def test_median_is_pytorchs(device):
    nan = float("nan")
    for values in ([3.0, 1, 2, 0], [5, nan, 2], [nan, 1, nan], [1.0], [[1.0, nan, 0], [4, 2, 3]], 2.0):
        for keepdim in (False, True):

            def medians(m, x, keepdim=keepdim):
                return [x.median(), *x.median(-1, keepdim=keepdim)]

            assert_like_torch(medians, np.float32(values), rtol=0, device=device)
    assert mg.tensor([3, 1, 2], device=device).median().item() == 2
    assert np.isnan(mg.zeros(0, device=device).median().item())
    raises(ValueError, r"median over an empty dimension of shape \(0, 3\) has", mg.zeros(0, 3, device=device).median, 0)
    raises(ValueError, "median over an empty dimension", lambda: mg.zeros(0, dtype=mg.int64, device=device).median())
