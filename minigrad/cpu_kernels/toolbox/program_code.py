"""Machine code for a program's steps: loops over vectors, in which the steps' results stay in registers.

Neighbouring steps that are instructions become one function in LLVM's language, which goes through a chunk of elements
by vectors of LANES. A step without instructions here (float64's logarithm) is a call of NumPy's own loop, on chunks.
What leads through the operands, by chunks, is one kernel for all programs, ``drive``:

    for each chunk:
        operands that are not contiguous  ->  buffers (one value that repeats: once)
        functions and loops, one after the other
        the result's buffer  ->  the result, if that is not contiguous

What is left at the end, less than a vector, goes through the buffers, too. A program's entry has the signature of
NumPy's loops (``PyUFuncGenericFunction``), so that it can be that of a ufunc.
"""

import ctypes
import functools
import hashlib
import platform
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.np.ufunc._internal import fromfunc

from ..memory.numpy_allocator import numpys
from .jit import CACHE_DIRECTORY, emits, inline, kernel, read_entry, write_entry
from .numpy_loops import Loop, array_at
from .register_tile import VECTOR_BYTES, keep_alive
from .threads import INT64, call_at, compiled_address, emit_call, lasting_words, run_within, start, task_kernel

LANES = VECTOR_BYTES // 2  # two vectors of float32
LINE = 64  # elements, of which threads get multiples
HEADER = 8  # words of ``data``: drive, operands, places, calls, `least`, run_within, _start, over_tables
CHUNK = 512  # elements: the buffers of a few operands fit into the first cache
IS_ARM = platform.machine().lower() in ("arm64", "aarch64")
ALL_EXCEPTIONS = 0x1F if IS_ARM else 0x3D  # FE_ALL_EXCEPT of <fenv.h>
UINT16 = np.dtype(np.uint16)
_WORDS, _ODD = f"<{2 * LANES} x i16>", ", ".join(f"i32 {2 * i + 1}" for i in range(LANES))
UPPER = f"bitcast {{t}} {{0}} to {_WORDS}", f"shufflevector {_WORDS} {{0}}, {_WORDS} poison, <{LANES} x i32> <{_ODD}>"
_FLOATS = {"f": ("float", "f32"), "d": ("double", "f64"), "e": ("half", "f16")}


class Value(NamedTuple):
    """What steps take and give. The inputs have the first slots, then come the steps' results in their order."""

    slot: int
    dtype: np.dtype[Any]


class ProgramStep(NamedTuple):
    """An instruction of LLVM's or a loop, what it takes (Values; the former also NumPy's scalars), and its result."""

    code: str | Loop
    takes: tuple[Any, ...]
    result: Value


# Vectors, in LLVM's language -----------------------------------------------------------------------------------------


def _element(dtype: np.dtype[Any]) -> str:
    """LLVM's type of an element in memory; bfloat16 is an integer to it."""
    return _FLOATS[dtype.char][0] if dtype.char in _FLOATS else f"i{8 * dtype.itemsize}"


def _vector(dtype: np.dtype[Any]) -> str:
    """LLVM's type of a vector of values; those of bool are bits."""
    return f"<{LANES} x {'i1' if dtype.char == '?' else _element(dtype)}>"


def _literal(x: Any) -> str:
    """A vector of one number."""
    kind = "i1" if x.dtype.char == "?" else _element(x.dtype)
    if x.dtype.kind == "f":
        half = x.dtype.char == "e"
        text = f"0xH{int(x.view(np.uint16)):04X}" if half else f"0x{int(np.float64(x).view(np.uint64)):016X}"
    else:
        text = str(int(x) if x.dtype.kind != "V" else int(x.view(np.uint16)))
    return f"<{', '.join([f'{kind} {text}'] * LANES)}>"


class _Segment:
    """Neighbouring steps that are instructions, as the loop ``segment<k>`` whose ``args`` are all places."""

    def __init__(
        self, k: int, steps: list[ProgramStep], places: dict[int, int], numbers: set[int], intrinsics: set[str]
    ) -> None:
        self._places, self._numbers = places, numbers
        self._begin: list[str] = []
        self._row: list[str] = []
        self._lines: list[str] = []
        self._names: dict[int, str] = {}
        for code, takes, result in steps:
            given, target = takes[0].dtype, _vector(result.dtype)
            short = f"v{LANES}{_FLOATS.get(given.char, ('', ''))[1]}"
            read = [self._read(x) for x in takes]
            text = str(code).format(*read, t=_vector(given), r=target, short=short, bits=f"<{LANES} x i1>")
            if "@llvm." in text:
                name = text[text.index("@") : text.index("(")]
                intrinsics.add(f"declare {target} {name}({', '.join([target] * len(takes))})")
            self._names[result.slot] = f"%v{result.slot}"
            self._lines.append(f"%v{result.slot} = {text}")
            if result.slot in places:
                self._write(result)
        begin, row, body = ("\n  ".join(lines) for lines in (self._begin, self._row, self._lines))
        self.text: str = f"""
define void @segment{k}(ptr %places, ptr %n, ptr %strides, i64 %rows) {{
entry:
  %elements = load i64, ptr %n
  {begin}
  br label %row
row:
  %r = phi i64 [0, %entry], [%next_row, %end_of_row]
  {row}
  br label %vector
vector:
  %i = phi i64 [0, %row], [%next, %vector]
  {body}
  %next = add i64 %i, {LANES}
  %more = icmp slt i64 %next, %elements
  br i1 %more, label %vector, label %end_of_row
end_of_row:
  %next_row = add i64 %r, 1
  %more_rows = icmp slt i64 %next_row, %rows
  br i1 %more_rows, label %row, label %end
end:
  ret void
}}"""

    def _at(self, x: Value) -> str:
        """A pointer to the vector of an operand, or of what another segment takes."""
        for kind, array, name in (("ptr", "places", "base"), ("i64", "strides", "step")):
            self._begin += [f"%{name}_at{x.slot} = getelementptr {kind}, ptr %{array}, i64 {self._places[x.slot]}",
                            f"%{name}{x.slot} = load {kind}, ptr %{name}_at{x.slot}"]  # fmt: skip
        self._row += [f"%skip{x.slot} = mul i64 %r, %step{x.slot}",
                      f"%place{x.slot} = getelementptr i8, ptr %base{x.slot}, i64 %skip{x.slot}"]  # fmt: skip
        if x.slot in self._numbers:
            one = f"<1 x {_element(x.dtype)}>"
            splat = f"shufflevector {one} %one{x.slot}, {one} poison, <{LANES} x i32> zeroinitializer"
            self._row += [f"%one{x.slot} = load {one}, ptr %place{x.slot}, align 1", f"%v{x.slot} = {splat}"]
            return ""
        self._lines.append(f"%here{x.slot} = getelementptr {_element(x.dtype)}, ptr %place{x.slot}, i64 %i")
        return f"ptr %here{x.slot}, align 1"

    def _read(self, x: Any) -> str:
        if not isinstance(x, Value):
            return _literal(x)
        if x.slot not in self._names:
            at, memory = self._at(x), f"<{LANES} x {_element(x.dtype)}>"
            self._lines += [f"%v{x.slot} = load {memory}, {at}"] if at else []
            self._names[x.slot] = f"%v{x.slot}"
            if x.dtype.char == "?":
                self._lines.append(f"%bits{x.slot} = icmp ne {memory} %v{x.slot}, zeroinitializer")
                self._names[x.slot] = f"%bits{x.slot}"
        return self._names[x.slot]

    def _write(self, x: Value) -> None:
        name, memory = self._names[x.slot], f"<{LANES} x {_element(x.dtype)}>"
        if x.dtype.char == "?":
            self._lines.append(f"%byte{x.slot} = zext {_vector(x.dtype)} {name} to {memory}")
            name = f"%byte{x.slot}"
        at = self._at(x)
        self._lines.append(f"store {memory} {name}, {at}")


def text_of(inputs: list[Value], steps: list[ProgramStep], numbers: set[int]) -> tuple[str, list[int], list[list[Any]]]:
    """The module, and what ``drive`` has to know: the sizes of places, and of each call its code and places.

    Places are the operands, and results that a loop gives or takes. The size of a number is 0: no loop takes it.
    """
    parts: list[list[ProgramStep]] = []
    for step in steps:
        if isinstance(step.code, Loop) or not parts or isinstance(parts[-1][0].code, Loop):
            parts.append([])
        parts[-1].append(step)
    numbers = numbers - {x.slot for step in steps if isinstance(step.code, Loop) for x in step.takes}
    where = {step.result.slot: k for k, part in enumerate(parts) for step in part}
    kept = {x.slot: x for x in (*inputs, steps[-1].result)}
    for k, step in ((k, step) for k, part in enumerate(parts) for step in part):
        crossing = [x for x in step.takes if isinstance(x, Value) and where.get(x.slot, k) != k]
        kept |= {x.slot: x for x in (*crossing, *([step.result] if isinstance(step.code, Loop) else ()))}
    places = {slot: i for i, slot in enumerate(kept)}
    sizes = [0 if x.slot in numbers else x.dtype.itemsize for x in kept.values()]
    intrinsics = {"declare i32 @feclearexcept(i32)"}
    texts, calls = [], []
    for k, part in enumerate(parts):
        code, takes, result = part[0]
        if isinstance(code, Loop):
            calls.append([code, *(places[x.slot] for x in (*takes, result))])
        else:
            texts.append(_Segment(k, part, places, numbers, intrinsics).text)
            calls.append([f"segment{k}"])
    entry = f"""
define void @ufunc(ptr %args, ptr %n, ptr %strides, ptr %data) {{
  %workspace = alloca [{len(places) * (CHUNK + 1) + 12} x i64], align 64
  %result = alloca ptr
  %error = alloca ptr
  %at_start = getelementptr i64, ptr %data, i64 6
  %start = load ptr, ptr %at_start
  %status = call i32 %start(ptr %result, ptr %error, ptr %args, ptr %n, ptr %strides, ptr %data, ptr %workspace)
  %started = icmp eq i32 %status, 0
  br i1 %started, label %end, label %alone
alone:
  %drive = load ptr, ptr %data
  call i32 %drive(ptr %result, ptr %error, ptr %args, ptr %n, i64 1, ptr %strides, ptr %data, ptr %workspace)
  br label %end
end:
  call i32 @feclearexcept(i32 {ALL_EXCEPTIONS})
  ret void
}}
"""
    return "\n".join([*sorted(intrinsics), *texts, entry]), sizes, calls


# Chunks --------------------------------------------------------------------------------------------------------------

_LOOP: Any = ir.FunctionType(ir.VoidType(), [INT64] * 4)


@emits(lambda address, data, args, n, strides: types.void(*[types.int64] * 5))
def call_loop(context: Any, builder: Any, signature: Any, address: Any, data: Any, *arrays: Any) -> None:
    """In a kernel: call a loop. ``args``, ``n`` and ``strides`` are the addresses of int64 arrays."""
    compiled = builder.icmp_signed("<", data, ir.Constant(INT64, 0))
    with builder.if_else(compiled) as (of_numba, of_numpy):
        with of_numba:
            nothing = ir.Constant(INT64, 0)  # where a compiled loop has the class of its numbers
            emit_call(context, builder, address, (types.int64,) * 5, [*arrays, data, nothing])
        with of_numpy:
            builder.call(builder.inttoptr(address, _LOOP.as_pointer()), [*arrays, data])


@inline
def _copied(y, ys, x, xs, n, kind, wide):
    source, target, size = array_at(x, n, kind), array_at(y, n, kind), array_at(x, 1, kind).itemsize
    if ys == size and xs == size:
        for i in range(n):
            target[i] = source[i]
    elif ys == size and xs == 0:
        target[:] = source[0]
    elif ys == size and xs == array_at(x, 1, wide).itemsize:  # its lower half is the element: vectors are shortened
        pairs, last = array_at(x, n, wide), n - 1
        for i in range(last):
            target[i] = pairs[i]
        target[last] = array_at(x + last * xs, 1, kind)[0]  # behind it there may be no memory
    elif ys == size and xs == -size:
        before = array_at(x + (n - 1) * xs, n, kind)
        for i in range(n):
            target[i] = before[np.uint64(n - 1 - i)]
    else:
        for i in range(n):
            array_at(y + i * ys, 1, kind)[0] = array_at(x + i * xs, 1, kind)[0]


@kernel
def copy_row(y: int, ys: int, x: int, xs: int, n: int, size: int) -> None:
    """n elements of any strides."""
    if size == 1:
        _copied(y, ys, x, xs, n, np.uint8, np.uint16)
    elif size == 2:
        _copied(y, ys, x, xs, n, np.uint16, np.uint32)
    elif size == 4:
        _copied(y, ys, x, xs, n, np.uint32, np.uint64)
    else:
        _copied(y, ys, x, xs, n, np.uint64, np.uint64)


@kernel
def drive(args: int, n: int, rows: int, strides: int, data: int, workspace: int) -> None:
    """The rows of n elements. Behind the strides are those of rows, where there are several; then args changes."""
    header, rest = array_at(data, HEADER, np.int64), data + 8 * HEADER
    operands, count, calls = header[1], header[2], header[3]
    sizes, table = array_at(rest, count, np.int64), array_at(rest + 8 * count, (calls, 8), np.int64)
    bases, steps = array_at(args, operands, np.int64), array_at(strides, operands, np.int64)
    across, places = array_at(strides + 8 * operands, operands, np.int64), array_at(workspace, count, np.int64)
    words = array_at(workspace + 8 * count, (3, 4), np.int64)  # arguments, strides and size of a call
    buffers, out, elements = words.ctypes.data + 96, operands - 1, array_at(n, 1, np.int64)[0]
    for k in range(operands, count):
        places[k] = buffers + 8 * CHUNK * k
    whole = count == operands  # no buffers
    for k in range(operands):
        whole = whole and (sizes[k] == 0 or steps[k] == sizes[k])
    chunk = elements if whole else CHUNK
    if rows > 1 and whole and calls == 1 and table[0, 2] == 0 and elements % LANES == 0:
        call_loop(table[0, 0], rows, args, n, across.ctypes.data)
        return
    for row in range(rows):
        for k in range(operands if row else 0):
            bases[k] += across[k]
        start = 0
        while start < elements:
            size = min(elements - start, chunk)
            full = size >= LANES
            size = size // LANES * LANES if full else size
            for k in range(operands):
                here = bases[k] + start * steps[k]
                direct = sizes[k] == 0 or (full and steps[k] == sizes[k])
                places[k] = here if direct else buffers + 8 * CHUNK * k
                if not (direct or k == out or (steps[k] == 0 and start > 0)):
                    copy_row(places[k], sizes[k], here, steps[k], size, sizes[k])
            words[2, 0] = size
            for c in range(calls):
                for a in range(table[c, 2]):
                    words[0, a], words[1, a] = places[table[c, 3 + a]], sizes[table[c, 3 + a]]
                arguments = words.ctypes.data if table[c, 2] else workspace
                steps_of_call = words.ctypes.data + 32 if table[c, 2] else buffers
                call_loop(table[c, 0], table[c, 1], arguments, words.ctypes.data + 64, steps_of_call)
            if places[out] != bases[out] + start * steps[out]:
                copy_row(bases[out] + start * steps[out], steps[out], places[out], sizes[out], size, sizes[out])
            start += size


@task_kernel
def over_tables(task: int, tasks: int, data: int, table: np.ndarray) -> None:
    """The task's share of each table's elements: a table is that of ``layout_of``, before it the size of a piece of
    rows, behind it the addresses.
    """
    header, start = array_at(data, HEADER, np.int64), 0
    operands = header[1]
    words, count = np.empty((3, operands), np.int64), np.empty(1, np.int64)
    workspace = np.empty(header[2] * (CHUNK + 1) + 12, np.int64)
    while start < table.shape[0]:
        piece, dims, start = table[start], table[start + 1], start + 2
        layout = table[start : start + dims * (operands + 1)].reshape(dims, operands + 1)
        start += layout.size + operands
        columns, rows = layout[dims - 1, 0], layout[dims - 2, 0]
        words[1], words[2] = layout[dims - 1, 1:], layout[dims - 2, 1:]
        pieces, lines = (columns + piece - 1) // piece, rows
        for d in range(dims - 2):
            lines *= layout[d, 0]
        part, end = task * lines * pieces // tasks, (task + 1) * lines * pieces // tasks
        while part < end:
            rest, first = part // pieces, part % pieces * piece
            rest, row = rest // rows, rest % rows
            count[0], some = min(piece, columns - first), min(rows - row, end - part) if pieces == 1 else 1
            for k in range(operands):
                words[0, k] = table[start - operands + k] + first * words[1, k] + row * words[2, k]
            for d in range(dims - 3, -1, -1):
                rest, at = rest // layout[d, 0], rest % layout[d, 0]
                for k in range(operands):
                    words[0, k] += at * layout[d, 1 + k]
            given = words.ctypes.data, count.ctypes.data, some, words[1].ctypes.data, data, workspace.ctypes.data
            call_at(header[0], given)
            part += some
    keep_alive((words, count, workspace))


_threads = types.ExternalFunction("get_num_threads", types.int32())  # Numba's, but its address would not be kept


@kernel
def _start(args, n, strides, data, workspace):
    """The loop, on parts by all threads for much. It fails before it begins, if there is no memory for the launch."""
    header, elements = array_at(data, HEADER, np.int64), array_at(n, 1, np.int64)[0]
    operands, run = header[1], array_at(header[5], 1, np.int64)[0]
    if elements < header[4] or run == 0:
        call_at(header[0], (args, n, np.int64(1), strides, data, workspace))
    else:
        tasks, places = np.int64(_threads()), array_at(args, operands, np.int64)
        table = np.ones(2 + 2 * (operands + 1) + operands, np.int64)
        table[0], table[1], table[3 + operands] = (elements // (tasks * LINE) + 1) * LINE, 2, elements
        for k in range(operands):  # a slice would be checked, by code that takes longer to compile than all else here
            table[4 + operands + k], table[4 + 2 * operands + k] = array_at(strides, operands, np.int64)[k], places[k]
        start(np.empty(0, np.uint8), header[7], (data, table), run, tasks)
        keep_alive((table,))


# The machine code ----------------------------------------------------------------------------------------------------


class Code(NamedTuple):
    """What loops get as ``data``, and the loop as a ufunc has it: by all threads for ``least`` elements or more, and
    without a trace in the processor's flags. Both stay for the process's life.
    """

    data: int
    ufunc: int


@functools.cache
def _target() -> tuple[Any, str]:
    """LLVM's description of this machine, as Numba's kernels are compiled for it."""
    llvm.add_symbol("feclearexcept", ctypes.cast(ctypes.CDLL(None).feclearexcept, ctypes.c_void_p).value)
    triple, cpu, features = described = cpu_target.target_context.codegen().magic_tuple()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=2, jit=True)
    return machine, repr(described)


def converts_halves() -> bool:
    """Whether it has instructions between float16 and float32: LLVM would call functions that are not here."""
    return IS_ARM or "+f16c" in cpu_target.target_context.codegen().magic_tuple()[2]


@global_compiler_lock
def compiled(inputs: list[Value], steps: list[ProgramStep], numbers: set[int], least: int) -> Code:
    """The loop for these inputs and steps. The inputs at the slots ``numbers`` are one value each."""
    text, sizes, calls = text_of(inputs, steps, numbers)
    # The pool is started first: the code of ``_start`` names its functions.
    engine, table, within = _engine_for(text), types.Array(types.int64, 1, "C"), run_within()
    driver, started = (compiled_address(f, *[types.int64] * n) for f, n in ((drive, 6), (_start, 5)))
    run = compiled_address(over_tables.kernel, *[types.int64] * 3, table)
    words = [driver, len(inputs) + 1, len(sizes), len(calls), least, within, started, run, *sizes]
    for code, *places in calls:
        called = (code.address, code.data) if isinstance(code, Loop) else (engine.get_function_address(code), 1)
        words += (*called, len(places), *places, *[0] * (5 - len(places)))
    return Code(lasting_words(words), engine.get_function_address("ufunc"))


@functools.cache
def _engine_for(text: str) -> Any:
    """Of machine code from the cache of kernels, or compiled."""
    machine, described = _target()
    path = CACHE_DIRECTORY / f"program-{hashlib.sha256((described + text).encode()).hexdigest()}.nbc"
    if (content := read_entry(path)) is None:
        content = machine.emit_object(llvm.parse_assembly(text))
        write_entry(path, content)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(content))
    engine.finalize_object()
    return engine


def ufunc_of(code: Code, dtypes: list[np.dtype[Any]]) -> Any:
    """A ufunc of one loop, whose operands have these dtypes, the result's last."""
    numbers, bits = [dtype.num for dtype in dtypes], [UINT16.num if x.kind == "V" else x.num for x in dtypes]
    ufunc = fromfunc("program", "", [code.ufunc], [bits], len(dtypes) - 1, 1, [code.data], [None], 0)
    for number in {*numbers} - {*bits}:  # of another package's dtype
        _register_loop()(ufunc, number, code.ufunc, (ctypes.c_int * len(numbers))(*numbers), code.data)

    def with_result(*x: Any) -> Any:
        """NumPy does not look for the loop of a result's dtype, but for that of a given result."""
        return ufunc(*x) if len(x) == len(dtypes) else ufunc(*x, np.empty(np.broadcast(*x).shape, dtypes[-1]))

    return ufunc if numbers[:-1] != bits[:-1] or numbers == bits else with_result


@global_compiler_lock  # or two threads make an engine each, and one of them ends
def ufunc_of_kernel(kernel: Any, dtype: np.dtype[Any], signature: str) -> tuple[Any, np.ndarray]:
    """``kernel(args, n, strides, kind)`` as a generalized ufunc of two operands of this dtype, and words of which the
    second is not 0 after a call that got no memory. NumPy calls it with addresses, as ``PyUFuncGenericFunction``.
    """
    words = np.array([compiled_address(kernel, *[types.int64] * 3, numba.typeof(dtype.type)), 0])
    entry = _engine_for(_OF_KERNEL).get_function_address("ufunc")
    kinds, data = [[dtype.num] * 3], [words.ctypes.data]
    return fromfunc("product", "", [entry], kinds, 2, 1, data, [None], 0, signature), words


_OF_KERNEL = f"""
declare i32 @feclearexcept(i32)
define void @ufunc(ptr %args, ptr %n, ptr %strides, ptr %data) {{
  %result = alloca ptr
  %error = alloca ptr
  %kernel = load ptr, ptr %data
  %status = call i32 %kernel(ptr %result, ptr %error, ptr %args, ptr %n, ptr %strides, ptr null)
  %second = getelementptr i64, ptr %data, i64 1
  atomicrmw or ptr %second, i32 %status monotonic
  call i32 @feclearexcept(i32 {ALL_EXCEPTIONS})
  ret void
}}
"""


@functools.cache
def _register_loop() -> Any:
    """NumPy's ``PyUFunc_RegisterLoopForType``."""
    arguments = ctypes.py_object, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int), ctypes.c_void_p
    return numpys("_UFUNC_API", 2, ctypes.c_int, *arguments)
