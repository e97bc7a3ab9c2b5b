"""What the language models share: the loss and generation."""

import math
from typing import Any, ClassVar

from .. import nn
from ..autograd import no_grad
from ..checkpoint_activations import checkpoint
from ..creation import cat
from ..device import Device
from ..errors import bad_value, located
from ..hints import answering
from ..nn import functional as F
from ..nn.module import unmodified
from ..plans import planned
from ..tensor import Tensor
from . import generation
from .pretrained import HubModel


class CausalLM(HubModel):
    """A model that predicts the next token: it embeds the tokens, which then go through blocks, a norm and a head."""

    __slots__ = ("_kept",)  # the caches of the last text, for the next one: no part of what a copy or a file has
    parts: ClassVar[tuple[str, str, str]]  # names of the token embedding, the blocks, and the norm after them

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    @property
    def embedding(self) -> nn.Embedding:
        """The token embedding."""
        return getattr(self, self.parts[0])

    @property
    def device(self) -> Device:
        """Where the weights are."""
        return self.embedding.weight.device

    @property
    def _trunk(self) -> tuple[nn.ModuleList, nn.Module]:
        """The blocks, and the norm after the last one."""
        _, blocks, norm = self.parts
        return getattr(self, blocks), getattr(self, norm)

    @property
    def _head(self) -> nn.Linear | nn.Embedding:
        """The module whose weight makes logits: ``lm_head``, or the token embedding."""
        return self.embedding if self.lm_head is None else self.lm_head

    def forward(self, tokens: Tensor, caches: list[nn.KVCache] | None = None) -> Tensor:
        """Token ids (B, T) -> logits of the next token (B, T, vocab_size).

        ``caches`` (from ``new_caches``) makes the tokens continue those seen before. ValueError beyond block_size
        tokens.
        """
        return F.linear(self._features(tokens, caches), self._head.weight)

    def _features(self, tokens: Tensor, caches: list[nn.KVCache] | None = None) -> Tensor:
        """Token ids (B, T) -> what the head reads, (B, T, C). Arguments and errors as in ``forward``."""
        cache = caches[0] if caches else None
        self._check_tokens(tokens, cache)
        return self._through(self._embed(tokens, cache), caches)

    def _embed(self, tokens: Tensor, cache: nn.KVCache | None) -> Tensor:
        """Token ids (B, T), which continue those in ``cache`` -> what the first block reads, (B, T, C)."""
        raise located(NotImplementedError(f"{type(self).__name__} has no embed"))

    @planned
    def _through(self, x: Tensor, caches: list[nn.KVCache] | None) -> Tensor:
        """(B, T, C) through all blocks, which are recomputed in backward if the configuration says so, and the norm."""
        blocks, norm = self._trunk
        for i, block in enumerate(blocks.children()):
            if self.config.checkpoint_blocks and not caches:
                x = checkpoint(block, x)
            else:
                x = block(x, caches[i] if caches else None)
        return norm(x)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy (nats per token) of targets (B, T) given tokens (B, T).

        The logits never exist all at once (``F.linear_cross_entropy``), except for a model that has forward hooks or
        another ``forward``, which are called.
        """
        if targets.shape != tokens.shape:
            expected = "one for each token, as text[:, 1:] has for text[:, :-1]"
            raise bad_value(f"loss: targets {targets.shape} for tokens {tokens.shape}; expected {expected}")
        if unmodified(self):
            return F.linear_cross_entropy(self._features(tokens), self._head.weight, targets)
        return F.cross_entropy(self(tokens).reshape(-1, self.config.vocab_size), targets.reshape(-1))

    def _check_tokens(self, tokens: Tensor, cache: nn.KVCache | None) -> None:
        """ValueError for tokens of other shapes than (B, T), or beyond block_size with those in ``cache``."""
        name = type(self).__name__
        if tokens.ndim != 2:
            raise bad_value(f"{name}: tokens of shape {tokens.shape}; expected (B, T)")
        count, limit = tokens.shape[1] + (0 if cache is None else cache.length), self.config.block_size
        if count > limit:
            raise bad_value(f"{name}: {count} tokens, but block_size is {limit}; pass the last {limit}")

    def _add_head(self, *into_stream: str) -> None:
        """Make the head, unless it is the token embedding, and draw GPT-2's initial weights: matrices normal with
        standard deviation 0.02, divided by sqrt(2 n_layer) for those that write into the residual stream, whose names
        end so; biases 0."""
        c = self.config
        self.lm_head: nn.Linear | None = None if c.tied else nn.Linear(c.n_embd, c.vocab_size, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = math.sqrt(2 * c.n_layer) if name.endswith(into_stream) else 1.0
                nn.init.normal_(parameter, std=0.02 / scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def new_caches(self, batch: int, max_tokens: int | None = None) -> list[nn.KVCache]:
        """Empty key-value caches for ``batch`` sequences of up to ``max_tokens`` (default and most: block_size), one a
        layer."""
        c = self.config
        room = c.block_size if max_tokens is None else min(max_tokens, c.block_size)
        return [nn.KVCache(batch, c.n_kv_head, room, c.head_size, self.embedding.weight) for _ in range(c.n_layer)]

    @generation.listing
    @answering
    @no_grad()
    def generate(self, tokens: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
        """Continue token ids (B, T) by sampling: returns (B num_return_sequences, T + max_new_tokens).

        Logits are divided by ``temperature`` (0: always the most likely token); ``top_k`` keeps the k most likely (and
        equals of the last), ``top_p`` the fewest most likely whose probabilities add up to p (Holtzman et al. 2020).
        The same ``seed`` gives the same continuation; None draws from the default generator. The context is the last
        block_size tokens. Dropout is off meanwhile.

        With ``eos_token_id`` (one or several), a sequence ends with such a token and is filled up with
        ``pad_token_id``, or with the token that ended it; the result is shorter if all sequences end.

        The names are those of Hugging Face's transformers. ``do_sample=False`` is temperature 0, and True refuses that.
        Each sequence is continued ``num_return_sequences`` times. ``repetition_penalty`` above 1 makes tokens that were
        there less likely (Keskar et al. 2019). The defaults are those of `minigrad.models.generation.Sampling`. Another
        option is a TypeError that says what to use.
        """
        new = [*generation.stream(self, tokens, max_new_tokens, **options)]
        return cat([tokens.repeat_interleave(options.get("num_return_sequences", 1), 0), *new], dim=1)
