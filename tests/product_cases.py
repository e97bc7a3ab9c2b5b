"""Operands of CUDA's matrix products in all layouts, and what all engines must make of them."""

import ml_dtypes
import numpy as np

from minigrad.cuda_kernels import matmul
from minigrad.cuda_kernels.platform import array
from minigrad.plain_kernels import gelu

RNG = np.random.default_rng(0)
bf16, f16, f32, f64 = ml_dtypes.bfloat16, np.float16, np.float32, np.float64


def stored(x: np.ndarray, layout: str = "rows"):
    """x on the device: contiguous rows or columns, rows within wider ones or at an odd place, or neither of them."""
    if layout == "columns":
        return array.from_host(np.ascontiguousarray(x.swapaxes(-1, -2))).swapaxes(-1, -2)
    if layout == "wide":
        return array.from_host(np.concatenate([x, x[..., :3]], -1))[..., : x.shape[-1]]
    if layout == "odd":
        return array.from_host(np.concatenate([x[..., :1], x], -1))[..., 1:]
    if layout == "neither":
        return array.from_host(np.repeat(x, 2, -1))[..., ::2]
    return array.from_host(x)


def draw(*shape: int, dtype=f32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.matmul(a.astype("f8"), b.astype("f8"))


def check_on_tensor_cores(y, expected: np.ndarray) -> None:
    """Each result is rounded once; sums are those of float32."""
    tolerance = {bf16: 2**-8, f16: 2**-11, f32: 1e-6}[y.dtype.type]
    found = array.to_host(y).astype("f8")
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=4e-6 * np.abs(expected).max(initial=1))


def check_epilogues(
    check, a: np.ndarray, b: np.ndarray, bias: np.ndarray, other: np.ndarray,
    layouts: tuple[str, str] = ("rows", "rows"),
) -> None:  # fmt: skip
    """What follows a product in the same pass is the composite: bias, GELU, its derivative, a residual, a sum."""
    left, right, raw_bias, raw_other = stored(a, layouts[0]), stored(b, layouts[1]), stored(bias), stored(other)
    h, shift, wide = product(a, b), bias.astype("f8"), other.astype("f8")
    check(matmul.matmul(left, right, raw_bias), h + shift)
    y, before = matmul.matmul_gelu(left, right, raw_bias)
    check(before, h + shift)
    check(y, gelu.forward(h + shift, "tanh"))
    check(matmul.matmul_gelu(left, right)[0], gelu.forward(h, "tanh"))
    check(matmul.matmul_gelu_slope(left, right, raw_other), gelu.backward(h, wide, "tanh"))
    check(matmul.matmul_residual(left, right, raw_other), h + wide)
    check(matmul.matmul_residual(left, right, raw_other, raw_bias), h + shift + wide)
    matmul.add_matmul(raw_other, left, right)
    check(raw_other, h + wide)
