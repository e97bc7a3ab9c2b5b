"""The inner loop of every matrix product on the CPU: a tile of the result that lives in registers.

How a fast matrix product works (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008).
``y = a @ b`` does ``depth`` multiply-adds per element of y. A core can start two vector multiply-adds per cycle but
load only about two vectors per cycle. So each loaded value must be used several times, and the sums must stay in
registers:

    one tile of y:  TILE_ROWS x 4 vectors of accumulators with AVX-512 (6 x 64 floats, 24 of the 32 registers), else x 2
    one step of k:  load 4 vectors of b, broadcast TILE_ROWS scalars of a, TILE_ROWS x 4 fused multiply-adds

That is ``multiply_tile``. It is written in LLVM's intermediate language because Python code cannot promise that the
accumulators stay in registers; everything around it is ordinary Numba.

The tile wants its operands in the order in which it walks them:

    b in *panels*:  two vectors wide, TILE_PANELS to a tile, row after row, so that steps read the next cache lines.
        b = [ panel 0 | panel 1 | ... ]      packed:  panel 0 row 0, panel 0 row 1, ..., panel 1 row 0, ...
    a row-major as it is, or in *row tiles* (TILE_ROWS rows, column after column) where it is transposed in memory.

Packing copies a cache-sized block, which is then used many times; padding it with zeros also makes every tile full, so
the tile needs no variants for the edges of a matrix. A transposed operand costs a different packing loop and nothing
else.

Pointers stand for strided operands: an array type says C, Fortran or any order, and Numba would compile every
combination anew. All strides count elements.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.codegen import get_host_cpu_features

from .jit import emits, inline, kernel


def cpu_has(feature: str) -> bool:
    """Whether the CPU that Numba compiles for has a feature (``NUMBA_CPU_FEATURES`` overrides the host's)."""
    features = numba.config.CPU_FEATURES
    return f"+{feature}" in (get_host_cpu_features() if features is None else features).split(",")


# The accumulators, a row of vectors of b and one of a must fit the 32 (AVX-512, ARM) or 16 registers.
if cpu_has("avx512f"):
    VECTOR_BYTES, TILE_ROWS, TILE_PANELS = 64, 6, 2
elif cpu_has("avx2"):
    VECTOR_BYTES, TILE_ROWS, TILE_PANELS = 32, 6, 1
else:
    VECTOR_BYTES, TILE_ROWS, TILE_PANELS = 16, 8 if cpu_has("neon") else 6, 1
TILE_VECTORS = 2  # in a panel
STEPS_AHEAD = 8  # of k; so far before they are needed a tile of several panels asks for lines of them
TILE_BYTES = TILE_VECTORS * VECTOR_BYTES
CACHE_LINE = 64
# Rows that packing copies to one panel or row tile before it goes on to the next: it reads rows, writes whole lines.
PACKED_TOGETHER = 8

INT32: Any = ir.IntType(32)
INT64: Any = ir.IntType(64)


# ---------------------------------------------------------------- pointers


class _BorrowedArray:
    """Claims that the memory of a read-only array may be written; only for operands, which kernels do not write."""

    def __init__(self, x: np.ndarray) -> None:
        self.__array_interface__ = {**x.__array_interface__, "data": (x.__array_interface__["data"][0], False)}


def operand(x: np.ndarray) -> np.ndarray:
    """x, as an array that may be written: to Numba a read-only one would be another type."""
    return x if x.flags.writeable else np.asarray(_BorrowedArray(x))


_FIRST: list[Any] = [(), *((0,) * n + (slice(1),) for n in range(64))]  # the index, by the number of dimensions


def first_element(x: np.ndarray) -> np.ndarray:
    """The first element of a non-empty array as an array of shape (1,) on the same memory.

    To Numba this is one type, whatever the number of dimensions and the strides of ``x``: one compilation serves all.
    """
    return operand(x)[_FIRST[x.ndim]]


@emits(lambda array: types.CPointer(array.dtype)(array) if isinstance(array, types.Array) else None)
def pointer(context: Any, builder: Any, signature: Any, array: Any) -> Any:
    """The address of an array's first element. The caller keeps the array alive."""
    return context.make_array(signature.args[0])(context, builder, array).data


@emits(lambda address, count: address(address, types.int64))
def advance(context: Any, builder: Any, signature: Any, address: Any, count: Any) -> Any:
    """The pointer ``count`` elements further on."""
    return builder.gep(address, [count])


@emits(lambda address: types.int64(address))
def vector_lanes(context: Any, builder: Any, signature: Any, address: Any) -> Any:
    """Elements of the pointed-to type in one vector; a constant."""
    return INT64(VECTOR_BYTES * 8 // signature.args[0].dtype.bitwidth)


@inline
def tile_columns(address: Any) -> int:
    """Columns of a tile of the pointed-to type, which is also the width of a panel; a constant."""
    return TILE_VECTORS * vector_lanes(address)


@inline
def round_up(n: int, multiple: int) -> int:
    """The smallest multiple that is not below n."""
    return (n + multiple - 1) // multiple * multiple


@inline
def bound(index: int, parts: int, total: int, unit: int) -> int:
    """Where part ``index`` begins if ``total`` items are divided into ``parts`` parts at multiples of ``unit``."""
    return min(total, index * ((total + unit - 1) // unit) // parts * unit)


@inline
def cell_of(index: int, grid: tuple[int, int], rows: int, columns: int, height: int, width: int) -> Any:
    """Of a cell of a grid over (rows, columns), cut between tiles (height, width): first row and column, and sizes."""
    i, j = bound(index // grid[1], grid[0], rows, height), bound(index % grid[1], grid[1], columns, width)
    below = bound(index // grid[1] + 1, grid[0], rows, height)
    return i, j, below - i, bound(index % grid[1] + 1, grid[1], columns, width) - j


@kernel
def aligned_empty(count: int, like: np.ndarray) -> np.ndarray:
    """An uninitialised 1-d array of ``like``'s dtype that starts on a cache line: an unaligned vector straddles two."""
    spare = CACHE_LINE // like.itemsize
    buffer = np.empty(count + spare, like.dtype)
    skip = (-buffer.ctypes.data % CACHE_LINE) // like.itemsize
    return buffer[skip : skip + count]


@emits(lambda arrays: types.void(arrays))
def keep_alive(context: Any, builder: Any, signature: Any, arrays: Any) -> None:
    """Use a tuple of arrays once more: Numba frees an array after its last use, and does not see those of pointers."""


@emits(lambda: types.void())
def not_inlined(context: Any, builder: Any, signature: Any) -> None:
    """Keep LLVM from inlining the kernel that calls this: each copy of a large kernel costs compile time."""
    builder.function.attributes.add("noinline")


@emits(lambda: types.void())
def whole_vectors(context: Any, builder: Any, signature: Any) -> None:
    """Let LLVM use the longest vectors in the kernel that calls this: on some processors it takes halves by itself."""
    # llvmlite writes an attribute as it is, but refuses to add those that it does not know.
    set.add(builder.function.attributes, f'"prefer-vector-width"="{VECTOR_BYTES * 8}"')


# ---------------------------------------------------------------- the tile


class Vectors:
    """Emits loads and stores of vectors of one element type, as long as the CPU's unless ``lanes`` says otherwise."""

    def __init__(self, builder: Any, context: Any, element: Any, lanes: int | None = None) -> None:
        self.builder = builder
        self.element_bytes: int = element.bitwidth // 8
        self.lanes: int = lanes or VECTOR_BYTES // self.element_bytes
        self.scalar: Any = context.get_data_type(element)
        self.type: Any = ir.VectorType(self.scalar, self.lanes)

    def load(self, address: Any, offset: Any) -> Any:
        source = self.builder.bitcast(self.builder.gep(address, [offset]), self.type.as_pointer())
        return self.builder.load(source, align=self.element_bytes)

    def store(self, value: Any, address: Any, offset: Any) -> None:
        target = self.builder.bitcast(self.builder.gep(address, [offset]), self.type.as_pointer())
        self.builder.store(value, target, align=self.element_bytes)

    def broadcast(self, address: Any, offset: Any) -> Any:
        return self.repeat(self.builder.load(self.builder.gep(address, [offset]), align=self.element_bytes))

    def repeat(self, scalar: Any) -> Any:
        undefined = ir.Constant(self.type, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, INT32(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(INT32, self.lanes), None))

    def zero(self) -> Any:
        return ir.Constant(self.type, None)

    def add(self, a: Any, b: Any) -> Any:
        return (self.builder.add if isinstance(self.scalar, ir.IntType) else self.builder.fadd)(a, b)

    def multiply_add(self, c: Any, a: Any, b: Any) -> Any:
        """a * b + c on vectors; of floats one instruction, rounded once, where the CPU has it."""
        if isinstance(self.scalar, ir.IntType):
            return self.add(self.builder.mul(a, b), c)
        name = f"llvm.fmuladd.v{self.lanes}f{self.element_bytes * 8}"
        function_type = ir.FunctionType(self.type, [self.type] * 3)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, function_type, name), [a, b, c])


def _opaque(builder: Any, value: Any) -> Any:
    """An integer in a register, of which LLVM does not know how it was computed: an empty piece of assembly.

    LLVM would compute row offsets anew in each step, each from the one before: a chain of additions as long as the
    multiply-adds take, on the ports where these start.
    """
    return builder.asm(ir.FunctionType(value.type, [value.type]), "", "=r,0", [value], False)


def emit_tile(vectors: Vectors, steps: Any, left: Any, right: Any, add: Callable[..., Any], start: Any, y: Any) -> None:
    """The loop of a tile: y = start + the sums over ``steps``, by ``add(sum, value of a, vector of b)``.

    ``left`` is a, the offsets of its rows, and how far a step goes; ``right`` is b and the offsets of its panels.
    ``start`` and ``y`` are pairs, a pointer and how far its rows are apart.
    """
    builder, (a, a_offsets, a_step), (b, b_offsets) = vectors.builder, left, right
    in_panel = [INT64(c * vectors.lanes) for c in range(TILE_VECTORS)]
    rows, columns = range(len(a_offsets)), [INT64(c * vectors.lanes) for c in range(TILE_VECTORS * len(b_offsets))]

    def address(row: int, row_step: Any, column: Any) -> Any:
        return builder.add(builder.mul(row_step, INT64(row)), column)

    def phis() -> list[list[Any]]:
        return [[builder.phi(vectors.type) for _ in columns] for _ in rows]

    before = builder.block
    loop = builder.append_basic_block("tile.loop")
    done = builder.append_basic_block("tile.done")
    builder.cbranch(builder.icmp_signed(">", steps, INT64(0)), loop, done)

    builder.position_at_end(loop)
    k, a_k, b_k = (builder.phi(kind) for kind in (INT64, a.type, b.type))
    sums = phis()
    ahead = builder.gep(b_k, [INT64(STEPS_AHEAD * TILE_VECTORS * vectors.lanes)])
    b_vectors = [vectors.load(builder.gep(b_k, [panel]), column) for panel in b_offsets for column in in_panel]
    if len(b_offsets) > 1:
        for panel, column in itertools.product(b_offsets, in_panel):
            line = builder.gep(builder.gep(ahead, [panel]), [column])
            _emit_prefetch(builder, builder.bitcast(line, ir.IntType(8).as_pointer()), to_write=0)
    next_sums = []
    for r in rows:
        a_value = vectors.broadcast(a_k, a_offsets[r])
        next_sums.append([add(total, a_value, b_vector) for total, b_vector in zip(sums[r], b_vectors)])
    next_k = builder.add(k, INT64(1))
    for phi, first, following in (
        (k, INT64(0), next_k),
        (a_k, a, builder.gep(a_k, [a_step])),
        (b_k, b, builder.gep(b_k, [INT64(TILE_VECTORS * vectors.lanes)])),
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", next_k, steps), loop, done)

    builder.position_at_end(done)
    totals = phis()
    for r in rows:
        for c in range(len(columns)):
            for phi in (sums[r][c], totals[r][c]):
                phi.add_incoming(vectors.zero(), before)
                phi.add_incoming(next_sums[r][c], loop)
    for r in rows:
        for c, column in enumerate(columns):
            first = vectors.load(start[0], address(r, start[1], column))
            vectors.store(vectors.add(first, totals[r][c]), y[0], address(r, y[1], column))


@emits(
    lambda panels, depth, a, a_row, a_column, b, b_panel, start, start_row, y, y_row: types.void(
        types.int64, types.int64, a, types.int64, types.int64, b, types.int64, start, types.int64, y, types.int64
    )
)
def multiply_tile(
    context: Any, builder: Any, signature: Any, panels: Any, depth: Any, a: Any, a_row: Any, a_column: Any,
    b: Any, b_panel: Any, start: Any, start_row: Any, y: Any, y_row: Any,
) -> None:  # fmt: skip
    """y[r, c] = start[r, c] + sum_k a[r, k] b[k, c]   for r < TILE_ROWS, c < panels * tile_columns(y), k < depth.

    ``b`` is 1 or TILE_PANELS packed panels, ``b_panel`` apart. ``a`` has the strides ``a_row``, ``a_column``; rows of
    ``y`` and ``start`` are contiguous and ``y_row``, ``start_row`` apart. ``start`` is y itself to accumulate, or one
    row (stride 0) of zeros or biases. Sums run over k in order, so an element's bits do not depend on its tile.
    """
    vectors = Vectors(builder, context, signature.args[2].dtype)
    left = a, [INT64(0), *(_opaque(builder, builder.mul(a_row, INT64(r))) for r in range(1, TILE_ROWS))], a_column
    for count in {1, TILE_PANELS}:
        with builder.if_then(builder.icmp_signed("==", panels, INT64(count))):
            right = b, [builder.mul(b_panel, INT64(p)) for p in range(count)]
            emit_tile(vectors, depth, left, right, vectors.multiply_add, (start, start_row), (y, y_row))


@emits(lambda row, count, start: start(row, types.int64, start))
def row_maximum(context: Any, builder: Any, signature: Any, row: Any, count: Any, start: Any) -> Any:
    """The largest of ``start``, which is not NaN, and row[:count] but for its NaN; ``count`` > 0 is whole tiles.

    A loop with ``maxnum`` takes three instructions for each vector where this takes one.
    """

    vectors = Vectors(builder, context, signature.args[0].dtype)
    columns = range(TILE_VECTORS)

    def larger(x: Any, y: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", x, y), x, y)

    before = builder.block
    loop = builder.append_basic_block("maximum.loop")
    done = builder.append_basic_block("maximum.done")
    first = vectors.repeat(start)
    builder.branch(loop)

    builder.position_at_end(loop)
    j = builder.phi(INT64)
    maxima = [builder.phi(vectors.type) for _ in columns]
    following = [larger(vectors.load(row, builder.add(j, INT64(c * vectors.lanes))), maxima[c]) for c in columns]
    next_j = builder.add(j, INT64(TILE_VECTORS * vectors.lanes))
    j.add_incoming(INT64(0), before)
    j.add_incoming(next_j, loop)
    for c in columns:
        maxima[c].add_incoming(first, before)
        maxima[c].add_incoming(following[c], loop)
    builder.cbranch(builder.icmp_signed("<", next_j, count), loop, done)

    builder.position_at_end(done)
    maximum = functools.reduce(larger, following)
    half = vectors.lanes // 2
    while half:
        low, high = (
            builder.shuffle_vector(maximum, maximum, ir.Constant(ir.VectorType(INT32, half), list(range(i, i + half))))
            for i in (0, half)
        )
        maximum, half = larger(high, low), half // 2
    return builder.extract_element(maximum, INT32(0))


def _emit_prefetch(builder: Any, address: Any, to_write: int) -> None:
    function_type = ir.FunctionType(ir.VoidType(), [address.type, INT32, INT32, INT32])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
    builder.call(function, [address, INT32(to_write), INT32(3), INT32(1)])  # into all caches, of data


@emits(lambda address: types.void(address))
def _prefetch(context: Any, builder: Any, signature: Any, address: Any) -> None:
    """Begin to fetch the cache line of an address, to be written or read soon. The address need not be valid."""
    _emit_prefetch(builder, builder.bitcast(address, ir.IntType(8).as_pointer()), to_write=1)


@inline
def prefetch_tile(y: Any, y_row: int, panels: int) -> None:
    """Begin to fetch a tile of y, which is to be written or read soon."""
    for r in range(TILE_ROWS):
        for c in range(0, panels * TILE_BYTES, CACHE_LINE):
            _prefetch(advance(y, r * y_row + c * vector_lanes(y) // VECTOR_BYTES))


@inline
def add_edge(tile: Any, tile_row: int, start: Any, start_row: int, y: Any, y_row: int, inside: tuple[int, int]) -> None:
    """y = start + tile for the rows and columns of a tile that lie ``inside`` y."""
    for r in range(inside[0]):
        for c in range(inside[1]):
            y[r * y_row + c] = start[r * start_row + c] + tile[r * tile_row + c]


# ---------------------------------------------------------------- packing


@emits(lambda x, y: types.void(x, y))
def copy_vector(context: Any, builder: Any, signature: Any, x: Any, y: Any) -> None:
    """Copy one vector from x to y."""
    vectors = Vectors(builder, context, signature.args[0].dtype)
    vectors.store(vectors.load(x, INT64(0)), y, INT64(0))


@emits(lambda x, y: types.void(x, y))
def copy_row_tile_column(context: Any, builder: Any, signature: Any, x: Any, y: Any) -> None:
    """Copy TILE_ROWS elements from x to y."""
    vectors = Vectors(builder, context, signature.args[0].dtype, TILE_ROWS)
    vectors.store(vectors.load(x, INT64(0)), y, INT64(0))


def transpose_registers(builder: Any, rows: list[Any]) -> None:
    """Emit the transposition of a square that lies in vector values, one a row, in place.

    log2(lanes) rounds of swaps. Round s takes each pair of vectors whose indices differ in bit s. It exchanges the
    off-diagonal halves of the pair's 2 x 2 blocks of size s. After all rounds, bit s of row and column have changed
    places for every s, which is a transposition.
    """
    lanes, step = len(rows), 1
    while step < lanes:
        # Lane indices below `lanes` name the upper vector of the pair, the others the lower one.
        keep = [j if not j & step else lanes + j - step for j in range(lanes)]
        take = [j + step if not j & step else lanes + j for j in range(lanes)]
        masks = [ir.Constant(ir.VectorType(INT32, lanes), mask) for mask in (keep, take)]
        for i in range(lanes):
            if not i & step:
                pair = rows[i], rows[i + step]
                rows[i], rows[i + step] = (builder.shuffle_vector(*pair, mask) for mask in masks)
        step *= 2


@emits(lambda x, x_row, y, y_row: types.void(x, types.int64, y, types.int64))
def transpose_vectors(context: Any, builder: Any, signature: Any, x: Any, x_row: Any, y: Any, y_row: Any) -> None:
    """Transpose a square of vector_lanes x vector_lanes elements: y[j, i] = x[i, j]; rows are contiguous."""
    vectors = Vectors(builder, context, signature.args[0].dtype)
    rows = [vectors.load(x, builder.mul(x_row, INT64(i))) for i in range(vectors.lanes)]
    transpose_registers(builder, rows)
    for j, row in enumerate(rows):
        vectors.store(row, y, builder.mul(y_row, INT64(j)))


@kernel
def _copy_padded(x, x_row, x_column, rows, columns, used, y, y_row):
    """y[:rows, :columns] = x[:rows, :used] padded with zeros, element by element; the columns of y are contiguous."""
    not_inlined()
    for i in range(rows):
        for j in range(columns):
            y[i * y_row + j] = x[i * x_row + j * x_column] if j < used else 0


@kernel
def pack_panels(b: Any, b_row: int, b_column: int, depth: int, width: int, packed: Any) -> None:
    """Copy b[:depth, :width] into panels; the last one is padded with zero columns.

    ``packed`` has room for round_up(width, tile_columns) * depth elements; the panel of column j starts at j * depth.
    Rows are copied where they are contiguous; where columns are, squares of vectors are transposed in registers.
    """
    not_inlined()
    lanes = vector_lanes(b)
    n = tile_columns(b)
    whole = width // n * n if b_column == 1 else 0  # the columns of whole panels whose rows are contiguous
    for k in range(0, depth, PACKED_TOGETHER):
        for j in range(0, whole, n):
            source, target = advance(b, k * b_row + j), advance(packed, j * depth + k * n)
            for _ in range(min(depth - k, PACKED_TOGETHER)):
                for lane in range(0, n, lanes):
                    copy_vector(advance(source, lane), advance(target, lane))
                source, target = advance(source, b_row), advance(target, n)
    for j in range(whole, round_up(width, n), lanes):
        source = advance(b, j * b_column)
        target = advance(packed, j // n * n * depth + j % n)
        used = min(lanes, width - j)
        done = 0
        if used == lanes and b_column == 1:
            for k in range(depth):
                copy_vector(advance(source, k * b_row), advance(target, k * n))
            done = depth
        elif used == lanes and b_row == 1:
            done = depth // lanes * lanes
            for k in range(0, done, lanes):
                transpose_vectors(advance(source, k), b_column, advance(target, k * n), n)
        if done < depth:
            rest, packed_rest = advance(source, done * b_row), advance(target, done * n)
            _copy_padded(rest, b_row, b_column, depth - done, lanes, used, packed_rest, n)


@kernel
def pack_row_tiles(a: Any, a_row: int, a_column: int, rows: int, depth: int, packed: Any) -> None:
    """Copy a[:rows, :depth] into tiles of TILE_ROWS rows, column after column; the last is padded with zero rows.

    ``packed`` has room for round_up(rows, TILE_ROWS) * depth elements; the tile of row i starts at i * depth and has
    the strides a_row = 1, a_column = TILE_ROWS.
    """
    not_inlined()
    done = 0
    if a_row == 1:  # a is transposed in memory: walk along its contiguous direction
        done = rows // TILE_ROWS * TILE_ROWS
        for k in range(0, depth, PACKED_TOGETHER):
            for i in range(0, done, TILE_ROWS):
                source, target = advance(a, k * a_column + i), advance(packed, i * depth + k * TILE_ROWS)
                for _ in range(min(depth - k, PACKED_TOGETHER)):
                    copy_row_tile_column(source, target)
                    source, target = advance(source, a_column), advance(target, TILE_ROWS)
    for i in range(done, rows, TILE_ROWS):
        source, target = advance(a, i * a_row), advance(packed, i * depth)
        _copy_padded(source, a_column, a_row, depth, TILE_ROWS, min(TILE_ROWS, rows - i), target, TILE_ROWS)
