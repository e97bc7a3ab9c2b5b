"""Linear layers: y = x W^T + b for x (N, K), W (M, K), with what usually follows, and their gradients.

    forward         y = x W^T + b (+ residual)
    forward_gelu    h = x W^T + b,  y = gelu(h)                               h is kept for backward
    backward        dx = dy W,  dW = dy^T x,  db = sum of dy's rows
    backward_gelu   dh = (dy W) gelu'(h),  g = gelu(h)                        the layer that follows the GELU

What follows a product is its epilogue (``matmul.py``), but for the exact GELU ("none"), which is a pass of its own.
"""

from . import gelu, matmul, reduce
from .platform.array import Array, ones
from .products.choose import HALVES


def forward(x: Array, weight: Array, bias: Array | None = None, residual: Array | None = None) -> Array:
    """x (N, K), weight (M, K), bias (M,), residual (N, M), all of one dtype -> residual + x W^T + b (N, M), new."""
    if residual is None:
        return matmul.matmul(x, weight.T, bias)
    return matmul.matmul_residual(x, weight.T, residual, bias)


def forward_gelu(x: Array, weight: Array, bias: Array | None, approximate: str) -> tuple[Array, Array]:
    """x (N, K), weight (M, K), bias (M,) -> gelu(h) and h = x W^T + b, both (N, M); ``approximate`` as in ``gelu``."""
    if approximate == "tanh":
        return matmul.matmul_gelu(x, weight.T, bias)
    before = matmul.matmul(x, weight.T, bias)
    return gelu.forward(before, approximate), before


def backward(
    dy: Array, x: Array | None, weight: Array | None, needs: tuple[bool, bool, bool]
) -> tuple[Array | None, Array | None, Array | None]:
    """dy (N, M), x (N, K), weight (M, K) -> dx, dW and db (M,), of which ``needs`` tells the wanted; others are None.

    x may be None unless dW is wanted, weight unless dx is.
    """
    dx = matmul.matmul(dy, weight) if needs[0] and weight is not None else None
    dweight = matmul.matmul(dy.T, x) if needs[1] and x is not None else None
    if not needs[2]:
        return dx, dweight, None
    if dy.dtype.name in HALVES:  # sums of halves are products, which add in float32
        row = ones((1, dy.shape[0]), dy.dtype, dy.device)
        return dx, dweight, matmul.matmul(row, dy).reshape(dy.shape[1])
    return dx, dweight, reduce.sum(dy, (0,), False)


def add_weight_gradient(dweight: Array, dy: Array, x: Array) -> None:
    """dW += dy^T x in one pass: dW (M, K) C-contiguous, dy (N, M), x (N, K), all of one floating dtype."""
    matmul.add_matmul(dweight, dy.T, x)


def backward_gelu(dy: Array, weight: Array, before: Array, approximate: str) -> tuple[Array, Array]:
    """For y = gelu(h) W^T: dy (N, M), weight (M, K), before = h (N, K) -> dh = (dy W) gelu'(h), and gelu(h).

    gelu(h), which dW = dy^T gelu(h) needs, is computed again, so it need not be kept.
    """
    if approximate == "tanh":
        return matmul.matmul_gelu_slope(dy, weight, before), gelu.forward(before, approximate)
    return gelu.backward(matmul.matmul(dy, weight), before, approximate), gelu.forward(before, approximate)
