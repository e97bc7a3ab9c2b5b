"""The functions of ``ptx.py`` for the GPU: Numba intrinsics that emit LLVM IR or inline PTX.

``instruction`` makes all of them: of parameters' names, the result's type, and a function that generates the code.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.cuda.extending import intrinsic
from numba.cuda.np import arrayobj  # noqa: F401  # registers arrays with the CUDA target

I16, I32, I64, F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
GLOBAL = 1  # LLVM's address space
KINDS = {"bfloat16": "bf16", "float16": "f16", "tf32": "tf32"}  # what PTX calls the dtypes

Generate = Callable[[Any, Any, Any, Any], Any]  # (context, builder, the arguments' types, their values) -> the result


def instruction(parameters: str, result: Any, generate: Generate) -> Any:
    """The intrinsic of these parameters' names. ``result``: its type, or a function from the arguments' types to it."""

    def typed(typing_context: Any, *kinds: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            found = generate(context, builder, signature.args, args)
            return context.get_dummy_value() if found is None else found

        return (result if isinstance(result, types.Type) else result(*kinds))(*kinds), emit

    names = ["typing_context", *parameters.split()]
    named = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    typed.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]  # which Numba asks for
    return intrinsic(typed)


def conversion(result: Any, parameter: Any) -> Callable[[Callable[[Any, Any], Any]], Any]:
    """``instruction`` of the function (builder, value) below it, whose value is converted to ``parameter`` before."""

    def make(generate: Callable[[Any, Any], Any]) -> Any:
        def converted(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
            return generate(builder, context.cast(builder, values[0], kinds[0], parameter))

        return instruction("x", result, converted)

    return make


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


def loader(n: int, constant: bool = False) -> Any:
    """``load`` of n elements; ``constant``: of global memory that nothing writes during the kernel."""

    def generate(context, builder, kinds, values):
        dtype = kinds[0].dtype
        element = element_pointer(context, builder, kinds[0], values[0], kinds[1], values[1])
        address, _, packed = _as_vector(context, builder, dtype, n, element)
        loaded = builder.load(address, align=dtype.bitwidth // 8 * n)
        if constant:
            loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        found = [builder.extract_element(loaded, I32(k // packed)) for k in range(n)]
        if packed > 1:
            shifts = [I32(k % packed * dtype.bitwidth) for k in range(n)]
            narrow = context.get_data_type(dtype)
            found = [builder.trunc(builder.lshr(word, by), narrow) for word, by in zip(found, shifts, strict=True)]
        return cgutils.pack_array(builder, found)

    return instruction("p i", lambda p, i: types.UniTuple(p.dtype, n), generate)


def storer(n: int) -> Any:
    """``store`` of n elements."""

    def generate(context, builder, kinds, values):
        dtype = kinds[0].dtype
        element = element_pointer(context, builder, kinds[0], values[0], kinds[1], values[1])
        address, vector, packed = _as_vector(context, builder, dtype, n, element)
        lanes = [
            context.cast(builder, builder.extract_value(values[2], k), kind, dtype)
            for k, kind in enumerate(kinds[2].types)
        ]
        if packed > 1:
            wide = [
                builder.shl(builder.zext(lane, I32), I32(k % packed * dtype.bitwidth)) for k, lane in enumerate(lanes)
            ]
            lanes = [functools.reduce(builder.or_, wide[k : k + packed]) for k in range(0, n, packed)]
        value = ir.Constant(vector, ir.Undefined)
        for k, lane in enumerate(lanes):
            value = builder.insert_element(value, lane, I32(k))
        builder.store(value, address, align=dtype.bitwidth // 8 * n)

    return instruction("p i values", types.void, generate)


def pointer(word: str) -> Any:
    """An address as a pointer to elements of this dtype."""
    dtype = getattr(types, word)

    def generate(context, builder, kinds, values):
        element = context.get_data_type(dtype)
        number = context.cast(builder, values[0], kinds[0], types.int64)
        there = builder.inttoptr(number, ir.PointerType(element, GLOBAL))
        return builder.addrspacecast(there, ir.PointerType(element))  # LLVM still knows which space it is

    return instruction("address", types.CPointer(dtype), generate)


@conversion(types.float32, types.uint16)
def float16_to_float(builder: Any, value: Any) -> Any:
    """uint16 bits of a float16 as float32."""
    return builder.fpext(builder.bitcast(value, ir.HalfType()), F32)


@conversion(types.uint16, types.float32)
def float_to_float16(builder: Any, value: Any) -> Any:
    """The uint16 bits of float32 ``x`` rounded to float16."""
    return builder.bitcast(builder.fptrunc(value, ir.HalfType()), I16)


def atomic(operation: str) -> Any:
    """An atomic read-modify-write of an element of signed integers in global memory."""

    def generate(context, builder, kinds, values):
        element = element_pointer(context, builder, kinds[0], values[0], kinds[1], values[1])
        value = context.cast(builder, values[2], kinds[2], kinds[0].dtype)
        return builder.atomic_rmw(operation, element, value, "monotonic")

    return instruction("p i x", lambda p, i, x: p.dtype, generate)


# PTX ------------------------------------------------------------------------------------------------------------------

_SHARED = 3  # LLVM's address space
_LETTERS = {"r": (I32, types.uint32), "f": (F32, types.float32), "l": (I64, types.int64)}


def assembly(text: str, results: str, arguments: str, *, memory: bool, tied: int = 0) -> Generate:
    """What generates a PTX instruction: the registers of ``results`` from those of ``arguments``, a letter for each.

    ``memory``: it uses memory, so it stays where it is. ``tied``: so many arguments are in the results' registers.
    What PTX calls ``.aligned`` all threads of a warp execute together, so LLVM must not make it depend on further
    conditions (convergent).
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
        found = builder.call(assembly, operands, attrs=("convergent",) if ".aligned" in text else ())
        if len(results) > 1:
            return cgutils.pack_array(builder, [builder.extract_value(found, k) for k in range(len(results))])
        return found if results else None

    return generate


def statement(text: str, parameters: str = "", registers: str = "") -> Any:
    """A PTX instruction without a result."""
    return instruction(parameters, types.void, assembly(text, "", registers, memory=True))


exp2_approx: Any = instruction("x", types.float32, assembly("ex2.approx.ftz.f32 $0, $1;", "f", "f", memory=False))


# Tensor cores ---------------------------------------------------------------------------------------------------------


def _shared_address(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    element = element_pointer(context, builder, kinds[0], values[0], kinds[1], values[1])
    return builder.ptrtoint(builder.addrspacecast(element, ir.PointerType(element.type.pointee, _SHARED)), I32)


shared_address: Any = instruction("array i", types.int32, _shared_address)


def _ldmatrix(transposed: str) -> Any:
    text = f"ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
    return instruction("address", types.UniTuple(types.uint32, 4), assembly(text, "rrrr", "r", memory=True))


ldmatrix: Any = _ldmatrix("")
ldmatrix_transposed: Any = _ldmatrix(".trans")

_copy_16_bytes = assembly("cp.async.cg.shared.global [$0], [$1], 16, $2;", "", "rlr", memory=True)


def _cp_async(context: Any, builder: Any, kinds: Any, values: Any) -> None:
    address, p, i, nbytes = kinds
    count = context.cast(builder, values[3], nbytes, types.int64)
    place = context.cast(builder, values[2], i, types.int64)
    place = builder.select(builder.icmp_signed("==", count, I64(0)), I64(0), place)  # p is aligned, p[i] need not be
    source = builder.ptrtoint(element_pointer(context, builder, p, values[1], types.int64, place), I64)
    _copy_16_bytes(context, builder, (address, types.int64, nbytes), (values[0], source, values[3]))


cp_async: Any = instruction("address p i nbytes", types.void, _cp_async)
cp_async_commit: Any = statement("cp.async.commit_group;")


def waiter(groups: int) -> Any:
    """Wait for all groups but the last ``groups``."""
    return statement(f"cp.async.wait_group {groups};")


def mma(dtype: str) -> Any:
    """c + a b for operands of this dtype."""
    kind, depth = KINDS[dtype], 8 if dtype == "tf32" else 16
    operands = "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13}"
    text = f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32 {operands};"
    return instruction("a b c", types.UniTuple(types.float32, 4), assembly(text, "ffff", "rrrrrrffff", memory=False))


def packer(dtype: str) -> Any:
    """Two float32 to one register; the instruction names the upper half first."""
    text = f"cvt.rn.{KINDS[dtype]}x2.f32 $0, $2, $1;"
    return instruction("low high", types.uint32, assembly(text, "r", "ff", memory=False))


round_tf32: Any = instruction("x", types.uint32, assembly("cvt.rna.tf32.f32 $0, $1;", "r", "f", memory=False))
