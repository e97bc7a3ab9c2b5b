"""The checks of chapter 7."""

from typing import Any

import numpy as np

from minigrad.cuda_kernels.simulator import cuda

from ..exercise import Array, require, same
from ..on_gpu import empty, run, written

f32 = np.float32
SMALL = np.array([[1, 2, 3], [0, 0, 4]], f32)
HUGE = np.array([[1e4, 0, -1e4], [-1e6, -1e6, -1e6]], f32)
LOW = "e^-1000000 is 0, and 0 / 0 no number: does the maximum begin with LOWEST?"


def wide(rows: int, columns: int) -> Array:
    """Some scores."""
    return np.random.default_rng(0).normal(size=(rows, columns)).astype(f32)


def softmax_of(x: Array) -> Array:
    """The softmax of each row."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def exercise_1(my: Any) -> None:
    def kernel(x: Any, y: Any) -> None:
        partial = cuda.shared.array(32, np.float32)
        t = cuda.threadIdx.x
        y[0, t] = my.block_sum(x[t], partial)
        y[1, t] = my.block_max(x[t], partial)
        y[2, t] = my.block_sum(x[t], partial)

    for threads, thread, number, others in ((96, 40, 1.0, 0.0), (96, 95, -1.0, -3.0), (64, 5, -1e6, -2e6)):
        x = np.full(threads, others, f32)
        x[thread] = number
        what = f"{threads // 32} warps, all values {others} but that of thread {thread}, which is {number}"
        run(what, kernel, 1, threads, x, y := empty(3, threads))
        written(f"{what}: block_sum", y[0], np.full(threads, x.sum()))
        written(f"{what}: block_max", y[1], np.full(threads, x.max()))
        written(f"{what}: block_sum again", y[2], np.full(threads, x.sum()))


def rows(kernel: Any, passes: int, reads: str) -> None:
    """Check a softmax kernel, and how often it reads each number."""
    for x, threads in ((SMALL, 64), (HUGE, 64), (wide(2, 250), 96)):
        y, what = empty(*x.shape), f"x = {x.tolist()}" if x.size < 10 else "x of shape (2, 250), blocks of 96 threads"
        report = run(what, kernel, 2, threads, x, y)
        if x is HUGE:
            require(np.isfinite(y[0]).all(), f"{what}\ny holds NaN: e^10000 is infinite. Take the maximum out first")
            require(np.isfinite(y[1]).all(), f"{what}\ny[1] holds NaN: {LOW}")
        written(f"{what}: y", y, softmax_of(x.astype(np.float64)).astype(f32))
    lanes = report.traffic("global load").lanes
    require(lanes <= passes * x.size, f"{what}\n{lanes} reads of {x.size} numbers: {reads}")
    sectors = report.traffic("global load").cost
    require(sectors <= 1.5 * report.traffic("global load").ideal,
            f"{what}\n{sectors} sectors: neighbouring threads should read neighbouring columns")  # fmt: skip


def exercise_2(my: Any) -> None:
    rows(my.softmax, 3, "three passes are enough, and a read of y is one, too")


def exercise_3(my: Any) -> None:
    low, e = -np.inf, np.exp(f32(-2))
    cases: list[Any] = [
        ((3, 1, 1, 1), (3, 1 + e), "e^3 and e^1"), ((1, 1, 3, 1), (3, 1 + e), "e^1 and e^3"),
        ((2, 1, 2, 5), (2, 6), "the same maximum twice"), ((low, 0, 7, 1), (7, 1), "an empty part and one number"),
        ((7, 1, low, 0), (7, 1), "a number and an empty part"), ((low, 0, low, 0), (low, 0), "two empty parts"),
        ((1e4, 1, -1e4, 1), (1e4, 1), "e^10000 and e^-10000"), ((-1e30, 1, -1e30, 2), (-1e30, 3), "far below 0"),
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        for given, want, why in cases:
            got = my.join(*map(f32, given))
            what = f"join{given}: {why}"
            require(isinstance(got, tuple) and len(got) == 2, f"{what}\nexpected two numbers, (m, s), got {got!r}")
            for name, mine, wanted in zip("ms", got, want):
                same(f"{what}: {name}", f32(mine), f32(wanted))


def exercise_4(my: Any) -> None:
    rows(my.online_softmax, 2, "two passes are enough; the first finds both maximum and sum")


def exercise_5(my: Any) -> None:
    for x, targets in ((SMALL, [2, 0]), (HUGE, [0, 1]), (wide(3, 70), [69, 3, 0])):
        n, columns = x.shape
        what = f"x = {x.tolist()}, targets {targets}" if x.size < 10 else "x of shape (3, 70), blocks of 64 threads"
        losses, dx = empty(n), empty(n, columns)
        report = run(what, my.cross_entropy, n, 64, x, np.array(targets), losses, dx)
        if x is HUGE:
            why = "e^10000 is infinite, or log(0) was taken"
            require(np.isfinite(losses[0]), f"{what}\nlosses[0] is no number: {why}")
            require(np.isfinite(losses[1]), f"{what}\nlosses[1] is no number: {LOW}")
        exact = x.astype(np.float64)
        p, hit = softmax_of(exact), np.eye(columns)[targets]
        want = np.log(np.exp(exact - exact.max(1, keepdims=True)).sum(1)) + exact.max(1) - exact[range(n), targets]
        written(f"{what}: losses", losses, want.astype(f32), 2e-3 if x is HUGE else 1e-5)
        written(f"{what}: dx", dx, ((p - hit) / n).astype(f32))
    lanes = report.traffic("global load").lanes
    require(lanes <= 2 * x.size + 3 * 192, f"{what}\n{lanes} reads of {x.size} numbers: two passes are enough")


def exercise_6(my: Any) -> None:
    names, given = my.attention.__globals__, my.D
    for T, D, least in ((2, given, 0.0), (2, given, -1e6), (17, 3, 0.0)):
        rng = np.random.default_rng(1)
        q, k, v = (rng.normal(size=(T, D)).astype(f32) for _ in range(3))
        q[0], q[1:] = (least * k[0] if least else 4 * q[0]), 4 * q[1:]
        y, what = empty(T, D), f"T = {T}, D = {D}, {-(-T // 16)} blocks of 16 threads"
        names["D"] = D
        try:
            report = run(what, my.attention, -(-T // 16), 16, q, k, v, y)
        finally:
            names["D"] = given
        alone = T == 2 and np.isnan(y[0]).all() and not np.isnan(y[1:]).any()
        require(not alone or least, f"{what}\ny[0] is no number: query 0 sees one key, that at its own place")
        require(not alone, f"{what}, the score of query 0 far below 0\ny[0] is no number: {LOW}")
        weights = softmax_of(np.where(np.tri(T) > 0, q.astype(np.float64) @ k.T / np.sqrt(D), -np.inf))
        written(f"{what}: y", y, np.asarray(weights @ v, f32))
    lanes = report.traffic("global load").lanes
    most = T * D * (1 + 2 * -(-T // 16))
    require(lanes <= most, f"{what}\n{lanes} reads from global memory, {most} are enough: a block reads a key once")
