"""CUDA's programming model on the CPU, and the door to it: ``simulate`` a kernel of yours.

Outside the tests only `platform`, `ptx` and `inspect` import what is below.
"""

from .instrument.report import WarpReport, occupancy, simulate
from .simulated_cuda import cuda, math
from .simulated_memory import SimulationError

__all__ = ["WarpReport", "SimulationError", "cuda", "math", "occupancy", "simulate"]
