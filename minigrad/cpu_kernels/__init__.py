"""The CPU backend: NumPy and Numba on raw arrays, one module per family, and the plain families of PLAIN_ONLY."""

from ..plain_kernels import activation, batch_norm, comparison, indexing, log_sigmoid, movement, trigonometry
from ..plain_kernels.arrays import (
    Array,
    as_array,
    contiguous,
    copy,
    empty,
    from_dlpack,
    from_host,
    full,
    may_share_memory,
    ones,
    quiet,
    reinterpret,
    to_host,
    zeros,
)
from . import (
    adagrad,
    adamw,
    attention,
    cross_entropy,
    dropout,
    embedding,
    gelu,
    grad_norm,
    group_norm,
    lamb,
    layer_norm,
    linear,
    linear_cross_entropy,
    matmul,
    memory,
    random,
    rms_norm,
    rope,
    sgd,
    softmax,
    stages,
)
from .elementwise import elementwise
from .memory import heap
from .reduce import reduce
from .toolbox import bfloat16_product, threads

PLAIN_ONLY: tuple[str, ...] = (
    "activation", "batch_norm", "comparison", "indexing", "log_sigmoid", "movement", "trigonometry",
)  # fmt: skip
"""The families that are the plain ones: NumPy's passes over memory are as fast as compiled ones."""

fuses_add_norm = False  # no norm adds two arrays first
in_host_memory = True  # arrays are NumPy's
