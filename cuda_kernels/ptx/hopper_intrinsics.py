"""The functions of ``hopper_ptx.py`` for the GPU: Numba intrinsics that emit inline PTX."""

import functools
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .ptx_intrinsics import F32, I32, KINDS, assembly, element_pointer, instruction, statement

mbarrier_init: Any = statement("mbarrier.init.shared::cta.b64 [$0], $1;", "address count", "rr")
mbarrier_expect: Any = statement("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "address nbytes", "rr")
mbarrier_arrive: Any = statement("mbarrier.arrive.shared::cta.b64 _, [$0];", "address", "r")
mbarrier_wait: Any = statement(  # labels are local to the braces
    "{ .reg .pred ended; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 ended, [$0], $1; @!ended bra AGAIN; }",
    "address parity",
    "rr",
)
fence_async: Any = statement("fence.proxy.async.shared::cta;")
tma_load: Any = statement(
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3, $4}], [$5];",
    "address tensor_map x y z barrier",
    "rlrrrr",
)


# Products of a warpgroup ----------------------------------------------------------------------------------------------


@functools.cache
def wgmma(dtype: str, columns: int, kinds: str) -> Any:
    """The function (sums, a, b) -> sums of a shape."""
    count = columns // 2
    kind, registers = KINDS[dtype], ", ".join(f"${i}" for i in range(count))
    transposed = ", ".join("0" if along == "k" else "1" for along in kinds)
    multiply = assembly(
        f"{{ .reg .pred adds; setp.eq.u32 adds, 0, 0; wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} "
        f"{{{registers}}}, ${2 * count}, ${2 * count + 1}, adds, 1, 1, {transposed}; }}",
        "f" * count,
        "f" * count + "ll",
        memory=True,
        tied=count,
    )
    return instruction("sums a b", types.UniTuple(types.float32, count), multiply)


@functools.cache
def zeros(columns: int) -> Any:
    """The function () -> sums."""
    count = columns // 2

    def generate(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        return cgutils.pack_array(builder, [ir.Constant(F32, 0.0)] * count)

    return instruction("", types.UniTuple(types.float32, count), generate)


wgmma_fence: Any = statement("wgmma.fence.sync.aligned;")
wgmma_commit: Any = statement("wgmma.commit_group.sync.aligned;")
wgmma_wait1: Any = statement("wgmma.wait_group.sync.aligned 1;")


def _wait_for_all(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    """The sums are what the instruction writes: nothing that reads them comes before it."""
    count = kinds[0].count
    letters = "f" * count
    wait = assembly("wgmma.wait_group.sync.aligned 0;", letters, letters, memory=True, tied=count)
    return wait(context, builder, kinds, values)


wgmma_wait0: Any = instruction("sums", lambda sums: sums, _wait_for_all)


@functools.cache
def store_columns(pitch: int) -> Any:
    """The function (array, i, sums, part); ``part`` chooses among blocks of code, because registers have no index."""

    def generate(context: Any, builder: Any, kinds: Any, values: Any) -> None:
        array, i, sums, part = kinds
        first = element_pointer(context, builder, array, values[0], i, values[1])
        number = context.cast(builder, values[3], part, types.int32)
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
                    one = builder.extract_value(values[2], 16 * case + 2 * n + k)
                    value = builder.insert_element(value, one, I32(k))
                place = builder.gep(first, [I32(n // 2 * 8 + n % 2 * 8 * pitch)])
                builder.store(value, builder.bitcast(place, pair.as_pointer()), align=8)
            builder.branch(after)
        builder.position_at_end(nowhere)
        builder.unreachable()
        builder.position_at_end(after)

    return instruction("array i sums part", types.void, generate)
