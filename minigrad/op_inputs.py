"""The inputs of an operation: their common dtype, and errors that describe them. ``Function.apply`` asks."""

from __future__ import annotations

from typing import Any

from .dtypes import default_dtype, float32, float64, is_floating, is_half, result_dtype
from .errors import bad_state, located
from .tensor_core import TensorCore


def explained(cls: type[Any], error: Exception, inputs: tuple[Any, ...]) -> Exception | None:
    """The error of ``forward`` with the op and its inputs; None for errors of other kinds, which explain themselves."""
    kind = type(error)
    if kind not in (ValueError, IndexError, OverflowError) or not isinstance(next(iter(error.args), None), str):
        return None
    reason = _broadcast_problem(inputs) if "broadcast together" in str(error) else str(error)
    return located(kind(f"{cls.__name__}: {reason}\n  inputs: {describe(inputs)}"))


def mixed_devices(cls: type[Any], inputs: tuple[Any, ...]) -> RuntimeError:
    """The error for inputs on several devices."""
    return bad_state(
        f"{cls.__name__}: inputs are on different devices; move them to one with .to(device)\n"
        f"  inputs: {describe(inputs)}"
    )


def _broadcast_problem(inputs: tuple[Any, ...]) -> str:
    shapes = [tuple(x.data.shape)[::-1] for x in inputs if isinstance(x, TensorCore)]
    for i in range(max(map(len, shapes))):
        sizes = dict.fromkeys(shape[i] for shape in shapes if i < len(shape) and shape[i] != 1)
        if len(sizes) > 1:
            found = " and ".join(map(str, sizes))
            return f"the shapes do not broadcast: dim {-1 - i} has sizes {found}; they must be equal, or 1"
    return "the shapes do not broadcast"


def prepare(cls: type[Any], inputs: tuple[Any, ...], arrays: list[Any], dtype: Any, kernels: Any) -> Any:
    """Promote and widen the arrays, where the op asks for it; the half-width dtype to round the result to, or None."""
    if cls.promotes or cls.floats:
        dtype = _promote(cls, inputs, arrays)
    if not cls.widens:
        if cls.promotes and is_half(dtype):  # numbers too: 0.1 equals what a float16 makes of it
            cast = kernels.elementwise.cast
            arrays[:] = [
                cast(kernels.full((), float(x), float64), dtype) if isinstance(x, int | float) else x for x in arrays
            ]
        return None
    if cls.half_kernels is not None and is_half(dtype) and getattr(kernels, cls.half_kernels).supports_half(arrays[0]):
        return None
    for i, x in enumerate(arrays):
        if isinstance(x, kernels.Array) and is_half(x.dtype):
            arrays[i] = kernels.elementwise.cast(x, float32)
    return dtype if is_half(dtype) else None


def _promote(cls: type[Any], inputs: tuple[Any, ...], arrays: list[Any]) -> Any:
    """Cast the arrays to the op's dtype. Python numbers stay: they never widen an array of their own kind."""
    dtype = result_dtype(arrays) if len(arrays) > 1 else arrays[0].dtype
    if cls.floats and not is_floating(dtype):
        dtype = default_dtype()
    for i, x in enumerate(inputs):
        if isinstance(x, TensorCore) and x.data.dtype != dtype:
            arrays[i] = x.device.kernels.elementwise.cast(x.data, dtype)
    return dtype


def describe(inputs: tuple[Any, ...]) -> str:
    """Shapes, dtypes and devices of the inputs, for errors."""
    return ", ".join(
        f"{tuple(x.data.shape)} {x.data.dtype} on {x.device}" if isinstance(x, TensorCore) else repr(x) for x in inputs
    )
