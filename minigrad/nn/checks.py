"""Checks of arguments that the functions share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..dtypes import int64, is_half
from ..errors import bad_index, bad_state, bad_type, bad_value, check_choice
from ..mixed_precision import autocasting
from ..modes import is_autocast_enabled
from ..tensor import Tensor

F = TypeVar("F", bound=Callable[..., Tensor])


def check_tensor(name: str, x: Any) -> Tensor:
    """``x``, if it is a tensor."""
    if not isinstance(x, Tensor):
        raise bad_type(f"{name} expects a tensor, not {type(x).__name__}; make one with minigrad.tensor(...)")
    return x


def floating(name: str, x: Tensor) -> Tensor:
    """``x``, if it is a tensor of a floating dtype."""
    if isinstance(x, Tensor) and x.data.dtype.kind == "f":  # the usual case, quickly
        return x
    if not check_tensor(name, x).is_floating_point():
        raise bad_type(f"{name} expects a floating tensor, not {x.dtype}; convert with .float()")
    return x


def check_indices(indices: Any, weight: Tensor) -> Tensor:
    """``indices`` as int64, if they are integers that name rows of the table ``weight`` (num, dim)."""
    if check_tensor("embedding", indices).data.dtype.kind not in "iu":
        raise bad_type(
            f"embedding: indices must be integers, not {indices.dtype}; the order is embedding(indices, weight), "
            "and .long() converts"
        )
    if weight.ndim != 2:
        raise bad_value(f"embedding: weight of shape {weight.shape}; expected (num, dim)")
    if indices.device is not weight.device:
        raise bad_state(
            f"embedding: indices on {indices.device}, weight on {weight.device}; move them to one with .to(device)"
        )
    labels: Tensor = indices if indices.data.dtype == int64 else indices.long()
    bad = weight.device.kernels.embedding.check_indices(labels.data, weight.shape[0])
    if bad >= 0:
        index = int(labels.reshape(-1)[bad])
        raise bad_index(f"embedding: index {index} at position {bad} is out of range for {weight.shape[0]} rows")
    return labels


def in_float32(function: F) -> F:
    """A function of several operations, which float16 and bfloat16 tensors pass in float32, so the result is rounded
    once, to the dtype of the first.
    """
    return _widened(function, rounded=True)


def autocast_to_float32(function: F) -> F:
    """``in_float32``; but within autocast the result stays float32."""
    return _widened(function, rounded=False)


def _widened(function: F, rounded: bool) -> F:
    @functools.wraps(function)
    def wrapped(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(x, Tensor) or not is_half(x.dtype):
            return function(x, *args, **kwargs)
        wide = [a.float() if isinstance(a, Tensor) and is_half(a.dtype) else a for a in args]
        named = {k: a.float() if isinstance(a, Tensor) and is_half(a.dtype) else a for k, a in kwargs.items()}
        chosen = not rounded and is_autocast_enabled(x.device.type)
        with autocasting(None):
            y = function(x.float(), *wide, **named)
        return y if chosen else y.to(x.dtype)

    return wrapped  # type: ignore[return-value]  # functools.wraps keeps the signature


def in_dtype_of(x: Tensor, y: Tensor) -> Tensor:
    """``y`` in the dtype of ``x``; within autocast, which chose another, as it is."""
    dtype = x.data.dtype
    return y if y.data.dtype is dtype or y.data.dtype == dtype or is_autocast_enabled(x.device.type) else y.to(dtype)


def check_reduction(name: str, reduction: str, known: tuple[str, ...] = ("mean", "sum", "none")) -> None:
    """ValueError unless ``reduction`` is one of ``known``."""
    if reduction not in known:
        check_choice(name, "reduction", reduction, known)


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """The mean or sum of ``losses``, or themselves."""
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses
