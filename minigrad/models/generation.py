"""Text from a language model: the next token is drawn, appended, and the next one asked for, with a key-value cache."""

import dataclasses
import inspect
import math
import numbers
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import nn
from ..autograd import no_grad
from ..creation import cat, where
from ..device import CPU
from ..dtypes import float64
from ..errors import bad_type, bad_value, check_int, expect
from ..hints import answering
from ..modes import F
from ..random import Generator, Source, draw
from ..tensor import Tensor

MOST_KEPT = 1 << 26  # bytes of caches and weights
NOT_FINITE = "generate: the model's logits are NaN, inf, or -inf for all tokens"


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How text is continued, by the names of Hugging Face's transformers. ValueError for what is out of range."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    eos_token_id: int | Sequence[int] | None = None
    pad_token_id: int | None = None
    do_sample: bool | None = None
    num_return_sequences: int = 1
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        def check(good: bool, name: str, wanted: str) -> None:
            expect(good, f"generate: {name}", getattr(self, name), wanted)

        top_k, top_p, copies, penalty = self.top_k, self.top_p, self.num_return_sequences, self.repetition_penalty
        warm = isinstance(self.temperature, numbers.Real) and 0 <= self.temperature < math.inf
        check(warm, "temperature", "0 (greedy) or a positive number")
        check(not self.do_sample or self.temperature > 0, "temperature", "above 0 with do_sample=True")
        few = top_k is None or (isinstance(top_k, numbers.Integral) and top_k >= 1)
        check(few, "top_k", "an integer of at least 1")
        share = top_p is None or (isinstance(top_p, numbers.Real) and 0 < top_p <= 1)
        check(share, "top_p", "a probability above 0, at most 1")
        check(all(type(end) is int and end >= 0 for end in self.ends), "eos_token_id", "a token, or several")
        check(self.pad_token_id is None or check_int("pad_token_id", self.pad_token_id) >= 0, "pad_token_id", "a token")
        check(check_int("num_return_sequences", copies) >= 1, "num_return_sequences", "at least 1")
        check(copies == 1 or self.heat > 0, "num_return_sequences", "1 without sampling, as all would be alike")
        check(isinstance(penalty, numbers.Real) and 0 < penalty < math.inf, "repetition_penalty", "above 0; 1 is none")

    @property
    def ends(self) -> list[int]:
        """The tokens that end a sequence."""
        given = self.eos_token_id
        return [] if given is None else [*given] if isinstance(given, Sequence) else [given]

    @property
    def heat(self) -> float:
        """The temperature, 0 without sampling."""
        return 0.0 if self.do_sample is False else self.temperature


def listing(function: F) -> F:
    """The function, whose signature lists the options: ``help`` and editors show them, and what they are without."""
    own, options = ([*inspect.signature(each).parameters.values()] for each in (function, Sampling))
    shown = own[:-1] + [option.replace(kind=option.KEYWORD_ONLY) for option in options]
    function.__signature__ = inspect.signature(function).replace(parameters=shown)  # type: ignore[attr-defined]
    return function


@listing
@answering
def stream(model: nn.Module, tokens: Tensor, max_new_tokens: int, **options: Any) -> Iterator[Tensor]:
    """The tokens (B, 1) that a ``CausalLM`` continues ``tokens`` (B, T) with, one at a time; see `CausalLM.generate`.

    Raises ValueError for arguments out of range, before the first token.
    """
    o = Sampling(**options)
    _check(tokens, max_new_tokens)
    tokens = tokens.repeat_interleave(o.num_return_sequences, 0) if o.num_return_sequences > 1 else tokens
    generator = None if o.seed is None else Generator(o.seed)

    def continued() -> Iterator[Tensor]:
        block_size = model.config.block_size
        room = min(block_size, tokens.shape[1] + max_new_tokens)
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        caches: list[nn.KVCache] | None = None
        try:
            ended: Tensor | None = None  # (B, 1): which sequences are at their end
            last, pieces = tokens[:, -1:], [tokens]
            for _ in range(max_new_tokens):
                with no_grad():
                    if caches is None or caches[0].length == block_size:
                        # Nothing cached, or the window slides: all positions change, so the cache starts anew.
                        pieces = [cat(pieces, dim=1)]
                        caches = _caches(model, tokens.shape[0], room)
                        logits = model(pieces[0][:, -block_size:], caches)[:, -1:]
                    else:
                        logits = model(last, caches)
                    if o.repetition_penalty != 1:
                        logits = penalised(logits[:, -1], cat(pieces, dim=1), o.repetition_penalty)
                    chosen = sample(logits, o.heat, o.top_k, o.top_p, generator)
                    if ended is not None:
                        chosen = where(ended, last if o.pad_token_id is None else o.pad_token_id, chosen)
                    for end in o.ends:
                        ended = chosen == end if ended is None else ended | (chosen == end)
                    pieces.append(chosen)
                    last = chosen
                yield chosen
                if ended is not None and bool(ended.all()):
                    return
        finally:
            for module, mode in modes:
                module.training = mode
            if caches is not None:
                _keep(model, caches)

    return continued()


def _caches(model: Any, batch: int, max_tokens: int) -> list[nn.KVCache]:
    """Empty caches for ``batch`` sequences: those of the model's last text, with its graph, if they are alike."""
    kept = getattr(model, "_kept", [])
    _keep(model, [])
    fit = [cache.begin_again(batch, max_tokens, model.embedding.weight) for cache in kept]
    return kept if kept and all(fit) else model.new_caches(batch, max_tokens)


def _keep(model: nn.Module, caches: list[nn.KVCache]) -> None:
    """Let a ``CausalLM`` have the caches for its next text, unless they and the weights are large: then a capture is
    little, and weights that it no longer has would be too much."""
    if hasattr(type(model), "_kept"):
        tensors = [*(cache._held for cache in caches), *model.parameters()]
        small = sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= MOST_KEPT
        object.__setattr__(model, "_kept", caches if small else [])


def penalised(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits (B, vocab) with a penalty on the tokens ``seen`` (B, T). Theirs are divided by ``penalty`` if they are
    above 0, else multiplied with it (Keskar et al. 2019)."""
    found = logits.gather(1, seen)
    return logits.scatter(1, seen, where(found > 0, found / penalty, found * penalty))


def _check(tokens: Tensor, max_new_tokens: int) -> None:
    if not isinstance(tokens, Tensor):
        raise bad_type(f"generate: tokens are a {type(tokens).__name__}; expected a tensor of integers (B, T)")
    if tokens.ndim != 2 or not tokens.shape[1]:
        raise bad_value(f"generate: tokens of shape {tokens.shape}; expected (B, T) with T >= 1")
    count = isinstance(max_new_tokens, numbers.Integral) and max_new_tokens >= 0
    expect(count, "generate: max_new_tokens", max_new_tokens, "an integer of 0 or more")


def sample(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: Source) -> Tensor:
    """One token id per row of logits (B, vocab), or (B, 1, vocab), -> (B, 1). ValueError for logits with NaN or inf.

    In float64, where the logits are; both ways draw the same token.
    """
    if temperature == 0:
        return logits.argmax(-1, keepdim=True).reshape(len(logits), 1)
    draws = _on_host if logits.device.kernels.in_host_memory else _on_device
    return draws(logits, temperature, top_k, top_p, generator)


def _on_device(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: Source) -> Tensor:
    """The host reads one value, whether the logits were finite, and neither logits nor token."""
    vocab = logits.shape[-1]
    scores = logits.reshape(-1, vocab).double()
    scores = (scores - scores.amax(-1, keepdim=True)) / temperature
    if top_k is not None and top_k < vocab:
        scores = scores.masked_fill(scores < scores.topk(top_k).values[:, -1:], -math.inf)
    weights, order = scores.exp(), None
    if top_p is not None and top_p < 1:
        weights, order = weights.sort(-1, descending=True)
        before = weights.cumsum(-1) - weights
        weights = weights.masked_fill(before >= top_p * weights.sum(-1, keepdim=True), 0.0)
    edges = weights.cumsum(-1)
    total = edges[:, -1:]
    if not total.isfinite().all():
        raise bad_value(NOT_FINITE)
    points = Tensor.wrap(draw("uniform", logits.device.kernels, total.shape, float64, generator), logits.device) * total
    chosen = (edges <= points).sum(-1, keepdim=True)
    return chosen if order is None else order._at(-1, chosen)


def _on_host(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: Source) -> Tensor:
    """The same with NumPy: a row is little work, and an operation on arrays costs less there than one on tensors."""
    # Ufuncs' own methods: for a row, what is around them costs as much as they do.
    vocab = logits.data.shape[-1]
    scores = logits.data.reshape(-1, vocab).astype(np.float64)  # a copy
    largest = np.maximum.reduce(scores, -1, keepdims=True)
    if not all(map(math.isfinite, largest[:, 0].tolist())):  # as there is a finite one, no sum overflows or is 0
        raise bad_value(NOT_FINITE)
    scores -= largest
    scores /= temperature
    if top_k is not None and top_k < vocab:
        least = scores.copy()
        least.partition(vocab - top_k, -1)  # not sorted: linear time
        scores[scores < least[:, vocab - top_k, None]] = -np.inf
    weights = np.exp(scores, out=scores)
    order = None
    if top_p is not None and top_p < 1:
        order = np.argsort(-weights, -1, kind="stable")
        weights = np.take_along_axis(weights, order, -1)
        before = weights.cumsum(-1) - weights
        weights[before >= top_p * weights.sum(-1, keepdims=True)] = 0.0  # keeps the one that crosses p
    edges = np.add.accumulate(weights, -1)
    total = edges[:, -1:]
    points = draw("uniform", CPU.kernels, total.shape, float64, generator) * total
    # The first edge above the point; a weight of 0 has an empty interval, so it is never drawn.
    chosen = np.add.reduce(edges <= points, -1, np.int64, keepdims=True)
    return Tensor.wrap(chosen if order is None else np.take_along_axis(order, chosen, -1))
