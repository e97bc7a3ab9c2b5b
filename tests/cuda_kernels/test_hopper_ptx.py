"""TMA, mbarriers and wgmma in the simulator: where values lie, by the PTX manual, and what forgotten waits do."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from refusals import raises
from simulated import run

from minigrad.cuda_kernels.platform import array
from minigrad.cuda_kernels.platform.language import cuda
from minigrad.cuda_kernels.platform.tensor_map import TensorMap
from minigrad.cuda_kernels.ptx import hopper_ptx, hopper_twins, ptx
from minigrad.cuda_kernels.simulator.simulated_memory import SimulationError

RNG = np.random.default_rng(0)
bf16 = ml_dtypes.bfloat16
SHARED = 64 << 10  # bytes


def map_of(x, rows: int, depth: int = 1) -> TensorMap:
    """Boxes of rows of 64 elements of an array (z, y, x)."""
    z, y, x_size = x.shape
    return TensorMap(x.pointer, x.dtype.name, (x_size, y, z), (x.strides[1], x.strides[0]), (64, rows, depth), 0)


# TMA ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [(0, 0, 0), (64, 8, 1), (32, -4, 0), (-32, 12, -1), (200, 0, 0)])
def test_a_box_is_zero_outside_the_array(place: tuple[int, int, int]) -> None:
    x = RNG.standard_normal((2, 20, 96)).astype(bf16)
    stored = array.from_host(x)
    found = hopper_twins.box_of(map_of(stored, 16), *place)
    padded = np.zeros((6, 80, 480), bf16)
    padded[2:4, 16:36, 96:192] = x
    at = [start + margin for start, margin in zip(place[::-1], (2, 16, 96), strict=True)]
    expected = padded[at[0] : at[0] + 1, at[1] : at[1] + 16, at[2] : at[2] + 64]
    np.testing.assert_array_equal(found.view(bf16), expected)


def test_the_swizzle_is_an_exclusive_or() -> None:
    """Piece c of 16 bytes of row r lies at c ^ (r mod 8)."""
    box = np.arange(24 * 64, dtype=np.uint16).reshape(1, 24, 64)
    pieces = hopper_twins.swizzled(box).view(np.uint16).reshape(24, 8, 8)
    for r in range(24):
        for c in range(8):
            np.testing.assert_array_equal(pieces[r, c ^ (r % 8)], box[0, r, 8 * c : 8 * c + 8])


def test_maps_that_the_driver_refuses() -> None:
    good = TensorMap(1024, "bfloat16", (64, 8, 1), (128, 1024), (64, 8, 1), 0)
    assert good.problem() is None
    for change, problem in (
        ({"pointer": 1032}, "expected a multiple of 16"),
        ({"steps": (136, 1088)}, "multiples of 16 below"),
        ({"steps": (0, 1024)}, "expected positive multiples"),
        ({"sizes": (64, 0, 1)}, "expected 1 to 2"),
        ({"box": (32, 8, 1)}, "rows of 64 elements"),
        ({"box": (64, 257, 1)}, "up to 256"),
        ({"dtype": "float32"}, "expected one of float16, bfloat16"),
    ):
        bad = good._replace(**change)
        raises(ValueError, problem, bad.encoded)
        raises(SimulationError, problem, lambda bad=bad: hopper_twins.box_of(bad, 0, 0, 0))


def test_memory_that_a_map_reaches_beyond() -> None:
    stored = array.from_host(np.zeros((1, 8, 64), bf16))
    beyond = map_of(stored, 8)._replace(sizes=(64, 9, 1))
    raises(SimulationError, "outside the memory", lambda: hopper_twins.box_of(beyond, 0, 1, 0))


def copied(wait=0, fence=True, nbytes=1024, offset=0, reader=64, arrivals=1, barrier=True, twice=False, copies=1):
    """What a thread reads of a box of 8 rows that thread 0 lets TMA copy."""
    x = array.from_host(np.arange(1, 513, dtype=np.float32).astype(bf16).reshape(1, 8, 64))

    def copy(y, source) -> None:
        memory = cuda.shared.array(0, np.uint64)
        state = cuda.shared.array(1, np.uint64, alignment=16)
        t = cuda.threadIdx.x
        ring = (ptx.shared_address(memory, 0) + 1023) & ~1023
        full = ptx.shared_address(state, 0)
        if t == 0:
            hopper_ptx.mbarrier_init(full, arrivals)
            if fence:
                hopper_ptx.fence_async()
        if barrier:
            cuda.syncthreads()
        if t == 0:
            for _ in range(2 if twice else 1):
                hopper_ptx.mbarrier_expect(full, nbytes)
                for _ in range(copies):
                    hopper_ptx.tma_load(ring + offset, source, 0, 0, 0, full)
        if t == reader:
            if wait is not None:
                hopper_ptx.mbarrier_wait(full, wait)
            y[0] = memory[(ring - ptx.shared_address(memory, 0)) // 8]

    y = np.zeros(1, np.uint64)
    run(copy, y, map_of(x, 8), threads=128, shared=SHARED)
    return y.view(bf16)


def test_a_box_is_there_when_its_barrier_was_waited_for() -> None:
    np.testing.assert_array_equal(copied(), np.array([1, 2, 3, 4], bf16))
    np.testing.assert_array_equal(copied(reader=0), np.array([1, 2, 3, 4], bf16))


def test_mistakes_with_barriers_are_found() -> None:
    for change, problem in [
        ({"wait": None}, "before thread 0 has waited for its|block ended before the copies"),  # by the threads' order
        ({"wait": 1}, "before thread 0 has waited for its|block ended before the copies"),  # the phase before the first
        ({"fence": False}, "no fence_async has made visible"),
        ({"nbytes": 2048}, "lacks 0 of 1 arrivals and 1024 of 2048 bytes"),
        ({"nbytes": 512}, "lacks 0 of 1 arrivals and -512 of 512 bytes"),
        ({"arrivals": 2}, "lacks 1 of 2 arrivals and 0 of 1024 bytes"),
        ({"offset": 128}, "not a multiple of 1024"),
        ({"offset": 63 << 10}, "outside a shared array"),
        ({"barrier": False}, "race: thread 64 uses the mbarrier|there is no mbarrier"),
        ({"reader": 999}, "the block ended before the copies"),
        ({"twice": True}, "which has had its 1 arrivals"),
        ({"wait": 2}, "expected 0 or 1"),
        ({"copies": 2}, "while another copy to it is on its way"),
    ]:
        raises(SimulationError, problem, lambda change=change: copied(**change))


def test_phases_alternate() -> None:
    """Two threads hand a value to and fro; each waits for the other's barrier, at both parities."""

    def pass_on(y) -> None:
        state = cuda.shared.array(2, np.uint64, alignment=16)
        t = cuda.threadIdx.x
        mine, other = (ptx.shared_address(state, place) for place in ((0, 1) if t == 0 else (1, 0)))
        if t == 0:
            hopper_ptx.mbarrier_init(mine, 1)
            hopper_ptx.mbarrier_init(other, 1)
        cuda.syncthreads()
        for turn in range(5):
            if t == 0:
                hopper_ptx.mbarrier_wait(mine, (turn & 1) ^ 1)
                y[turn] = turn
                hopper_ptx.mbarrier_arrive(other)
            elif t == 32:
                hopper_ptx.mbarrier_wait(mine, turn & 1)
                y[turn] = y[turn] * 10
                hopper_ptx.mbarrier_arrive(other)

    y = np.zeros(5, np.int64)
    run(pass_on, y)
    np.testing.assert_array_equal(y, [0, 10, 20, 30, 40])


# wgmma ----------------------------------------------------------------------------------------------------------------


def layout(shape, strides, i: int) -> int:
    """A CuTe layout's index of element i, the first of nested dimensions the fastest."""
    found = 0
    for n, stride in zip(shape, strides, strict=True):
        found += i % n * stride
        i //= n
    return found


# (kind, swizzle mode, its bits, leading and stride offset in elements, exact layout): of bfloat16 the manual's examples
# of 9.7.15.5.1.2.1.3, and its canonical layouts at the strides that the kernels use.
LAYOUTS = [
    ("o", 0, 0, 128, 64, (((8, 1, 2), (8, 2)), ((1, 8, 64), (8, 128)))),
    ("o", 3, 1, 128, 256, (((8, 2, 2), (8, 2)), ((1, 8, 128), (16, 256)))),
    ("o", 2, 2, 256, 512, (((8, 4, 2), (8, 2)), ((1, 8, 256), (32, 512)))),
    ("o", 1, 3, 4096, 512, (((8, 8, 2), (8, 2)), ((1, 8, 4096), (64, 512)))),
    ("k", 1, 3, 8, 512, (((8, 8), (8, 2)), ((64, 512), (1, 8)))),
    ("k", 3, 1, 8, 128, (((8, 2), (8, 2)), ((16, 128), (1, 8)))),
    ("k", 0, 0, 64, 128, (((8, 2), (8, 2)), ((8, 128), (1, 64)))),
]


@pytest.mark.parametrize(("kind", "mode", "bits", "leading", "stride", "exact"), LAYOUTS)
def test_descriptors_say_where_operands_lie(kind: str, mode: int, bits: int, leading: int, stride: int, exact) -> None:
    start = 4096
    descriptor = start >> 4 | leading * 2 >> 4 << 16 | stride * 2 >> 4 << 32 | mode << 62
    (rows, depth), (row_strides, depth_strides) = exact
    count = int(np.prod(rows))
    found = hopper_twins.operand_addresses(descriptor, count, kind)
    for mn, k in itertools.product(range(count), range(16)):
        address = start + 2 * (layout(rows, row_strides, mn) + layout(depth, depth_strides, k))
        swizzled = address ^ (address >> 7 & ((1 << bits) - 1)) << 4
        assert found[mn, k] == swizzled


def test_descriptors_without_meaning() -> None:
    for descriptor, problem in ((1 << 14, "no meaning"), (1 << 49, "base offset")):
        raises(SimulationError, problem, hopper_twins.operand_addresses, descriptor, 64, "k")


def product(kinds="kk", columns=128, dtype=bf16, steps=("fence", "commit", "wait"), odd_thread=False):
    """(the sums of 128 threads, the product) of 64 x 16 and 16 x columns, copied by TMA."""
    a, b = RNG.standard_normal((64, 16)).astype(dtype), RNG.standard_normal((16, columns)).astype(dtype)
    rows = {"k": (a, b.T), "o": (a.T, b)}
    stored = [array.from_host(np.ascontiguousarray(rows[kind][i])[None]) for i, kind in enumerate(kinds)]
    maps = [map_of(x, 64 if kind == "k" else 16) for x, kind in zip(stored, kinds, strict=True)]
    strides = {"k": 1 << 16 | 64 << 32, "o": 2048 >> 4 << 16 | 64 << 32}
    multiply = hopper_ptx.wgmma(np.dtype(dtype).name, columns, kinds)

    def compute(y, a_map, b_map) -> None:
        memory = cuda.shared.array(0, np.uint64)
        state = cuda.shared.array(1, np.uint64, alignment=16)
        t = cuda.threadIdx.x
        ring = (ptx.shared_address(memory, 0) + 1023) & ~1023
        full = ptx.shared_address(state, 0)
        if t == 0:
            hopper_ptx.mbarrier_init(full, 1)
            hopper_ptx.fence_async()
            nbytes = 0
            for kind, source, count, target in (
                (kinds[0], a_map, 1, ring),
                (kinds[1], b_map, columns // 64, ring + 16384),
            ):
                for i in range(count):
                    place = (0, 64 * i) if kind == "k" else (64 * i, 0)
                    box = 8192 if kind == "k" else 2048
                    hopper_ptx.tma_load(target + box * i, source, *place, 0, full)
                    nbytes += box
            hopper_ptx.mbarrier_expect(full, nbytes)
        cuda.syncthreads()
        hopper_ptx.mbarrier_wait(full, 0)
        sums = hopper_ptx.zeros(columns)()
        if "fence" in steps:
            hopper_ptx.wgmma_fence()
        a = (int(ring) >> 4) | strides[kinds[0]] | 1 << 62
        b = (int(ring + 16384) >> 4) | strides[kinds[1]] | 1 << 62
        sums = multiply(sums, a + (odd_thread and t == 77), b)
        if "commit" in steps:
            hopper_ptx.wgmma_commit()
        if "another group" in steps:
            hopper_ptx.wgmma_commit()
        if "wait1" in steps:
            hopper_ptx.wgmma_wait1()
        if "copy" in steps:
            cuda.syncthreads()
            if t == 0:
                hopper_ptx.mbarrier_expect(full, 8192)
                hopper_ptx.tma_load(ring, a_map, 0, 0, 0, full)
                hopper_ptx.mbarrier_wait(full, 1)
        if "wait" in steps:
            sums = hopper_ptx.wgmma_wait0(sums)
        for i in range(columns // 2):
            y[t * (columns // 2) + i] = sums[i]

    y = np.zeros((128, columns // 2), np.float32)
    run(compute, y, *maps, threads=128, shared=SHARED)
    return y, a.astype("f8") @ b.astype("f8")


@pytest.mark.parametrize("kinds", ["kk", "ko", "ok", "oo"])
def test_wgmma_is_a_matrix_product(kinds: str) -> None:
    """The positions are those of the manual's figure of accumulators, written down here a second time."""
    dtype, columns = (np.float16, 256) if kinds == "ko" else (bf16, 128)
    sums, expected = product(kinds, columns, dtype)
    for thread, i in itertools.product(range(0, 128, 7), range(columns // 2)):
        warp, lane, pair = thread // 32, thread % 32, i // 2
        row = 16 * warp + lane // 4 + 8 * (pair % 2)
        column = 8 * (pair // 2) + 2 * (lane % 4) + i % 2
        assert abs(sums[thread, i] - expected[row, column]) <= 1e-5


def test_what_wgmma_needs() -> None:
    for steps, problem in [
        (("commit", "wait"), "without a wgmma_fence"),
        (("fence", "wait"), "never committed"),
        (("fence", "commit"), "read before wgmma_wait0"),
        (("fence", "commit", "copy", "wait"), "where a wgmma of warp . may still read"),
        (("fence", "commit", "wait1", "copy", "wait"), "where a wgmma of warp . may still read"),  # the last group
    ]:
        raises(SimulationError, problem, lambda steps=steps: product(steps=steps))
    product(steps=("fence", "commit", "another group", "wait1", "copy", "wait"))  # the group before the last has ended


def test_the_threads_of_a_warpgroup_agree() -> None:
    raises(SimulationError, "different descriptors", lambda: product(odd_thread=True))

    sums = {}

    def half(y) -> None:
        t = cuda.threadIdx.x
        sums[t] = hopper_ptx.zeros(64)()
        hopper_ptx.wgmma_fence()
        if t < 64:
            hopper_ptx.wgmma("bfloat16", 64, "kk")(sums[t], 0, 0)

    raises(SimulationError, "cannot go on: .* 64 have ended, .* wgmma 64kk", run, half, np.zeros(1), threads=128)
