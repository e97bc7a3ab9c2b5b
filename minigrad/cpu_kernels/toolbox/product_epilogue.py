"""What happens to rows of a product while they are in the L1 cache, and the column sums of an operand.

An epilogue is a list of loops of programs (``array_program.py``). Each goes through finished rows of the product, of
``other`` and of ``extra``, matrices of the same shape:

    other = gelu(h)                          for the product h, which backward needs
    extra = gelu(other);  y = h gelu'(other)

A pass of its own over a matrix that has left the cache costs as much as a small product.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from .array_program import Program
from .jit import emits, kernel
from .multi_tensor import elements_at
from .program_code import call_loop
from .register_tile import advance, not_inlined
from .threads import INT64, lasting_words

PRODUCT, OTHER, EXTRA = 0, 1, 2


def epilogue_of(dtype: np.dtype[Any], *calls: tuple[Program, Sequence[int]]) -> int:
    """The address of an epilogue: of programs, and which matrices they take and, last, give."""
    rows = [(*program.code[:2], *places, *[0] * (4 - len(places))) for program, places in calls]
    return lasting_words([len(rows), dtype.itemsize, *itertools.chain(*rows)])


@emits(lambda pointer: types.int64(pointer))
def _number(context: Any, builder: Any, signature: Any, pointer: Any) -> Any:
    return builder.ptrtoint(pointer, INT64)


@emits(lambda: types.int64())
def _words(context: Any, builder: Any, signature: Any) -> Any:
    """The address of nine int64 on the stack."""
    return builder.ptrtoint(cgutils.alloca_once(builder, ir.ArrayType(INT64, 9)), INT64)


@kernel
def finish_rows(epilogue: int, rows: int, columns: int, row: int, y: Any, other: Any, extra: Any) -> None:
    """The epilogue at this address on y[:rows, :columns], rows ``row`` apart."""
    not_inlined()
    count, itemsize = elements_at(epilogue, 2, np.int64)
    table, words = elements_at(epilogue + 16, 6 * count, np.int64), elements_at(_words(), 9, np.int64)
    matrices, address = (_number(y), _number(other), _number(extra)), words.ctypes.data
    if row == columns:
        rows, columns = 1, rows * columns
    words[4:8], words[8] = itemsize, columns
    for r in range(rows):
        for c in range(0, 6 * count, 6):
            for k in range(4):
                words[k] = matrices[table[c + 2 + k]] + r * row * itemsize
            call_loop(table[c], table[c + 1], address, address + 64, address + 32)


@kernel
def add_columns(x: Any, x_row: int, rows: int, columns: int, part: Any, total: Any, accumulate: bool) -> None:
    """total (columns,) = or += the sums of the columns of x, whose rows are contiguous and ``x_row`` apart.

    ``part`` has room for ``columns`` elements. Rows are added in order, four in one pass over the sums.
    """
    not_inlined()
    for c in range(columns):
        part[c] = x[c]
    i = 1
    while i + 4 <= rows:
        a = advance(x, i * x_row)
        b = advance(a, x_row)
        d, e = advance(b, x_row), advance(b, 2 * x_row)
        for c in range(columns):
            part[c] = part[c] + a[c] + b[c] + d[c] + e[c]
        i += 4
    while i < rows:
        a = advance(x, i * x_row)
        for c in range(columns):
            part[c] += a[c]
        i += 1
    for c in range(columns):
        total[c] = total[c] + part[c] if accumulate else part[c]
