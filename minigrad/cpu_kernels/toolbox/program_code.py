"""Machine code for a program's steps: one loop over its operands, in vectors, with the steps' results in registers.

The loop is written in LLVM's language, with the signature of NumPy's own (``PyUFuncGenericFunction``), so that it can be
that of a ufunc. It goes through the operands by CHUNK elements:

    for each chunk:
        operands that are not contiguous  ->  buffers on the stack (one value that repeats: once)
        for each vector of LANES elements:  load, compute, store
        the result's buffer  ->  the result, if that is not contiguous

What is left at the end, less than a vector, goes through the buffers, too. A step without instructions here (float64's
logarithm) is a call of NumPy's loop for it, between two loops of vectors.
"""

import ctypes
import functools
import hashlib
import platform
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from .jit import CACHE_DIRECTORY, inline, kernel, read_entry, write_entry
from .multi_tensor import pointer_at
from .numpy_loops import COMPILED, Loop
from .threads import compiled_address

LANES = 16
CHUNK = 512  # elements: the buffers of a few operands fit into the first cache
ALL_EXCEPTIONS = 0x1F if platform.machine().lower() in ("arm64", "aarch64") else 0x3D  # FE_ALL_EXCEPT of <fenv.h>
_FLOATS = {"f": "float", "d": "double", "e": "half"}
_SHORT = {"f": "f32", "d": "f64", "e": "f16"}


class Value(NamedTuple):
    """What steps take and give. The inputs have the first slots, then come the steps' results in their order."""

    slot: int
    dtype: np.dtype[Any]


class Step(NamedTuple):
    """An instruction of LLVM's or a loop, what it takes (Values; of an instruction also NumPy's scalars), its result."""

    code: str | Loop
    takes: tuple[Any, ...]
    result: Value


# The text ------------------------------------------------------------------------------------------------------------


def _element(dtype: np.dtype[Any]) -> str:
    """LLVM's type of an element in memory; bfloat16 is an integer to it."""
    return _FLOATS.get(dtype.char) or f"i{8 * dtype.itemsize}"


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


def _segments(steps: tuple[Step, ...]) -> list[list[Step]]:
    """Neighbouring instructions together, loops alone."""
    segments: list[list[Step]] = []
    for step in steps:
        alone = isinstance(step.code, Loop)
        if alone or not segments or isinstance(segments[-1][0].code, Loop):
            segments.append([])
        segments[-1].append(step)
    return segments


def _operand(k: int, value: Value) -> str:
    return f"""
  %args{k} = getelementptr ptr, ptr %args, i64 {k}
  %base{k} = load ptr, ptr %args{k}
  %strides{k} = getelementptr i64, ptr %strides, i64 {k}
  %stride{k} = load i64, ptr %strides{k}
  %contiguous{k} = icmp eq i64 %stride{k}, {value.dtype.itemsize}"""


def _place(k: int, value: Value) -> str:
    """Where an operand's chunk begins, by itself or in its buffer."""
    return f"""
  %offset{k} = mul i64 %start, %stride{k}
  %chunk{k} = getelementptr i8, ptr %base{k}, i64 %offset{k}
  %direct{k} = and i1 %contiguous{k}, %full
  %place{value.slot} = select i1 %direct{k}, ptr %chunk{k}, ptr %buffer{value.slot}"""


def _moved(k: int, value: Value, out: bool) -> str:
    """A call that copies a chunk from or to where it has any stride."""
    size = value.dtype.itemsize
    here, there = f"ptr %buffer{value.slot}, i64 {size}", f"ptr %chunk{k}, i64 %stride{k}"
    target, source = (there, here) if out else (here, there)
    return f"""
  br i1 %direct{k}, label %moved{k}, label %move{k}
move{k}:
  call i32 %move(ptr %result, ptr %error, {target}, {source}, i64 %size, i64 {size}, i64 %start)
  br label %moved{k}
moved{k}:"""


def _vectors(k: int, segment: list[Step], kept: set[int], intrinsics: set[str]) -> str:
    """The loop over a chunk's vectors."""
    lines: list[str] = []
    names: dict[int, str] = {}

    def read(x: Any) -> str:
        if not isinstance(x, Value):
            return _literal(x)
        if x.slot not in names:
            name = names[x.slot] = f"%in{k}.{x.slot}"
            memory = f"<{LANES} x {_element(x.dtype)}>"
            loaded = name if x.dtype.char != "?" else f"{name}.byte"
            lines.extend((
                f"{name}.at = getelementptr {_element(x.dtype)}, ptr %place{x.slot}, i64 %i{k}",
                f"{loaded} = load {memory}, ptr {name}.at, align 1",
            ))  # fmt: skip
            if x.dtype.char == "?":
                lines.append(f"{name} = icmp ne {memory} {loaded}, zeroinitializer")
        return names[x.slot]

    for code, takes, result in segment:
        given, target = takes[0].dtype, _vector(result.dtype)
        short = f"v{LANES}{_SHORT.get(given.char, '')}"
        text = str(code).format(*map(read, takes), t=_vector(given), r=target, short=short, bits=f"<{LANES} x i1>")
        if "@llvm." in text:
            name = text[text.index("@") : text.index("(")]
            intrinsics.add(f"declare {target} {name}({', '.join([target] * len(takes))})")
        name = names[result.slot] = f"%v{result.slot}"
        lines.append(f"{name} = {text}")
        if result.slot in kept:
            stored, memory = name, f"<{LANES} x {_element(result.dtype)}>"
            if result.dtype.char == "?":
                stored = f"{name}.byte"
                lines.append(f"{stored} = zext {target} {name} to {memory}")
            lines.append(f"{name}.at = getelementptr {_element(result.dtype)}, ptr %place{result.slot}, i64 %i{k}")
            lines.append(f"store {memory} {stored}, ptr {name}.at, align 1")
    body = "\n  ".join(lines)
    return f"""
  br label %before{k}
before{k}:
  br label %vector{k}
vector{k}:
  %i{k} = phi i64 [0, %before{k}], [%next{k}, %vector{k}]
  {body}
  %next{k} = add i64 %i{k}, {LANES}
  %more{k} = icmp slt i64 %next{k}, %size
  br i1 %more{k}, label %vector{k}, label %after{k}
after{k}:"""


def _called(k: int, step: Step, at: int) -> str:
    """The call of a loop, which is in ``data`` from ``at`` on."""
    lines = []
    for j, x in enumerate((*step.takes, step.result)):
        lines.append(f"""
  %call{k}.args{j} = getelementptr ptr, ptr %call.args, i64 {j}
  store ptr %place{x.slot}, ptr %call{k}.args{j}
  %call{k}.strides{j} = getelementptr i64, ptr %call.strides, i64 {j}
  store i64 {x.dtype.itemsize}, ptr %call{k}.strides{j}""")
    numba_s = isinstance(step.code, Loop) and step.code.data == COMPILED
    arguments = "ptr %call.args, ptr %call.n, ptr %call.strides"
    call = (f"call i32 %call{k}(ptr %result, ptr %error, {arguments}, ptr null, ptr null)" if numba_s else
            f"call void %call{k}({arguments}, ptr %call{k}.data)")  # fmt: skip
    return "".join(lines) + f"""
  store i64 %size, ptr %call.n
  %call{k}.at = getelementptr ptr, ptr %data, i64 {at}
  %call{k} = load ptr, ptr %call{k}.at
  %call{k}.data.at = getelementptr ptr, ptr %data, i64 {at + 1}
  %call{k}.data = load ptr, ptr %call{k}.data.at
  {call}"""


def text_of(inputs: tuple[Value, ...], steps: tuple[Step, ...]) -> tuple[str, list[Loop]]:
    """The module whose function ``loop`` runs the steps, and the loops that its ``data`` must have."""
    segments = _segments(steps)
    result = steps[-1].result
    operands = [*inputs, result]
    where = {step.result.slot: k for k, segment in enumerate(segments) for step in segment}
    kept = {result.slot: result} | {
        x.slot: x
        for k, segment in enumerate(segments) for step in segment for x in step.takes
        if isinstance(x, Value) and where.get(x.slot, k) != k
    }  # fmt: skip
    kept |= {step.result.slot: step.result for step in steps if isinstance(step.code, Loop)}
    loops: list[Loop] = []
    intrinsics, parts = {"declare i32 @feclearexcept(i32)"}, []
    for k, segment in enumerate(segments):
        code = segment[0].code
        if isinstance(code, Loop):
            loops += [code] if code not in loops else []
            parts.append(_called(k, segment[0], 1 + 2 * loops.index(code)))
        else:
            parts.append(_vectors(k, segment, {*kept}, intrinsics))
    buffers = {x.slot: x for x in operands} | kept
    out = len(inputs)
    alone = [slot for slot in kept if slot != result.slot]
    lines = [
        *sorted(intrinsics), "\ndefine void @loop(ptr %args, ptr %n, ptr %strides, ptr %data) {\nentry:",
        *(f"  %buffer{x.slot} = alloca {_element(x.dtype)}, i64 {CHUNK}, align 64" for x in buffers.values()),
        *(f"  %{name} = alloca i64, i64 4" for name in ("call.args", "call.strides", "call.n", "result", "error")),
        *(_operand(k, x) for k, x in enumerate(operands)),
        f"""
  %count = load i64, ptr %n
  %move = load ptr, ptr %data
  br label %each
each:
  %start = phi i64 [0, %entry], [%end, %moved{out}]
  %rest = sub i64 %count, %start
  %few = icmp slt i64 %rest, {CHUNK}
  %most = select i1 %few, i64 %rest, i64 {CHUNK}
  %whole = and i64 %most, {-LANES}
  %full = icmp ne i64 %whole, 0
  %size = select i1 %full, i64 %whole, i64 %rest""",
        *(_place(k, x) for k, x in enumerate(operands)),
        *(f"  %place{slot} = getelementptr i8, ptr %buffer{slot}, i64 0" for slot in alone),
        *(_moved(k, x, out=False) for k, x in enumerate(inputs)),
        *parts,
        _moved(out, result, out=True),
        f"""
  %end = add i64 %start, %size
  %more = icmp slt i64 %end, %count
  br i1 %more, label %each, label %exit
exit:
  call i32 @feclearexcept(i32 {ALL_EXCEPTIONS})
  ret void
}}
""",
    ]  # fmt: skip
    return "\n".join(lines), loops


# Buffers -------------------------------------------------------------------------------------------------------------


@inline
def _strided(y, ys, x, xs, n, kind):
    for i in range(n):
        numba.carray(pointer_at(y + i * ys, kind), 1)[0] = numba.carray(pointer_at(x + i * xs, kind), 1)[0]


@inline
def _repeated(y, x, n, kind):
    numba.carray(pointer_at(y, kind), n)[:] = numba.carray(pointer_at(x, kind), 1)[0]


@kernel
def _move(y, ys, x, xs, n, size, start):
    """Copy n elements of any strides; one that repeats is there already where the first chunk was."""
    if xs == 0:
        if start > 0:
            return
        if size == 1:
            _repeated(y, x, n, np.uint8)
        elif size == 2:
            _repeated(y, x, n, np.uint16)
        elif size == 4:
            _repeated(y, x, n, np.uint32)
        else:
            _repeated(y, x, n, np.uint64)
    elif size == 1:
        _strided(y, ys, x, xs, n, np.uint8)
    elif size == 2:
        _strided(y, ys, x, xs, n, np.uint16)
    elif size == 4:
        _strided(y, ys, x, xs, n, np.uint32)
    else:
        _strided(y, ys, x, xs, n, np.uint64)


# The machine code ----------------------------------------------------------------------------------------------------


class Code(NamedTuple):
    """A loop, and the ``data`` that it is to get; both stay for the process's life."""

    address: int
    data: int


@functools.cache
def _target() -> Any:
    """LLVM's description of this machine, as Numba's kernels are compiled for."""
    codegen = cpu_target.target_context.codegen()
    llvm.add_symbol("feclearexcept", ctypes.cast(ctypes.CDLL(None).feclearexcept, ctypes.c_void_p).value)
    cpu, features = codegen.magic_tuple()[1:]
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(cpu=cpu, features=features, opt=2, jit=True), repr(codegen.magic_tuple())


_kept: list[Any] = []


@global_compiler_lock
def compiled(inputs: tuple[Value, ...], steps: tuple[Step, ...]) -> Code:
    """The loop for these inputs and steps."""
    text, loops = text_of(inputs, steps)
    engine = _engine_for(text)
    move = compiled_address(_move, *[types.int64] * 7)
    data = np.array([move, *(word for loop in loops for word in (loop.address, loop.data))], np.int64)
    _kept.append(data)
    return Code(engine.get_function_address("loop"), data.ctypes.data)


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


@functools.cache
def _make_ufunc() -> Any:
    """``PyUFunc_FromFuncAndData`` of NumPy's C interface."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = ctypes.cast(pointer(np._core._multiarray_umath._UFUNC_API, None), ctypes.POINTER(ctypes.c_void_p))
    arguments = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int] * 4, *[ctypes.c_char_p] * 2
    return ctypes.PYFUNCTYPE(ctypes.py_object, *arguments, ctypes.c_int)(table[1])


def ufunc_of(code: Code, dtypes: tuple[np.dtype[Any], ...]) -> np.ufunc:
    """A ufunc of one loop, whose operands have these dtypes, the result's last."""
    loops, data = (ctypes.c_void_p * 1)(code.address), (ctypes.c_void_p * 1)(code.data)
    numbers = (ctypes.c_char * len(dtypes))(*(dtype.num for dtype in dtypes))
    _kept.extend((loops, data, numbers))
    addresses = map(ctypes.addressof, (loops, data, numbers))
    return _make_ufunc()(*addresses, 1, len(dtypes) - 1, 1, -1, b"program", b"", 0)
