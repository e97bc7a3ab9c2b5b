"""Elementwise arithmetic: kernels made from the plain formulas, of the dtypes that NumPy's functions have.

Division by an integer 0 raises ZeroDivisionError: a flag is copied back, for integer dtypes only.
"""

import functools
import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from minigrad.plain_kernels.elementwise import Each, elementwise as plain

from .platform import memory
from .platform.array import Array, copy, expand, from_host, may_share_memory
from .pointwise import rules
from .pointwise.conversion import loaded
from .pointwise.division import floor_div as floor_div, fmod as fmod, pow as pow, remainder as remainder
from .pointwise.formulas import of_formula
from .pointwise.pointwise import Pointwise, adapted, floating, like, made_from
from .rowwise.strided_copy import copy_into

if TYPE_CHECKING:  # what ``made_from`` makes

    def __getattr__(name: str) -> Any: ...


def _result(*kinds: Any) -> np.dtype[Any]:
    return np.result_type(*(_EXAMPLES.get(k, k) for k in adapted(kinds)))


_EXAMPLES: dict[Any, Any] = {int: 0, float: 0.0}  # Python's numbers adapt to the dtype of the others
_BOOL = np.dtype(bool)
_names: Counter[str] = Counter()  # of formulas' kernels
_making = threading.Lock()
_NUMBERS = ("float64", "bfloat16", "int64", "int32", "uint8", "bool")
_REALS = ("float64", "bfloat16", "int64")
_make = functools.partial(made_from, plain, globals())
_ADD, _, _ = _make("add maximum minimum", lazy=_NUMBERS)
_make("sub", lazy=_NUMBERS[:-1])
_make("mul", lazy=(*_NUMBERS, "float32 bool to float32"))
_make("div neg abs square cube floor ceil trunc sign relu", lazy=_REALS)
_make("round", rule=rules.of_numpy(np.rint), lazy=_REALS)
_make("reciprocal exp exp2 log log2 log10 log1p expm1 sqrt tanh")
_make("sin cos tan", width=1, slow_path=True)
_make("rsqrt", resolve=like(np.sqrt))
_make("sigmoid", resolve=like(np.exp))
_make("erf", rule=rules.of_math("erf"))
(_NAN_TO_NUM,) = _make("nan_to_num", registers=40)
(_WHERE,) = _make(
    "where", resolve=lambda condition, *kinds: (np.dtype(bool), *[_result(*kinds)] * 3),
    eager=("bool float32 float32",),
    lazy=("bool float64 float64", "bool int64 int64", "bool bfloat16 bfloat16", "int32 int64 int64"),
)  # fmt: skip


def supports_half(x: Array) -> bool:
    """Whether functions of half floats compute in float32, and round their results once: all of them do."""
    return True


def select(condition: Array, x: Array) -> Array:
    """x where the condition holds, else 0 (also where x is NaN or infinite, unlike a product with the mask)."""
    return _WHERE(condition, x, 0)


def clamp(x: Array, low: Any, high: Any) -> Array:
    """min(max(x, low), high); a bound of None does not bound."""
    return fused(_clamp, x, low, high)


def _clamp(k: Any, x: Any, low: Any, high: Any) -> Any:
    return k.clamp(x, low, high)


def nan_to_num(x: Array, nan: float, posinf: float | None, neginf: float | None) -> Array:
    """x with NaN and the infinities replaced; None means the largest (smallest) finite number of the dtype."""
    if x.dtype.kind not in "fV":
        return copy(x)
    limits = np.finfo(loaded(x.dtype))
    return _NAN_TO_NUM(x, nan, limits.max if posinf is None else posinf, limits.min if neginf is None else neginf)


def fused(expression: Callable[..., Any], *inputs: Any) -> Any:
    """expression(k, *inputs) of functions of elements: one launch of a kernel that is made of it."""
    truths = tuple([None if x is None else getattr(x, "dtype", None) == _BOOL for x in inputs])
    with _making:
        operation = _of_expression(expression, truths)
    return operation(*[x for x in inputs if x is not None])


@functools.cache
def _of_expression(expression: Callable[..., Any], truths: tuple[bool | None, ...]) -> Pointwise:
    """Its kernels where these inputs are truth values, or None."""

    def formula(*given: Any) -> Any:
        left = iter(given)
        return expression(_Each, *[None if truth is None else next(left) for truth in truths])

    def resolve(*kinds: Any) -> tuple[np.dtype[Any], ...]:
        dtype = _result(*kinds)
        with np.errstate(all="ignore"):
            ones = [k(1) if isinstance(k, type) else np.ones((), "f4" if k.itemsize == 2 else k) for k in kinds]
            made = np.asarray(formula(*ones)).dtype  # of integers perhaps a float
        dtype = made if made.kind == "f" and dtype.kind not in "fV" else dtype
        return *[kind if kind == _BOOL else dtype for kind in kinds], made if made.kind in "biu" else dtype

    given = [truth for truth in truths if truth is not None]
    name = "_".join(re.findall(r"\w+", f"{expression.__module__.rpartition('.')[2]} {expression.__qualname__}"))
    _names[name] += 1
    name += f"_{_names[name]}" * (_names[name] > 1)
    return Pointwise(name, of_formula(formula, *given), resolve, len(given), eager=(), lazy=(), registers=48)


class _Each(Each):
    floor_div: Any = np.floor_divide
    remainder: Any = np.remainder
    fmod: Any = np.fmod
    pow: Any = np.power


# Into existing arrays, and between dtypes -----------------------------------------------------------------------------

_OFTEN = "float32 to bfloat16", "bfloat16 to float32", "float32 to float16", "float16 to float32"
_SELDOM = "float32 to float64", "float64 to float32", "float64 to float16", "int64 to float32", "float32 to int64"
_CAST = Pointwise("cast", rules.same, floating, 1, eager=_OFTEN, lazy=_SELDOM)
_FILL = Pointwise("fill", rules.same, floating, 1, lazy=())


def cast(x: Array, dtype: Any) -> Array:
    """A copy of ``x`` in another dtype."""
    dtype = np.dtype(dtype)
    return copy(x) if dtype == x.dtype else _CAST(x, dtype=dtype)


def fill(x: Array, value: Any) -> None:
    """x[...] = value, a number. Raises OverflowError if an integer dtype cannot hold it."""
    number = loaded(x.dtype)
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
        value = number.type(bool(value) if x.dtype.kind == "b" else value)
    if x.contiguous and not value.tobytes().strip(b"\0"):
        memory.clear(x.pointer, x.nbytes)
    else:
        _FILL(value, out=x)


def add_into(x: Array, y: Any) -> None:
    """x += y."""
    _ADD(x, _apart(x, y), out=x)


def assign(x: Array, y: Any) -> None:
    """x[...] = y, broadcasting y."""
    if isinstance(y, np.ndarray):
        y = from_host(y, x.device)
    if not isinstance(y, Array):
        fill(x, y)
    elif y.dtype == x.dtype:
        copy_into(x, expand(_apart(x, y), x.shape))
    else:
        _CAST(_apart(x, y), out=x)


def _apart(x: Array, y: Any) -> Any:
    """y, in other memory if writing x would change elements of it that are still to be read."""
    if not isinstance(y, Array) or not may_share_memory(x, y):
        return y
    same = x.pointer == y.pointer and x.shape == y.shape and x.strides == y.strides
    return y if same else copy(y)
