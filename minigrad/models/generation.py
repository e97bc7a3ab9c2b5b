"""Text from a language model: the next token is drawn, appended, and the next one asked for, with a key-value cache."""

import math
import numbers
from collections.abc import Iterator, Sequence

import numpy as np

from .. import nn
from ..autograd import no_grad
from ..creation import cat, from_numpy, where
from ..device import CPU
from ..dtypes import float64
from ..errors import bad_type, bad_value, expect
from ..random import Generator, Source, draw
from ..tensor import Tensor

NOT_FINITE = "generate: the model's logits are NaN, inf, or -inf for all tokens"


def stream(
    model: nn.Module,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
) -> Iterator[Tensor]:
    """The tokens (B, 1) that a ``CausalLM`` continues ``tokens`` (B, T) with, one at a time; see `CausalLM.generate`.

    Raises ValueError for arguments out of range, before the first token.
    """
    _check(tokens, max_new_tokens, temperature, top_k, top_p)
    ends = [] if eos_token_id is None else [*eos_token_id] if isinstance(eos_token_id, Sequence) else [eos_token_id]
    valid = all(type(end) is int and end >= 0 for end in ends)
    expect(valid, "generate: eos_token_id", eos_token_id, "a token, or several")
    generator = None if seed is None else Generator(seed)

    def continued() -> Iterator[Tensor]:
        block_size = model.config.block_size
        room = min(block_size, tokens.shape[1] + max_new_tokens)
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            caches: list[nn.KVCache] | None = None
            ended: Tensor | None = None  # (B, 1): which sequences are at their end
            last, pieces = tokens[:, -1:], [tokens]
            for _ in range(max_new_tokens):
                with no_grad():
                    if caches is None or caches[0].length == block_size:
                        # Nothing cached, or the window slides: all positions change, so the cache starts anew.
                        pieces = [cat(pieces, dim=1)[:, -block_size:]]
                        caches = model.new_caches(tokens.shape[0], room)
                        logits = model(pieces[0], caches)[:, -1:]
                    else:
                        logits = model(last, caches)
                    chosen = sample(logits, temperature, top_k, top_p, generator)
                    if ended is not None:
                        chosen = where(ended, last, chosen)  # an ended sequence repeats its last token
                    for end in ends:
                        ended = chosen == end if ended is None else ended | (chosen == end)
                    pieces.append(chosen)
                    last = chosen
                yield chosen
                if ended is not None and bool(ended.all()):
                    return
        finally:
            for module, mode in modes:
                module.training = mode

    return continued()


def _check(tokens: Tensor, max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not isinstance(tokens, Tensor):
        raise bad_type(f"generate: tokens are a {type(tokens).__name__}; expected a tensor of integers (B, T)")
    if tokens.ndim != 2 or not tokens.shape[1]:
        raise bad_value(f"generate: tokens of shape {tokens.shape}; expected (B, T) with T >= 1")
    warm = isinstance(temperature, numbers.Real) and 0 <= temperature < math.inf
    expect(warm, "generate: temperature", temperature, "0 (greedy) or a positive number")
    top = top_k is None or (isinstance(top_k, numbers.Integral) and top_k >= 1)
    expect(top, "generate: top_k", top_k, "an integer of at least 1")
    share = top_p is None or (isinstance(top_p, numbers.Real) and 0 < top_p <= 1)
    expect(share, "generate: top_p", top_p, "a probability above 0, at most 1")
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
    vocab = logits.shape[-1]
    scores = logits.numpy(force=True).reshape(-1, vocab).astype(np.float64)  # a copy
    with np.errstate(invalid="ignore"):  # inf - inf: refused below
        scores -= scores.max(-1, keepdims=True)  # the largest is 0: nothing overflows
    scores /= temperature
    if top_k is not None and top_k < vocab:
        # Not sorted: linear time.
        scores[scores < np.partition(scores, vocab - top_k, -1)[:, vocab - top_k, None]] = -np.inf
    weights = np.exp(scores, out=scores)
    order = None
    if top_p is not None and top_p < 1:
        order = np.argsort(-weights, -1, kind="stable")
        weights = np.take_along_axis(weights, order, -1)
        before = weights.cumsum(-1) - weights
        weights[before >= top_p * weights.sum(-1, keepdims=True)] = 0.0  # keeps the one that crosses p
    edges = weights.cumsum(-1)
    total = edges[:, -1:]
    if not np.isfinite(total).all():
        raise bad_value(NOT_FINITE)
    points = draw("uniform", CPU.kernels, total.shape, float64, generator) * total
    # The first edge above the point; a weight of 0 has an empty interval, so it is never drawn.
    chosen = (edges <= points).sum(-1, keepdims=True)
    if order is not None:
        chosen = np.take_along_axis(order, chosen, -1)
    return from_numpy(chosen)
