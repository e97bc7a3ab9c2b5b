"""Modules, layers and their functions."""

from typing import TYPE_CHECKING

from .. import hints as _hints
from . import functional, init
from .containers import ModuleDict, ModuleList, Sequential
from .hooks import RemovableHandle
from .layers import (
    ELU,
    GELU,
    BatchNorm1d,
    Dropout,
    Embedding,
    Flatten,
    GroupNorm,
    Identity,
    LayerNorm,
    LeakyReLU,
    Linear,
    LogSoftmax,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from .loss_modules import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from .module import Module, Parameter
from .transformer import MLP, Block, CausalSelfAttention, GroupedQueryAttention, KVCache, SelfAttention, SwiGLU

__all__ = [
    "ELU",
    "Flatten",
    "Identity",
    "LogSoftmax",
    "Softplus",
    "BCELoss",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "NLLLoss",
    "SmoothL1Loss",
    "GELU",
    "MLP",
    "BatchNorm1d",
    "Block",
    "CausalSelfAttention",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "GroupedQueryAttention",
    "KVCache",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "Module",
    "ModuleDict",
    "ModuleList",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "RemovableHandle",
    "SelfAttention",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "SwiGLU",
    "Tanh",
    "functional",
    "init",
]

if not TYPE_CHECKING:  # to type checkers, a name that is not there is an error
    __getattr__ = _hints.of_module(__name__)
