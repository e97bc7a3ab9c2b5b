"""Modules, layers and their functions."""

from . import functional, init
from .layers import GELU, Dropout, Embedding, LayerNorm, Linear, ReLU, Tanh
from .module import Module, ModuleList, Parameter, Sequential
from .transformer import MLP, Block, CausalSelfAttention, KVCache

__all__ = [
    "GELU",
    "MLP",
    "Block",
    "CausalSelfAttention",
    "Dropout",
    "Embedding",
    "KVCache",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleList",
    "Parameter",
    "ReLU",
    "Sequential",
    "Tanh",
    "functional",
    "init",
]
