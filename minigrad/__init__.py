"""minigrad: a small deep-learning framework to read, to learn from, and to train transformers with."""

from . import nn, optim
from .autograd import BackwardHook, Function, backward, enable_grad, is_grad_enabled, no_grad
from .creation import (
    arange,
    cat,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    linspace,
    multinomial,
    one_hot,
    ones,
    ones_like,
    rand,
    randint,
    randn,
    randperm,
    stack,
    tensor,
    where,
    zeros,
    zeros_like,
)
from .device import Device, DeviceError
from .dtypes import bool_, default_dtype, float16, float32, float64, int32, int64, set_default_dtype, uint8
from .grad_store import GradStore, TensorId
from .gradcheck import GradcheckError, gradcheck
from .random import Generator, default_generator, fresh_seed, manual_seed
from .tensor import Tensor
from .threads import get_num_threads, set_num_threads

__version__ = "0.1.0"

__all__ = [
    "BackwardHook",
    "Device",
    "DeviceError",
    "Function",
    "Generator",
    "GradStore",
    "GradcheckError",
    "Tensor",
    "TensorId",
    "arange",
    "backward",
    "bool_",
    "cat",
    "default_dtype",
    "default_generator",
    "empty",
    "empty_like",
    "enable_grad",
    "eye",
    "fresh_seed",
    "float16",
    "float32",
    "float64",
    "from_numpy",
    "full",
    "full_like",
    "get_num_threads",
    "gradcheck",
    "int32",
    "int64",
    "is_grad_enabled",
    "linspace",
    "manual_seed",
    "multinomial",
    "nn",
    "no_grad",
    "one_hot",
    "ones",
    "ones_like",
    "optim",
    "rand",
    "randint",
    "randn",
    "randperm",
    "set_default_dtype",
    "set_num_threads",
    "stack",
    "tensor",
    "uint8",
    "where",
    "zeros",
    "zeros_like",
]
