"""The functions of ``ptx.py`` for the GPU: Numba intrinsics that emit LLVM IR or inline PTX."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.cuda.extending import intrinsic
from numba.cuda.np import arrayobj  # noqa: F401  # registers arrays with the CUDA target

I16, I32, I64, F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
GLOBAL = 1  # LLVM's address space


def element_pointer(context: Any, builder: Any, pointer_type: Any, pointer: Any, index_type: Any, index: Any) -> Any:
    """The address of an element of a pointer parameter (global memory) or of a 1-D array (shared memory)."""
    index = context.cast(builder, index, index_type, types.int64)
    if isinstance(pointer_type, types.CPointer):
        element = builder.gep(pointer, [index])
        return builder.addrspacecast(element, ir.PointerType(element.type.pointee, GLOBAL))
    array = context.make_array(pointer_type)(context, builder, value=pointer)
    return builder.gep(array.data, [index])


def _as_vector(context: Any, builder: Any, dtype: Any, n: int, element: Any) -> tuple[Any, Any, int]:
    """The address as a vector's, that type, and how many elements lie in each of its lanes.

    Elements of less than 32 bits travel in words: LLVM takes vectors of them apart.
    """
    packed = 32 // dtype.bitwidth if dtype.bitwidth < 32 and dtype.bitwidth * n >= 64 else 1
    vector = ir.VectorType(context.get_data_type(dtype) if packed == 1 else I32, n // packed)
    space = getattr(element.type, "addrspace", 0)
    return builder.bitcast(element, ir.PointerType(vector, space)), vector, packed


def _loader(n: int, constant: bool) -> Any:
    @intrinsic
    def load(typing_context, p, i):
        dtype = p.dtype

        def generate(context, builder, signature, args):
            element = element_pointer(context, builder, p, args[0], i, args[1])
            address, _, packed = _as_vector(context, builder, dtype, n, element)
            loaded = builder.load(address, align=dtype.bitwidth // 8 * n)
            if constant:
                loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
            values = [builder.extract_element(loaded, I32(k // packed)) for k in range(n)]
            if packed > 1:
                shifts = [I32(k % packed * dtype.bitwidth) for k in range(n)]
                narrow = context.get_data_type(dtype)
                values = [
                    builder.trunc(builder.lshr(word, by), narrow) for word, by in zip(values, shifts, strict=True)
                ]
            return cgutils.pack_array(builder, values)

        return types.UniTuple(dtype, n)(p, i), generate

    return load


def _storer(n: int) -> Any:
    @intrinsic
    def store(typing_context, p, i, values):
        dtype = p.dtype

        def generate(context, builder, signature, args):
            element = element_pointer(context, builder, p, args[0], i, args[1])
            address, vector, packed = _as_vector(context, builder, dtype, n, element)
            lanes = [
                context.cast(builder, builder.extract_value(args[2], k), kind, dtype)
                for k, kind in enumerate(values.types)
            ]
            if packed > 1:
                wide = [
                    builder.shl(builder.zext(lane, I32), I32(k % packed * dtype.bitwidth))
                    for k, lane in enumerate(lanes)
                ]
                lanes = [functools.reduce(builder.or_, wide[k : k + packed]) for k in range(0, n, packed)]
            value = ir.Constant(vector, ir.Undefined)
            for k, lane in enumerate(lanes):
                value = builder.insert_element(value, lane, I32(k))
            builder.store(value, address, align=dtype.bitwidth // 8 * n)
            return context.get_dummy_value()

        return types.void(p, i, values), generate

    return store


load2: Any = _loader(2, False)
load4: Any = _loader(4, False)
load8: Any = _loader(8, False)
load16: Any = _loader(16, False)
load_constant2: Any = _loader(2, True)
load_constant4: Any = _loader(4, True)
load_constant8: Any = _loader(8, True)
load_constant16: Any = _loader(16, True)
store2: Any = _storer(2)
store4: Any = _storer(4)
store8: Any = _storer(8)
store16: Any = _storer(16)


def _pointer(dtype: Any) -> Any:
    @intrinsic
    def pointer(typing_context, address):
        def generate(context, builder, signature, args):
            number = context.cast(builder, args[0], address, types.int64)
            element = context.get_data_type(dtype)
            there = builder.inttoptr(number, ir.PointerType(element, GLOBAL))
            return builder.addrspacecast(there, ir.PointerType(element))  # LLVM still knows which space it is

        return types.CPointer(dtype)(address), generate

    return pointer


pointer_float32: Any = _pointer(types.float32)
pointer_float64: Any = _pointer(types.float64)
pointer_uint16: Any = _pointer(types.uint16)
pointer_uint64: Any = _pointer(types.uint64)


@intrinsic
def float16_to_float(typing_context: Any, bits: Any) -> Any:
    """uint16 bits of a float16 as float32."""

    def generate(context, builder, signature, args):
        narrow = context.cast(builder, args[0], bits, types.uint16)
        return builder.fpext(builder.bitcast(narrow, ir.HalfType()), F32)

    return types.float32(bits), generate


@intrinsic
def float_to_float16(typing_context: Any, x: Any) -> Any:
    """The uint16 bits of float32 ``x`` rounded to float16."""

    def generate(context, builder, signature, args):
        value = context.cast(builder, args[0], x, types.float32)
        return builder.bitcast(builder.fptrunc(value, ir.HalfType()), I16)

    return types.uint16(x), generate


@intrinsic
def bfloat16_to_float(typing_context: Any, bits: Any) -> Any:
    """uint16 bits of a bfloat16 as float32: its upper half."""

    def generate(context, builder, signature, args):
        narrow = context.cast(builder, args[0], bits, types.uint16)
        return builder.bitcast(builder.shl(builder.zext(narrow, I32), I32(16)), F32)

    return types.float32(bits), generate


@intrinsic
def float_to_bfloat16(typing_context: Any, x: Any) -> Any:
    """The uint16 bits of float32 ``x`` rounded to bfloat16, in integers, for cards older than the instruction.

    Half a unit less one, plus the bit that decides a tie, is added below the cut; NaN becomes the quiet one.
    """

    def generate(context, builder, signature, args):
        value = context.cast(builder, args[0], x, types.float32)
        bits = builder.bitcast(value, I32)
        odd = builder.and_(builder.lshr(bits, I32(16)), I32(1))
        rounded = builder.lshr(builder.add(bits, builder.add(I32(0x7FFF), odd)), I32(16))
        sign = builder.and_(builder.lshr(bits, I32(16)), I32(0x8000))
        quiet = builder.or_(sign, I32(0x7FC0))
        is_nan = builder.fcmp_unordered("uno", value, value)
        return builder.trunc(builder.select(is_nan, quiet, rounded), I16)

    return types.uint16(x), generate


@intrinsic
def float_as_int(typing_context: Any, x: Any) -> Any:
    """The bits of float32 ``x``."""

    def generate(context, builder, signature, args):
        return builder.bitcast(context.cast(builder, args[0], x, types.float32), I32)

    return types.int32(x), generate


@intrinsic
def int_as_float(typing_context: Any, i: Any) -> Any:
    """The float32 of these bits."""

    def generate(context, builder, signature, args):
        return builder.bitcast(context.cast(builder, args[0], i, types.int32), F32)

    return types.float32(i), generate


def _atomic(operation: str) -> Any:
    """An atomic read-modify-write of an element of signed integers in global memory."""

    @intrinsic
    def run(typing_context, p, i, x):
        def generate(context, builder, signature, args):
            element = element_pointer(context, builder, p, args[0], i, args[1])
            value = context.cast(builder, args[2], x, p.dtype)
            return builder.atomic_rmw(operation, element, value, "monotonic")

        return p.dtype(p, i, x), generate

    return run


atomic_max: Any = _atomic("max")
atomic_min: Any = _atomic("min")


def _instruction(text: str) -> Any:
    """A PTX instruction from float32 to float32."""

    @intrinsic
    def run(typing_context, x):
        def generate(context, builder, signature, args):
            value = context.cast(builder, args[0], x, types.float32)
            assembly = ir.InlineAsm(ir.FunctionType(F32, [F32]), text, "=f,f", side_effect=False)
            return builder.call(assembly, [value])

        return types.float32(x), generate

    return run


exp2_approx: Any = _instruction("ex2.approx.ftz.f32 $0, $1;")
tanh_approx: Any = _instruction("tanh.approx.f32 $0, $1;")


# Tensor cores ---------------------------------------------------------------------------------------------------------

_SHARED = 3  # LLVM's address space
_LETTERS = {"r": (I32, types.uint32), "f": (F32, types.float32), "l": (I64, types.int64)}


def assembly(text: str, results: str, arguments: str, *, memory: bool, tied: int = 0, together: bool = False) -> Any:
    """What generates a PTX instruction: the registers of ``results`` from those of ``arguments``, a letter for each.

    ``memory``: it uses memory, so it stays where it is. ``tied``: so many arguments are in the results' registers.
    ``together``: threads execute it together, so LLVM must not make it depend on further conditions (convergent).
    Returns a function (context, builder, kinds, values).
    """
    inputs = [str(i) if i < tied else letter for i, letter in enumerate(arguments)]
    constraints = [f"={letter}" for letter in results] + inputs + (["~{memory}"] if memory else [])
    kinds = [_LETTERS[letter][0] for letter in results]
    result = ir.VoidType() if not kinds else kinds[0] if len(kinds) == 1 else ir.LiteralStructType(kinds)
    function = ir.FunctionType(result, [_LETTERS[letter][0] for letter in arguments])
    assembly = ir.InlineAsm(function, text, ",".join(constraints), side_effect=memory)

    def generate(context: Any, builder: Any, given: Any, values: Any) -> Any:
        flat: list[tuple[Any, Any]] = []
        for kind, value in zip(given, values, strict=True):
            if isinstance(kind, types.BaseTuple):
                flat += [(element, builder.extract_value(value, k)) for k, element in enumerate(kind.types)]
            else:
                flat.append((kind, value))
        operands = [
            context.cast(builder, value, kind, _LETTERS[letter][1])
            for (kind, value), letter in zip(flat, arguments, strict=True)
        ]
        found = builder.call(assembly, operands, attrs=("convergent",) if together else ())
        if not results:
            return context.get_dummy_value()
        if len(results) == 1:
            return found
        return cgutils.pack_array(builder, [builder.extract_value(found, k) for k in range(len(results))])

    return generate


@intrinsic
def shared_address(typing_context: Any, array: Any, i: Any) -> Any:
    """The 32-bit address of an element of a 1-D shared array."""

    def generate(context, builder, signature, args):
        element = element_pointer(context, builder, array, args[0], i, args[1])
        there = builder.addrspacecast(element, ir.PointerType(element.type.pointee, _SHARED))
        return builder.ptrtoint(there, I32)

    return types.int32(array, i), generate


def _ldmatrix(text: str) -> Any:
    read = assembly(text, "rrrr", "r", memory=True)

    @intrinsic
    def run(typing_context, address):
        def generate(context, builder, signature, args):
            return read(context, builder, signature.args, args)

        return types.UniTuple(types.uint32, 4)(address), generate

    return run


ldmatrix: Any = _ldmatrix("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];")
ldmatrix_transposed: Any = _ldmatrix("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];")

_cp_async = assembly("cp.async.cg.shared.global [$0], [$1], 16, $2;", "", "rlr", memory=True)


@intrinsic
def cp_async(typing_context: Any, address: Any, p: Any, i: Any, nbytes: Any) -> Any:
    """Begin to copy ``nbytes`` bytes from p[i] on to shared memory, and zeros after them up to 16."""

    def generate(context, builder, signature, args):
        element = element_pointer(context, builder, p, args[1], i, args[2])
        source = builder.ptrtoint(element, I64)
        return _cp_async(context, builder, (address, types.int64, nbytes), (args[0], source, args[3]))

    return types.void(address, p, i, nbytes), generate


def statement(text: str, together: bool = False) -> Any:
    """A PTX instruction without operands."""
    write = assembly(text, "", "", memory=True, together=together)

    @intrinsic
    def run(typing_context):
        def generate(context, builder, signature, args):
            return write(context, builder, (), ())

        return types.void(), generate

    return run


cp_async_commit: Any = statement("cp.async.commit_group;")
cp_async_wait0: Any = statement("cp.async.wait_group 0;")
cp_async_wait1: Any = statement("cp.async.wait_group 1;")
cp_async_wait2: Any = statement("cp.async.wait_group 2;")


def _mma(shape: str, dtype: str) -> Any:
    multiply = assembly(
        f"mma.sync.aligned.{shape}.row.col.f32.{dtype}.{dtype}.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
        "ffff",
        "rrrrrrffff",
        memory=False,
    )

    @intrinsic
    def run(typing_context, a, b, c):
        def generate(context, builder, signature, args):
            return multiply(context, builder, signature.args, args)

        return types.UniTuple(types.float32, 4)(a, b, c), generate

    return run


mma_bfloat16: Any = _mma("m16n8k16", "bf16")
mma_float16: Any = _mma("m16n8k16", "f16")
mma_tf32: Any = _mma("m16n8k8", "tf32")


def _packed(text: str) -> Any:
    """Two float32 to one register; the instruction names the upper half first."""
    convert = assembly(text, "r", "ff", memory=False)

    @intrinsic
    def run(typing_context, low, high):
        def generate(context, builder, signature, args):
            return convert(context, builder, (high, low), (args[1], args[0]))

        return types.uint32(low, high), generate

    return run


pack_bfloat16: Any = _packed("cvt.rn.bf16x2.f32 $0, $1, $2;")
pack_float16: Any = _packed("cvt.rn.f16x2.f32 $0, $1, $2;")

_round_tf32 = assembly("cvt.rna.tf32.f32 $0, $1;", "r", "f", memory=False)


@intrinsic
def round_tf32(typing_context: Any, x: Any) -> Any:
    """The bits of float32 ``x`` rounded to 10 bits of mantissa, halves away from 0."""

    def generate(context, builder, signature, args):
        return _round_tf32(context, builder, (x,), args)

    return types.uint32(x), generate
