"""Checks of arguments that several families of methods share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes
from ..autograd import TensorCore
from ..errors import located

if TYPE_CHECKING:
    from ..tensor import Tensor


def bool_mask(name: str, mask: Tensor) -> Tensor:
    if not isinstance(mask, TensorCore) or mask.dtype != dtypes.bool_:
        found = f"a {mask.dtype} tensor" if isinstance(mask, TensorCore) else type(mask).__name__
        raise located(
            TypeError(f"{name} expects a bool tensor, not {found}; compare first (x > 0), or convert with .bool()")
        )
    return mask


def check_number(name: str, value: float, dtype: np.dtype[Any]) -> None:
    if dtype.kind in "iu" and not math.isfinite(value):
        raise located(ValueError(f"{name}: no {dtype} is {value}; convert the tensor with .float() first"))
