"""Elementwise arithmetic: the plain family, and erf, which NumPy lacks."""

from __future__ import annotations

import numpy as np

from ..plain_kernels import elementwise as plain
from .toolbox.jit import kernel
from .toolbox.vector_math import erf_fast


@kernel
def _erf(x, y):
    for i in range(x.shape[0]):
        y[i] = erf_fast(x[i])


class elementwise(plain):
    """Operations on each element."""

    @staticmethod
    def erf(x: np.ndarray) -> np.ndarray:
        """Error function, of the shape and dtype of x, float32 or float64. Any strides."""
        y = np.empty(x.shape, x.dtype)
        _erf(np.ascontiguousarray(x).reshape(-1), y.reshape(-1))
        return y
