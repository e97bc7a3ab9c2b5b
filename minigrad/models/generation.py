"""Text from a language model: the next token is drawn, appended, and the next one asked for, with a key-value cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..autograd import no_grad
from ..creation import cat, multinomial, where
from ..errors import located
from ..random import Generator
from ..tensor import Tensor

if TYPE_CHECKING:
    from .causal_lm import CausalLM


def stream(
    model: CausalLM,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
) -> Iterator[Tensor]:
    """The tokens (B, 1) that continue ``tokens`` (B, T), one at a time; see `CausalLM.generate`.

    Raises ValueError for arguments out of range, before the first token.
    """
    if not isinstance(tokens, Tensor):
        raise located(
            TypeError(f"generate: tokens are a {type(tokens).__name__}; expected a tensor of integers (B, T)")
        )
    if tokens.ndim != 2 or not tokens.shape[1]:
        raise located(ValueError(f"generate: tokens of shape {tokens.shape}; expected (B, T) with T >= 1"))
    if temperature < 0 or not math.isfinite(temperature):
        raise located(ValueError(f"generate: temperature={temperature}; expected 0 (greedy) or a positive number"))
    if top_k is not None and not (isinstance(top_k, int) and top_k >= 1):
        raise located(ValueError(f"generate: top_k={top_k}; expected an integer of at least 1"))
    if top_p is not None and not 0 < top_p <= 1:
        raise located(ValueError(f"generate: top_p={top_p}; expected a probability above 0"))
    if max_new_tokens < 0:
        raise located(ValueError(f"generate: max_new_tokens={max_new_tokens}; expected 0 or more"))
    ends = [] if eos_token_id is None else [*eos_token_id] if isinstance(eos_token_id, Sequence) else [eos_token_id]
    if not all(type(end) is int and end >= 0 for end in ends):
        raise located(ValueError(f"generate: eos_token_id={eos_token_id!r}; expected a token, or several"))
    generator = None if seed is None else Generator(seed)
    return _stream(model, tokens, max_new_tokens, temperature, top_k, top_p, generator, ends)


def _stream(
    model: CausalLM,
    tokens: Tensor,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: Generator | None,
    ends: list[int],
) -> Iterator[Tensor]:
    block_size = model.config.block_size
    room = min(block_size, tokens.shape[1] + max_new_tokens)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        caches = None
        ended: Tensor | None = None  # (B, 1): which sequences are at their end
        for _ in range(max_new_tokens):
            with no_grad():
                if caches is None or caches[0].length == block_size:
                    # Nothing cached, or the window slides: all positions change, so the cache starts anew.
                    caches = model.new_caches(tokens.shape[0], room)
                    logits = model(tokens[:, -block_size:], caches)
                else:
                    logits = model(tokens[:, -1:], caches)
                chosen = sample(logits[:, -1], temperature, top_k, top_p, generator)
                if ended is not None:
                    chosen = where(ended, tokens[:, -1:], chosen)  # an ended sequence repeats its last token
                for end in ends:
                    ended = chosen == end if ended is None else ended | (chosen == end)
                tokens = cat([tokens, chosen], dim=1)
            yield chosen
            if ended is not None and bool(ended.all()):
                return
    finally:
        for module, mode in modes:
            module.training = mode


def sample(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: Generator | None
) -> Tensor:
    """One token id per row of logits (B, vocab) -> (B, 1)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # the largest is 0: nothing overflows
    if top_k is not None and top_k < logits.shape[-1]:
        smallest = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -math.inf)
    probabilities = logits.softmax(-1)
    if top_p is not None and top_p < 1:
        ordered, order = probabilities.sort(-1, descending=True)
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0.0)  # keeps the one that crosses p
        return order.gather(1, multinomial(ordered, 1, generator=generator))
    return multinomial(probabilities, 1, generator=generator)
