"""What a case of ``gpu_report.py`` is, and its sizes: those of a GPT-2 124M (``FULL``) for the time, small ones
(``CHECK``) for the error, the smallest (``TINY``) for the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = tuple[Any, ...]
Call = Callable[[], Any]


@dataclass(frozen=True)
class Sizes:
    """R rows (tokens) of C channels, V words, ``loss_rows`` of logits, M the side of a matrix, attention's B, H, T, D,
    and the elements of the optimizer's parameters."""

    R: int
    C: int
    V: int
    loss_rows: int
    M: int
    B: int
    H: int
    T: int
    D: int
    params: tuple[int, ...]

    @property
    def wide(self) -> int:
        """Channels between the two layers of the MLP: 4 C, in the simulator fewer."""
        return 4 * self.C if self.C > 64 else self.C + 8


GPT2 = (50304 * 768, 1024 * 768, *(768 * 768,) * 144, *(768,) * 98)  # about its parameters, 124 million
FULL = Sizes(65536, 768, 50304, 8192, 4096, 16, 12, 1024, 64, GPT2)
CHECK = Sizes(1003, 768, 5003, 301, 515, 2, 3, 257, 64, (70001, 768, 33, 1))
TINY = Sizes(3, 40, 50, 2, 8, 1, 1, 5, 8, (9, 3))


@dataclass(frozen=True)
class Case:
    """One line of the report.

    ``inputs(s, rng)`` are NumPy arrays; ``ours(k, *arrays)`` prepares and returns the call that is timed, with the
    kernel package k and the arrays on the device; ``torch(t, *tensors)`` is the same for PyTorch, None where it has no
    such thing; ``exact(*arrays)`` gives the results from float64 arrays. ``nbytes`` is the least that must be moved,
    ``flops`` what must be computed. ``goal`` is in per cent of the copy's rate, or of ``rate``, an entry of the limits,
    where there are flops. ``tolerance`` is the largest error that is right; ``missing(k)`` what this machine lacks.
    """

    name: str
    inputs: Callable[[Sizes, np.random.Generator], Arrays]
    ours: Callable[..., Call]
    exact: Callable[..., Any]
    torch: Callable[..., Call] | None = None
    nbytes: Callable[[Sizes], int] | None = None
    flops: Callable[[Sizes], int] | None = None
    goal: float | None = None
    rate: str = "matrix rate"
    tolerance: float = 1e-5
    missing: Callable[[Any], str | None] = lambda k: None


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal float32; large arrays repeat their beginning, which takes less time."""
    size = math.prod(shape)
    return np.resize(rng.standard_normal(min(size, 1 << 22), np.float32), shape)


def normals(count: int) -> Callable[[Sizes, np.random.Generator], Arrays]:
    """``count`` arrays (R, C)."""
    return lambda s, rng: tuple(normal(rng, s.R, s.C) for _ in range(count))


def elements(count: int) -> Callable[[Sizes], int]:
    """Bytes of ``count`` float32 arrays (R, C)."""
    return lambda s: 4 * count * s.R * s.C


def softmax(x: Any) -> Any:
    """Along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
