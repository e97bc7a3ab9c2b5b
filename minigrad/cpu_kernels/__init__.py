"""The CPU backend: NumPy and Numba on raw arrays, one module per family, and the plain families of PLAIN_ONLY."""

from .. import plain_kernels as plain  # noqa: I001
from ..plain_kernels import batch_norm
from ..plain_kernels.arrays import *
from . import (
    adagrad, adamw, attention, cross_entropy, dropout, elementwise, embedding, grad_norm, group_norm,
    indexing, lamb, layer_norm, linear, linear_cross_entropy, matmul, memory, movement, random, rms_norm, rope, sgd,
    softmax,
)  # fmt: skip
from .memory import heap
from .linear import gelu
from .movement import contiguous, copy
from .reduce import reduce
from .toolbox import bfloat16_product, graphs, threads
from .toolbox.array_program import family_of

activation, comparison, log_sigmoid, trigonometry = map(
    family_of, (plain.activation, plain.comparison, plain.log_sigmoid, plain.trigonometry)
)

PLAIN_ONLY: tuple[str, ...] = ("batch_norm",)
"""The families that are the plain ones."""

fuses_add_norm = False  # no norm adds two arrays first
in_host_memory = True  # arrays are NumPy's
