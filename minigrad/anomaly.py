"""Finding the operation whose gradient is wrong, as PyTorch's ``torch.autograd.detect_anomaly``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .autograd import _grad_mode


@contextlib.contextmanager
def detect_anomaly() -> Iterator[None]:
    """Within the block (this thread only) operations remember the line that called them, and ``backward`` raises
    RuntimeError where a gradient turns NaN: with the operation, its input, and that line if the forward pass ran within
    the block too. Other errors of ``backward`` then name the line as well. Slow; for debugging.
    """
    previous, _grad_mode.anomaly = _grad_mode.anomaly, True
    try:
        yield
    finally:
        _grad_mode.anomaly = previous
