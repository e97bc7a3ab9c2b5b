"""One token of each sequence through a whole model as the launch of a captured graph, without Python between."""

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from .. import cuda, nn
from ..capturing import OURS
from ..dtypes import float32, float64
from ..models.causal_lm import CausalLM
from ..modes import holding, is_autocast_enabled, of_thread
from ..nn.module import unmodified
from ..plans import Plan
from ..tensor import Tensor
from .gpt2 import CHANGED

_data = attrgetter("data")
_values: Callable[[dict[str, Any]], Iterable[Any]] = dict.values
METHODS = "_features", "_embed", "_through", "_trunk", "_head", "embedding"  # of a model


class Decode(Plan):
    """The next token of a language model with caches: a tenth of the calls.

    Only of modules of this package: a launch calls no Python, and others may count on being called.
    """

    name = "decode"
    equality = "the same logits within rounding: 1e-11 of the largest in float64, 1e-3 in float32"

    def reasons(self, model: CausalLM, tokens: Tensor, caches: list[nn.KVCache] | None = None) -> Iterator[str]:
        if not caches or tokens.ndim != 2 or tokens.shape[1] != 1:
            yield "it is not one token of each sequence with caches"
            return
        decoder = caches[0].decoder
        if decoder is None or not decoder.is_of(model, caches):
            decoder = caches[0].decoder = Decoder(model, caches)
        yield from decoder.reasons(tokens)

    def run(self, model: CausalLM, tokens: Tensor, caches: list[nn.KVCache]) -> Tensor:
        decoder = caches[0].decoder
        if decoder.begins:  # in each text the same token runs eagerly, whether there is a graph already or not
            decoder.begins = False
            return _forward(decoder.model, decoder.caches, tokens)
        logits = decoder.graphed(tokens)
        return Tensor.wrap(logits.device.kernels.copy(logits.data), logits.device)


class Decoder:
    """The graphs of a model with its caches, and what they rely on. Kept with the first cache, for the next tokens."""

    def __init__(self, model: CausalLM, caches: list[nn.KVCache]) -> None:
        # The model may keep the caches, which keep this.
        self.model: Callable[[], CausalLM | None] = weakref.ref(model)
        self.caches: list[Callable[[], nn.KVCache | None]] = [weakref.ref(cache) for cache in caches]
        self.graphed: cuda.Graphed = cuda.graphed(functools.partial(_forward, self.model, self.caches))
        self.begins: bool = False
        """Whether the next token is the first one of a text, and the graph that of an earlier text."""
        modules = [*model.modules()]
        tables = [module.__dict__ for module in modules]
        # The model's own hooks are called around its forward, whatever that does.
        self._hooks = [table[kind] for table in tables[1:] for kind in ("_forward_pre_hooks", "_forward_hooks")]
        self._tables = [*tables, *(table[kind] for table in tables for kind in ("_modules", "_parameters"))]
        self._entries = [*chain.from_iterable(map(_values, self._tables))]
        self._checked, self._same = nn.Module.last_write, True
        drops = any(
            table["training"] and (table.get("p") or (isinstance(p := table.get("dropout"), float) and p))
            for table in tables
        )
        self._tensors = [*model.parameters()]
        self._arrays = [*map(_data, self._tensors)]
        known = _is_ours(model, METHODS) and all(map(_is_ours, modules[1:]))
        floats = {tensor.dtype for tensor in self._tensors} in ({float32}, {float64})
        window = getattr(model.config, "sliding_window", None)
        slides = window is not None and window < caches[0].max_tokens
        reasons = (
            (not known, CHANGED),
            (not floats, "not all numbers are float32, or float64"),
            (slides, "the attention slides over fewer tokens than the cache has"),
            (drops, "dropout acts"),
        )
        self._always = [reason for holds, reason in reasons if holds]
        self._device, self._vocab = model.device, model.embedding.num_embeddings

    def is_of(self, model: CausalLM, caches: list[nn.KVCache]) -> bool:
        """Whether model and caches are still those that the graphs were made of."""
        if self._checked != nn.Module.last_write:
            self._checked = nn.Module.last_write
            entries = [*chain.from_iterable(map(_values, self._tables))]
            self._same = len(entries) == len(self._entries) and all(map(is_, entries, self._entries))
        return (
            self._same
            and model is self.model()
            and caches == [known() for known in self.caches]
            and all(map(is_, map(_data, self._tensors), self._arrays))
        )

    def for_next_text(self) -> "Decoder | None":
        """What the caches keep for a text that begins anew: this, if it has a graph."""
        self.begins = True
        return self if self.graphed.graphs else None

    def reasons(self, tokens: Tensor) -> Iterator[str]:
        """Why a launch does not do with tokens (B, 1) what the modules do, or what these would refuse."""
        yield from self._always
        cache, mode, device, ids = self.caches[0](), of_thread.mode, self._device, tokens.data
        if cache is None or cache.length == cache.max_tokens:
            yield "the cache is full"
        if any(self._hooks):
            yield CHANGED
        if mode.graph is not None or mode.kernels == "plain":
            yield "a graph is captured, or plain kernels are chosen"
        if mode.enabled or is_autocast_enabled(device.type):
            yield "gradients are recorded, or autocast chooses dtypes"
        if tokens.device is not device:
            yield "the tokens are on another device"
        elif ids.dtype.kind not in "iu" or (
            device.type == "cpu" and not all(0 <= i < self._vocab for i in ids[:, 0].tolist())
        ):
            yield "a token is out of range, or no integer"


def _forward(model: Any, caches: list[Any], tokens: Tensor) -> Tensor:
    with holding(of_thread.mode, recorder=None):  # launches call no modules
        return CausalLM.forward(model(), tokens, [cache() for cache in caches])


def _is_ours(module: nn.Module, methods: tuple[str, ...] = ()) -> bool:
    """Whether a module is of a class of this package, or its model has the ``methods`` of one, and is called so."""
    kind: Any = next(kind for kind in type(module).__mro__ if kind.__module__.partition(".")[0] == OURS)
    same = all(getattr(type(module), name) is getattr(kind, name) for name in methods)
    return same and (bool(methods) or (kind is type(module) and unmodified(module)))
