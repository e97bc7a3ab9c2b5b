"""The gradient of y = cumprod(x), by PyTorch's formula, in one thread for each row:

before the first zero of x:  dx_i = sum over j >= i of dy_j y_j, divided by x_i
at it:  dx_i = the sum over j >= i, up to the next zero, of dy_j times the product of x_1 .. x_j without x_i
behind it:  dx_i = 0
"""

from typing import Any

import numpy as np

from ..platform.array import Array, empty
from ..platform.language import cuda
from ..platform.launch import Kernel, kernel
from .rows import quotient

ROW_THREADS = 128


def _backward(real: Any) -> Kernel:
    word = real.__name__

    @kernel(f"{word}* x4, int64 x3, float64", threads=ROW_THREADS, registers=48, of=word)
    def backward(dy, x, y, dx, outputs, n, inner, zero):
        """Rows o, i of (outer, n, inner); ``zero``: 0 in float64, in which sums and products are formed."""
        output = np.int64(cuda.grid(1))
        if output >= outputs:
            return
        o = quotient(output, inner)
        row = o * n * inner + output - o * inner
        first = n  # of the zeros
        for i in range(n):
            if first == n and x[row + i * inner] == real(0):
                first = np.int64(i)
        total = zero
        for k in range(first):
            at = row + (first - 1 - k) * inner
            total += dy[at] * y[at]
            dx[at] = total / x[at]
        if first == n:
            return
        at = row + first * inner
        product, total = zero + real(1), zero + dy[at]
        open_ = True
        for i in range(first + 1, n):
            j = row + i * inner
            dx[j] = real(0)
            if open_ and x[j] == real(0):
                total += zero * product  # NaN if the product is infinite, as in PyTorch
                open_ = False
            if open_:
                product *= x[j]
                total += dy[j] * real(product)
        if first > 0:
            total *= y[at - inner]
        dx[at] = total

    return backward


_BACKWARD: dict[np.dtype[Any], Kernel] = {np.dtype(real): _backward(real) for real in (np.float32, np.float64)}


def cumprod_gradient(dy: Array, x: Array, y: Array, outer: int, n: int, inner: int) -> Array:
    """dx of contiguous dy, x, y, seen as (outer, n, inner)."""
    dx = empty(x.shape, x.dtype, x.device)
    outputs = outer * inner
    if x.size:
        _BACKWARD[x.dtype].launch_each(outputs, dy, x, y, dx, outputs, n, inner, 0.0)
    return dx
