"""Machine code for a program's steps: loops over vectors, in which the steps' results stay in registers.

Neighbouring steps that are instructions become one function in LLVM's language, which goes through a chunk of elements
by vectors of LANES. A step without instructions here (float64's logarithm) is a call of NumPy's own loop, on chunks.
What leads through the operands, by chunks, is one kernel for all programs, ``_drive``:

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
from .numpy_loops import COMPILED, Loop, array_at
from .register_tile import VECTOR_BYTES, keep_alive
from .threads import INT64, compiled_address, emit_call, lasting_words, launch_within, threads_within

LANES = VECTOR_BYTES // 2  # two vectors of float32
LINE = 64  # elements, of which threads get multiples
HEADER = 9  # words of ``data``: _drive, operands, places, calls, `least`, threads_within, _start, _part, the loop
CHUNK = 512  # elements: the buffers of a few operands fit into the first cache
IS_ARM = platform.machine().lower() in ("arm64", "aarch64")
ALL_EXCEPTIONS = 0x1F if IS_ARM else 0x3D  # FE_ALL_EXCEPT of <fenv.h>
UINT16 = np.dtype(np.uint16)
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
        begin, body = "\n  ".join(self._begin), "\n  ".join(self._lines)
        self.text: str = f"""
define void @segment{k}(ptr %places, ptr %n, ptr %strides, ptr %data) {{
entry:
  %elements = load i64, ptr %n
  {begin}
  br label %vector
vector:
  %i = phi i64 [0, %entry], [%next, %vector]
  {body}
  %next = add i64 %i, {LANES}
  %more = icmp slt i64 %next, %elements
  br i1 %more, label %vector, label %end
end:
  ret void
}}"""

    def _at(self, x: Value) -> str:
        """A pointer to the vector of an operand, or of what another segment takes."""
        self._begin += [f"%at{x.slot} = getelementptr ptr, ptr %places, i64 {self._places[x.slot]}",
                        f"%place{x.slot} = load ptr, ptr %at{x.slot}"]  # fmt: skip
        if x.slot in self._numbers:
            one = f"<1 x {_element(x.dtype)}>"
            splat = f"shufflevector {one} %one{x.slot}, {one} poison, <{LANES} x i32> zeroinitializer"
            self._begin += [f"%one{x.slot} = load {one}, ptr %place{x.slot}, align 1", f"%v{x.slot} = {splat}"]
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
    """The module, and what ``_drive`` has to know: the sizes of places, and of each call its code and places.

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
define void @loop(ptr %args, ptr %n, ptr %strides, ptr %data) {{
  %workspace = alloca [{len(places) * (CHUNK + 1) + 12} x i64], align 64
  %result = alloca ptr
  %error = alloca ptr
  %drive = load ptr, ptr %data
  call i32 %drive(ptr %result, ptr %error, ptr %args, ptr %n, ptr %strides, ptr %data, ptr %workspace)
  ret void
}}

define void @ufunc(ptr %args, ptr %n, ptr %strides, ptr %data) {{
  %result = alloca ptr
  %error = alloca ptr
  %at_start = getelementptr i64, ptr %data, i64 6
  %start = load ptr, ptr %at_start
  %status = call i32 %start(ptr %result, ptr %error, ptr %args, ptr %n, ptr %strides, ptr %data)
  %started = icmp eq i32 %status, 0
  br i1 %started, label %end, label %alone
alone:
  call void @loop(ptr %args, ptr %n, ptr %strides, ptr %data)
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
    compiled = builder.icmp_signed("==", data, ir.Constant(INT64, COMPILED))
    with builder.if_else(compiled) as (of_numba, of_numpy):
        with of_numba:
            nothing = ir.Constant(INT64, 0)  # where a compiled loop has the classes of its numbers
            emit_call(context, builder, address, (types.int64,) * 5, [*arrays, nothing, nothing])
        with of_numpy:
            builder.call(builder.inttoptr(address, _LOOP.as_pointer()), [*arrays, data])


@inline
def _copied(y, ys, x, xs, n, kind):
    if xs == 0:
        array_at(y, n, kind)[:] = array_at(x, 1, kind)[0]
    else:
        for i in range(n):
            array_at(y + i * ys, 1, kind)[0] = array_at(x + i * xs, 1, kind)[0]


@inline
def _copy(y, ys, x, xs, n, size):
    """n elements of any strides."""
    if size == 1:
        _copied(y, ys, x, xs, n, np.uint8)
    elif size == 2:
        _copied(y, ys, x, xs, n, np.uint16)
    elif size == 4:
        _copied(y, ys, x, xs, n, np.uint32)
    else:
        _copied(y, ys, x, xs, n, np.uint64)


@kernel
def _drive(args, n, strides, data, workspace):
    header, rest = array_at(data, HEADER, np.int64), data + 8 * HEADER
    operands, count, calls = header[1], header[2], header[3]
    sizes, table = array_at(rest, count, np.int64), array_at(rest + 8 * count, (calls, 8), np.int64)
    bases, steps = array_at(args, operands, np.int64), array_at(strides, operands, np.int64)
    places, elements = array_at(workspace, count, np.int64), array_at(n, 1, np.int64)[0]
    words = array_at(workspace + 8 * count, (3, 4), np.int64)  # arguments, strides and size of a call
    buffers, out, start = words.ctypes.data + 96, operands - 1, 0
    for k in range(operands, count):
        places[k] = buffers + 8 * CHUNK * k
    chunk = elements if count == operands else CHUNK
    for k in range(operands):
        chunk = chunk if sizes[k] == 0 or steps[k] == sizes[k] else CHUNK
    while start < elements:
        size = min(elements - start, chunk)
        full = size >= LANES
        size = size // LANES * LANES if full else size
        for k in range(operands):
            here = bases[k] + start * steps[k]
            direct = sizes[k] == 0 or (full and steps[k] == sizes[k])
            places[k] = here if direct else buffers + 8 * CHUNK * k
            if not (direct or k == out or (steps[k] == 0 and start > 0)):
                _copy(places[k], sizes[k], here, steps[k], size, sizes[k])
        words[2, 0] = size
        for c in range(calls):
            for a in range(table[c, 2]):
                words[0, a], words[1, a] = places[table[c, 3 + a]], sizes[table[c, 3 + a]]
            arguments = words.ctypes.data if table[c, 2] else workspace
            call_loop(table[c, 0], table[c, 1], arguments, words.ctypes.data + 64, words.ctypes.data + 32)
        if places[out] != bases[out] + start * steps[out]:
            _copy(bases[out] + start * steps[out], steps[out], places[out], sizes[out], size, sizes[out])
        start += size


@kernel
def _part(task, tasks, args, n, strides, data, words):
    header = array_at(data, HEADER, np.int64)
    operands, elements = header[1], array_at(n, 1, np.int64)[0]
    first, end = task * elements // tasks // LINE * LINE, (task + 1) * elements // tasks // LINE * LINE
    here = array_at(words + 8 * task * (operands + 1), operands + 1, np.int64)
    bases, steps = array_at(args, operands, np.int64), array_at(strides, operands, np.int64)
    for k in range(operands):
        here[k] = bases[k] + first * steps[k]
    here[operands] = (elements if task == tasks - 1 else end) - first
    call_loop(header[8], data, here.ctypes.data, here.ctypes.data + 8 * operands, strides)


@kernel
def _start(args, n, strides, data):
    """The loop, on parts by all threads for much. It fails before it begins, if there is no memory for the launch."""
    header, elements = array_at(data, HEADER, np.int64), array_at(n, 1, np.int64)[0]
    if elements < header[4] or array_at(header[5], 1, np.int64)[0] == 0:
        call_loop(header[8], data, args, n, strides)
    else:
        threads = numba.get_num_threads()
        tasks = threads * max(1, 2 * elements // (header[4] * threads))
        words = np.empty(tasks * (header[1] + 1), np.int64)
        launch_within(header[7], tasks, (args, n, strides, data, words.ctypes.data))
        keep_alive((words,))


# The machine code ----------------------------------------------------------------------------------------------------


class Code(NamedTuple):
    """A loop, and the ``data`` that it is to get; both stay for the process's life. And the loop as a ufunc has it:
    by all threads for ``least`` elements or more, and without a trace in the processor's flags.
    """

    address: int
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
    engine = _engine_for(text)
    loop, within = engine.get_function_address("loop"), threads_within()
    drive, start, part = (compiled_address(f, *[types.int64] * n) for f, n in ((_drive, 5), (_start, 4), (_part, 7)))
    words = [drive, len(inputs) + 1, len(sizes), len(calls), least, within, start, part, loop, *sizes]
    for code, *places in calls:
        called = (code.address, code.data) if isinstance(code, Loop) else (engine.get_function_address(code), 0)
        words += (*called, len(places), *places, *[0] * (5 - len(places)))
    return Code(loop, lasting_words(words), engine.get_function_address("ufunc"))


@functools.cache
def _engine_for(text: str) -> Any:
    """Of machine code from the cache of kernels, or compiled."""
    machine, described = _target()
    path = CACHE_DIRECTORY / f"program-{hashlib.sha256((described + text).encode()).hexdigest()}.nbc"
    content = read_entry(path)
    if content is None:
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
    # NumPy does not look for the loop of a result's dtype
    return ufunc if numbers[:-1] != bits[:-1] or numbers == bits else lambda *x: np.asarray(ufunc(*x)).view(dtypes[-1])


@functools.cache
def _register_loop() -> Any:
    """NumPy's ``PyUFunc_RegisterLoopForType``."""
    arguments = ctypes.py_object, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int), ctypes.c_void_p
    return numpys("_UFUNC_API", 2, ctypes.c_int, *arguments)
