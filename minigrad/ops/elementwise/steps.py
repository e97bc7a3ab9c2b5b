"""Piecewise constant functions."""

from __future__ import annotations

from typing import Any

from ...autograd import Function
from .shared import refuse_bool, zeros_like


class StepFunction(Function):
    """A piecewise constant function: its gradient is zero wherever it has one."""

    __slots__ = ()

    def backward(self, dy: Any) -> Any:
        return zeros_like(self.kernels, dy)


class Sign(StepFunction):
    """y = -1, 0 or 1, the sign of x;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        return self.kernels.elementwise.sign(x)


class Floor(StepFunction):
    """y = the largest integer <= x;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        refuse_bool("floor", x)
        return self.kernels.elementwise.floor(x)


class Ceil(StepFunction):
    """y = the smallest integer >= x;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        refuse_bool("ceil", x)
        return self.kernels.elementwise.ceil(x)


class Round(StepFunction):
    """y = the nearest integer, halves to even;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        refuse_bool("round", x)
        return self.kernels.elementwise.round(x)


class Trunc(StepFunction):
    """y = x without its fraction;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        refuse_bool("trunc", x)
        return self.kernels.elementwise.trunc(x)
