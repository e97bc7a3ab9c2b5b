"""Modules, layers and their functions."""

from .. import hints as _hints
from . import functional, init, lora
from .channel_norms import BatchNorm1d, GroupNorm
from .containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from .function_modules import *
from .kv_cache import KVCache
from .layers import GELU, Dropout, Embedding, LayerNorm, Linear, RMSNorm
from .llama_parts import GroupedQueryAttention, SwiGLU
from .module import Module, Parameter, RemovableHandle
from .transformer import MLP, Block, CausalSelfAttention, SelfAttention

# fmt: off
__all__ = [
    "ELU", "GELU", "GLU", "MLP", "SELU", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d", "Block",
    "CausalSelfAttention", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "GroupNorm",
    "GroupedQueryAttention", "Hardswish", "Hardtanh", "HuberLoss", "Identity", "KLDivLoss", "KVCache", "L1Loss",
    "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax", "MSELoss", "Mish", "Module", "ModuleDict",
    "ModuleList", "NLLLoss", "Parameter", "ParameterDict", "ParameterList", "RMSNorm", "ReLU", "ReLU6",
    "RemovableHandle", "SelfAttention", "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax", "Softplus",
    "SwiGLU", "Tanh", "Unflatten", "functional", "init", "lora",
]
# fmt: on

_hints.answer_for(__name__, searched=True)
_hints.answer_for(init.__name__)
