"""What a file of kernels and their launchers is written with, in one import."""

from .array import Array, contiguous, copy, empty, expand, from_host, full, merged, ones, to_host, zeros
from .language import FULL_WARP, SIMULATED, THREADS, cuda, libdevice, math
from .launch import Kernel, kernel

__all__ = [
    "FULL_WARP", "SIMULATED", "THREADS", "Array", "Kernel", "contiguous", "copy", "cuda", "empty",
    "expand", "from_host", "full", "kernel", "libdevice", "math", "merged", "ones", "to_host", "zeros",
]  # fmt: skip
