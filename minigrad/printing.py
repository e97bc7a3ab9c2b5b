"""How tensors are shown, after PyTorch's fashion."""

from __future__ import annotations

from typing import Any

import numpy as np


def represent(x: Any) -> str:
    """``tensor([1., 2.], requires_grad=True)``: values to four digits, then what is not the default."""
    array = x.device.kernels.to_host(x.data)
    notes = []
    if array.size == 0 and array.ndim != 1:
        notes.append(f"shape={array.shape}")
    if str(array.dtype) not in (("float32", "int64", "bool") if array.size else ("float32",)):
        notes.append(f"dtype={array.dtype}")
    if x.device.type != "cpu":
        notes.append(f"device='{x.device}'")
    if x.node is not None:
        notes.append(f"fn={type(x.node).__name__}")
    elif x.requires_grad:
        notes.append("requires_grad=True")
    values = np.array2string(array, separator=", ", precision=4, prefix="tensor(", threshold=1000)
    return f"tensor({', '.join([values, *notes])})"
