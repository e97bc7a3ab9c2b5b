"""How many threads the CPU kernels use."""

from __future__ import annotations

from .device import CPU


def get_num_threads() -> int:
    """Threads that an operation on a CPU tensor uses when called from this thread."""
    return int(CPU.kernels.threads.get_num_threads())


def set_num_threads(n: int) -> None:
    """Let CPU operations called from this thread use ``n`` threads. ValueError if the pool has fewer."""
    CPU.kernels.threads.set_num_threads(n)
