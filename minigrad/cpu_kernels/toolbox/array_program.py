"""Elementwise functions of NumPy arrays as one pass, in machine code: vectors, and all threads for large arrays.

NumPy computes ``np.where(x > 0, x, slope * x)`` in three passes over memory, in one thread. Here the function is called
once with stand-ins (``Traced``) that note each step, and the steps become a *program*: one loop (``program_code.py``)
whose intermediate results are in registers.

    x ──> greater ──> mask ─┐
    │                       ├─> where ──> the result
    └─> multiply ─> product ┘

So the plain kernel's formula is the only one. Sums, products, quotients, choices have NumPy's own bits; exponentials
and logarithms are those of ``program_math.py``. Half floats are computed in float32, and rounded at the end. Arrays go
through the loop as a ufunc, which divides itself among threads; large ones that broadcast or have gaps as a launch.
What asks for a value (``if x.any()``), or takes what has no loop, has no program and runs as it is. NaN and infinities
are results, without warnings.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ...plain_kernels.arrays import is_half
from ...plain_kernels.elementwise import of_each, quiet
from .multi_tensor import addresses_of
from .numpy_loops import FMOD, Loop, mended, numpy_loop
from .program_code import IS_ARM, UPPER, Code, ProgramStep, Value, compiled, converts_halves, over_tables, ufunc_of
from .program_math import FUNCTIONS
from .threads import LAYER, constant, known_by_address, recording, shares

PIECE = 8192  # elements of a call of a loop
FEW, PAIRS = 8192, 65536  # elements of one array, or pairs of two, that one thread computes before others would begin
WORTH = 1 << 20  # elements times work, from which on more threads are faster
TASK = 1 << 17  # elements times work that is worth a launch
MEMORY, CALL = 5, 100  # the work of a loop's memory, and of a step that is a call; that of an instruction is 1
ONE_ROW = 0x101  # of NumPy's flags: C-contiguous, and aligned
BOOL, FLOAT32, ZERO = np.dtype(bool), np.dtype(np.float32), np.zeros((), np.uint8)
ARRAY, NUMBERS, CONSTANTS = np.ndarray, (float, int), (np.dtype, FunctionType, str, type, type(None))


class NoProgramError(Exception):
    """The function cannot be noted down as steps."""


class Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array, or a number (a ``kind`` of int or float), while a program is made; knows its dtype only."""

    def __init__(self, program: Program, slot: int, dtype: Any) -> None:
        self.program: Program = program
        self.slot: int = slot
        self.dtype: Any = dtype

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        dtype, _ = options.pop("dtype", None), options.pop("casting", None)
        if ufunc in of_each.values():
            return self.program.step(ufunc, (self.dtype, self.dtype), [self])
        if method != "__call__" or options or ufunc.nout != 1:
            raise NoProgramError
        signature: dict[str, Any] = {} if dtype is None else {"signature": (dtype,) * ufunc.nargs}
        kinds = (*(_kind(x) for x in inputs), None)
        try:
            dtypes = ufunc.resolve_dtypes(kinds, **signature)
        except TypeError as error:  # there is none for these, as NumPy will say
            raise NoProgramError from error
        return self.program.step(ufunc, dtypes, [self.program.converted(x, d) for x, d in zip(inputs, dtypes)])

    def __array_function__(self, function: Any, _: Any, args: Any, options: Any) -> Any:
        if function is np.result_type:
            return np.result_type(*(_example(x) for x in args))
        if function is not np.where or len(args) != 3 or options:
            raise NoProgramError
        dtype = np.result_type(*(_example(x) for x in args[1:]))
        taken = [self.program.converted(x, d) for x, d in zip(args, (BOOL, dtype, dtype))]
        return self.program.noted(SELECT, taken, dtype)

    def astype(self, dtype: Any) -> Any:
        """A step that converts."""
        return self.program.cast(self, np.dtype(dtype))

    def view(self, dtype: Any) -> Traced:
        """The same bits as another dtype of the same width."""
        return self.program.noted("bitcast {t} {0} to {r}", [self], np.dtype(dtype))

    def __bool__(self) -> bool:
        raise NoProgramError

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("_") else NoProgramError


def _kind(x: Any) -> Any:
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
    kind = _kind(x)
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
    program, dtype = quotient.program, quotient.dtype
    rest = program.fma(-quotient, y, x)
    beyond = ((rest < 0) & (x > 0)) | ((rest > 0) & (x < 0))  # rounding has made the quotient one too large
    rest = np.copysign(np.where(beyond, rest + np.copysign(y, x), rest), x)
    exact = (abs(quotient) < 2.0 ** (np.finfo(dtype).nmant + 1)) & (abs(y) < np.inf)
    return program.noted(mended(FMOD, dtype), [x, y, np.where(exact, rest, dtype.type(np.nan))], dtype)


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


class Program:
    """The steps of a function for operands of certain dtypes. Half floats are steps in float32, rounded at the end."""

    def __init__(self, function: Callable[..., Any], kinds: tuple[Any, ...]) -> None:
        self._function, self._given = function, kinds
        self._kinds = [*kinds]  # a number's becomes the dtype of what it meets
        numbers = {i for i, kind in enumerate(kinds) if isinstance(kind, type)}
        self._steps: list[ProgramStep] = []
        self._flags = ""
        self._halves: set[int] = set()  # slots of float32 that a bfloat16 holds, which need no rounding
        inputs = [k[0] if isinstance(k, tuple) else Traced(self, i, k) for i, k in enumerate(kinds)]
        floats = {k for k in kinds if isinstance(k, np.dtype) and (is_half(k) or k.kind == "f")}
        wide = {i: self.cast(x, FLOAT32) for i, x in enumerate(inputs) if kinds[i] in floats and is_half(kinds[i])}
        result = function(*(wide.get(i, x) for i, x in enumerate(inputs)))
        names_dtype = any(isinstance(k, tuple) and isinstance(k[0], np.dtype | type) for k in kinds)
        if len(floats) == 1 and not names_dtype and isinstance(result, Traced) and result.dtype == FLOAT32:
            result = self.cast(result, *floats)
        if isinstance(result, Traced) and not self._steps:
            result = self.noted("bitcast {t} {0} to {r}", [result], result.dtype)
        if not isinstance(result, Traced) or result.slot != self._steps[-1].result.slot:
            raise NoProgramError
        self.result: np.dtype[Any] = result.dtype
        self.work: int = MEMORY + sum(CALL if isinstance(step.code, Loop) else 1 for step in self._steps)
        used = {x.slot for step in self._steps for x in step.takes if isinstance(x, Value)}
        self._inputs = [i for i in range(len(kinds)) if i in used]
        self._codes: dict[frozenset[int], Code] = {}
        self.code: Code = self._code_for(frozenset(numbers))

    def _code_for(self, repeated: frozenset[int]) -> Code:
        """The loop where these inputs are one value in each call."""
        if repeated not in self._codes:
            operands = [Value(i, self._kinds[i]) for i in self._inputs]
            self._codes[repeated] = compiled(operands, self._steps, set(repeated), WORTH // self.work)
        return self._codes[repeated]

    def converted(self, x: Any, dtype: np.dtype[Any]) -> Any:
        """x as an operand of this dtype, a constant as NumPy's scalar."""
        if not _is_known(dtype):
            raise NoProgramError
        if not isinstance(x, Traced):
            return np.asarray(x, dtype)[()]
        if isinstance(x.dtype, type):  # a number: it takes the dtype of the first step that it meets
            known = self._kinds[x.slot]
            if not isinstance(known, type) and known != dtype:
                raise NoProgramError
            self._kinds[x.slot] = dtype
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
        self._steps.append(ProgramStep(code, takes, Value(len(self._kinds) + len(self._steps), dtype)))
        if code in _KEEPS_HALVES and all(map(self._is_half, takes)):
            self._halves.add(self._steps[-1].result.slot)
        return Traced(self, self._steps[-1].result.slot, dtype)

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

    @functools.cached_property
    def ufunc(self) -> Callable[..., Any]:
        """The program as a function of NumPy's, of its inputs. For NumPy numbers must have their dtypes."""
        names = [f"x{i}" for i in range(len(self._given))]
        given = [f"(number({x}, {x}_dtype) if {x} else np.array({x}, {x}_dtype))" for x in names]  # -0.0 equals 0
        given = [given[i] if isinstance(self._given[i], type) else names[i] for i in self._inputs]
        known: dict[str, Any] = {f"x{i}_dtype": self._kinds[i] for i in self._inputs}
        ufunc = ufunc_of(self.code, [*known.values(), self.result])
        known |= {"number": number, "np": np, "function": self._function, "ufunc": ufunc, "call": ufunc}
        if given != names:
            exec(_CALL.format(names=", ".join(names), given=", ".join(given)), known)
        return known["call"]

    def run(self, inputs: tuple[Any, ...], out: np.ndarray | None = None) -> np.ndarray:
        """The result for inputs that broadcast, in ``out``, or in a new array; by all threads."""
        given, made = [(inputs[i], self._kinds[i]) for i in self._inputs], number.__wrapped__
        arrays: Any = [x if isinstance(x, ARRAY) else constant(made(x, dtype)) for x, dtype in given]
        if out is None:
            out = np.empty_like(_like(*[(x.shape, x.strides) for x in arrays]), self.result)
        elif out.dtype != self.result or np.broadcast(out, *arrays).shape != out.shape:
            raise ValueError("the result does not fit")  # NumPy will say how
        arrays.append(out)
        layout, repeated = layout_of(*[(x.shape, x.strides) for x in arrays])
        tasks = shares(out.size * self.work, TASK)
        data = self._code_for(frozenset([self._inputs[k] for k in repeated])).data
        over_tables.launch(None, tasks, data, constant(np.array([PIECE, *layout, *addresses_of(arrays)], np.int64)))
        known_by_address(arrays)
        return out


_CALL = """def call({names}, *out):
    try:
        return np.asarray(ufunc({given}, *out))
    except OverflowError:  # a number that its dtype has not: NumPy compares with it, or says so
        return function({names}, *out)
"""


@functools.lru_cache(1024)
@quiet  # one that is infinite to the dtype
def number(x: Any, dtype: np.dtype[Any]) -> np.ndarray:
    return np.array(x, dtype)


_CONVERSIONS: dict[str, tuple[str, str, str]] = {  # by the kinds, into a shorter, an equal and a longer dtype
    "ff": ("fptrunc", "", "fpext"), "if": ("sitofp",) * 3, "uf": ("uitofp",) * 3, "bf": ("uitofp",) * 3,
    "ii": ("trunc", "bitcast", "sext"), "iu": ("trunc", "bitcast", "sext"), "bi": ("zext",) * 3, "bu": ("zext",) * 3,
    "uu": ("trunc", "bitcast", "zext"), "ui": ("trunc", "bitcast", "zext"), "fi": ("fptosi",) * 3,
}  # fmt: skip


@functools.lru_cache(4096)
def _like(*operands: tuple[tuple[int, ...], tuple[int, ...]]) -> np.ndarray:
    """An array, without its memory, in NumPy's order of a result for operands of these shapes and strides."""
    arrays: Any = [*(as_strided(ZERO, *one) for one in operands), None]
    flags: Any = [*[["readonly"]] * len(operands), ["writeonly", "allocate"]]
    made: Any = np.nditer(arrays, [], flags).operands[-1]
    return as_strided(ZERO, made.shape, made.strides)


@functools.lru_cache(4096)
def layout_of(*operands: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """Of operands' shapes and strides how many dimensions there are, and of each the size and the strides; and where
    the last dimension's stride is 0. The last operand, the result, has the order.

    Neighbours that are as one are one. The last dimension is a row; before it comes that in which rows of the first
    operand are nearest.
    """
    steps = ([0] * (len(operands[-1][0]) - len(ns)) + [s * (n > 1) for n, s in zip(ns, at)] for ns, at in operands)
    dims: list[tuple[int, ...]] = []
    for n, *strides in sorted(zip(operands[-1][0], *steps), key=lambda dim: -abs(dim[-1])):
        if dims and dims[-1][1:] == tuple([n * stride for stride in strides]):
            dims[-1] = (dims[-1][0] * n, *strides)
        elif n > 1:
            dims.append((n, *strides))
    one = (1,) * (1 + len(operands))
    row = dims.pop() if dims else one
    above = min(dims, key=lambda dim: abs(dim[1]), default=one)
    dims = [*(dim for dim in dims if dim is not above), above, row]
    return [len(dims), *sum(dims, ())], [k for k, stride in enumerate(row[1:-1]) if not stride]


class Formula(dict[Any, Any]):
    """A function of arrays and numbers, computed by its program: by the kinds of its inputs the program, None where
    there can be none, and what computes few elements.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __missing__(self, kinds: tuple[Any, ...]) -> Any:
        program, few = None, self._function
        with contextlib.suppress(NoProgramError, OverflowError):  # a number that its dtype has not
            program = Program(few, kinds)
            few = program.ufunc
        return self.setdefault(kinds, (program, few))

    def program_for(self, *inputs: Any) -> Program | None:
        """The program for inputs of these kinds, None where there can be none."""
        return self[tuple(map(_kind, inputs))][0]

    def __call__(self, *inputs: Any) -> Any:
        """The result, by as many threads as its size is worth."""
        if any([isinstance(x, ARRAY) and x.size >= FEW for x in inputs]):
            return self.of_many(*inputs)
        return self[tuple([x.dtype if isinstance(x, ARRAY) else _kind(x) for x in inputs])][1](*inputs)

    def of_many(self, *inputs: Any, out: np.ndarray | None = None, worth: int = WORTH) -> Any:
        """The result, in ``out`` if it is given; by all threads for ``worth`` elements times work or more."""
        program, few = self[tuple(map(_kind, inputs))]
        arrays = [x for x in inputs if isinstance(x, ARRAY)]
        if out is not None:
            if any([x is not out and np.may_share_memory(x, out) for x in arrays]):
                out[...] = self.of_many(*inputs, worth=worth)  # NumPy takes care for one thread only
                return out
            arrays.append(out)
        if program is not None and arrays:
            shape = arrays[0].shape
            is_one_row = all([x.shape == shape and x.flags.num & ONE_ROW == ONE_ROW for x in arrays])
            if not is_one_row or recording.launches is not None or LAYER == "workqueue":
                with contextlib.suppress(ValueError, OverflowError, TypeError):  # NumPy will say what does not fit
                    size = np.broadcast(*arrays).size
                    if size > 1 and size * program.work >= worth and all([x.flags.aligned for x in arrays]):
                        return program.run(inputs, out)
        return few(*inputs) if out is None else few(*inputs, out)


def formula(function: Callable[..., Any], inputs: int | None = None) -> Callable[..., Any]:
    """The function, computed by its program, by the sizes of one or two ``inputs``, quickly; 0: of any number."""
    made = Formula(function)
    plain = inspect.unwrap(function)
    if inputs is None:
        inputs = plain.nin if isinstance(plain, np.ufunc) else plain.__code__.co_argcount
    many = made.of_many

    def of_one(x: Any) -> Any:
        return many(x) if x.size >= FEW else made[x.dtype,][1](x)

    def of_two(x: Any, y: Any) -> Any:
        n, m = getattr(x, "size", 0), getattr(y, "size", 0)
        if n < FEW and m < FEW and (n * m <= PAIRS or x.shape == y.shape or x.shape[x.ndim - y.ndim :] == y.shape):
            kinds = x.dtype if isinstance(x, ARRAY) else _kind(x), y.dtype if isinstance(y, ARRAY) else _kind(y)
            return made[kinds][1](x, y)
        return many(x, y)

    by_inputs: dict[int, Callable[..., Any]] = {1: of_one, 2: of_two}
    wrapped: Any = functools.update_wrapper(by_inputs.get(inputs, made), function)

    def into(out: np.ndarray, *inputs: Any, worth: int = WORTH) -> Any:
        program, few = made[tuple([x.dtype if isinstance(x, ARRAY) else _kind(x) for x in inputs])]
        if program is not None and program.result == out.dtype:
            is_few = out.size < worth // program.work
            try:
                return few(*inputs, out) if is_few else many(*inputs, out=out, worth=worth)
            except (ValueError, OverflowError, TypeError):
                pass  # the function will say what is wrong
        return None

    wrapped.into, wrapped.of_few = into, lambda *inputs: (made[tuple(map(_kind, inputs))][1], FEW)
    return for_graphs(wrapped, made.program_for, functools.partial(made.of_many, worth=0))


def for_graphs(function: Any, prepare: Callable[..., Any], at_any_size: Callable[..., Any]) -> Any:
    """``function``, in whose place a graph calls ``prepare`` and ``at_any_size``: launches are better than calls."""
    function.prepare, function.at_any_size = prepare, at_any_size
    return function


def as_launches(function: Any) -> Any:
    """The function within a kernel: as launches, if these are being noted."""
    return function if recording.launches is None else function.at_any_size


def written(out: np.ndarray, of: Any, *inputs: Any) -> bool:
    """Whether the result of a formula, of the shape and dtype of ``out``, is there; else nothing is done."""
    worth = WORTH if recording.launches is None else 0
    return of.into(out, *inputs, worth=worth) is not None


def writer(plain: Callable[..., None], of: Any, inputs: Callable[..., tuple[Any, ...]]) -> Callable[..., None]:
    """The plain function of x and y, which changes x, by a formula of ``inputs(x, y)``."""

    def write(x: np.ndarray, y: Any) -> None:
        if not written(x, of, *inputs(x, y)):
            plain(x, y)

    return for_graphs(write, lambda x, y: of.prepare(*inputs(x, y)), write)


def formulas(family: type, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The functions of a plain family by name, each as ``formula``; not those named in ``without``."""
    names = [name for name in vars(family) if not name.startswith("_") and name not in without]
    return {name: formula(getattr(family, name)) for name in names}
