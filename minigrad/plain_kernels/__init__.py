"""The plain kernels: every family in NumPy alone, formula above code. It is the place to begin reading.

A family is a class as a namespace: ``softmax.forward(x, axis)``; its functions have no ``self``. They are the reference
of the kernels' tests, what runs in ``minigrad.kernels("plain")``, and the families that another backend names in its
``PLAIN_ONLY``. They import NumPy and each other; backends and ``device.kernels`` import them.
"""

from .arrays import *
from .arrays import embedding, indexing, movement, reduce
from .elementwise import comparison, elementwise, gelu, trigonometry
from .losses import cross_entropy, linear_cross_entropy
from .optimizers import adagrad, adamw, grad_norm, lamb, sgd
from .random import dropout, random
from .transformer import attention, layer_norm, linear, matmul, rms_norm, rope, softmax

fuses_add_norm = False  # no norm adds two arrays first
in_host_memory = True  # arrays are NumPy's
# fmt: off
__all__ = [
    "PLAIN_ONLY", "Array", "adagrad", "adamw", "as_array", "attention", "comparison",
    "contiguous", "copy", "cross_entropy", "dropout", "elementwise", "embedding", "empty", "from_dlpack", "from_host",
    "full", "gelu", "grad_norm", "indexing", "lamb", "layer_norm", "linear", "linear_cross_entropy",
    "matmul", "may_share_memory", "movement", "ones", "quiet", "random", "reduce", "reinterpret",
    "rms_norm", "rope", "sgd", "softmax", "to_host", "trigonometry", "zeros",
]
# fmt: on

PLAIN_ONLY: tuple[str, ...] = tuple(
    name for name in __all__ if isinstance(globals().get(name), type) and name != "Array"
)
"""The families that this backend has from here: all."""
