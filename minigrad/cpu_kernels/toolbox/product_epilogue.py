"""What happens to rows of a product while they are in the L1 cache, and the column sums of an operand.

For each element h of finished rows, in ``finish_rows``:

    ADD                     y = h + other                                   a residual
    GELU_TANH, GELU_ERF     other = h;  y = gelu(h)                         backward needs h
    SLOPE_TANH, SLOPE_ERF   y = h gelu'(other);  extra = gelu(other)        one exponential for both

A pass of its own over a matrix that has left the cache costs as much as a small product.
"""

from typing import Any

from ...plain_kernels.elementwise import GELU_CUBIC, GELU_SLOPE, NORMAL_DENSITY
from .jit import kernel
from .register_tile import advance, not_inlined, whole_vectors
from .vector_math import GELU_EXPONENT, exp2_fast, exp_nonpositive, normal_cdf

ADD, GELU_TANH, GELU_ERF, SLOPE_TANH, SLOPE_ERF = 1, 2, 3, 4, 5


@kernel
def finish_rows(epilogue: int, rows: int, columns: int, row: int, y: Any, other: Any, extra: Any, like: Any) -> None:
    """The epilogue on y[:rows, :columns], rows ``row`` apart; ``like`` is any array of the dtype."""
    not_inlined()
    for r in range(rows):
        y_row, other_row, extra_row = advance(y, r * row), advance(other, r * row), advance(extra, r * row)
        if epilogue == ADD:
            for j in range(columns):
                y_row[j] += other_row[j]
        elif epilogue == GELU_TANH:
            _gelu_tanh(columns, y_row, other_row, like)
        elif epilogue == GELU_ERF:
            _gelu_erf(columns, y_row, other_row, like)
        elif epilogue == SLOPE_TANH:
            _slope_tanh(columns, y_row, other_row, extra_row, like)
        elif epilogue == SLOPE_ERF:
            _slope_erf(columns, y_row, other_row, extra_row, like)


# Functions of their own: in one with the others the processor's registers would hold the constants of all of them.


@kernel
def _gelu_tanh(columns, y, other, like):
    not_inlined()
    whole_vectors()
    real = like.dtype.type
    one, linear, cubic = real(1), real(GELU_EXPONENT), real(GELU_EXPONENT * GELU_CUBIC)
    for j in range(columns):
        h = y[j]
        other[j] = h
        y[j] = h / (one + exp2_fast(h * (linear + cubic * (h * h))))


@kernel
def _gelu_erf(columns, y, other, like):
    not_inlined()
    whole_vectors()
    half = like.dtype.type(0.5)
    for j in range(columns):
        h = y[j]
        other[j] = h
        y[j] = h * normal_cdf(h, exp_nonpositive(-half * h * h))


@kernel
def _slope_tanh(columns, y, other, extra, like):
    not_inlined()
    whole_vectors()
    real = like.dtype.type
    one, linear, cubic = real(1), real(GELU_EXPONENT), real(GELU_EXPONENT * GELU_CUBIC)
    slope, slope3 = real(GELU_SLOPE), real(3 * GELU_SLOPE * GELU_CUBIC)
    for j in range(columns):
        h = other[j]
        square = h * h
        s = one / (one + exp2_fast(h * (linear + cubic * square)))
        extra[j] = h * s
        y[j] *= s + h * s * (one - s) * (slope + slope3 * square)


@kernel
def _slope_erf(columns, y, other, extra, like):
    not_inlined()
    whole_vectors()
    real = like.dtype.type
    half, density = real(0.5), real(NORMAL_DENSITY)
    for j in range(columns):
        h = other[j]
        gaussian = exp_nonpositive(-half * h * h)
        cdf = normal_cdf(h, gaussian)
        extra[j] = h * cdf
        y[j] *= cdf + h * density * gaussian


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
