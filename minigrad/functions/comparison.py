"""Comparison, logic and bits."""

from __future__ import annotations

from ..tensor import Operand, Tensor


def eq(x: Tensor, other: Operand) -> Tensor:
    """Where x == other."""
    return x == other


def ne(x: Tensor, other: Operand) -> Tensor:
    """Where x != other."""
    return x != other


def lt(x: Tensor, other: Operand) -> Tensor:
    """Where x < other."""
    return x < other


def le(x: Tensor, other: Operand) -> Tensor:
    """Where x <= other."""
    return x <= other


def gt(x: Tensor, other: Operand) -> Tensor:
    """Where x > other."""
    return x > other


def ge(x: Tensor, other: Operand) -> Tensor:
    """Where x >= other."""
    return x >= other


def isnan(x: Tensor) -> Tensor:
    """Where the value is NaN."""
    return x.isnan()


def isinf(x: Tensor) -> Tensor:
    """Where the value is infinite."""
    return x.isinf()


def isposinf(x: Tensor) -> Tensor:
    """Where the value is +inf."""
    return x.isposinf()


def isneginf(x: Tensor) -> Tensor:
    """Where the value is -inf."""
    return x.isneginf()


def isfinite(x: Tensor) -> Tensor:
    """Where the value is neither NaN nor infinite."""
    return x.isfinite()


def logical_not(x: Tensor) -> Tensor:
    """Where the value is 0."""
    return x.logical_not()


def bitwise_not(x: Tensor) -> Tensor:
    """~x, of integers or bool."""
    return x.bitwise_not()


def logical_and(x: Tensor, other: Operand) -> Tensor:
    """Where neither value is 0."""
    return x.logical_and(other)


def logical_or(x: Tensor, other: Operand) -> Tensor:
    """Where not both values are 0."""
    return x.logical_or(other)


def logical_xor(x: Tensor, other: Operand) -> Tensor:
    """Where exactly one of the two values is 0."""
    return x.logical_xor(other)


def bitwise_and(x: Tensor, other: Operand) -> Tensor:
    """x & other, of integers or bool."""
    return x.bitwise_and(other)


def bitwise_or(x: Tensor, other: Operand) -> Tensor:
    """x | other, of integers or bool."""
    return x.bitwise_or(other)


def bitwise_xor(x: Tensor, other: Operand) -> Tensor:
    """x ^ other, of integers or bool."""
    return x.bitwise_xor(other)
