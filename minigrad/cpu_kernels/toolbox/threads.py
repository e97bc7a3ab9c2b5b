"""The one thread pool of the CPU backend.

All parallel work runs on Numba's pool. A second pool (OpenBLAS under ``np.matmul``) spins after each call and starves
the first: on two cores the naive combination is ten times slower than one pool, which is why float products are our
own.

The layer is chosen here, before Numba starts it: TBB when it is installed (``pip install tbb``; it behaves best beside
other load), else OpenMP, else Numba's workqueue (30 times the launch cost). ``NUMBA_THREADING_LAYER`` overrides.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numba

_MODULES = {"tbb": "tbbpool", "omp": "omppool", "workqueue": "workqueue"}


def _preload_tbb() -> None:
    """pip puts libtbb where the dynamic loader does not look; once loaded globally, Numba finds it."""
    for library in sorted(Path(sys.prefix, "lib").glob("libtbb.so.12*")):
        try:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return


def _choose_layer() -> str:
    _preload_tbb()
    requested = os.environ.get("NUMBA_THREADING_LAYER")
    if requested in _MODULES:
        return requested
    for layer, module in _MODULES.items():
        try:
            importlib.import_module(f"numba.np.ufunc.{module}")
        except ImportError:
            continue
        return layer
    return "workqueue"


LAYER = _choose_layer()
numba.config.THREADING_LAYER = LAYER


@functools.cache
def _threads_of_pool() -> Callable[[], int]:
    """The pool's own C function. Numba's takes two locks before it calls that, at more than a small kernel's cost."""
    numba.get_num_threads()  # starts the pool
    pool = importlib.import_module(f"numba.np.ufunc.{_MODULES[numba.threading_layer()]}")
    return ctypes.PYFUNCTYPE(ctypes.c_int)(pool.get_num_threads)


def get_num_threads() -> int:
    """Threads that a parallel kernel launched from the calling thread uses."""
    return _threads_of_pool()()


def tasks_of_rows(rows: int, width: int, elements: int) -> int:
    """How many tasks of about ``elements`` elements ``rows`` rows of ``width`` are, so that all threads get like
    shares; 1 if there are no more than ``elements``.
    """
    if rows * width <= elements:
        return 1
    count = get_num_threads()
    return min(rows, count * max(1, round(rows * width / (elements * count))))


def set_num_threads(n: int) -> None:
    """Use ``n`` threads for kernels launched from the calling thread, 1 <= n <= the number of cores at start.

    Raises ValueError for a count out of range (the pool's size is fixed when the process starts:
    ``NUMBA_NUM_THREADS``).
    """
    most = int(numba.config.NUMBA_NUM_THREADS)
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= most:
        raise ValueError(
            f"set_num_threads({n!r}): expected an integer from 1 to {most}, the pool's size; "
            "set the environment variable NUMBA_NUM_THREADS before the start for more"
        )
    numba.set_num_threads(n)
