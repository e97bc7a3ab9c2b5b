"""The CPU backend: NumPy and Numba on raw arrays, one module per family, and the plain families of PLAIN_ONLY."""

from ..plain_kernels.arrays import *
from . import (
    adagrad,
    adamw,
    attention,
    comparison,
    cross_entropy,
    dropout,
    elementwise,
    embedding,
    gelu,
    grad_norm,
    indexing,
    lamb,
    layer_norm,
    linear,
    linear_cross_entropy,
    matmul,
    memory,
    movement,
    random,
    rms_norm,
    rope,
    sgd,
    softmax,
    trigonometry,
)
from .memory import heap
from .movement import contiguous, copy
from .reduce import reduce
from .toolbox import bfloat16_product, graphs, threads

PLAIN_ONLY: tuple[str, ...] = ()
"""The families that are the plain ones."""

fuses_add_norm = False  # no norm adds two arrays first
in_host_memory = True  # arrays are NumPy's
