"""The checks of chapter 5."""

from typing import Any

import numpy as np

from ..exercise import Array, require, same


def matrices(my: Any, rows: int, inner: int, columns: int, lines: int = 16) -> tuple[Any, Any, Any, Array]:
    """a, b and c as counted matrices behind one cache, and what c must become: c holds ones."""
    a, b = np.arange(1.0, rows * inner + 1).reshape(rows, inner), np.cos(np.arange(inner * columns)).reshape(inner, -1)
    cache, c = my.Cache(lines), np.ones((rows, columns))
    return my.Counted(a, cache), my.Counted(b, cache), my.Counted(c, cache), 1 + a @ b


def product(what: str, my: Any, call: Any, shape: tuple[int, int, int], *sizes: int) -> tuple[Any, Any, Any]:
    """Run a product and compare c; returns the counted matrices."""
    a, b, c, want = matrices(my, *shape)
    call(a, b, c, *sizes)
    same(f"{what}, a of shape {shape[:2]}, b of shape {shape[1:]}, c all 1: c += a b", c.array, want)
    require(a.reads and b.reads and c.writes, f"{what}: work on single elements, such as c[i, j]: they are counted")
    return a, b, c


def exercise_1(my: Any) -> None:
    product("ordered", my, my.ordered, (1, 2, 2))
    product("ordered", my, my.ordered, (3, 5, 4))
    a, b, c = product("ordered", my, my.ordered, (24, 24, 24))
    fetched = a.fetched + b.fetched + c.fetched
    each = f"expected less than 4,000 (a {a.fetched:,}, b {b.fetched:,}, c {c.fetched:,})"
    what = f"24 × 24 matrices, a cache of 16 lines: {fetched:,} lines were fetched for 13,824 multiply-adds\n{each}\n"
    require(fetched < 4000, f"{what}the innermost loop walks down a column: each step is another line")


def exercise_2(my: Any) -> None:
    product("blocked, depth 2, width 2", my, my.blocked, (1, 4, 4), 2, 2)
    product("blocked, depth 4, width 2 (blocks at the edges are smaller)", my, my.blocked, (2, 5, 3), 4, 2)
    _, b, c = product("blocked, depth 4, width 16", my, my.blocked, (24, 24, 24), 4, 16)
    where = "24 × 24 matrices, blocks of 4 rows × 16 columns, a cache of 16 lines"
    what = f"{where}: {b.fetched:,} lines of b were fetched; it has 72, and each is needed once"
    require(b.fetched <= 100, f"{what}\nall rows of a have to use a block before the next; depth counts its rows")
    require(c.fetched <= 500, f"{where}: {c.fetched:,} lines of c were fetched; the innermost loop is j")


def exercise_4(my: Any) -> None:
    b = np.arange(1.0, 21).reshape(4, 5)
    for k0, j0, width in ((0, 0, 2), (2, 1, 3), (2, 3, 2), (3, 4, 3)):
        block = np.full((2, width), 99.0)
        want = np.pad(b, ((0, 2), (0, 3)))[k0 : k0 + 2, j0 : j0 + width]
        my.pack(my.Counted(b, my.Cache(4)), k0, j0, block)
        same(f"b of shape (4, 5) with 1, 2, 3, ...: pack(b, {k0}, {j0}, block of 2 × {width})", block, want)


def exercise_5(my: Any) -> None:
    for depth, width, i, k0 in ((4, 1, 0, 0), (4, 3, 2, 4), (8, 3, 1, 0)):
        a, _, c, _ = matrices(my, 4, 8, width)
        block = my.Counted(np.sin(np.arange(depth * width)).reshape(depth, width), my.Cache(16))
        want = np.ones((4, width))
        want[i : i + 2] += a.array[i : i + 2, k0 : k0 + depth] @ block.array
        call = f"tile(a, block, c, i={i}, k0={k0}), block of {depth} × {width}"
        my.tile(a, block, c, i, k0)
        same(f"{call}, c all 1", c.array, want)
        limits = {"numbers of the block": (block.reads, depth * width), "numbers of a": (a.reads, 2 * depth)}
        for name, (got, most) in {**limits, "elements of c": (c.reads, width * depth // 2)}.items():
            require(got <= most, f"{call}: {got} {name} were read, expected {most}: keep numbers in variables")


def exercise_6(my: Any) -> None:
    for rows, threads in ((2, 3), (6, 2), (8, 2), (10, 4), (64, 7)):
        got = my.share(rows, threads)
        what = f"share({rows}, {threads}) gave {got}"
        require(len(got) == threads, f"{what}\nexpected {threads} shares")
        flat = [row for first, end in got for row in range(first, end)]
        require(flat == list(range(rows)), f"{what}\neach of rows 0 to {rows - 1} is to be there once, in order")
        sizes = [end - first for first, end in got]
        require(all(size % 2 == 0 for size in sizes), f"{what}\na share has an odd number of rows; tile takes two")
        require(max(sizes) - min(sizes) <= 2, f"{what}\nthe shares have {sizes} rows: all wait for the largest")
