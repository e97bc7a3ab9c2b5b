"""The checks of chapter 8."""

from typing import Any

import numpy as np

from minigrad.cuda_kernels.simulator import cuda

from ..exercise import Array, require
from ..on_gpu import costs, empty, run, written

f32 = np.float32


def bits(x: Array) -> Array:
    """float16 as uint16."""
    return x.astype(np.float16).view(np.uint16)


def small(*shape: int) -> Array:
    """Small whole numbers, of which float16 holds all products and sums."""
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(f32)


def product(my_kernel: Any, columns: int) -> Any:
    """Check a product by one warp: first a matrix with a single 1, then any."""
    for row, k in ((0, 0), (0, 1), (0, 8), (8, 0), (9, 3), (None, None)):
        a, b = np.zeros((16, 16), f32), small(16, columns)
        if row is None:
            a = small(16, 16)
        else:
            a[row, k] = 1
        what = f"a is 0 but for a[{row}, {k}] = 1, so y[{row}] is b[{k}]" if row is not None else "any a and b"
        y = empty(16, columns)
        report = run(what, my_kernel, 1, 32, bits(a), bits(b), y)
        written(what, y, a @ b)
    return report


def exercise_2(my: Any) -> None:
    report = product(my.multiply_tile, 8)
    require(report.instructions("mma") == 1, f"{report.instructions('mma')} instructions mma_float16; one does it all")


def exercise_3(my: Any) -> None:
    report = product(my.multiply_shared, 16)
    for name, most in (("ldmatrix", 2), ("mma", 2)):
        found = report.instructions(name)
        require(found == most, f"{found} instructions {name}, expected {most}")


def exercise_4(my: Any) -> None:
    places = np.array([[my.swizzled(row, piece) for piece in range(8)] for row in range(16)])
    for row in range(16):
        want = list(range(8 * row, 8 * row + 8))
        require(sorted(places[row]) == want, f"row {row}: its 8 pieces are kept at {places[row].tolist()}\n"
                f"expected the places {want[0]} to {want[-1]}, each once")  # fmt: skip

    def kernel(x: Any, y: Any) -> None:
        ptx, lane = my.ptx, cuda.threadIdx.x
        tile = cuda.shared.array(16 * 64, np.uint16, alignment=16)
        for n in range(lane, 128, 32):
            ptx.store8(tile, my.swizzled(n // 8, n % 8) * 8, ptx.load8(x, 8 * n))
        cuda.syncthreads()
        for piece in range(0, 8, 2):
            words = ptx.ldmatrix(ptx.shared_address(tile, my.swizzled(lane % 16, piece + lane // 16) * 8))
            for n in range(4):
                y[32 * (4 * piece + n) + lane] = words[n]

    what = "16 rows of 8 pieces, written row by row and read by ldmatrix, two pieces of all rows at a time"
    y = np.zeros(1024, np.uint32)
    report = run(what, kernel, 1, 32, np.arange(1024, dtype=np.uint16), y)
    for kind, doing in (("shared store", "8 lanes write one row"), ("shared load", "8 lanes read a piece of 8 rows")):
        costs(f"{what}\n{doing}", report, kind, report.traffic(kind).ideal, "they meet in the same banks")


def exercise_5(my: Any) -> None:
    for tiles in (1, 2, 5):
        x, y = small(tiles * 256), empty(64)
        what = f"{tiles} tiles of 256 numbers"
        report = run(what, my.tile_sums, 1, 64, x, y, tiles)
        written(f"{what}: y", y, x.reshape(-1, 64).sum(0))
    waits = report.instructions("cp_async_wait0")
    require(waits <= 2, f"{what}\ncp_async_wait0 waits for the next tile, too: use it for the last one at most")
    mine = sorted((r for r in report.requests if r.warp == 0 and r.kind.startswith("shared")), key=lambda r: r.key)
    begun, read = 0, 0
    for request in mine:
        begun += request.kind == "shared store"
        read += request.kind == "shared load"
        late = request.kind == "shared load" and read % 4 == 1 and begun < min(read // 4 + 2, tiles)
        require(not late, f"{what}\ntile {read // 4} is added up before the copy of the next one has begun")


def exercise_6(my: Any) -> None:
    for M, K, N in ((16, 16, 16), (16, 48, 16), (32, 16, 48)):
        a, b, y = small(M, K), small(K, N), empty(M, N)
        what = f"a of shape ({M}, {K}), b of shape ({K}, {N})"
        report = run(what, my.matmul_tensor, (N // 16, M // 16), 32, bits(a), bits(b), y)
        written(f"{what}: y", y, a @ b)
        most = M // 16 * (N // 16) * (K // 16) * 2
        found = report.instructions("mma")
        require(found == most, f"{what}\n{found} instructions mma_float16, {most} are needed")
