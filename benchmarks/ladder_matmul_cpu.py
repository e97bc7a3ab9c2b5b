"""The matrix product on the CPU in six steps, each a few lines from the one before; docs/matmul_cpu.md explains them.

    python benchmarks/ladder_matmul_cpu.py
    python benchmarks/ladder_matmul_cpu.py --size 768 --rungs packed tile threads

Prints GFLOP/s of each step for float32 matrices of (size, size), and beside them minigrad's product and the libraries
that are installed: NumPy's OpenBLAS, PyTorch's MKL, and MKL itself. Each library runs in a process of its own, with one
thread and with all, because the pool of one disturbs another's; a time is the least of several.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import prange

from minigrad.cpu_kernels.toolbox.jit import kernel
from minigrad.cpu_kernels.toolbox.register_tile import (
    TILE_BYTES,
    TILE_PANELS,
    TILE_ROWS,
    advance,
    aligned_empty,
    keep_alive,
    multiply_tile,
    pack_panels,
    pointer,
    tile_columns,
)
from minigrad.cpu_kernels.toolbox.threads import parallel_kernel

DEPTH, COLUMNS = 512, 256  # of the block of b that stays in L2: 512 KiB
ROWS = 8 * TILE_ROWS  # of y, in each task of the last step


# ---------------------------------------------------------------- the rungs: y += a @ b, all of them C-contiguous


@kernel
def naive(a, b, y):
    """The definition. The inner loop walks down a column of b: a new cache line for each multiply-add."""
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            total = y[i, j]
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            y[i, j] = total


@kernel
def ordered(a, b, y):
    """The two inner loops change places: the innermost walks along rows of b and y, and becomes vector instructions."""
    for i in range(y.shape[0]):
        y_row = y[i]
        for k in range(a.shape[1]):
            factor, b_row = a[i, k], b[k]
            for j in range(y.shape[1]):
                y_row[j] += factor * b_row[j]


@kernel
def blocked(a, b, y):
    """One block of b after another: it stays in the L2 cache while all rows of a pass by."""
    inner = a.shape[1]
    for j in range(0, y.shape[1], COLUMNS):
        for k_block in range(0, inner, DEPTH):
            for i in range(y.shape[0]):
                y_row = y[i][j : j + COLUMNS]
                for k in range(k_block, min(k_block + DEPTH, inner)):
                    factor, b_row = a[i, k], b[k][j : j + COLUMNS]
                    for c in range(y_row.size):
                        y_row[c] += factor * b_row[c]


@kernel
def packed(a, b, y):
    """The block of b is copied first, so that its rows lie one after the other."""
    inner = a.shape[1]
    block = np.empty((DEPTH, COLUMNS), b.dtype)
    for j in range(0, y.shape[1], COLUMNS):
        for k_block in range(0, inner, DEPTH):
            for k in range(k_block, min(k_block + DEPTH, inner)):
                for c in range(min(COLUMNS, y.shape[1] - j)):
                    block[k - k_block, c] = b[k, j + c]
            for i in range(y.shape[0]):
                y_row = y[i][j : j + COLUMNS]
                for k in range(k_block, min(k_block + DEPTH, inner)):
                    factor, b_row = a[i, k], block[k - k_block]
                    for c in range(y_row.size):
                        y_row[c] += factor * b_row[c]


@kernel
def tile(a, b, y):
    """The block is packed in strips, one or two of which are as wide as a tile of y whose sums stay in registers.

    The rows of y are a multiple of TILE_ROWS, its columns of a tile's; ``multiply`` pads with zeros.
    """
    (rows, columns), inner = y.shape, a.shape[1]
    n = tile_columns(pointer(y))
    strips = aligned_empty(DEPTH * COLUMNS, b)
    for j in range(0, columns, COLUMNS):
        width = min(COLUMNS, columns - j)
        for k in range(0, inner, DEPTH):
            depth = min(DEPTH, inner - k)
            pack_panels(advance(pointer(b), k * columns + j), columns, 1, depth, width, pointer(strips))
            for i in range(0, rows, TILE_ROWS):
                a_rows = advance(pointer(a), i * inner + k)
                for s in range(0, width, TILE_PANELS * n):
                    y_tile = advance(pointer(y), i * columns + j + s)
                    strip = advance(pointer(strips), s * depth)
                    multiply_tile(
                        TILE_PANELS, depth, a_rows, inner, 1, strip, n * depth, y_tile, columns, y_tile, columns
                    )
    keep_alive((strips,))


@parallel_kernel
def threads(a, b, y):
    """The rows of y are shared out. k never is: each element is summed by one thread, in one order."""
    for task in prange((y.shape[0] + ROWS - 1) // ROWS):
        i = task * ROWS
        tile(a[i : i + ROWS], b, y[i : i + ROWS])


RUNGS: dict[str, Any] = {f.__name__: f for f in (naive, ordered, blocked, packed, tile, threads)}


def multiply(rung: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b by one rung: (M, K), (K, N) of float32 or float64 -> (M, N)."""
    (M, K), N = a.shape, b.shape[1]
    rows, columns = M, N
    if rung in ("tile", "threads"):
        n = TILE_PANELS * TILE_BYTES // a.itemsize
        rows, columns = -(-M // TILE_ROWS) * TILE_ROWS, -(-N // n) * n
    if rows > M:
        a = np.concatenate([a, np.zeros((rows - M, K), a.dtype)])
    if columns > N:
        b = np.concatenate([b, np.zeros((K, columns - N), b.dtype)], axis=1)
    y = np.zeros((rows, columns), a.dtype)
    RUNGS[rung](np.ascontiguousarray(a), np.ascontiguousarray(b), y)
    return y[:M, :N]


# ---------------------------------------------------------------- measuring

Product = Callable[[np.ndarray, np.ndarray], Any]


def ours(rungs: list[str], thread_count: int) -> dict[str, Product]:
    """The rungs, of which the last alone uses more than one thread, and minigrad's product."""
    import minigrad
    from minigrad.cpu_kernels.matmul import matmul

    minigrad.set_num_threads(thread_count)
    chosen = [rung for rung in rungs if (rung == "threads") == (thread_count > 1)]
    return {**{rung: lambda a, b, rung=rung: multiply(rung, a, b) for rung in chosen}, "minigrad": matmul}


def openblas(rungs: list[str], thread_count: int) -> dict[str, Product]:
    """NumPy's product."""
    return {"numpy": np.matmul}


def torch_mkl(rungs: list[str], thread_count: int) -> dict[str, Product]:
    """PyTorch's product: MKL's, where its build has it."""
    import torch

    torch.set_num_threads(thread_count)
    return {"torch": lambda a, b: torch.matmul(torch.from_numpy(a), torch.from_numpy(b))}


def mkl_library() -> str | None:
    """Where ``pip install mkl`` or conda has put MKL in this environment."""
    found = sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))
    return str(found[-1]) if found else None


def mkl(rungs: list[str], thread_count: int) -> dict[str, Product]:
    """MKL's own cblas_sgemm."""
    library = mkl_library()
    assert library is not None
    sgemm = ctypes.CDLL(library).cblas_sgemm
    integer, real, pointer_ = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    sgemm.argtypes = [*[integer] * 6, real, pointer_, integer, pointer_, integer, real, pointer_, integer]
    sgemm.restype = None

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        (M, K), N = a.shape, b.shape[1]
        y = np.empty((M, N), np.float32)
        row_major, plain = 101, 111  # CblasRowMajor, CblasNoTrans
        sgemm(row_major, plain, plain, M, N, K, 1.0, a.ctypes.data, K, b.ctypes.data, N, 0.0, y.ctypes.data, N)
        return y

    return {"mkl": product}


LIBRARIES: dict[str, Callable[[list[str], int], dict[str, Product]]] = {
    "minigrad": ours,
    "numpy": openblas,
    "torch": torch_mkl,
    "mkl": mkl,
}
POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def missing(library: str) -> str | None:
    """Why a library cannot be measured, or None."""
    if library == "mkl":
        return None if mkl_library() else "no libmkl_rt in this environment (pip install mkl)"
    return None if importlib.util.find_spec(library) else f"pip install {library}"


def work(library: str, rungs: list[str], thread_count: int, size: int, seconds: float) -> None:
    """Check each product of a library, time it, and print a JSON line with its GFLOP/s."""
    random = np.random.default_rng(0)
    a, b = random.standard_normal((size, size), np.float32), random.standard_normal((size, size), np.float32)
    expected = a[:8].astype(np.float64) @ b
    speeds = {}
    for name, product in LIBRARIES[library](rungs, thread_count).items():
        np.testing.assert_allclose(np.asarray(product(a, b))[:8], expected, rtol=1e-3, atol=1e-3, err_msg=name)
        best, end = float("inf"), time.perf_counter() + seconds
        while best == float("inf") or time.perf_counter() < end:
            begin = time.perf_counter()
            product(a, b)
            best = min(best, time.perf_counter() - begin)
        speeds[name] = 2e-9 * size**3 / best
    print(json.dumps(speeds))


def measure(
    libraries: list[str], rungs: list[str], counts: list[int], size: int, turns: int, seconds: float
) -> dict[str, dict[int, float]]:
    """GFLOP/s by name and number of threads, the best of the turns."""
    speeds: dict[str, dict[int, float]] = {}
    for _ in range(turns):
        for count in counts:
            for library in libraries:
                options = ["--worker", library, "--threads", str(count), "--size", str(size), "--seconds", str(seconds)]
                command = [sys.executable, __file__, *options, "--rungs", *rungs]
                environment = {**os.environ, **dict.fromkeys(POOLS, str(count))}
                for name, speed in json.loads(subprocess.check_output(command, env=environment)).items():
                    of_name = speeds.setdefault(name, {})
                    of_name[count] = max(of_name.get(count, 0.0), speed)
    return speeds


def main() -> None:
    """Run the workers in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="rows and columns of each matrix (default 1024)")
    parser.add_argument("--rungs", nargs="+", choices=list(RUNGS), default=list(RUNGS))
    parser.add_argument("--against", nargs="+", choices=list(LIBRARIES)[1:], default=list(LIBRARIES)[1:])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="(default: all cores)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each product in each turn (default 0.5)")
    parser.add_argument("--json", type=Path, help="write the table here as well")
    parser.add_argument("--worker", choices=list(LIBRARIES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.rungs, args.threads, args.size, args.seconds)
        return
    libraries = ["minigrad"]
    for library in args.against:
        if (reason := missing(library)) is None:
            libraries.append(library)
        else:
            print(f"{library}: skipped, {reason}")
    counts = sorted({1, args.threads})
    speeds = measure(libraries, args.rungs, counts, args.size, args.turns, args.seconds)
    print(f"float32, ({args.size}, {args.size}) @ ({args.size}, {args.size}), GFLOP/s")
    print(f"{'':10}" + "".join(f"{f'{count} threads' if count > 1 else '1 thread':>12}" for count in counts))
    for name in [*(rung for rung in RUNGS if rung in speeds), *(library for library in LIBRARIES if library in speeds)]:
        cells = (f"{speeds[name][count]:12.1f}" if count in speeds[name] else f"{'':12}" for count in counts)
        print(f"{name:10}" + "".join(cells))
    if args.json:
        args.json.write_text(json.dumps({"size": args.size, "gflops": speeds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
