"""NaN, infinities, zeros of both signs, tiny and huge numbers and ties: values and gradients are PyTorch's.

The tables hold the functions of one and two numbers, reductions, running sums and normalisations. Gradients arrive as
1, -2, 0, infinities and NaN. What PyTorch itself computes differently from case to case, ``UNDECIDED``, is left out
(docs/errors_and_limits.md lists it). Without PyTorch, ``BY_HAND`` remains: cases that a plain formula gets wrong.
"""

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness import needs_torch, torch

import minigrad as mg
from minigrad.nn import functional as F

TF = None if torch is None else torch.nn.functional
NAN, INF = math.nan, math.inf

VALUES = np.array(
    [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 6.0, 3.0, -3.0, 20.0, -20.0, 100.0, -100.0]
    + [1e-8, -1e-8, 1e-30, -1e-30, 1e30, -1e30]
)
PAIRS = tuple(grid.reshape(-1) for grid in np.meshgrid(VALUES, VALUES))
ROWS = np.array(list(itertools.product([NAN, INF, -INF, 0.0, -0.0, 1.0, -2.0, 1e30, -1e-30], repeat=3)))
PLAIN_ROWS = np.array(list(itertools.product([NAN, INF, -INF, 0.0, 1.0, -2.0], repeat=3)))  # no cancellation
FINITE, ALL = (1.0, -2.0, 0.0), (1.0, -2.0, 0.0, INF, -INF, NAN)

Case = tuple[Callable[..., Any], Callable[..., Any]]


def both(fn: Callable[..., Any]) -> Case:
    return fn, fn


def method(name: str, *args: Any, **kwargs: Any) -> Case:
    return both(lambda x, *more: getattr(x, name)(*more, *args, **kwargs))


def function(name: str, *args: Any, **kwargs: Any) -> Case:
    return (lambda *x: getattr(F, name)(*x, *args, **kwargs), lambda *x: getattr(TF, name)(*x, *args, **kwargs))


def number_over(c: float) -> Case:
    """PyTorch makes ``c / x`` a product with the reciprocal; the quotient of two tensors is what ``c / x`` is here."""
    return lambda x: c / x, lambda x: torch.full_like(x, c) / x


UNARY: dict[str, Case] = {
    **{
        name: method(name)
        for name in (
            *("abs", "neg", "clone", "sign", "floor", "ceil", "round", "trunc", "nan_to_num", "relu", "erf", "square"),
            *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sigmoid"),
            *("sin", "cos", "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh"),
        )
    },
    **{
        name: function(name)
        for name in (
            *("silu", "leaky_relu", "elu", "selu", "mish", "softplus", "logsigmoid", "gelu"),
            *("hardtanh", "relu6", "hardsigmoid", "hardswish", "softsign", "tanhshrink"),
        )
    },
    "gelu of tanh": function("gelu", approximate="tanh"),
    "elu with alpha 2": function("elu", 2.0),
    "leaky_relu with slope -1": function("leaky_relu", -1.0),
    "softplus with beta 2": function("softplus", 2.0, 5.0),
    "round to tenths": method("round", decimals=1),
    "nan_to_num by one number": method("nan_to_num", 7.0),
    "nan_to_num by numbers": method("nan_to_num", 1.0, 2.0, 3.0),
    **{
        f"clamp{bounds}": method("clamp", *bounds)
        for bounds in ((-1, 1), (0, None), (None, 0), (1, -1), (NAN, None), (None, INF))
    },
    **{
        f"x ** {p}": both(lambda x, p=p: x**p)
        for p in (0, 1, 2, 3, 4, 100, -1, -2, 0.5, -0.5, 1.5, -1.5, 1 / 3, 1e-3, NAN, INF, -INF)
    },
    **{
        f"{symbol} {c}": both(lambda x, fn=fn, c=c: fn(x, c))
        for symbol, fn in {"/": operator.truediv, "*": operator.mul, "-": operator.sub, "%": operator.mod}.items()
        for c in (0.0, 1.0, -2.0, INF, -INF, NAN)
    },
    **{f"{c} ** x": both(lambda x, c=c: c**x) for c in (0, 1, 2, -2, 0.5, INF, -INF, NAN)},
    **{f"{c} / x": number_over(c) for c in (0.0, 1.0, -2.0, INF, -INF, NAN)},
}
for probability in (0.0, 0.3, 1.0):
    UNARY[f"kl_div of {probability}"] = (
        lambda x, p=probability: F.kl_div(x, mg.full_like(x, p), reduction="none"),
        lambda x, p=probability: TF.kl_div(x, torch.full_like(x, p), reduction="none"),
    )
BINARY: dict[str, Case] = {
    **{name: both(getattr(operator, name)) for name in ("add", "sub", "mul", "truediv", "pow", "mod")},
    **{name: method(name) for name in ("fmod", "atan2", "maximum", "minimum", "clamp")},
    "clamp from above": both(lambda x, y: x.clamp(max=y)),
    "clamp to both": both(lambda x, y: x.clamp(y, -y)),
    "lerp": method("lerp", 0.25),
    "lerp from the end": method("lerp", 0.75),
    "lerp backwards": method("lerp", -0.7),
    "lerp by tensors": both(lambda x, y: x.lerp(y, x)),
    "where": (lambda x, y: mg.where(x > y, x, y), lambda x, y: torch.where(x > y, x, y)),
    "masked_fill": both(lambda x, y: x.masked_fill(y > 0, 1.0)),
    **{name: function(name, reduction="none") for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")},
}
REDUCTIONS: dict[str, Case] = {
    **{
        name: method(name, dim=-1)
        for name in (
            *("sum", "mean", "amax", "amin", "var", "std", "logsumexp", "prod", "nansum", "nanmean"),
            *("softmax", "log_softmax", "cumsum", "cumprod"),
        )
    },
    "var of all": method("var", -1, unbiased=False),
    "cumprod of one": both(lambda x: x[:, :1].cumprod(-1)),
    "clamp of three": both(lambda x: x[:, 0].clamp(x[:, 1], x[:, 2])),
    "softmin": function("softmin", -1),
    **{name: both(lambda x, name=name: getattr(x, name)(dim=-1)[0]) for name in ("max", "min", "sort")},
    "topk": both(lambda x: x.topk(2)[0]),
    **{f"norm {p}": method("norm", p, dim=-1) for p in (0, 1, 2, 3, 4, 0.5, 1.5, -1, -2, INF, -INF)},
}
WHOLE = ("sum", "mean", "max", "min", "amax", "amin", "var", "std", "norm", "prod", "nansum", "nanmean", "median")
NORMALISED: dict[str, Case] = {
    "normalize": function("normalize", dim=-1),
    "normalize by 1": function("normalize", 1.0, dim=-1),
    "layer_norm": function("layer_norm", (3,)),
    "rms_norm": function("rms_norm", (3,), eps=1e-5),
}

# Where PyTorch's result depends on the number of elements, or on whether they fill a vector register.
UNDECIDED: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("elu", "selu", "elu with alpha 2", "hardtanh", "relu6", "hardswish"), np.isnan),
    "gelu": lambda x: (x == INF) | (x < -2.5) & (x > -INF),  # PyTorch's float32 is exact to 1e-4 there
    "gelu of tanh": lambda x: x == -20.0,
    **dict.fromkeys(("mod", "fmod"), lambda x, y: (abs(x) == 1e30) & (abs(y) == 1e-30)),
}
# Where PyTorch has a float32 constant, or both subtract nearly equal terms.
LOOSE = {"hardsigmoid": 1e-7, "tanh": 1e-11, "lerp by tensors": 1e-7}


def compare(name: str, case: Case, arrays: tuple[np.ndarray, ...], dtype: str, dys: tuple[float, ...], **close: float):
    ours, theirs = case
    arrays = tuple(array.astype(dtype) for array in arrays)
    if name in UNDECIDED:
        decided = ~UNDECIDED[name](*arrays)
        arrays = tuple(array[decided] for array in arrays)
    xs = [mg.tensor(array, requires_grad=True) for array in arrays]
    ts = [torch.tensor(array, requires_grad=True) for array in arrays]
    info = np.finfo(dtype)
    # PyTorch's vector units flush subnormal numbers to 0, and its functions have other roundings.
    options = {"rtol": max(256 * float(info.eps), LOOSE.get(name, 0)), "atol": 16 * float(info.tiny), **close}
    with np.errstate(all="ignore"):  # an overflow warns
        y, z = ours(*xs), theirs(*ts)
        np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), **options)
        assert y.requires_grad == z.requires_grad
        for dy in dys:
            grads = y.backward(mg.full_like(y, dy), retain_graph=True)
            expected = torch.autograd.grad(z, ts, torch.full_like(z, dy), retain_graph=True, allow_unused=True)
            for x, dx in zip(xs, expected, strict=True):
                found = grads.get(x)
                found = np.zeros(x.shape) if found is None else found.numpy()
                dx = np.zeros(x.shape) if dx is None else dx.numpy()
                np.testing.assert_allclose(found, dx, **options, err_msg=f"gradient {dy}")


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*UNARY, *BINARY, *REDUCTIONS, *NORMALISED])
def test_functions(name: str, dtype: str) -> None:
    if name in UNARY:
        compare(name, UNARY[name], (VALUES,), dtype, ALL)
    elif name in BINARY:
        compare(name, BINARY[name], PAIRS, dtype, ALL)
    elif name in REDUCTIONS:
        # The gradient of log_softmax is 1 - 3 p, which cancels where the three elements of a row are the same.
        close = {"atol": 4 * float(np.finfo(dtype).eps)} if name == "log_softmax" else {}
        compare(name, REDUCTIONS[name], (ROWS,), dtype, ALL, **close)
    else:  # differences of nearly equal terms, so the tolerance is of the terms
        compare(name, NORMALISED[name], (PLAIN_ROWS,), dtype, FINITE, atol=1e-3 if dtype == "float32" else 1e-11)


@needs_torch
@pytest.mark.parametrize("name", WHOLE)
def test_of_all_values(name: str) -> None:
    for row in ROWS[::4]:
        compare(name, method(name), (row,), "float64", FINITE)
    compare(name, method(name), (np.array([[2.0, 2.0], [NAN, NAN]]),), "float32", ALL)
    if name not in ("var", "std"):  # PyTorch warns
        compare(name, method(name), (np.array(INF),), "float32", ALL)


# Without PyTorch ------------------------------------------------------------------------------------------------------

BY_HAND: dict[str, tuple[Callable[..., Any], list[float], Any, list[float]]] = {  # function, x, value, gradient of 1
    "max": (lambda x: x.max(), [1.0, NAN, NAN], NAN, [0.0, 0.5, 0.5]),
    "min": (lambda x: x.min(), [NAN, INF], NAN, [1.0, 0.0]),
    "maximum": (lambda x: x.maximum(mg.tensor([1.0, 2.0])).sum(), [1.0, 3.0], 4.0, [0.5, 1.0]),
    "amax": (lambda x: x.amax(), [1.0, NAN], NAN, [NAN, NAN]),
    "median": (lambda x: x.median(), [2.0, 1.0, 2.0, 9.0], 2.0, [0.5, 0.0, 0.5, 0.0]),
    "median of NaN": (lambda x: x.median(), [2.0, NAN], NAN, [0.0, 1.0]),
    "prod": (lambda x: x.prod(), [2.0, NAN], NAN, [NAN, NAN]),
    "prod with a zero": (lambda x: x.prod(), [INF, 0.0], NAN, [0.0, INF]),
    "prod with two zeros": (lambda x: x.prod(), [INF, 0.0, 0.0], NAN, [0.0, 0.0, 0.0]),
    "cumprod": (lambda x: x.cumprod(0).sum(), [2.0, INF, 4.0], INF, [INF, NAN, INF]),
    "cumprod with a zero": (lambda x: x.cumprod(0)[-1], [2.0, 0.0, INF], NAN, [0.0, INF, 0.0]),
    "cumprod with two zeros": (lambda x: x.cumprod(0).sum(), [0.0, INF, 0.0], NAN, [NAN, 0.0, 0.0]),
    "x ** 0.5": (lambda x: (x**0.5).sum(), [-INF, 4.0], NAN, [NAN, 0.25]),
    "x ** -0.5": (lambda x: x**-0.5, [-0.0], -INF, [-INF]),
    "norm 3": (lambda x: x.norm(3), [0.0, 0.0], 0.0, [0.0, 0.0]),
    "norm inf": (lambda x: x.norm(INF), [1.0, NAN], NAN, [0.0, 0.0]),
    "norm 0": (lambda x: x.norm(0) * INF, [1.0, 0.0], INF, [0.0, 0.0]),
    "std of huge": (lambda x: x.std(), [0.0, 0.0, 3e30], math.sqrt(3) * 1e30, [-1 / math.sqrt(12)] * 2 + [3**-0.5]),
    "std of ties": (lambda x: x.std(), [0.1] * 3, 0.0, [0.0] * 3),
    "nanmean": (lambda x: x.nanmean(), [NAN], NAN, [NAN]),
    "floor": (lambda x: (x.floor() * INF).sum(), [1.5], INF, [0.0]),
    "clamp": (lambda x: x.clamp(min=mg.tensor([0.0])), [NAN], NAN, [0.0]),
    "clamp to one number": (lambda x: mg.tensor([1.0]).clamp(x, mg.tensor([2.0])), [2.0], 2.0, [0.0]),
    "hardtanh": (lambda x: F.hardtanh(x).sum(), [-1.0, 0.5, 1.0, NAN], NAN, [0.0, 1.0, 0.0, 1.0]),
    "lerp": (lambda x: x.lerp(mg.tensor([INF]), 0.75), [1.0], NAN, [0.25]),
    "acosh": (lambda x: x.acosh(), [-1.0], NAN, [INF]),
    "softplus": (lambda x: F.softplus(x) * INF, [-100.0], INF, [INF]),
    "hardswish": (F.hardswish, [INF], INF, [1.0]),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name: str) -> None:
    fn, values, expected, gradient = BY_HAND[name]
    x = mg.tensor(values, requires_grad=True)
    with np.errstate(all="ignore"):
        y = fn(x)
        np.testing.assert_allclose(y.item(), expected, rtol=1e-6)
        np.testing.assert_allclose(y.backward()[x].numpy(), gradient, rtol=1e-6)
