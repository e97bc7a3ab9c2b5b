"""Methods made of other methods, and keywords that PyTorch's users expect: PyTorch's values, dtypes and gradients."""

import math
import operator

import numpy as np
import pytest
from harness import assert_like_torch
from refusals import raises

import minigrad as mg

torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")

INPUTS = {
    "decimals": np.array([[1.25, -2.5, 0.0], [3.75, 2.0, -0.5]]),
    "special": np.array([np.nan, np.inf, -np.inf, -0.0]),
    "ints": np.arange(-3, 9).reshape(3, 4),
    "uint8": np.array([[1, 2], [250, 0]], np.uint8),
    "bool": np.array([[True, False], [True, True]]),
    "empty": np.zeros((0, 3)),
    "columns of nothing": np.zeros((2, 0), np.float32),
    "0-d": np.float32(1.5),
}
DTYPE = {mg.Tensor: mg.float64, torch.Tensor: torch.float64}
CALLS = {
    **{f"{name} method": lambda x, n=name: getattr(x, n)(1) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: operator.methodcaller(name) for name in ("sign", "abs", "t", "ravel", "half", "count_nonzero")},
    **{name: lambda x, n=name: getattr(x.clone(), n)() for name in ("exp_", "neg_", "relu_")},
    "add alpha": lambda x: x.add(x, alpha=2),
    "add number alpha": lambda x: x.add(3, alpha=2),
    "sub alpha": lambda x: x.sub(x, alpha=2),
    "div floor": lambda x: x.div(2, rounding_mode="floor"),
    "div trunc": lambda x: x.div(2, rounding_mode="trunc"),
    "div trunc negative": lambda x: x.div(-2, rounding_mode="trunc"),
    "floor_divide": lambda x: x.floor_divide(2),
    "round decimals": lambda x: x.round(decimals=1),
    "sum dtype": lambda x: x.sum(0, dtype=torch.float64 if isinstance(x, torch.Tensor) else mg.float64),
    "mean dtype": lambda x: x.mean(dtype=torch.float32 if isinstance(x, torch.Tensor) else mg.float32),
    **{
        f"{name} dtype": lambda x, n=name: getattr(x, n)(0, dtype=x.dtype if x.ndim else DTYPE[type(x)])
        for name in ("prod", "cumsum", "cumprod")
    },
    "prod wide": lambda x: x.prod(dtype=DTYPE[type(x)]),
    "cumsum wide": lambda x: x.cumsum(-1, dtype=DTYPE[type(x)]),
    "fmod": lambda x: x.fmod(-2),
    "flip twice": lambda x: x.flip(0, 0),
    "roll flat": lambda x: x.roll(1),
    "roll by two flat": lambda x: x.roll((1, 2)),
    "swapaxes with itself": lambda x: x.swapaxes(0, -1),
    "norm 1": lambda x: x.norm(1),
    "norm inf": lambda x: x.norm(float("inf"), dim=0),
    "norm -inf": lambda x: x.norm(float("-inf"), dim=-1),
    "norm 0": lambda x: x.norm(0, dim=-1, keepdim=True),
    "norm 3": lambda x: x.norm(3, dim=-1),
    "clamp tensors": lambda x: x.clamp(x * 0 - 1, x * 0 + 1),
    "clamp min tensor": lambda x: x.clamp(min=x * 0 + 1),
    "max of two": lambda x: x.max(x * 0 + 1),
    "min of two": lambda x: x.min(x * 0 + 1),
    "chunk rows": lambda x: x.chunk(2),
    "sort stable": lambda x: x.sort(dim=-1, descending=True, stable=True),
    "cumsum of no dimension": lambda x: x.cumsum(2),
    "unflatten": lambda x: x.unflatten(0, (-1, 1)),
    "narrow": lambda x: x.narrow(0, 1, 1),
    "narrow from the end": lambda x: x.narrow(-1, -2, 2),
    "select": lambda x: x.select(-1, 1),
    "expand_as": lambda x: x[:1].expand_as(x),
    "type_as": lambda x: x.type_as(x > 0),
    "isclose": lambda x: x.isclose(x + 1e-7),
    "isclose nan": lambda x: x.isclose(x, equal_nan=True),
    "allclose": lambda x: x.allclose(x),
    "equal": lambda x: x.equal(x * 1),
    "unequal shapes": lambda x: x.equal(x[None]),
    "masked_select": lambda x: x.masked_select(x > 0),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x.flatten()),
    "left shift": lambda x: x << 2,
    "right shift": lambda x: x >> 1,
    "reflected shift": lambda x: 1 << (x * 0 + 2),
    "None": lambda x: x == None,  # noqa: E711
    "not None": lambda x: x != None,  # noqa: E711
    "in": lambda x: 2 in x,
    "integer powers": lambda x: (x * 0 - 1) ** x,
    "powers of 2": lambda x: 2**x,
    "new_zeros": lambda x: x.new_zeros(2, 3),
    "new_full": lambda x: x.new_full((2,), 3),
    "pow_": lambda x: x.clone().pow_(2),
    "remainder_": lambda x: x.clone().remainder_(2),
    "floor_divide_": lambda x: x.clone().floor_divide_(2),
    "clamp_": lambda x: x.clone().clamp_(0, 2),
    "lerp_": lambda x: x.clone().lerp_(x * 3, 0.25),
    **{
        f"{name}=": lambda x, n=name: getattr(operator, f"i{n}")(x.clone(), 2)
        for name in ("floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
    },
}
DIFFERENT = {  # on purpose: integers and bool are numbers, also where PyTorch declines them; no number wraps around
    *(("round decimals", kind) for kind in ("ints", "uint8", "bool")),
    ("add alpha", "bool"),
    ("sub alpha", "bool"),
    ("div trunc negative", "uint8"),
    ("fmod", "uint8"),
    *((name, "bool") for name in ("cumsum dtype", "cumprod dtype")),
    *(("isclose", kind) for kind in ("ints", "uint8", "bool")),
}


def outcome(call, x):
    try:
        with np.errstate(all="ignore"):
            y = call(x)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, ArithmeticError):
        return "refused"
    return list(y) if isinstance(y, tuple) else [y]


@pytest.mark.parametrize("name", CALLS)
def test_pytorchs_values_and_dtypes(name: str) -> None:
    for kind, array in INPUTS.items():
        if (name, kind) in DIFFERENT:
            continue
        ours, theirs = outcome(CALLS[name], mg.tensor(array)), outcome(CALLS[name], torch.tensor(array))
        if theirs == "refused":
            assert ours == "refused", (kind, ours)
            continue
        assert ours != "refused", f"{kind}: PyTorch gives {theirs}"
        assert len(ours) == len(theirs), kind
        for y, z in zip(ours, theirs, strict=True):
            if isinstance(z, bool):
                assert y is z, kind
                continue
            assert f"torch.{y.dtype}" == str(z.dtype) and y.shape == tuple(z.shape), (kind, y, z)
            np.testing.assert_allclose(y.numpy(), z.numpy(), rtol=1e-6, err_msg=kind)


GROUPS = ("norm ", "clamp ", "add", "sub", "masked", "narrow", "select")
SMOOTH = [name for name in CALLS if name != "norm 0" and name.startswith(GROUPS)]


@pytest.mark.parametrize("name", [*SMOOTH, "index_add", "lerp", "max of two"])
def test_pytorchs_gradients(name: str) -> None:
    array = np.array([[1.25, -2.5, 0.75], [3.75, 2.0, -0.5]])
    extra = {
        "index_add": lambda m, x: x.index_add(0, m.tensor([1, 1]), x * 2, alpha=3),
        "lerp": lambda m, x: x.lerp(x * x, x),
    }
    assert_like_torch(extra.get(name, lambda m, x: CALLS[name](x)), array, rtol=1e-12, differentiate=True)


def test_products_are_computed_in_the_dtype_asked_for() -> None:
    x = mg.tensor([1e30, 1e30, 1e-30])
    assert x.prod(dtype=mg.float64).item() == pytest.approx(1e30) and x.prod(dtype=mg.float64).dtype == mg.float64
    assert x.cumprod(0, dtype=mg.float64)[1].item() == pytest.approx(1e60)
    assert x.cumsum(0, dtype=mg.float64)[1].item() == pytest.approx(2e30)


def test_the_number_of_values_has_no_slope() -> None:
    x = mg.tensor([1.0, 0.0, math.nan, -math.inf], requires_grad=True)
    y = x.norm(0)
    assert y.item() == 3 and y.backward()[x].tolist() == [0, 0, 0, 0]


def test_refusals() -> None:
    x = mg.ones(2, 3)
    raises(ValueError, "rounding_mode='up'; expected None, 'floor' or 'trunc'", lambda: x.div(2, rounding_mode="up"))
    raises(ValueError, "p='nuc'; expected a number or 'fro'", lambda: x.norm("nuc"))
    raises(ValueError, "2 places from 2 on are not in dimension 1", lambda: x.narrow(1, 2, 2))
    raises(ValueError, "expected at most two dimensions", lambda: mg.ones(1, 2, 3).t())
    raises(TypeError, "<< is for integers", lambda: x << 1)
    raises(RuntimeError, "where gradients are recorded", mg.ones(2, requires_grad=True).exp_)
    y = mg.ones(2)
    z = y
    y //= 2
    assert z is y and z.tolist() == [0, 0] and z.version == 1
