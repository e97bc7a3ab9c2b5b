"""Matrix products ``y = a @ b``, with what a layer does to them next in the same pass: ``matmul_operands.py`` has the
steps, ``matmul_engines.py`` chooses who computes.
"""

from __future__ import annotations

import numpy as np

from . import matmul_engines, matmul_tensor_core, product
from .array import DeviceArray, contiguous, empty
from .matmul_operands import Product, broadcast
from .product import ADD, BIAS, GELU, SLOPE

HALVES = ("bfloat16", "float16")


def matmul(a: DeviceArray, b: DeviceArray, bias: DeviceArray | None = None) -> DeviceArray:
    """``np.matmul(a, b)`` for operands of at least two dimensions, plus ``bias`` on each row.

    Args:
        a: (..., M, K), b: (..., K, N); leading dimensions broadcast; any strides, nothing is copied to be transposed.
        bias: (N,), of the operands' dtype.

    Returns: a new C-contiguous array (..., M, N). Operands of different dtypes are cast to the one that holds both.

    With ``set_float32_matmul_precision`` "high" or "medium" float32 operands are rounded to TensorFloat-32, but not
    those of small products and of few rows or columns, which do not wait for arithmetic.

    Raises ValueError if the shapes do not fit, TypeError for half floats on devices without tensor cores for them:
    operations widen them before.
    """
    p = _prepare(a, b, bias)
    matmul_engines.multiply(p)
    return p.y


def takes_halves(x: DeviceArray) -> bool:
    """Whether x's device multiplies float16 and bfloat16 on tensor cores; on others they are widened before."""
    return matmul_tensor_core.takes(x.device)


def matmul_gelu(a: DeviceArray, b: DeviceArray, bias: DeviceArray | None = None) -> tuple[DeviceArray, DeviceArray]:
    """(gelu(h), h) of h = matmul(a, b, bias), the GELU of "tanh"; its gradient needs h. TypeError for integers."""
    p = _of_floats(_prepare(a, b, bias), "matmul_gelu")
    before = empty(p.y.shape, p.y.dtype, p.y.device)
    matmul_engines.multiply(p._replace(before=before, epilogue=p.epilogue | GELU))
    return p.y, before


def matmul_gelu_slope(a: DeviceArray, b: DeviceArray, before: DeviceArray) -> DeviceArray:
    """matmul(a, b) times the derivative of GELU at ``before``, the h of ``matmul_gelu``: the gradient of h."""
    p = _of_floats(_prepare(a, b, None), "matmul_gelu_slope")
    matmul_engines.multiply(p._replace(before=_like(p.y, before, "before"), epilogue=SLOPE))
    return p.y


def matmul_residual(
    a: DeviceArray, b: DeviceArray, residual: DeviceArray, bias: DeviceArray | None = None
) -> DeviceArray:
    """residual + matmul(a, b, bias), for a residual of the product's shape and dtype."""
    p = _of_floats(_prepare(a, b, bias), "matmul_residual")
    residual = _like(p.y, residual, "residual")
    matmul_engines.multiply(p._replace(residual=residual, epilogue=p.epilogue | ADD))
    return p.y


def add_matmul(y: DeviceArray, a: DeviceArray, b: DeviceArray) -> None:
    """y += matmul(a, b) in one pass: gradients that accumulate.

    y (..., M, N) is C-contiguous, of a's and b's dtype, or float32 where they are half floats.
    """
    a, b, shape = broadcast(a, b)
    fits = a.dtype == b.dtype and (y.dtype == a.dtype or (a.dtype.name in HALVES and y.dtype == np.float32))
    if not fits or y.dtype.kind in "iub" or y.shape != shape or not y.contiguous:
        raise ValueError(
            f"add_matmul of {a!r} and {b!r} to {y!r}: expected a C-contiguous array {shape}, all float32 or all "
            "float64, or float32 for half floats"
        )
    if a.shape[-1]:
        matmul_engines.multiply(Product(y, a, b, residual=y, epilogue=ADD))


def _prepare(a: DeviceArray, b: DeviceArray, bias: DeviceArray | None) -> Product:
    """The product of the operands, in a new array."""
    a, b, shape = broadcast(a, b)
    dtype = a.dtype
    if b.dtype != dtype:
        from . import elementwise

        dtype = np.result_type(a.dtype, b.dtype)
        a, b = (x if x.dtype == dtype else elementwise.cast(x, dtype) for x in (a, b))
    if bias is not None and (bias.shape != shape[-1:] or bias.dtype != dtype):
        raise ValueError(f"matmul: bias is {bias!r}; expected {shape[-1:]} of {dtype.name}, one value per column of b")
    if dtype not in product.SMALL and not (dtype.name in HALVES and takes_halves(a)):
        raise TypeError(f"matmul has no kernel for {dtype.name}; it has those of {', '.join(map(str, product.SMALL))}")
    y = empty(shape, dtype, a.device)
    return Product(y, a, b, bias=contiguous(bias), epilogue=BIAS) if bias is not None else Product(y, a, b)


def _of_floats(p: Product, name: str) -> Product:
    if p.y.dtype.kind in "iub":
        raise TypeError(f"{name} of {p.y.dtype.name}; expected a float dtype")
    return p


def _like(y: DeviceArray, x: DeviceArray, name: str) -> DeviceArray:
    if x.shape != y.shape or x.dtype != y.dtype:
        raise ValueError(f"{name} is {x!r}; expected shape {y.shape} and dtype {y.dtype.name}, the product's")
    return contiguous(x)
