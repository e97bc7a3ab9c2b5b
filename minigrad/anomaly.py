"""Finding the operation whose gradient is wrong, as PyTorch's ``torch.autograd.detect_anomaly``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .grad_mode import of_thread


@contextlib.contextmanager
def detect_anomaly() -> Iterator[None]:
    """Within the block (this thread only) operations remember the line that called them, and ``backward`` raises
    RuntimeError where a gradient turns NaN: with the operation, its input, and that line if the forward pass ran within
    the block too. Other errors of ``backward`` then name the line as well. Slow; for debugging.
    """
    previous, of_thread.mode.anomaly = of_thread.mode.anomaly, True
    try:
        yield
    finally:
        of_thread.mode.anomaly = previous
