"""One token of each sequence through a whole model in one call of compiled code, where the model is as its class made
it.

The kernel (``cpu_kernels/decode.py``) knows the arrays of a model, not its modules. So modules that were replaced,
hooks, dropout in effect, autocast, other dtypes than float32 and float64, and GPUs take the way through the modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

from .. import nn
from ..autograd import is_grad_enabled
from ..mixed_precision import is_autocast_enabled
from ..tensor import Tensor

if TYPE_CHECKING:
    from .causal_lm import CausalLM

_data = attrgetter("data")
_values: Callable[[dict[str, Any]], Iterable[Any]] = dict.values


class Decoder:
    """What the kernel needs of a model and its caches. Kept with the first cache, for the tokens that follow.

    ``plan`` is None for a model that goes through its modules.
    """

    plan: Any

    def __init__(self, model: CausalLM, caches: list[nn.KVCache]) -> None:
        self._model, self._kernel = model, model.device.kernels.decode
        tables = [module.__dict__ for module in model.modules()]
        # The model's own hooks are called around its forward, whatever that does.
        self._hooks = [table[kind] for table in tables[1:] for kind in ("_forward_pre_hooks", "_forward_hooks")]
        self._tables = [table[kind] for table in tables for kind in ("_modules", "_parameters")]
        self._entries = [*chain.from_iterable(map(_values, self._tables))]
        self._drops = [
            table for table in tables if "p" in table or ("dropout" in table and "dropout" not in table["_modules"])
        ]
        self._cached = [tensor for cache in caches for tensor in cache.tensors]
        self._tensors = [*model.parameters(), *self._cached]
        self._arrays = [*map(_data, self._tensors)]
        self._vocab = model.embedding.num_embeddings
        self.plan = None
        if _plain(model) and (parts := model.decode_arrays(caches)) is not None:
            parts["layers"] = [self._kernel.Layer(**layer) for layer in parts["layers"]]
            self.plan = self._kernel.prepare(self._kernel.Model(**parts))

    def current(self, model: CausalLM, caches: list[nn.KVCache]) -> bool:
        """Whether model and caches are still those that the plan was made of."""
        entries = [*chain.from_iterable(map(_values, self._tables))]
        cached = [tensor for cache in caches for tensor in cache.tensors]
        return (
            model is self._model
            and len(entries) == len(self._entries)
            and len(cached) == len(self._cached)
            and all(map(is_, entries, self._entries))
            and all(map(is_, cached, self._cached))
            and all(map(is_, map(_data, self._tensors), self._arrays))
        )

    def takes(self, tokens: Tensor, caches: list[nn.KVCache]) -> bool:
        """Whether the kernel does with tokens (B, 1) what the modules do; where these raise an error, it does not."""
        if self.plan is None or any(self._hooks) or is_grad_enabled() or is_autocast_enabled("cpu"):
            return False
        for table in self._drops:
            if table["training"] and (table.get("dropout") or table.get("p")):
                return False
        start, ids = caches[0].length, tokens.data
        if start >= self.plan.room or any(cache.length != start for cache in caches):
            return False
        if tokens.device is not self._model.device or ids.dtype.kind not in "iu" or len(ids) != self.plan.batch:
            return False
        return all(0 <= token < self._vocab for token in ids[:, 0].tolist())

    def step(self, tokens: Tensor, caches: list[nn.KVCache]) -> Tensor:
        """Tokens (B, 1) -> logits (B, 1, vocab); the caches hold them from now on."""
        start = caches[0].length
        logits = self._kernel.step(self.plan, tokens.data, start)
        for cache in caches:
            cache.length = start + 1
        return Tensor.wrap(logits, tokens.device)


def _plain(model: CausalLM) -> bool:
    """Whether all modules are of the classes that the kernel computes, and called as these define it."""
    own = next(cls for cls in type(model).__mro__ if "decode_roles" in vars(cls))
    if any(getattr(type(model), name) is not getattr(own, name) for name in ("forward", "_through", "_logits")):
        return False
    for name, module in model.named_modules():
        role = name.rpartition(".")[2]
        expected = type(model) if module is model else model.decode_roles.get("block" if role.isdecimal() else role)
        if type(module) is not expected or "forward" in vars(module):
            return False
    return True


def arrays(module: nn.Module) -> tuple[Any, Any]:
    """Weight and bias of a layer, None for one that it has not."""
    parameters = (getattr(module, name, None) for name in ("weight", "bias"))
    weight, bias = (None if parameter is None else parameter.data for parameter in parameters)
    return weight, bias
