"""Elementwise functions of NumPy arrays, run on parts that stay in cache, by all threads.

NumPy computes ``np.where(x > 0, x, slope * x)`` in three passes over memory, in one thread. Here the function is called
once with stand-ins (``Traced``) that note each step, and the steps become a *program*. Its kernel goes through the
arrays by CHUNK elements, and runs all steps on a chunk, before the next, by the loops of ``numpy_loops.py``:

    chunk of x ──> greater ──> mask ─┐
       │                             ├─> where ──> chunk of the result
       └─────> multiply ─> product ──┘

So the plain kernel's formula is the only one, its results are NumPy's own bits, and nothing is compiled for it. A
function that asks for a value (``if x.any()``), or takes what has no loop, has no program and runs as it is. NumPy's
warnings (of overflow in a sum, say) come with small arrays only.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from .multi_tensor import address_of, addresses_of
from .numpy_loops import MODULO, Loop, call_loop, cast_loop, fill, numpy_loop, where_loop
from .register_tile import keep_alive
from .threads import constant, get_num_threads, task_kernel, tasks_of

CHUNK = 1024  # elements: the operands of some steps fit into the first cache
LONG_CHUNK = 8192  # of a program of one step, which uses none of them again
FEW = 8192  # elements of an array that NumPy computes faster than a program starts
NEVER = 1 << 62
REPEATS = {np.maximum, np.minimum, *MODULO}  # have loops of vectors for arrays only
WORTH = 65536  # elements times steps, from which on a program is faster
TASK = 32768  # elements times steps of a task, about
MOST_ARGS = 4
BOOL = np.dtype(bool)


class NoProgramError(Exception):
    """The function cannot be noted down as steps."""


class Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array, or a number (a ``kind`` of int or float), while a program is made; knows its dtype only."""

    def __init__(self, program: Program, slot: int, dtype: Any) -> None:
        self.program: Program = program
        self.slot: int = slot
        self.dtype: Any = dtype

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Traced:
        dtype = options.pop("dtype", None)
        if method != "__call__" or options or ufunc.nout != 1:
            raise NoProgramError
        signature: dict[str, Any] = {} if dtype is None else {"signature": (dtype,) * ufunc.nargs}
        kinds = (*(x.dtype if isinstance(x, Traced) else _kind(x) for x in inputs), None)
        try:
            dtypes = ufunc.resolve_dtypes(kinds, **signature)
        except TypeError as error:  # there is none for these, as NumPy will say
            raise NoProgramError from error
        return self.program.step(numpy_loop(ufunc, dtypes), dtypes, inputs, repeats=ufunc in REPEATS)

    def __array_function__(self, function: Any, _: Any, args: Any, options: Any) -> Any:
        if function is np.result_type:
            return np.result_type(*(_example(x) for x in args))
        if function is not np.where or len(args) != 3 or options:
            raise NoProgramError
        dtype = np.result_type(*(_example(x) for x in args[1:]))
        return self.program.step(where_loop(dtype), (BOOL, dtype, dtype, dtype), args, repeats=True)

    def astype(self, dtype: np.dtype[Any]) -> Traced:
        """A step that converts."""
        return self.program.step(cast_loop(self.dtype, dtype), (self.dtype, dtype), (self,), repeats=False)

    def __bool__(self) -> bool:
        raise NoProgramError

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("_") else NoProgramError


def _kind(x: Any) -> Any:
    return getattr(x, "dtype", None) or (BOOL if isinstance(x, bool) else type(x))


def _example(x: Any) -> Any:
    """What np.result_type takes for x: Python's numbers adapt to the dtypes of the others."""
    kind = x.dtype if isinstance(x, Traced) else _kind(x)
    if isinstance(kind, type) and kind not in (int, float):
        raise NoProgramError
    return kind(0) if isinstance(kind, type) else kind


class Program:
    """The steps of a function for operands of certain dtypes."""

    def __init__(self, function: Callable[..., Any], kinds: tuple[Any, ...]) -> None:
        self._dtypes: list[Any] = list(kinds)  # of each slot: first the inputs, constants and results after them
        self._constants: dict[int, Any] = {}
        self._steps: list[tuple[Loop, list[int]]] = []
        self._repeated: set[int] = set()  # slots that must be vectors, should they be numbers
        traced = [k if k is None else Traced(self, i, k) for i, k in enumerate(kinds)]
        result = function(*traced)
        if not isinstance(result, Traced) or not self._steps or result.slot != self._steps[-1][1][-1]:
            raise NoProgramError
        self.result: np.dtype[Any] = result.dtype
        self.steps: int = len(self._steps)
        self._inputs = [i for i, k in enumerate(kinds) if k is not None and any(i in slots for _, slots in self._steps)]
        self._assign_places()

    def step(
        self, loop: Loop | None, dtypes: tuple[np.dtype[Any], ...], inputs: tuple[Any, ...], repeats: bool
    ) -> Traced:
        """Note a step, and before it conversions of its inputs to what the loop takes.

        ``repeats``: it has numbers repeated in a vector; others have them at stride 0, which is faster for them.
        """
        if loop is None:
            raise NoProgramError
        slots = [self._converted(x, dtype) for x, dtype in zip(inputs, dtypes, strict=False)]
        if repeats:
            self._repeated.update(slots)
        return self._noted(loop, slots, dtypes[-1])

    def _noted(self, loop: Loop, slots: list[int], dtype: np.dtype[Any]) -> Traced:
        self._dtypes.append(dtype)
        self._steps.append((loop, [*slots, len(self._dtypes) - 1]))
        return Traced(self, len(self._dtypes) - 1, dtype)

    def _converted(self, x: Any, dtype: np.dtype[Any]) -> int:
        if not isinstance(x, Traced):
            self._dtypes.append(dtype)
            self._constants[len(self._dtypes) - 1] = np.asarray(x, dtype)
            return len(self._dtypes) - 1
        if isinstance(x.dtype, type):  # a number: it takes the dtype of the first loop that it meets
            known = self._dtypes[x.slot]
            if not isinstance(known, type) and known != dtype:
                raise NoProgramError
            self._dtypes[x.slot] = dtype
        elif x.dtype != dtype:
            loop = cast_loop(x.dtype, dtype)
            if loop is None:
                raise NoProgramError
            return self._noted(loop, [x.slot], dtype).slot
        return x.slot

    def _assign_places(self) -> None:
        """Operands keep a place each (inputs, constants, the result), temporaries share those that are free again."""
        last = {slot: i for i, (_, slots) in enumerate(self._steps) for slot in slots}
        result = self._steps[-1][1][-1]
        operands = [*self._inputs, *self._constants, result]
        place = {slot: i for i, slot in enumerate(operands)}
        free: list[int] = []
        self._places = len(operands)
        table = np.full((len(self._steps), 2 + 2 * MOST_ARGS), -1, np.int64)
        for i, (loop, slots) in enumerate(self._steps):
            if slots[-1] not in place:
                if not free:
                    free.append(self._places)
                    self._places += 1
                place[slots[-1]] = free.pop()
            table[i, :2] = loop
            for j, slot in enumerate(slots):
                table[i, 2 + 2 * j : 4 + 2 * j] = place[slot], self._dtypes[slot].itemsize
            free += {place[slot] for slot in slots if last[slot] == i and slot not in operands}
        self._table = table
        self._repeats = [self._dtypes[slot].itemsize if slot in self._repeated else 0 for slot in operands]
        values = self._constants.values()
        self._constant_rows = [*zip(addresses_of(values), self._repeats[len(self._inputs) : -1])]

    def run(self, inputs: tuple[Any, ...], out: np.ndarray | None = None) -> np.ndarray:
        """The result for inputs of the program's dtypes that broadcast, in ``out``, or in a new array."""
        operands = [inputs[i] for i in self._inputs]
        arrays = [x for x in operands if isinstance(x, np.ndarray) and x.ndim]
        shape, longest = arrays[0].shape, 0
        if not all([x.shape == shape for x in arrays]):
            shape = max([x.shape for x in arrays], key=lambda shape: (math.prod(shape), len(shape)))
            longest = max([x.size for x in arrays if x.shape != shape])  # of rows that repeat, if they are no columns
        chunk = LONG_CHUNK if self.steps == 1 else CHUNK
        flat = out is None and 2 * longest <= CHUNK and all([x.flags.c_contiguous for x in arrays])
        if flat and (not longest or all([x.shape == shape[len(shape) - x.ndim :] for x in arrays])):
            chunk -= longest and chunk % longest
            out = np.empty(shape, self.result)
            views: Any = [*arrays, out]
            layout: Any = [(0, x.itemsize) if x.shape == shape else (x.itemsize, x.size) for x in views]
            shape = (out.size,)
        else:
            flags: Any = [["readonly"]] * len(arrays) + [["writeonly", "allocate"]]
            walk = np.nditer([*arrays, out], ["external_loop"], flags, [*(x.dtype for x in arrays), self.result])
            out, views = walk.operands[-1], list(walk.itviews)
            shape, layout = views[0].shape, [(0, *x.strides) for x in views]
        size, rest = out.size, (0,) * len(shape)
        rows = zip(addresses_of(views), layout)
        table = [2 + len(shape), chunk, *shape]
        for i, x in enumerate(operands):
            if isinstance(x, np.ndarray) and x.ndim:
                address, place = next(rows)
                table += (address, *place)
            else:
                operands[i] = self._number(x, i)
                table += (address_of(operands[i]), self._repeats[i], *rest)
        for row in self._constant_rows:
            table += (*row, *rest)
        ((address, place),) = rows
        table += (address, *place)
        threads = get_num_threads()
        tasks = 1
        if size > chunk:
            parts = size // shape[-1] * -(-shape[-1] // chunk)
            tasks = min(parts, threads * max(1, size * self.steps // (TASK * threads)))
        _run.launch(None, tasks, self._table, constant(np.array(table, np.int64)), self._places)
        return out

    def _number(self, x: Any, i: int) -> np.ndarray:
        if isinstance(x, np.ndarray):
            return x
        with np.errstate(all="ignore"):  # a number that is infinite to the dtype
            return constant(np.array(x, self._dtypes[self._inputs[i]]))


@task_kernel
def _run(task, tasks, steps, table, places):
    width, chunk = table[0], table[1]
    dims, operands = width - 2, table.shape[0] // width - 1
    shape, table = table[2:width], table[width:].reshape(operands, width)
    inner = shape[dims - 1]
    chunk = min(chunk, (inner + 63) // 64 * 64)
    chunks = (inner + chunk - 1) // chunk  # of a row
    rows = 1
    for d in range(dims - 1):
        rows *= shape[d]
    memory = np.empty(places * chunk * 8 + 64, np.uint8)
    address, stride = np.empty(places, np.int64), np.empty(operands, np.int64)
    args, strides, count = np.empty(MOST_ARGS, np.int64), np.empty(MOST_ARGS, np.int64), np.empty(1, np.int64)
    for k in range(places):
        address[k] = (memory.ctypes.data + 63) // 64 * 64 + k * chunk * 8
    for k in range(operands):
        size = table[k, 1]
        stride[k] = size if size else table[k, dims + 1]
        if size:  # a vector of one number or row, again and again: for stride 0 and short rows NumPy's loops are slow
            fill(address[k], table[k, 0], size, max(1, table[k, dims + 1]), min(chunk, inner))
    for part in range(task * rows * chunks // tasks, (task + 1) * rows * chunks // tasks):
        row = part // chunks
        first = (part - row * chunks) * chunk
        count[0] = min(chunk, inner - first)
        for k in range(operands):
            if table[k, 1] == 0:
                address[k] = table[k, 0] + first * stride[k]
        for d in range(dims - 2, -1, -1):
            above = row // shape[d]
            for k in range(operands):
                if table[k, 1] == 0:
                    address[k] += (row - above * shape[d]) * table[k, 2 + d]
            row = above
        for s in range(steps.shape[0]):
            for a in range(MOST_ARGS):
                place = steps[s, 2 + 2 * a]
                if place >= 0:
                    args[a] = address[place]
                    strides[a] = stride[place] if place < operands else steps[s, 3 + 2 * a]
            call_loop(steps[s, 0], steps[s, 1], args.ctypes.data, count.ctypes.data, strides.ctypes.data)
    keep_alive((memory, args, strides, count))


def _plainly_laid_out(x: np.ndarray) -> bool:
    """Whether loops run over it as NumPy's would: those of reversed or unaligned arrays work on copies."""
    return x.flags.carray or (x.flags.aligned and min(x.strides, default=0) >= 0)


class Chunked:
    """A function of arrays and numbers, computed by its program where its arrays are large."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._programs: dict[Any, Program | None] = {}

    def program_for(self, *inputs: Any) -> Program | None:
        """The program for inputs of these kinds, None where there can be none."""
        kinds = tuple(None if x is None else _kind(x) for x in inputs)
        if kinds not in self._programs:
            self._programs[kinds] = self._program(kinds)
        return self._programs[kinds]

    def __call__(self, *inputs: Any, out: np.ndarray | None = None, worth: int = WORTH) -> Any:
        """The result, in ``out`` if it is given; by the program for ``worth`` elements of steps or more."""
        arrays = [x for x in inputs if isinstance(x, np.ndarray)]
        program = self.program_for(*inputs)
        if program is not None and arrays and all([_plainly_laid_out(x) for x in arrays]):
            with contextlib.suppress(ValueError, OverflowError, TypeError):  # NumPy will say what does not fit
                size = arrays[0].size
                if any([x.shape != arrays[0].shape for x in arrays]):
                    size = np.broadcast(*arrays).size
                if size > 1 and size * program.steps >= (2 * worth if program.steps == 1 else worth):
                    return program.run(inputs, out)
        return self.function(*inputs) if out is None else self.function(*inputs, out)

    def _program(self, kinds: tuple[Any, ...]) -> Program | None:
        try:
            return Program(self.function, kinds)
        except NoProgramError:
            return None


def chunked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which looks no further than at the sizes of small arrays."""
    if numba.config.DISABLE_JIT:
        return function
    large = Chunked(function)
    plain = inspect.unwrap(function)
    inputs = plain.nin if isinstance(plain, np.ufunc) else plain.__code__.co_argcount

    def of_one(x: Any) -> Any:
        return function(x) if getattr(x, "size", 0) < FEW else large(x)

    def of_two(x: Any, y: Any) -> Any:
        n, m = getattr(x, "size", 0), getattr(y, "size", 0)
        if n < FEW and m < FEW and (n * m < WORTH or x.shape[x.ndim - y.ndim :] == y.shape):
            return function(x, y)
        return large(x, y)

    def of_several(*inputs: Any) -> Any:
        if all(getattr(x, "size", 0) < FEW for x in inputs):
            return function(*inputs)
        return large(*inputs)

    by_inputs: dict[int, Callable[..., Any]] = {1: of_one, 2: of_two}
    wrapped = functools.update_wrapper(by_inputs.get(inputs, of_several), function)
    return for_graphs(wrapped, large.program_for, functools.partial(large, worth=2))


def for_graphs(function: Any, prepare: Callable[..., Any], at_any_size: Callable[..., Any]) -> Any:
    """``function``, in whose place a graph calls ``prepare`` and ``at_any_size``: launches are better than calls."""
    function.prepare, function.at_any_size = prepare, at_any_size
    return function


def into_first(function: np.ufunc) -> Callable[[np.ndarray, Any], None]:
    """The function whose result goes into its first input."""
    large = Chunked(function)

    def into(x: np.ndarray, y: Any) -> None:
        if x.size < FEW or np.may_share_memory(x, y) or numba.config.DISABLE_JIT:
            function(x, y, x)  # the name ``out`` would cost a tenth of a microsecond
        else:
            large(x, y, out=x)

    def at_any_size(x: np.ndarray, y: Any) -> None:
        large(x, y, out=x, worth=NEVER if np.may_share_memory(x, y) else 1)

    return for_graphs(into, large.program_for, at_any_size)


@task_kernel
def _clear(task, tasks, y):
    y[task * y.size // tasks : (task + 1) * y.size // tasks] = 0


def clear(y: np.ndarray) -> None:
    """Zeros in a contiguous array, as a launch."""
    bytes_ = y.reshape(-1).view(np.uint8)
    _clear.launch(None, tasks_of(bytes_.size, 4 * TASK), bytes_)


def in_chunks(family: type, without: tuple[str, ...] = ()) -> dict[str, Callable[..., Any]]:
    """The functions of a plain family by name, each as ``chunked``; not those named in ``without``."""
    names = [name for name in vars(family) if not name.startswith("_") and name not in without]
    return {name: chunked(getattr(family, name)) for name in names}
