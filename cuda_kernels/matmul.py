"""Matrix products ``y = a @ b``, with what a layer does to them next in the same pass: ``products/record.py`` has the
steps, ``products/choose.py`` chooses who computes.
"""

from typing import Any

import numpy as np

from .platform import memory
from .platform.array import Array, contiguous, empty
from .products.choose import HALVES, multiply
from .products.record import ADD, BIAS, GELU, SLOPE, broadcast, problem


def matmul(a: Array, b: Array, bias: Array | None = None) -> Array:
    """``np.matmul(a, b)`` for operands of at least two dimensions, plus ``bias`` on each row.

    Args:
        a: (..., M, K), b: (..., K, N); leading dimensions broadcast; any strides, nothing is copied to be transposed.
        bias: (N,), of the operands' dtype.

    Returns: a new C-contiguous array (..., M, N). Operands of different dtypes are cast to the one that holds both.

    With ``set_float32_matmul_precision`` "high" or "medium" float32 operands are rounded to TensorFloat-32. Those of
    small products and of few rows or columns are not, because these do not wait for arithmetic.

    Raises ValueError if the shapes do not fit, TypeError for half floats on devices without tensor cores for them:
    operations widen them before.
    """
    return _product(a, b, bias)[0]


def supports_half(x: Array) -> bool:
    """Whether x's device multiplies float16 and bfloat16 on tensor cores; on others they are widened before."""
    return memory.has_tensor_cores(x.device)


def matmul_gelu(a: Array, b: Array, bias: Array | None = None) -> tuple[Array, Array]:
    """(gelu(h), h) of h = matmul(a, b, bias), the GELU of "tanh"; its gradient needs h. Of floats."""
    return _product(a, b, bias, GELU)


def matmul_gelu_slope(a: Array, b: Array, before: Array) -> Array:
    """matmul(a, b) times the derivative of GELU at ``before``, the h of ``matmul_gelu``: the gradient of h."""
    return _product(a, b, None, SLOPE, before)[0]


def matmul_residual(a: Array, b: Array, residual: Array, bias: Array | None = None) -> Array:
    """residual + matmul(a, b, bias), for a residual of the product's shape and dtype."""
    return _product(a, b, bias, ADD, residual)[0]


def add_matmul(y: Array, a: Array, b: Array) -> None:
    """y += matmul(a, b) in one pass: gradients that accumulate.

    y (..., M, N) is C-contiguous, of a's and b's dtype, or float32 where they are half floats.
    """
    a, b, shape = broadcast(a, b)
    fits = a.dtype == b.dtype and (y.dtype == a.dtype or (a.dtype.name in HALVES and y.dtype == np.float32))
    if not fits or y.dtype.kind in "iub" or y.shape != shape or not y.contiguous:
        expected = f"a C-contiguous array {shape}, all float32 or all float64, or float32 for half floats"
        raise ValueError(f"add_matmul of {a!r} and {b!r} to {y!r}: expected {expected}")
    if a.shape[-1]:
        multiply(problem(y, a, b, None, y, ADD))


def _product(a: Array, b: Array, bias: Array | None, step: int = 0, other: Array | None = None) -> tuple[Array, Any]:
    """The product with a step of the epilogue in a new array, and ``other``, new where it is None."""
    a, b, shape = broadcast(a, b)
    dtype = a.dtype
    if b.dtype != dtype:
        from . import elementwise

        dtype = np.result_type(a.dtype, b.dtype)
        a, b = (x if x.dtype == dtype else elementwise.cast(x, dtype) for x in (a, b))
    if step:
        other = empty(shape, dtype, a.device) if other is None else contiguous(other)
    if bias is not None:
        bias, step = contiguous(bias), step | BIAS
    y = empty(shape, dtype, a.device)
    multiply(problem(y, a, b, bias, other, step))
    return y, other
