"""How long things may take: the defaults, and arithmetic with deadlines."""

from __future__ import annotations

import time
from typing import Any

DEFAULT_TIMEOUT = 600.0  # seconds an operation may take
RENDEZVOUS_TIMEOUT = 60.0  # seconds until all ranks must have met


def check_seconds(name: str, value: Any) -> float:
    """``value`` as a float. Raises ValueError unless it is a number of seconds > 0 (infinity never ends)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} is {value!r}, expected a number of seconds > 0")
    return float(value)


def remaining(deadline: float) -> float:
    """Seconds until ``deadline`` on the clock of ``time.monotonic``, not below 0."""
    return max(0.0, deadline - time.monotonic())
