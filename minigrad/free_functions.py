"""PyTorch's functions that are no methods there and make no tensors out of nothing: questions, pairs, searches."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import dtypes
from .autograd import TensorCore
from .errors import located
from .shapes import Dim
from .tensor import Operand, Tensor


def is_tensor(obj: Any) -> bool:
    """Whether ``obj`` is a Tensor."""
    return isinstance(obj, Tensor)


def result_type(tensor1: Operand, tensor2: Operand) -> np.dtype[Any]:
    """The dtype of an operation on these two tensors or numbers, as in PyTorch."""
    return dtypes.result_dtype([x.data if isinstance(x, TensorCore) else x for x in (tensor1, tensor2)])


def std_mean(input: Tensor, dim: Dim = None, *, correction: float = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """``std`` and ``mean`` over ``dim``."""
    return input.std(dim, correction=correction, keepdim=keepdim), input.mean(dim, keepdim)


def var_mean(input: Tensor, dim: Dim = None, *, correction: float = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """``var`` and ``mean`` over ``dim``."""
    return input.var(dim, correction=correction, keepdim=keepdim), input.mean(dim, keepdim)


def searchsorted(sorted_sequence: Tensor, values: Operand, *, right: bool = False, side: str | None = None) -> Tensor:
    """Where to insert ``values`` into the ascending last dimension of ``sorted_sequence`` (int64, the shape of values).

    Before equals, or behind them with ``right`` or ``side="right"``. The sequence is one vector for all values, or has
    their dimensions but the last. NaN belongs at the end.
    """
    if side not in (None, "left", "right") or (right and side == "left"):
        raise located(ValueError(f"searchsorted: side={side!r}, right={right}; expected 'left' or 'right', not both"))
    if not isinstance(sorted_sequence, Tensor):
        found = type(sorted_sequence).__name__
        raise located(TypeError(f"searchsorted: the sequence is a {found}; make it a tensor: minigrad.tensor(...)"))
    x = sorted_sequence
    v = values if isinstance(values, Tensor) else Tensor(values, device=x.device)
    if not x.ndim or (x.ndim > 1 and x.shape[:-1] != v.shape[:-1]):
        raise located(
            ValueError(f"searchsorted of shapes {x.shape} and {v.shape}: expected one vector, or equal leading sizes")
        )
    behind = right or side == "right"
    shape, n = v.shape, x.shape[-1]
    if x.ndim == 1:
        v = v.reshape(-1)
    low = v.new_zeros(v.shape, dtype=dtypes.int64)
    high = low + n
    for _ in range(n.bit_length()):  # bisection, of all values at once
        middle = (low + high) // 2
        found = x.detach().gather(-1, middle.clamp(max=n - 1))
        above = (low < high) & (found > v if behind else found >= v).logical_not()
        low, high = (middle + 1).where(above, low), high.where(above, middle)
    return low.reshape(shape)


def bucketize(input: Operand, boundaries: Tensor, *, right: bool = False) -> Tensor:
    """``searchsorted`` of the values in one ascending vector: the number of the interval that each lies in."""
    if not isinstance(boundaries, Tensor) or boundaries.ndim != 1:
        found = f"shape {boundaries.shape}" if isinstance(boundaries, Tensor) else type(boundaries).__name__
        raise located(ValueError(f"bucketize: boundaries of {found}; expected a vector, a tensor"))
    return searchsorted(boundaries, input, right=right)
