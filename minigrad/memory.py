"""The process's memory on the CPU; for a GPU's see ``minigrad.cuda``."""

from __future__ import annotations

from .device import CPU


def memory_stats() -> dict[str, int]:
    """What the process holds: ``page_faults`` so far, ``peak`` and, where the system tells, ``resident``, ``heap`` and
    ``heap_used``, in bytes.

    Freed tensors stay in the heap and are used again, so a training step in its stride adds no page faults.
    """
    return dict(CPU.kernels.heap.statistics())


def release_memory() -> int:
    """Give memory that no tensor uses back to the system; the number of bytes by which the process shrank.

    Worth a call after the largest step of a process; one that computes nothing for a minute does it by itself. The next
    step takes the memory anew.
    """
    return int(CPU.kernels.heap.release())
