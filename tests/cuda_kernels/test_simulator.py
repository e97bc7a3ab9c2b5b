"""The simulator does what a GPU does, and refuses what a GPU leaves undefined."""

import concurrent.futures
import sys
from typing import Any

import numpy as np
import pytest
from refusals import raises
from simulated import run

from minigrad import cuda_kernels
from minigrad.cuda_kernels.platform.language import FULL_WARP, cuda
from minigrad.cuda_kernels.ptx import ptx
from minigrad.cuda_kernels.rowwise.collective import block_max, block_sum, warp_max, warp_sum
from minigrad.cuda_kernels.simulator.simulated_memory import SimulationError

pytestmark = pytest.mark.usefixtures("order")


def test_each_thread_has_its_place() -> None:
    def places(y) -> None:
        x, row = cuda.grid(2)
        y[row * cuda.gridsize(1) + x] = 1000 * cuda.blockIdx.x + 100 * cuda.blockIdx.y + 10 * cuda.threadIdx.y + x

    y = np.zeros((6, 8), np.int64)
    run(places, y, grid=(2, 3, 1), threads=(4, 2, 1))
    rows, columns = np.mgrid[:6, :8]
    np.testing.assert_array_equal(y, 1000 * (columns // 4) + 100 * (rows // 2) + 10 * (rows % 2) + columns)


def test_a_missing_barrier_is_a_race() -> None:
    def neighbour(y) -> None:
        tile = cuda.shared.array(64, np.float32)
        t = cuda.threadIdx.x
        tile[t] = np.float32(t)
        y[t] = tile[(t + 1) % 64]

    def overwritten(y) -> None:
        tile = cuda.shared.array(1, np.float32)
        if cuda.threadIdx.x in (3, 40):
            tile[0] = np.float32(cuda.threadIdx.x)
        cuda.syncthreads()
        y[cuda.threadIdx.x] = tile[0]

    def reused(y) -> None:
        tile = cuda.shared.array(64, np.float32)
        t = cuda.threadIdx.x
        for turn in range(2):
            tile[t] = np.float32(turn)
            cuda.syncthreads()
            y[t] = tile[63 - t]  # no barrier after it: the next turn may write first

    for kernel in (neighbour, overwritten, reused):
        raises(SimulationError, "race: thread", lambda kernel=kernel: run(kernel, np.zeros(64, np.float32)))


def test_a_warp_needs_its_own_barrier_only() -> None:
    def rotate(y) -> None:
        tile = cuda.shared.array(64, np.float32)
        t = cuda.threadIdx.x
        tile[t] = np.float32(t)
        cuda.syncwarp()
        y[t] = tile[t // 32 * 32 + (t + 1) % 32]

    y = np.zeros(64, np.float32)
    run(rotate, y)
    np.testing.assert_array_equal(y, np.r_[1:32, 0, 33:64, 32])


def test_shuffles() -> None:
    def exchange(y: Any) -> None:
        t = cuda.threadIdx.x
        y[t] = cuda.shfl_xor_sync(FULL_WARP, t, 1)
        y[64 + t] = cuda.shfl_up_sync(FULL_WARP, t, 2)
        y[128 + t] = cuda.shfl_sync(FULL_WARP, t, 5)
        if t % 32 < 16:  # half a warp by its mask
            y[t] += cuda.shfl_xor_sync(0xFFFF, t, 8)

    y = np.zeros(192, np.int64)
    run(exchange, y)
    t = np.arange(64)
    warp, lane = t // 32 * 32, t % 32
    np.testing.assert_array_equal(y[:64], (t ^ 1) + np.where(lane < 16, t ^ 8, 0))
    np.testing.assert_array_equal(y[64:128], np.where(lane >= 2, t - 2, t))
    np.testing.assert_array_equal(y[128:], warp + 5)


def test_sums_and_maxima_of_warps_and_blocks() -> None:
    def total(x, y) -> None:
        partial = cuda.shared.array(32, np.float32)
        t = cuda.threadIdx.x
        y[t] = warp_sum(x[t])
        y[96 + t] = warp_max(x[t])
        y[192 + t] = block_sum(x[t], partial)
        y[288 + t] = block_max(x[t], partial)

    x = np.random.default_rng(0).integers(-50, 50, 96).astype(np.float32)
    y = np.full((4, 96), np.nan, np.float32)
    run(total, x, y, threads=96)
    by_warp = x.reshape(3, 32)
    np.testing.assert_array_equal(y[0].reshape(3, 32), np.broadcast_to(by_warp.sum(1, keepdims=True), (3, 32)))
    np.testing.assert_array_equal(y[1].reshape(3, 32), np.broadcast_to(by_warp.max(1, keepdims=True), (3, 32)))
    assert set(y[2]) == {x.sum()} and set(y[3]) == {x.max()}
    x[70] = np.nan
    run(total, x, y, threads=96)
    assert np.isnan(y[3]).all() and np.isnan(y[2]).all() and not np.isnan(y[1, :64]).any()


def test_a_barrier_that_not_all_threads_reach() -> None:
    def some(y) -> None:
        if cuda.threadIdx.x < 40:
            cuda.syncthreads()

    def mixed(y) -> None:
        if cuda.threadIdx.x < 32:
            cuda.syncthreads()
        else:
            cuda.shfl_xor_sync(0xFF, 1, 1) if cuda.threadIdx.x < 34 else cuda.syncthreads()

    raises(SimulationError, r"cannot go on: of 64 threads 24 have ended.*syncthreads", lambda: run(some, np.zeros(1)))
    raises(SimulationError, "shfl_xor_sync", lambda: run(mixed, np.zeros(1)))


def test_accesses_outside_of_memory() -> None:
    def beyond(y) -> None:
        y[cuda.threadIdx.x] = 1.0

    def before(y) -> None:
        y[cuda.threadIdx.x - 1] = 1.0

    def shared(y) -> None:
        cuda.shared.array(8, np.float32)[cuda.threadIdx.x] = np.float32(1)

    def local(y) -> None:
        cuda.local.array(4, np.float32)[-1] = np.float32(1)

    def vector(y) -> None:
        ptx.store4(y, 62, (1.0, 1.0, 1.0, 1.0))

    def unaligned(y) -> None:
        ptx.load4(y, cuda.threadIdx.x)

    for kernel, words in [
        *[(beyond, "index 63 is outside"), (before, "index -1 is outside"), (shared, "outside a shared array")],
        *[(local, "outside a local array"), (unaligned, "not aligned"), (vector, "index 62 is outside")],
    ]:
        raises(SimulationError, words, lambda kernel=kernel: run(kernel, np.zeros(63, np.float32)))


def test_memory_is_poisoned() -> None:
    def unwritten(y) -> None:
        shared, local = cuda.shared.array(64, np.float32), cuda.local.array(4, np.float32)
        y[cuda.threadIdx.x] = shared[cuda.threadIdx.x] + local[1] * np.float32(0)

    y = np.zeros(64, np.float32)
    run(unwritten, y)
    assert np.isnan(y).all()
    assert np.isnan(cuda_kernels.to_host(cuda_kernels.empty((3, 5), np.float32))).all()


def test_dynamic_shared_memory_is_one_piece() -> None:
    def halves(y) -> None:
        floats, words = cuda.shared.array(0, np.float32), cuda.shared.array(0, np.int32)
        t = cuda.threadIdx.x
        floats[t] = np.float32(t)
        cuda.syncthreads()
        y[t] = words[t]

    y = np.zeros(64, np.int64)
    run(halves, y, shared=256)
    np.testing.assert_array_equal(y, np.arange(64, dtype=np.float32).view(np.int32))


def test_half_floats_round_to_nearest_even() -> None:
    import ml_dtypes

    rng = np.random.default_rng(0)
    ordinary = rng.standard_normal(200) * 10.0 ** rng.integers(-9, 9, 200)
    x = np.array([*ordinary, 0.0, -0.0, np.inf, -np.inf, np.nan, 1 + 2.0**-9], np.float32)
    with np.errstate(over="ignore"):
        for to_bits, to_float, dtype in [
            (ptx.float_to_float16, ptx.float16_to_float, np.float16),
            (ptx.float_to_bfloat16, ptx.bfloat16_to_float, ml_dtypes.bfloat16),
        ]:
            expected, bits = x.astype(dtype), x.astype(dtype).view(np.uint16)
            np.testing.assert_array_equal(np.array([to_bits(v) for v in x]), bits)
            np.testing.assert_array_equal(np.array([to_float(b) for b in bits]), expected.astype(np.float32))


def test_kernels_of_several_host_threads_take_turns() -> None:
    def places(y) -> None:
        x = cuda.grid(1)
        y[x] = warp_sum(np.float32(cuda.gridDim.x * 1000 + cuda.threadIdx.x))

    def work(blocks: int) -> list[np.ndarray]:
        results = [np.zeros(32 * blocks, np.float32) for _ in range(3)]
        for y in results:
            run(places, y, grid=(blocks, 1, 1), threads=32)
        return results

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            found = list(pool.map(work, [1, 2, 3]))
    finally:
        sys.setswitchinterval(interval)
    for blocks, results in enumerate(found, 1):
        np.testing.assert_array_equal(results, np.full((3, 32 * blocks), 32000 * blocks + 32 * 31 / 2))
