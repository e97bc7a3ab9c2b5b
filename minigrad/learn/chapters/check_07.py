"""The checks of chapter 7."""

from typing import Any

import numpy as np

from minigrad.cuda_kernels.simulator import cuda

from ..exercise import Array, require, same
from ..on_gpu import empty, run, written

f32 = np.float32
SMALL = np.array([[1, 2, 3], [0, 0, 4]], f32)
HUGE = np.array([[1e4, 0, -1e4], [-1e4, -1e4, -1e4]], f32)


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

    for number, others in ((1.0, 0.0), (-1.0, -3.0)):
        x = np.full(96, others, f32)
        x[40] = number
        y, what = empty(3, 96), f"3 warps, all values {others} but that of thread 40, which is {number}"
        run(what, kernel, 1, 96, x, y)
        written(f"{what}: block_sum", y[0], np.full(96, x.sum()))
        written(f"{what}: block_max", y[1], np.full(96, x.max()))
        written(f"{what}: block_sum again", y[2], np.full(96, x.sum()))


def rows(kernel: Any, passes: int, reads: str) -> None:
    """Check a softmax kernel, and how often it reads each number."""
    for x in (SMALL, HUGE, wide(2, 150)):
        y, what = empty(*x.shape), f"x = {x.tolist()}" if x.size < 10 else "x of shape (2, 150), blocks of 64 threads"
        report = run(what, kernel, 2, 64, x, y)
        if x is HUGE:
            require(np.isfinite(y).all(), f"{what}\ny holds NaN: e^10000 is infinite. Take the maximum out first")
        written(f"{what}: y", y, softmax_of(x.astype(np.float64)).astype(f32))
    lanes = report.traffic("global load").lanes
    require(lanes <= passes * x.size, f"{what}\n{lanes} reads of {x.size} numbers: {reads}")
    sectors = report.traffic("global load").cost
    require(sectors <= 1.5 * report.traffic("global load").ideal,
            f"{what}\n{sectors} sectors: neighbouring threads should read neighbouring columns")  # fmt: skip


def exercise_2(my: Any) -> None:
    rows(my.softmax, 3, "three passes are enough")


def exercise_3(my: Any) -> None:
    low, e = -np.inf, np.exp(f32(-2))
    cases: list[Any] = [
        ((3, 1, 1, 1), (3, 1 + e), "e^3 and e^1"), ((1, 1, 3, 1), (3, 1 + e), "e^1 and e^3"),
        ((2, 1, 2, 5), (2, 6), "the same maximum twice"), ((low, 0, 7, 1), (7, 1), "an empty part and one number"),
        ((7, 1, low, 0), (7, 1), "a number and an empty part"), ((low, 0, low, 0), (low, 0), "two empty parts"),
        ((1e4, 1, -1e4, 1), (1e4, 1), "e^10000 and e^-10000"),
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        for given, want, why in cases:
            got = my.join(*map(f32, given))
            what = f"join{given}: {why}"
            require(isinstance(got, tuple) and len(got) == 2, f"{what}\nexpected two numbers, (m, s), got {got!r}")
            same(what, np.array(got, f32), np.array(want, f32))


def exercise_4(my: Any) -> None:
    rows(my.online_softmax, 2, "two passes are enough; the first finds both maximum and sum")


def exercise_5(my: Any) -> None:
    for x, targets in ((SMALL, [2, 0]), (HUGE, [0, 1]), (wide(2, 70), [69, 3])):
        n, columns = x.shape
        what = f"x = {x.tolist()}, targets {targets}" if x.size < 10 else "x of shape (2, 70), blocks of 64 threads"
        losses, dx = empty(n), empty(n, columns)
        report = run(what, my.cross_entropy, n, 64, x, np.array(targets), losses, dx)
        if x is HUGE:
            require(np.isfinite(losses).all(), f"{what}\na loss is no number: e^10000 is infinite, or log(0) was taken")
        exact = x.astype(np.float64)
        p, hit = softmax_of(exact), np.eye(columns)[targets]
        want = np.log(np.exp(exact - exact.max(1, keepdims=True)).sum(1)) + exact.max(1) - exact[range(n), targets]
        written(f"{what}: losses", losses, want.astype(f32), 2e-3 if x is HUGE else 1e-5)
        written(f"{what}: dx", dx, ((p - hit) / n).astype(f32))
    lanes = report.traffic("global load").lanes
    require(lanes <= 2 * x.size + 3 * 128, f"{what}\n{lanes} reads of {x.size} numbers: two passes are enough")


def exercise_6(my: Any) -> None:
    for T in (2, 20):
        rng = np.random.default_rng(1)
        q, k, v = (rng.normal(size=(T, my.D)).astype(f32) for _ in range(3))
        q *= 4
        y, what = empty(T, my.D), f"T = {T}, {-(-T // 16)} blocks of 16 threads"
        report = run(what, my.attention, -(-T // 16), 16, q, k, v, y)
        alone = T == 2 and np.isnan(y[0]).all() and not np.isnan(y[1:]).any()
        require(not alone, f"{what}\ny[0] is no number: query 0 sees one key, that at its own place")
        weights = softmax_of(np.where(np.tri(T) > 0, q @ k.T / 2, -np.inf))
        written(f"{what}: y", y, np.asarray(weights @ v, f32))
    lanes = report.traffic("global load").lanes
    most = T * my.D * (1 + 2 * -(-T // 16))
    require(lanes <= most, f"{what}\n{lanes} reads from global memory, {most} are enough: a block reads a key once")
