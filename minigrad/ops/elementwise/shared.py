"""What several of these operations share."""

from __future__ import annotations

from typing import Any

from ...errors import bad_type


def refuse_bool(name: str, *inputs: Any) -> None:
    """Where NumPy would compute with bool as int8, which no tensor has."""
    if any(hasattr(x, "dtype") and x.dtype.kind == "b" for x in inputs):
        raise bad_type(f"{name} of bool tensors has no value; convert with .long() or .float()")


def zeros_like(kernels: Any, x: Any) -> Any:
    return kernels.full(x.shape, 0, x.dtype)
