"""Matrix products without tensor cores: which kernel computes which shapes, and the kernels of small and thin ones.

    up to SMALL multiply-adds, and integers    small: a thread for each element; a launch costs more than the product
    few rows or columns, both read along k     dot: a warp for each element (decoding one token)
    everything else                            the largest tiles that keep all processors busy: ``simt_tiles.py``

Element (r, c) of matrix z of the batch is the sum over k of a[r a_row + k a_depth] b[k b_depth + c b_column]. There a
and b begin at (z // inner) outer + (z % inner) inner steps of theirs. k is walked in order and divided by the shapes
alone: the result has the same bits at each run.
"""

from typing import Any

import numpy as np

from ..platform.toolbox import Kernel, contiguous, cuda, kernel
from ..ptx import ptx
from ..rowwise.collective import warp_sum
from . import simt_tiles
from .epilogue import finish, steps_of, target, whole
from .record import GELU, SLOPE, Problem, problem
from .tiles import WORDS, along, divide, plan, start

SMALL = 1 << 19  # multiply-adds
LONG = 1024  # a sum that one thread should not compute alone
FEW = 4  # rows or columns that waste most of a tile
MOST_ELEMENTS = 2**31 - 1  # of y in a launch


def multiply(p: Problem) -> None:
    """Compute a product of arrays of one dtype, one of ``SMALL_KERNELS``; integers take no step but BIAS."""
    if p.y.size > MOST_ELEMENTS:
        half = p.y.shape[0] // 2
        multiply(p.part(slice(None, half)))
        multiply(p.part(slice(half, None)))
        return
    if p.y.dtype not in DOT or is_small(p):
        lanes, kernel = 1, SMALL_KERNELS[p.y.dtype]
    elif is_thin(p) and p.sizes[2] >= 32 and p.a.steps[-1] == p.b.steps[-2] == 1:
        wide = p.y.dtype == np.float32 and along(p.a, -1, 4) == along(p.b, -2, 4) == "k"
        lanes, kernel = 32, WIDE_DOT if wide else DOT[p.y.dtype]
    else:
        _multiply_tiles(p)
        return
    y, bias, other, epilogue = whole(p)
    n, most = y.size * lanes, kernel.threads[0]  # ``launch_each``, without a step on the way of a @ b
    kernel.launch(-(-n // most), y, p.a, p.b, bias, other, *p.words, epilogue, y.size, threads=max(min(most, n), 1))


def is_small(p: Problem) -> bool:
    """Whether the number of launches is all that counts."""
    return p.y.size * p.sizes[2] <= SMALL and p.sizes[2] <= LONG


def is_thin(p: Problem) -> bool:
    """Whether it has so few rows or columns that reading the operands is most of the work."""
    return min(p.sizes[:2]) <= FEW


def _multiply_tiles(p: Problem) -> None:
    a, b = (x if 1 in x.steps[-2:] else contiguous(x) for x in (p.a, p.b))
    if a is not p.a or b is not p.b:
        p = problem(p.y, a, b, *p[3:6])
    side, splits = plan(*p.sizes, p.matrices, (128, 64, 32) if p.y.dtype == np.float32 else (64, 32))
    tiles = divide(p, side, side, splits)
    kernel = simt_tiles.TILED[p.y.dtype, side]
    later = p.epilogue & (GELU | SLOPE)  # in a pass of their own, over the product and its bias
    if side == 128:
        kinds = "".join(along(x, k, 4) or "-" for x, k in ((a, -1), (b, -2)))
        kernel = simt_tiles.WIDE.get(kinds, kernel)
    y, bias, other, epilogue = target(p, tiles.splits)
    if tiles.splits > 1:
        later = p.epilogue
    elif later & GELU:
        y = other
    grid = p.matrices * tiles.splits * tiles.rows * tiles.columns
    kernel.launch(grid, y, a, b, bias, other, *p.words, epilogue & ~later, *tiles)
    if later or tiles.splits > 1:
        finish(p, y, tiles.splits, later)


# The kernels ------------------------------------------------------------------------------


def _place(element: Any, M: Any, N: Any) -> Any:
    """The matrix, row and column of an element of y."""
    outer = element // np.uint32(N)
    matrix = outer // np.uint32(M)
    return matrix, np.int64(outer - matrix * np.uint32(M)), np.int64(element - outer * np.uint32(N))


def _dot(dtype: Any, lanes: int, vector: bool = False) -> Kernel:
    """``lanes``, a warp or 1, share a sum; with ``vector`` each reads 4 elements at once, which K and steps allow."""
    finish = steps_of(dtype)
    word, logical, count = np.dtype(dtype).name, dtype is np.bool_, 4 if vector else 1
    zero = np.uint8(0) if logical else dtype(0)
    step, per_block, shared = lanes * count, 128 // lanes, lanes > 1
    index = np.int64 if shared else np.int32  # these need the fewest registers

    @kernel(
        f"{word}* x5, {WORDS}, uint32", threads=128, registers=48 if shared else 32, vector_loads=vector,
        name=f"{'dot' if shared else 'small'}_{word}" + "_wide" * vector,
    )  # fmt: skip
    def dot(
        y, a, b, bias, other, M, N, K, a_row, a_depth, b_depth, b_column, inner, a_outer, a_inner, b_outer, b_inner,
        epilogue, n,
    ):  # fmt: skip
        here = np.uint32(cuda.threadIdx.x >> 5 if shared else cuda.threadIdx.x)
        element = np.uint32(np.uint32(cuda.blockIdx.x) * np.uint32(per_block) + here)
        if element < n:
            matrix, row, column = _place(element, M, N)
            s = zero
            lane = cuda.threadIdx.x % lanes
            i = start(matrix, inner, a_outer, a_inner) + row * a_row + lane * count * a_depth
            j = start(matrix, inner, b_outer, b_inner) + column * b_column + lane * count * b_depth
            for _ in range(index(lane * count), K, index(step)):
                if vector:
                    p, q = ptx.load_constant4(a, i), ptx.load_constant4(b, j)
                    s += p[0] * q[0] + p[1] * q[1] + (p[2] * q[2] + p[3] * q[3])
                elif logical:
                    s |= a[i] & b[j]
                else:
                    s += a[i] * b[j]
                i += step * a_depth
                j += step * b_depth
            if shared:
                s = warp_sum(s)
            if lane == 0:
                y[element] = finish(s, np.int64(element), column, bias, other, epilogue)

    return dot


REALS, INTEGERS = (np.float32, np.float64), (np.int64, np.int32, np.uint8, np.bool_)
DOT = {np.dtype(real): _dot(real, 32) for real in REALS}
WIDE_DOT = _dot(np.float32, 32, vector=True)
SMALL_KERNELS = {np.dtype(dtype): _dot(dtype, 1) for dtype in (*REALS, *INTEGERS)}
