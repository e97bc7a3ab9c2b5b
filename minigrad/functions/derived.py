"""PyTorch's further names, made of other operations."""

from __future__ import annotations

from typing import Any

from ..shapes import Dim
from ..tensor import Operand, Tensor


def subtract(x: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
    """x - alpha * other."""
    return x.subtract(other, alpha=alpha)


def multiply(x: Tensor, other: Operand) -> Tensor:
    """x * other."""
    return x.multiply(other)


def divide(x: Tensor, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """``div``."""
    return x.divide(other, rounding_mode=rounding_mode)


def true_divide(x: Tensor, other: Operand) -> Tensor:
    """x / other."""
    return x.true_divide(other)


def floor_divide(x: Tensor, other: Operand) -> Tensor:
    """x // other."""
    return x.floor_divide(other)


def negative(x: Tensor) -> Tensor:
    """-x."""
    return x.negative()


def absolute(x: Tensor) -> Tensor:
    """Absolute value."""
    return x.absolute()


def clip(x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """``clamp``."""
    return x.clip(min, max)


def clamp_min(x: Tensor, min: Operand) -> Tensor:
    """Values limited from below."""
    return x.clamp_min(min)


def clamp_max(x: Tensor, max: Operand) -> Tensor:
    """Values limited from above."""
    return x.clamp_max(max)


def bitwise_left_shift(x: Tensor, other: Operand) -> Tensor:
    """x << other, of integers."""
    return x.bitwise_left_shift(other)


def bitwise_right_shift(x: Tensor, other: Operand) -> Tensor:
    """x >> other, of integers."""
    return x.bitwise_right_shift(other)


def moveaxis(x: Tensor, source: Dim, destination: Dim) -> Tensor:
    """``movedim``."""
    return x.moveaxis(source, destination)


def swapdims(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """``transpose``."""
    return x.swapdims(dim0, dim1)


def ravel(x: Tensor) -> Tensor:
    """All dimensions as one."""
    return x.ravel()


def t(x: Tensor) -> Tensor:
    """A matrix transposed (a view)."""
    return x.t()


def unflatten(x: Tensor, dim: int, sizes: Any) -> Tensor:
    """One dimension as several of the given sizes."""
    return x.unflatten(dim, sizes)


def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A view of ``length`` places of a dimension from ``start`` on."""
    return x.narrow(dim, start, length)


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """A view of one place of a dimension, without it."""
    return x.select(dim, index)


def isclose(x: Tensor, other: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """Where |x - other| <= atol + rtol |other|."""
    return x.isclose(other, rtol, atol, equal_nan)


def count_nonzero(x: Tensor, dim: Dim = None) -> Tensor:
    """How many values over ``dim`` are not 0."""
    return x.count_nonzero(dim)


def lerp(x: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """x + weight * (end - x)."""
    return x.lerp(end, weight)


def allclose(x: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether ``isclose`` holds everywhere."""
    return x.allclose(other, rtol, atol, equal_nan)


def equal(x: Tensor, other: Tensor) -> bool:
    """Whether shape and all values are equal."""
    return x.equal(other)


def logaddexp(x: Tensor, other: Tensor) -> Tensor:
    """``Tensor.logaddexp``."""
    return x.logaddexp(other)


def numel(x: Tensor) -> int:
    """``Tensor.numel``."""
    return x.numel()


def is_floating_point(x: Tensor) -> bool:
    """``Tensor.is_floating_point``."""
    return x.is_floating_point()
