"""The steps of a function of NumPy arrays, noted while it runs once with stand-ins that know only their dtypes."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from ...plain_kernels.arrays import is_half
from ...plain_kernels.elementwise import of_each
from .numpy_loops import FMOD, Loop, mended, numpy_loop
from .program_code import IS_ARM, UPPER, ProgramStep, Value, converts_halves
from .program_math import FUNCTIONS

BOOL, FLOAT32 = np.dtype(bool), np.dtype(np.float32)
ARRAY, NUMBERS, CONSTANTS = np.ndarray, (float, int), (np.dtype, FunctionType, str, type, type(None))


class NoProgramError(Exception):
    """The function cannot be noted down as steps."""


class Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array, or a number (a ``kind`` of int or float), while a program is made; knows its dtype only."""

    def __init__(self, trace: Tracing, slot: int, dtype: Any) -> None:
        self.trace: Tracing = trace
        self.slot: int = slot
        self.dtype: Any = dtype

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        dtype, _ = options.pop("dtype", None), options.pop("casting", None)
        if ufunc in of_each.values():
            return self.trace.step(ufunc, (self.dtype, self.dtype), [self])
        if method != "__call__" or options or ufunc.nout != 1:
            raise NoProgramError
        signature: dict[str, Any] = {} if dtype is None else {"signature": (dtype,) * ufunc.nargs}
        kinds = (*(kind_of(x) for x in inputs), None)
        try:
            dtypes = ufunc.resolve_dtypes(kinds, **signature)
        except TypeError as error:  # there is none for these, as NumPy will say
            raise NoProgramError from error
        return self.trace.step(ufunc, dtypes, [self.trace.converted(x, d) for x, d in zip(inputs, dtypes)])

    def __array_function__(self, function: Any, _: Any, args: Any, options: Any) -> Any:
        if function is np.result_type:
            return np.result_type(*(_example(x) for x in args))
        if function is not np.where or len(args) != 3 or options:
            raise NoProgramError
        dtype = np.result_type(*(_example(x) for x in args[1:]))
        taken = [self.trace.converted(x, d) for x, d in zip(args, (BOOL, dtype, dtype))]
        return self.trace.noted(SELECT, taken, dtype)

    def astype(self, dtype: Any) -> Any:
        """A step that converts."""
        return self.trace.cast(self, np.dtype(dtype))

    def view(self, dtype: Any) -> Traced:
        """The same bits as another dtype of the same width."""
        return self.trace.noted("bitcast {t} {0} to {r}", [self], np.dtype(dtype))

    def __bool__(self) -> bool:
        raise NoProgramError

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("_") else NoProgramError


def kind_of(x: Any) -> Any:
    """A dtype, the class of a number, or in a tuple what is no number: None, a word, a dtype, a function."""
    if isinstance(x, ARRAY):
        return x.dtype
    if type(x) in NUMBERS:
        return type(x)
    if isinstance(x, CONSTANTS):  # NumPy's types have a ``dtype`` that is none
        return (x,)
    return BOOL if isinstance(x, bool) else getattr(x, "dtype", type(x))


def _example(x: Any) -> Any:
    """What np.result_type takes for x: Python's numbers adapt to the dtypes of the others."""
    kind = kind_of(x)
    return kind(0) if isinstance(kind, type) else kind


def _is_known(dtype: np.dtype[Any]) -> bool:
    """Whether programs compute with it; with float16 only where the machine does."""
    if dtype.char == "e" and not converts_halves():
        return False
    return dtype.isnative and (is_half(dtype) or (dtype.kind in "fiub" and dtype.itemsize <= 8))


def supports_half(x: Any) -> bool:
    """Whether functions of arrays like this compute in float32, and round their results once."""
    return _is_known(x.dtype)


_INSTRUCTIONS: dict[np.ufunc, tuple[str, str, str]] = {  # of floats, of signed and unsigned integers and bool
    np.add: ("fadd {flags}", "add", "add"), np.subtract: ("fsub {flags}", "sub", "sub"),
    np.multiply: ("fmul {flags}", "mul", "mul"), np.true_divide: ("fdiv", "", ""),
    np.bitwise_and: ("", "and", "and"), np.bitwise_or: ("", "or", "or"), np.bitwise_xor: ("", "xor", "xor"),
    np.equal: ("fcmp oeq", "icmp eq", "icmp eq"), np.not_equal: ("fcmp une", "icmp ne", "icmp ne"),
    np.less: ("fcmp olt", "icmp slt", "icmp ult"), np.less_equal: ("fcmp ole", "icmp sle", "icmp ule"),
    np.greater: ("fcmp ogt", "icmp sgt", "icmp ugt"), np.greater_equal: ("fcmp oge", "icmp sge", "icmp uge"),
}  # fmt: skip
_SHIFTS = {np.left_shift: ("shl", "shl"), np.right_shift: ("ashr", "lshr")}
_OF_ONE = {np.absolute: "fabs", np.sqrt: "sqrt", np.floor: "floor", np.ceil: "ceil", np.trunc: "trunc", np.rint: "rint"}
_OF_FLOATS = {u: f"call {{t}} @llvm.{name}.{{short}}({{t}} {{0}})" for u, name in _OF_ONE.items()} | {
    np.copysign: "call {t} @llvm.copysign.{short}({t} {0}, {t} {1})", np.negative: "fneg {t} {0}",
}  # fmt: skip
SELECT = "select {bits} {0}, {r} {1}, {r} {2}"
_KEEPS_HALVES = {SELECT, *(_OF_FLOATS[u] for u in (np.negative, np.absolute, np.floor, np.ceil, np.trunc, np.rint))}


def _instruction(ufunc: np.ufunc, dtypes: tuple[np.dtype[Any], ...], flags: str) -> str:
    """LLVM's for operands of these dtypes, the result's last; "" if there is none."""
    kind = dtypes[0].kind
    if kind == "f" and ufunc in _OF_FLOATS:
        return _OF_FLOATS[ufunc]
    logic = kind == "b" and dtypes[-1] == BOOL and ufunc in (np.add, np.subtract, np.multiply)
    word = "" if logic else _INSTRUCTIONS.get(ufunc, ("", "", ""))["fi".find(kind) if kind in "fi" else 2]
    return f"{word.format(flags=flags)} {{t}} {{0}}, {{1}}" if word and len(set(dtypes[:-1])) == 1 else ""


def _extreme(within: np.ufunc) -> Callable[[Any, Any], Any]:
    """maximum, which is x if not x <= y, and NaN if one is; minimum of >=."""

    def extreme(x: Any, y: Any) -> Any:
        x, y = (x, y) if isinstance(x, Traced) else (y, x)
        found = np.where(np.logical_not(within(x, y)), x, y)
        return np.where(np.isnan(y), y, found) if isinstance(y, Traced) and y.dtype.kind == "f" else found

    return extreme


def _fmod(x: Any, y: Any) -> Any:
    """In one fused step, exact where the quotient has no more bits than x; else by C's, which needs one for each."""
    if x.dtype.kind != "f":
        rest = np.remainder(x, y)
        return np.where((rest != 0) & ((x < 0) ^ (y < 0)), rest - y, rest)
    quotient = np.trunc(x / y)
    trace, dtype = quotient.trace, quotient.dtype
    rest = trace.fma(-quotient, y, x)
    beyond = ((rest < 0) & (x > 0)) | ((rest > 0) & (x < 0))  # rounding has made the quotient one too large
    rest = np.copysign(np.where(beyond, rest + np.copysign(y, x), rest), x)
    exact = (abs(quotient) < 2.0 ** (np.finfo(dtype).nmant + 1)) & (abs(y) < np.inf)
    return trace.noted(mended(FMOD, dtype), [x, y, np.where(exact, rest, dtype.type(np.nan))], dtype)


def _remainder(x: Any, y: Any) -> Any:
    if x.dtype.kind != "f":
        return x - _floor_divide(x, y) * y
    rest = np.fmod(x, y)
    return np.where(rest != 0, np.where((rest < 0) ^ (y < 0), rest + y, rest), np.copysign(rest, y))


def _floor_divide(x: Any, y: Any) -> Any:
    """As NumPy does; of integers by way of float64, since they have no vector division."""
    if x.dtype.kind == "f":
        rest = np.fmod(x, y)
        quotient = (x - rest) / y
        quotient = np.where((rest != 0) & ((rest < 0) ^ (y < 0)), quotient - 1, quotient)
        below = np.floor(quotient)
        below = np.where(quotient - below > 0.5, below + 1, below)
        return np.where(y == 0, x / y, np.where(quotient != 0, below, np.copysign(quotient, x / y)))
    quotient, rest = 0, x
    for _ in range(2):  # the first is near that of large numbers
        quotient = quotient + np.floor(rest.astype(np.float64) / y.astype(np.float64)).astype(x.dtype)
        rest = x - quotient * y
    less, more = ((y > 0) & (rest < 0)) | ((y < 0) & (rest > 0)), ((y > 0) & (rest >= y)) | ((y < 0) & (rest <= y))
    return quotient - less.astype(x.dtype) + more.astype(x.dtype)


_COMPOSED: dict[np.ufunc, tuple[str, Callable[..., Any]]] = {  # for dtypes of these kinds
    np.square: ("fiu", lambda x: x * x),
    np.maximum: ("fiub", _extreme(np.less_equal)),
    np.minimum: ("fiub", _extreme(np.greater_equal)),
    np.negative: ("iu", lambda x: 0 - x),
    np.absolute: ("i", lambda x: np.where(x < 0, -x, x)),
    np.floor_divide: ("fiu", _floor_divide),
    np.remainder: ("fiu", _remainder),
    np.fmod: ("fiu", _fmod),
    np.invert: ("iub", lambda x: x ^ np.invert(x.dtype.type(0))),
    np.isnan: ("f", lambda x: x != x),
    np.isinf: ("f", lambda x: abs(x) == np.inf),
    np.isfinite: ("f", lambda x: abs(x) < np.inf),
    np.logical_not: ("fiub", lambda x: x.astype(BOOL) ^ np.True_),
    np.logical_and: ("fiub", lambda x, y: x.astype(BOOL) & y.astype(BOOL)),
    np.logical_or: ("fiub", lambda x, y: x.astype(BOOL) | y.astype(BOOL)),
    np.logical_xor: ("fiub", lambda x, y: x.astype(BOOL) ^ y.astype(BOOL)),
}


def _to_odd(x: Any, near: Any) -> Any:
    """float32 ``near``, or if x is between two the one with an odd last bit: rounded to float16, it is so once."""
    wide, bits = near.astype(np.float64), near.view(np.uint32)
    toward_zero = bits - (abs(wide) > abs(x)).astype(np.uint32)
    return np.where(wide == x, bits, toward_zero | 1).view(FLOAT32)


class Tracing:
    """The steps of a function for operands of certain dtypes. Half floats are steps in float32, rounded at the end."""

    def __init__(self, function: Callable[..., Any], kinds: tuple[Any, ...]) -> None:
        self.kinds: list[Any] = [*kinds]  # a number's becomes the dtype of what it meets
        self.steps: list[ProgramStep] = []
        self._flags = ""
        self._halves: set[int] = set()  # slots of float32 that a bfloat16 holds, which need no rounding
        inputs = [k[0] if isinstance(k, tuple) else Traced(self, i, k) for i, k in enumerate(kinds)]
        floats = {k for k in kinds if isinstance(k, np.dtype) and (is_half(k) or k.kind == "f")}
        wide = {i: self.cast(x, FLOAT32) for i, x in enumerate(inputs) if kinds[i] in floats and is_half(kinds[i])}
        result = function(*(wide.get(i, x) for i, x in enumerate(inputs)))
        names_dtype = any(isinstance(k, tuple) and isinstance(k[0], np.dtype | type) for k in kinds)
        if len(floats) == 1 and not names_dtype and isinstance(result, Traced) and result.dtype == FLOAT32:
            result = self.cast(result, *floats)
        if isinstance(result, Traced) and not self.steps:
            result = self.noted("bitcast {t} {0} to {r}", [result], result.dtype)
        if not isinstance(result, Traced) or result.slot != self.steps[-1].result.slot:
            raise NoProgramError
        self.result: np.dtype[Any] = result.dtype

    def converted(self, x: Any, dtype: np.dtype[Any]) -> Any:
        """x as an operand of this dtype, a constant as NumPy's scalar."""
        if not _is_known(dtype):
            raise NoProgramError
        if not isinstance(x, Traced):
            return np.asarray(x, dtype)[()]
        if isinstance(x.dtype, type):  # a number: it takes the dtype of the first step that it meets
            known = self.kinds[x.slot]
            if not isinstance(known, type) and known != dtype:
                raise NoProgramError
            self.kinds[x.slot] = dtype
            return Traced(self, x.slot, dtype)
        return self.cast(x, dtype)

    def step(self, ufunc: np.ufunc, dtypes: tuple[np.dtype[Any], ...], taken: list[Any]) -> Any:
        """Note what a ufunc computes from operands of these dtypes, the result's last."""
        if not any(isinstance(x, Traced) for x in taken):
            with np.errstate(all="ignore"):
                return ufunc(*taken)
        if function := FUNCTIONS.get(dtypes[0].char, {}).get(ufunc):
            before, self._flags = self._flags, "contract "
            result = function(*taken)
            self._flags = before
            return result
        kinds, composed = _COMPOSED.get(ufunc, ("", None))
        if composed and dtypes[0].kind in kinds:
            return composed(*taken)
        code: Any = _instruction(ufunc, dtypes, self._flags)
        if ufunc in _SHIFTS and isinstance(taken[1], np.integer) and 0 <= taken[1] < 8 * dtypes[0].itemsize:
            code = f"{_SHIFTS[ufunc][dtypes[0].kind == 'u']} {{t}} {{0}}, {{1}}"
        if not code:
            code = numpy_loop(ufunc, dtypes)
        if code is None:
            raise NoProgramError
        return self.noted(code, taken, dtypes[-1])

    def noted(self, code: Any, taken: list[Any], dtype: np.dtype[Any]) -> Traced:
        """A step, and its result."""
        if isinstance(code, Loop):
            taken = [x if isinstance(x, Traced) else self.noted("bitcast {t} {0} to {r}", [x], x.dtype) for x in taken]
        takes = tuple(Value(x.slot, x.dtype) if isinstance(x, Traced) else x for x in taken)
        self.steps.append(ProgramStep(code, takes, Value(len(self.kinds) + len(self.steps), dtype)))
        if code in _KEEPS_HALVES and all(map(self._is_half, takes)):
            self._halves.add(self.steps[-1].result.slot)
        return Traced(self, self.steps[-1].result.slot, dtype)

    def _is_half(self, x: Any) -> bool:
        """Whether a bfloat16 holds it; or it is a condition."""
        known = x.slot in self._halves if isinstance(x, Value) else x.dtype == FLOAT32 and not x.view("u4") & 0xFFFF
        return known or x.dtype == BOOL

    def fma(self, x: Traced, y: Any, z: Any) -> Traced:
        """x y + z, rounded once."""
        taken = [x, *(self.converted(other, x.dtype) for other in (y, z))]
        return self.noted("call {t} @llvm.fma.{short}({t} {0}, {t} {1}, {t} {2})", taken, x.dtype)

    def cast(self, x: Any, dtype: np.dtype[Any]) -> Any:
        """Steps that convert. What is out of an integer's range becomes what the machine makes of it, as by NumPy."""
        source = x.dtype
        if isinstance(source, type):
            return self.converted(x, dtype)
        if source == dtype:
            return x
        if is_half(source) or is_half(dtype):
            if FLOAT32 not in (source, dtype):
                near = self.cast(x, FLOAT32)
                return self.cast(_to_odd(x, near) if (source.char, dtype.char) == ("d", "e") else near, dtype)
            if source.kind == "V":
                x = (x.view(np.uint16).astype(np.uint32) << 16).view(FLOAT32)
                self._halves.add(x.slot)
                return x
            if dtype.kind == "V":
                bits: Any = x.view(np.uint32)
                if x.slot not in self._halves:
                    nearest = bits + ((bits >> 16) & 1) + 0x7FFF  # of two equally near the even one
                    bits = np.where(x == x, nearest, (bits & 0x80000000) | 0x7FC00000)
                for code in UPPER:
                    bits = self.noted(code, [bits], np.dtype(np.uint16))
                return bits.view(dtype)
        if dtype == BOOL:
            return np.not_equal(x, 0)
        if source.kind == "f" and dtype.kind in "iu" and dtype.itemsize < 4 and not IS_ARM:  # there they may saturate
            return self.cast(self.cast(x, np.dtype(np.int32)), dtype)
        words = _CONVERSIONS.get(source.kind + dtype.kind)
        if not words or not _is_known(source) or not _is_known(dtype):
            raise NoProgramError
        word = words[1 + (dtype.itemsize > source.itemsize) - (dtype.itemsize < source.itemsize)]
        return self.noted(f"{word} {{t}} {{0}} to {{r}}", [x], dtype)


_CONVERSIONS: dict[str, tuple[str, str, str]] = {  # by the kinds, into a shorter, an equal and a longer dtype
    "ff": ("fptrunc", "", "fpext"), "if": ("sitofp",) * 3, "uf": ("uitofp",) * 3, "bf": ("uitofp",) * 3,
    "ii": ("trunc", "bitcast", "sext"), "iu": ("trunc", "bitcast", "sext"), "bi": ("zext",) * 3, "bu": ("zext",) * 3,
    "uu": ("trunc", "bitcast", "zext"), "ui": ("trunc", "bitcast", "zext"), "fi": ("fptosi",) * 3,
}  # fmt: skip
