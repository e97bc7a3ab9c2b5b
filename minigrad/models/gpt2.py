"""GPT-2 (Radford et al. 2019), configurable; module and parameter names are Hugging Face's."""

from __future__ import annotations

import dataclasses
import math

from .. import nn
from ..autograd import no_grad
from ..creation import arange, cat, multinomial
from ..nn import functional as F
from ..random import Generator
from ..tensor import Tensor


@dataclasses.dataclass(frozen=True)
class GPT2Config:
    """Sizes of a GPT-2; the defaults are those of the 124M model. ``block_size`` is the longest context."""

    vocab_size: int = 50257
    block_size: int = 1024
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"GPT2Config: {name}={value!r}; expected a positive integer")
        if self.n_embd % self.n_head:
            raise ValueError(f"GPT2Config: n_embd={self.n_embd} is not a multiple of n_head={self.n_head}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"GPT2Config: dropout={self.dropout}; expected [0, 1)")


class GPT2(nn.Module):
    """Token and position embeddings, blocks, final norm, and a head that is the token embedding again (tied).

    Initial weights are GPT-2's: normal with standard deviation 0.02, divided by sqrt(2 n_layer) for the projections
    that write into the residual stream; biases 0.
    """

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(
            nn.Block(config.n_embd, config.n_head, config.dropout, config.bias) for _ in range(config.n_layer)
        )
        self.ln_f = nn.LayerNorm(config.n_embd, bias=config.bias)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = math.sqrt(2 * config.n_layer) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 / scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, caches: list[nn.KVCache] | None = None) -> Tensor:
        """Token ids (B, T) -> logits of the next token (B, T, vocab_size).

        ``caches`` (from ``new_caches``) makes the tokens continue those seen before. ValueError beyond block_size
        tokens.
        """
        if tokens.ndim != 2:
            raise ValueError(f"GPT2: tokens of shape {tokens.shape}; expected (B, T)")
        T = tokens.shape[1]
        start = caches[0].length if caches else 0
        if start + T > self.config.block_size:
            raise ValueError(f"GPT2: {start + T} tokens, but block_size is {self.config.block_size}")
        positions = arange(start, start + T, device=tokens.device)
        x = self.drop(self.wte(tokens) + self.wpe(positions))  # (B, T, C)
        for i, block in enumerate(self.h):
            x = block(x, caches[i] if caches else None)
        return F.linear(self.ln_f(x), self.wte.weight)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy (nats per token) of targets (B, T) given tokens (B, T)."""
        logits = self(tokens)
        return F.cross_entropy(logits.reshape(-1, self.config.vocab_size), targets.reshape(-1))

    def new_caches(self, batch: int) -> list[nn.KVCache]:
        """Empty key-value caches for ``batch`` sequences, one a layer."""
        c = self.config
        head_size = c.n_embd // c.n_head
        return [nn.KVCache(batch, c.n_head, c.block_size, head_size, self.wte.weight) for _ in range(c.n_layer)]

    @no_grad()
    def generate(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> Tensor:
        """Continue token ids (B, T) by sampling: returns (B, T + max_new_tokens).

        Logits are divided by ``temperature`` (0: always the most likely token); ``top_k`` keeps the k most likely (and
        equals of the last), ``top_p`` the fewest most likely whose probabilities add up to p (Holtzman et al. 2020).
        The same ``seed`` gives the same continuation; None draws from the default generator. The context is the last
        block_size tokens. Dropout is off meanwhile.
        """
        if tokens.ndim != 2 or not tokens.shape[1]:
            raise ValueError(f"generate: tokens of shape {tokens.shape}; expected (B, T) with T >= 1")
        if temperature < 0 or not math.isfinite(temperature):
            raise ValueError(f"generate: temperature={temperature}; expected 0 (greedy) or a positive number")
        if top_k is not None and not (isinstance(top_k, int) and top_k >= 1):
            raise ValueError(f"generate: top_k={top_k}; expected an integer of at least 1")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"generate: top_p={top_p}; expected a probability above 0")
        if max_new_tokens < 0:
            raise ValueError(f"generate: max_new_tokens={max_new_tokens}; expected 0 or more")
        generator = None if seed is None else Generator(seed)
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            caches: list[nn.KVCache] | None = None
            for _ in range(max_new_tokens):
                if caches is None or caches[0].length == self.config.block_size:
                    # Nothing cached, or the window slides: all positions change, so the cache starts anew.
                    caches = self.new_caches(tokens.shape[0])
                    logits = self(tokens[:, -self.config.block_size :], caches)
                else:
                    logits = self(tokens[:, -1:], caches)
                chosen = sample(logits[:, -1], temperature, top_k, top_p, generator)
                tokens = cat([tokens, chosen], dim=1)
        finally:
            for module, mode in modes:
                module.training = mode
        return tokens


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
