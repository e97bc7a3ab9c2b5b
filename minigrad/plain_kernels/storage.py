"""Memory on the CPU: a tensor's raw array is a NumPy array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
as_array: Callable[..., np.ndarray] = np.asarray
empty: Callable[..., np.ndarray] = np.empty
ones: Callable[..., np.ndarray] = np.ones
zeros: Callable[..., np.ndarray] = np.zeros
may_share_memory: Callable[..., bool] = np.may_share_memory
from_dlpack: Callable[..., np.ndarray] = np.from_dlpack


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether the dtype is float16, or bfloat16, which NumPy has from another package and which is of kind V."""
    return dtype.kind in "fV" and dtype.itemsize == 2


def full(shape: tuple[int, ...], value: Any, dtype: Any) -> np.ndarray:
    """A new array filled with ``value``."""
    return np.full(shape, value, dtype)


def copy(x: np.ndarray) -> np.ndarray:
    """A new C-contiguous array of the same values."""
    return np.array(x, order="C", copy=True)


def contiguous(x: np.ndarray) -> np.ndarray:
    """``x`` itself if it is C-contiguous, else a copy that is; keeps 0-d arrays 0-d."""
    return x if x.flags.c_contiguous else np.array(x, order="C", copy=True)


def from_host(x: np.ndarray, wait: bool = True) -> np.ndarray:
    """A NumPy array as an array of this device: itself, so there is nothing to wait for."""
    return x


def to_host(x: np.ndarray, wait: bool = True) -> np.ndarray:
    """An array of this device as a NumPy array: itself, so there is nothing to wait for."""
    return x


def reinterpret(x: np.ndarray, dtype: Any) -> np.ndarray:
    """The same bits as another dtype of the same width; a view."""
    return x.view(dtype)


def quiet() -> Any:
    """A context in which NaN and infinite results raise no warnings."""
    return np.errstate(all="ignore")
