"""The checks of chapter 6."""

from typing import Any

import numpy as np

from minigrad.cuda_kernels.simulator import cuda

from ..exercise import require, same
from ..on_gpu import costs, empty, run, written

f32 = np.float32


def exercise_1(my: Any) -> None:
    for n in (2, 5):
        x, y, what = np.arange(10.0, dtype=f32), empty(10), f"n = {n}, 2 blocks of 4 threads: y"
        run(what, my.double, 2, 4, x, y, n)
        require(np.isnan(y[n:]).all(), f"{what}\nelement {n} was written, but n = {n}: the last one is {n - 1}")
        written(what, y[:n], 2 * x[:n])


def exercise_2(my: Any) -> None:
    x, row = np.arange(6, dtype=f32).reshape(2, 3), np.array([10, 20, 30], f32)
    y, what = empty(2, 3), "x of shape (2, 3), a block of (4, 4) threads"
    run(what, my.add_row, 1, (4, 4), x, row, y)
    written(what, y, x + row)
    x, y, what = np.ones((8, 64), f32), empty(8, 64), "x of shape (8, 64), 2 blocks of (32, 8) threads"
    report = run(what, my.add_row, (2, 1), (32, 8), x, np.zeros(64, f32), y)
    costs(what, report, "global store", 64, "the 32 lanes of a warp should write 32 neighbours, in 4 sectors")
    written(what, y, x)


def exercise_3(my: Any) -> None:
    x, y = np.arange(128, dtype=f32), empty(128)
    what = "128 elements, 2 blocks of 64 threads: y"
    report = run(what, my.reverse, 2, 64, x, y)
    written(what, y, x.reshape(2, 64)[:, ::-1].ravel())
    require(report.traffic("shared").requests, f"{what}\nnothing was written to shared memory: the tile is to be used")
    require(report.barriers, f"{what}\nthe barrier is missing, cuda.syncthreads(): each thread takes back its own "
            "element only. Thread t is to write y[first + t], which another one has read")  # fmt: skip
    costs(what, report, "global", 32, "each element of x is read once, each of y written once")


def exercise_4(my: Any) -> None:
    for rows, columns in ((32, 32), (34, 5)):
        x = np.arange(rows * columns, dtype=f32).reshape(rows, columns)
        y, what = empty(columns, rows), f"x of shape ({rows}, {columns}), 32 x 8 threads for 32 x 32 elements"
        report = run(what, my.transpose, (-(-columns // 32), -(-rows // 32)), (32, 8), x, y)
        written(what, y, x.T)
        if columns == 32:
            costs(what, report, "global load", 128, "a warp should read a row of x")
            costs(what, report, "global store", 128, "a warp should write a row of y")
            costs(what, report, "shared", 64, "bank conflicts; how wide is a row of the tile?")


def exercise_5(my: Any) -> None:
    def kernel(x: Any, y: Any) -> None:
        y[cuda.threadIdx.x] = my.warp_sum(x[cuda.threadIdx.x])

    places = np.arange(64, dtype=f32)
    given = {f"all values 0 but that of lane {k} of the first, which is 1": (places == k) * f32(1) for k in (0, 31, 13)}
    for which, x in {**given, "with the values 0, 1, ..., 63": places}.items():
        y, what = empty(64), f"2 warps, {which}: warp_sum"
        report = run(what, kernel, 1, 64, x, y)
        written(what, y, np.repeat(x.reshape(2, 32).sum(1), 32))
    require(report.instructions("shfl") == 10, f"{what}\n{report.instructions('shfl')} exchanges of 2 warps, 10 do")


def exercise_6(my: Any) -> None:
    rng = np.random.default_rng(0)
    for M, K, N in ((8, 8, 8), (8, 16, 8), (9, 17, 10)):
        a, b = rng.integers(-3, 4, (M, K)).astype(f32), rng.integers(-3, 4, (K, N)).astype(f32)
        y, what = empty(M, N), f"a of shape ({M}, {K}), b of shape ({K}, {N})"
        report = run(what, my.matmul, (-(-N // 8), -(-M // 8)), (8, 8), a, b, y)
        written(what, y, a @ b)
        if (M, K) == (8, 16):
            lanes = report.traffic("global load").lanes
            require(lanes == 256, f"{what}\n{lanes} loads from global memory, 256 do: each element once, by one thread")


def exercise_7(my: Any) -> None:
    x, what = np.array([0, 1, 1, 7] * 16, np.int64), "64 elements, 2 blocks of 32 threads: counts"
    counts = np.zeros(8, np.int32)
    counts[0] = 100
    report = run(what, my.histogram, 2, 32, x, counts)
    same(what, counts, np.array([116, 32, 0, 0, 0, 0, 0, 16], np.int32))
    lanes = report.traffic("global atomic").lanes
    require(lanes <= 16, f"{what}\n{lanes} atomic additions in global memory; 8 of each block do, from its own bins")
