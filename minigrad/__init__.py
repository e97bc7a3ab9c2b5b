"""minigrad: a small deep-learning framework to read, to learn from, and to train transformers with."""

import os as _os
from math import e, inf, nan, pi

from . import interrupt as _interrupt  # noqa: F401  # first: it is there while the others are imported

# isort: split
from . import cuda, data, hints as _hints, nn, optim, profiler
from .autograd import Function
from .checkpoint_activations import checkpoint
from .creation import *
from .device import Device, DeviceError, kernels, plain_families
from .dtypes import *
from .dtypes import default_dtype as get_default_dtype
from .einstein_sum import einsum, kron, tensordot
from .engine import BackwardHook, backward
from .fast.explain import explain
from .functions import *
from .grad_store import GradStore, TensorId
from .mixed_precision import autocast, get_autocast_dtype
from .modes import detect_anomaly, enable_grad, is_autocast_enabled, is_grad_enabled, no_grad, set_grad_enabled
from .plans import unfused
from .printing import set_printoptions
from .random import Generator, default_generator, fresh_seed, manual_seed
from .saving import load, save
from .settings import *
from .shapes import Size
from .tensor import Tensor
from .tools.drawing import draw
from .tools.gradcheck import GradcheckError, gradcheck
from .tools.step_memory import MemoryReport, memory_report

# PyTorch's other names. Not in __all__: "import *" would hide Python's own bool, float and int.
bool = bool_
double = float64
float = float32
half = float16
inference_mode = no_grad
int = int32
long = int64

__version__ = "0.1.0"

if not _os.path.isdir(_os.path.join(__path__[0], "distributed")):  # a checkout, where that folder lies beside this one
    __path__.append(_os.path.dirname(__path__[0]))

# fmt: off
__all__ = [
    # What a tensor is
    "Tensor", "TensorId", "Device", "DeviceError", "bfloat16", "bool_", "float16", "float32", "float64", "int32",
    "int64", "uint8", "default_dtype", "get_default_dtype", "set_default_dtype", "promote_types", "result_type",
    "Size", "finfo", "iinfo", "e", "inf", "nan", "pi", "is_tensor", "is_floating_point", "numel", "set_printoptions",
    # Automatic differentiation, modes, settings
    "Function", "GradStore", "BackwardHook", "backward", "no_grad", "enable_grad", "set_grad_enabled",
    "is_grad_enabled", "checkpoint", "detect_anomaly", "autocast", "is_autocast_enabled", "get_autocast_dtype",
    "get_float32_matmul_precision", "set_float32_matmul_precision", "get_num_threads", "set_num_threads",
    "memory_stats", "release_memory",
    # Tensors out of nothing or of others
    "arange", "as_tensor", "cat", "concat", "concatenate", "empty", "empty_like", "eye", "from_dlpack", "from_numpy",
    "full", "full_like", "hstack", "linspace", "logspace", "meshgrid", "one_hot", "ones", "ones_like", "rand",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "stack", "tensor", "tril_indices",
    "triu_indices", "vstack", "where", "zeros", "zeros_like", "einsum", "kron", "tensordot",
    # Random numbers
    "Generator", "default_generator", "manual_seed", "fresh_seed",
    # Tools and rooms
    "save", "load", "draw", "explain", "unfused", "kernels", "plain_families", "gradcheck", "GradcheckError",
    "memory_report", "MemoryReport", "cuda", "data", "nn", "optim", "profiler",
    # Arithmetic and functions of each element
    "add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide", "remainder", "fmod",
    "pow", "neg", "negative", "abs", "absolute", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt",
    "rsqrt", "square", "reciprocal", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "atan2",
    "asinh", "acosh", "atanh", "erf", "sigmoid", "relu", "sign", "floor", "ceil", "round", "trunc", "clamp",
    "clamp_min", "clamp_max", "clip", "nan_to_num", "maximum", "minimum", "lerp", "masked_fill", "clone", "bernoulli",
    # Comparison, logic and bits
    "eq", "ne", "lt", "le", "gt", "ge", "isclose", "allclose", "equal", "isnan", "isinf", "isfinite", "isposinf",
    "isneginf", "logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_not", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift",
    # Over dimensions
    "sum", "nansum", "mean", "nanmean", "var", "std", "norm", "prod", "any", "all", "count_nonzero", "trace", "amax",
    "amin", "max", "min", "median", "quantile", "argmax", "argmin", "cumsum", "cumprod", "cummax", "cummin", "diff",
    "logsumexp", "logaddexp", "softmax", "log_softmax", "std_mean", "var_mean",
    # The same elements in another shape, order or number
    "flatten", "ravel", "unflatten", "squeeze", "unsqueeze", "transpose", "swapdims", "movedim", "moveaxis", "t",
    "roll", "repeat_interleave", "diagonal", "tril", "triu", "narrow", "select", "split", "chunk", "unbind", "reshape",
    "broadcast_to", "permute", "flip", "tile", "swapaxes",
    # By place
    "gather", "take_along_dim", "index_select", "masked_select", "nonzero", "diag", "scatter", "scatter_add",
    "scatter_reduce", "masked_scatter", "index_add", "index_copy", "index_fill", "index_put", "argsort", "sort", "topk",
    "unique", "bincount", "multinomial", "searchsorted", "bucketize",
    # Products
    "matmul", "mm", "bmm", "mv", "dot", "outer", "addmm", "addmv", "baddbmm",
]
# fmt: on

_hints.answer_for(__name__)
_hints.make_modules()
