"""What to say about a name that is not there: what takes the place of PyTorch's, or which name was meant."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from typing import Any

from .errors import located

_SAVE = (
    "minigrad.serialization has save_safetensors(path, model.state_dict()) and load_safetensors(path) for weights, "
    "save_checkpoint and load_checkpoint to resume"
)
_CUDA = "devices go by name: .to('cuda'); `python -m minigrad.env` says which there are"
_NORM = "minigrad.optim.clip_grad_norm(grads, max_norm), with the GradStore that loss.backward() returned"
_ZERO = "there is nothing to zero: loss.backward() returns fresh gradients, in a GradStore"
_MODULES = "minigrad has the layers of transformers and of small networks: see minigrad.nn.__all__"

HINTS: dict[str, dict[str, str]] = {
    "minigrad": {
        "save": _SAVE,
        "load": _SAVE,
        "inference_mode": "use no_grad",
        "compile": "the kernels are compiled by themselves",
        "utils": "data sets and loaders are in minigrad.data",
    },
    "minigrad.nn": {
        "utils": f"clipping is {_NORM}",
        "MultiheadAttention": "use SelfAttention(n_embd, n_head), or functional.scaled_dot_product_attention",
        "TransformerEncoderLayer": "use Block(n_embd, n_head, is_causal=False)",
        "TransformerDecoderLayer": "use Block(n_embd, n_head)",
        "BatchNorm2d": "use BatchNorm1d on x.flatten(2)",
        "DataParallel": "minigrad.distributed trains on several ranks",
        **{
            f"{kind}{n}d": _MODULES
            for kind in ("Conv", "ConvTranspose", "MaxPool", "AvgPool", "Upsample")
            for n in (1, 2, 3)
        },
        **dict.fromkeys(("RNN", "LSTM", "GRU", "Transformer"), _MODULES),
    },
    "minigrad.nn.functional": dict.fromkeys(("conv1d", "conv2d", "conv3d", "max_pool2d", "avg_pool2d"), _MODULES),
    "minigrad.data": {
        "DataLoader": "RandomBatches and EpochBatches give batches of tokens; of arrays, index with randperm(n)",
        "Dataset": "open_tokens reads token files, load_corpus texts",
    },
    "minigrad.optim": {
        "lr_scheduler": "schedules are here, such as CosineAnnealing; optimizer.set_lr(schedule.get_lr(step)), or give "
        "one to a trainer",
        "clip_grad_norm_": f"use {_NORM}",
        "RMSprop": "use AdamW or SGD",
    },
    "Tensor": {
        "grad": "gradients are not stored on tensors: grads = loss.backward(), then grads[tensor]",
        "grad_fn": "use .node, or minigrad.draw for a picture of the graph",
        "is_cuda": "use .device.type == 'cuda'",
        "type": "use .to(dtype), or .dtype",
        "astype": "use .to(dtype)",
        "retain_grad": "gradients are of leaves; cut with .detach().requires_grad_(), go on with .backward(gradient)",
    },
    "Module": {"zero_grad": _ZERO, "cuda": _CUDA},
    "Optimizer": {"zero_grad": f"{_ZERO}; leave the call out", "zero_grads": f"{_ZERO}; leave the call out"},
}
ELSEWHERE = ("minigrad.nn", "minigrad.nn.functional", "minigrad.optim")


def missing(kind: str, name: str, names: list[str], owner: str | None = None) -> AttributeError:
    """The error for a name that ``owner`` (default: ``kind``, a key of HINTS) has not; ``names`` are those it has."""
    message = f"{owner or kind} has no attribute {name!r}"
    hint = HINTS[kind].get(name)
    if hint is None and not name.startswith("_"):
        elsewhere = ELSEWHERE if kind in ("minigrad", *ELSEWHERE) else ()
        places = [p for p in elsewhere if p != kind and p in sys.modules]
        found = next((place for place in places if callable(vars(sys.modules[place]).get(name))), None)
        lower = {n.lower(): n for n in names if not n.startswith("_")}
        near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.75)
        hint = f"it is {found}.{name}" if found else f"did you mean {lower[near[0]]!r}?" if near else None
    # With a name, and None as the object, Python adds no second suggestion where it prints the error.
    error = AttributeError(f"{message}; {hint}" if hint else message, name=name)
    return error if name.startswith("_") else located(error)  # protocols ask for such names all the time


class NotInMinigrad:
    """Stands in a class for an attribute that PyTorch's has: to read or to set it is an error that says what to use.

    A ``__getattr__`` could say more, of every name; but up to Python 3.11 a class that has one reads each attribute
    four times as slowly, also those that are there, and a small operation reads ten of its tensors.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name: str = name

    def __get__(self, instance: object | None, owner: type) -> Any:
        raise missing("Tensor", self.name, [], owner.__name__)

    def __set__(self, instance: object, value: Any) -> None:
        raise missing("Tensor", self.name, [], type(instance).__name__)


def defined_in(module: str) -> list[str]:
    """The public functions and classes that a module defines itself: its ``__all__``."""
    found = vars(sys.modules[module]).items()
    return [name for name, value in found if name[0] != "_" and getattr(value, "__module__", None) == module]


def of_module(module: str) -> Callable[[str], Any]:
    """A module's ``__getattr__``, which is called for names that it has not."""

    def named(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = vars(sys.modules[module])
        raise missing(module, name, list(found.get("__all__", found)), f"module {module!r}")

    return named
