"""Modules, layers and their functions."""

from . import functional, init
from .containers import ModuleDict, ModuleList, Sequential
from .hooks import RemovableHandle
from .layers import (
    GELU,
    BatchNorm1d,
    Dropout,
    Embedding,
    GroupNorm,
    LayerNorm,
    LeakyReLU,
    Linear,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from .module import Module, Parameter
from .transformer import MLP, Block, CausalSelfAttention, GroupedQueryAttention, KVCache, SelfAttention, SwiGLU

__all__ = [
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
