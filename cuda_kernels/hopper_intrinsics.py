"""The functions of ``hopper_ptx.py`` for the GPU: Numba intrinsics that emit inline PTX."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.cuda.extending import intrinsic

from .ptx_intrinsics import F32, I32, assembly, element_pointer, statement


def _on_barrier(text: str, arguments: str) -> Any:
    """An instruction of 32-bit registers, of which the first is an address in shared memory."""
    write = assembly(text, "", arguments, memory=True)

    if arguments == "r":

        @intrinsic
        def of_one(typing_context, address):
            def generate(context, builder, signature, args):
                return write(context, builder, signature.args, args)

            return types.void(address), generate

        return of_one

    @intrinsic
    def of_two(typing_context, address, number):
        def generate(context, builder, signature, args):
            return write(context, builder, signature.args, args)

        return types.void(address, number), generate

    return of_two


mbarrier_init: Any = _on_barrier("mbarrier.init.shared::cta.b64 [$0], $1;", "rr")
mbarrier_expect: Any = _on_barrier("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "rr")
mbarrier_arrive: Any = _on_barrier("mbarrier.arrive.shared::cta.b64 _, [$0];", "r")
mbarrier_wait: Any = _on_barrier(  # labels are local to the braces
    "{ .reg .pred ended; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 ended, [$0], $1; @!ended bra AGAIN; }", "rr"
)
fence_async: Any = statement("fence.proxy.async.shared::cta;")

_tma_load = assembly(
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3, $4}], [$5];",
    "",
    "rlrrrr",
    memory=True,
)


@intrinsic
def tma_load(typing_context: Any, address: Any, tensor_map: Any, x: Any, y: Any, z: Any, barrier: Any) -> Any:
    """Begin to copy a box to shared memory."""

    def generate(context, builder, signature, args):
        return _tma_load(context, builder, signature.args, args)

    return types.void(address, tensor_map, x, y, z, barrier), generate


# Products of a warpgroup ----------------------------------------------------------------------------------------------

_TYPES = {"bfloat16": "bf16", "float16": "f16"}


@functools.cache
def wgmma(dtype: str, columns: int, kinds: str) -> Any:
    """The function (sums, a, b) -> sums of a shape."""
    count = columns // 2
    kind, registers = _TYPES[dtype], ", ".join(f"${i}" for i in range(count))
    transposed = ", ".join("0" if along == "k" else "1" for along in kinds)
    multiply = assembly(
        f"{{ .reg .pred adds; setp.eq.u32 adds, 0, 0; wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} "
        f"{{{registers}}}, ${2 * count}, ${2 * count + 1}, adds, 1, 1, {transposed}; }}",
        "f" * count,
        "f" * count + "ll",
        memory=True,
        tied=count,
        together=True,
    )

    @intrinsic
    def run(typing_context, sums, a, b):
        def generate(context, builder, signature, args):
            return multiply(context, builder, signature.args, args)

        return types.UniTuple(types.float32, count)(sums, a, b), generate

    return run


@functools.cache
def zeros(columns: int) -> Any:
    """The function () -> sums."""
    count = columns // 2

    @intrinsic
    def run(typing_context):
        def generate(context, builder, signature, args):
            return cgutils.pack_array(builder, [ir.Constant(F32, 0.0)] * count)

        return types.UniTuple(types.float32, count)(), generate

    return run


wgmma_fence: Any = statement("wgmma.fence.sync.aligned;", together=True)
wgmma_commit: Any = statement("wgmma.commit_group.sync.aligned;", together=True)
wgmma_wait1: Any = statement("wgmma.wait_group.sync.aligned 1;", together=True)


@intrinsic
def wgmma_wait0(typing_context: Any, sums: Any) -> Any:
    """The sums, as what the instruction writes: nothing that reads them comes before it."""
    letters = "f" * sums.count
    wait = assembly("wgmma.wait_group.sync.aligned 0;", letters, letters, memory=True, tied=sums.count, together=True)

    def generate(context, builder, signature, args):
        return wait(context, builder, signature.args, args)

    return sums(sums), generate


@functools.cache
def store_columns(pitch: int) -> Any:
    """The function (array, i, sums, part); ``part`` chooses among blocks of code, because registers have no index."""

    @intrinsic
    def run(typing_context, array, i, sums, part):
        def generate(context, builder, signature, args):
            first = element_pointer(context, builder, array, args[0], i, args[1])
            number = context.cast(builder, args[3], part, types.int32)
            pair = ir.VectorType(F32, 2)
            after = builder.append_basic_block("stored")
            nowhere = builder.append_basic_block("no_part")
            switch = builder.switch(number, nowhere)
            for case in range(sums.count // 16):
                block = builder.append_basic_block(f"part{case}")
                switch.add_case(I32(case), block)
                builder.position_at_end(block)
                for n in range(8):  # 4 times 8 columns, of 2 rows
                    value = ir.Constant(pair, ir.Undefined)
                    for k in range(2):
                        one = builder.extract_value(args[2], 16 * case + 2 * n + k)
                        value = builder.insert_element(value, one, I32(k))
                    place = builder.gep(first, [I32(n // 2 * 8 + n % 2 * 8 * pitch)])
                    builder.store(value, builder.bitcast(place, pair.as_pointer()), align=8)
                builder.branch(after)
            builder.position_at_end(nowhere)
            builder.unreachable()
            builder.position_at_end(after)
            return context.get_dummy_value()

        return types.void(array, i, sums, part), generate

    return run
