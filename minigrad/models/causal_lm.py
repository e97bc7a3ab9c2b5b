"""What the language models share: the loss, generation, and folders of weights in Hugging Face's format."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from .. import nn
from ..autograd import no_grad
from ..creation import cat
from ..device import CPU, Device
from ..errors import located
from ..nn import functional as F
from ..nn.fusion import add_norm, adds_with_norm, as_built
from ..recompute import checkpoint
from ..tensor import Tensor
from . import generation, pretrained
from .decoding import Decoder
from .hub_config import HubConfig

Model = TypeVar("Model", bound="CausalLM")


class ModelConfig(Protocol):
    """What every configuration has."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""

    @property
    def block_size(self) -> int:
        """The longest context."""

    @property
    def n_layer(self) -> int:
        """Number of blocks."""

    @property
    def n_kv_head(self) -> int:
        """Heads of keys and values."""

    @property
    def head_size(self) -> int:
        """Channels of a head."""

    @property
    def tied(self) -> bool:
        """Whether the head is the token embedding."""


class CausalLM(nn.Module):
    """A model that predicts the next token. Families define its features and how it is stored."""

    config: Any
    lm_head: nn.Linear | None  # None: the token embedding

    model_type: ClassVar[str]  # "model_type" in config.json
    decode_roles: ClassVar[dict[str, type[nn.Module]]]  # the class of each submodule, by the last part of its name
    hub_prefix: ClassVar[str]  # before the names of all tensors but the head's
    hub_buffers: ClassVar[re.Pattern[str]]  # tensors in old files that are no weights: masks and frequencies
    hub_transposed: ClassVar[re.Pattern[str]]  # weights that are stored (in, out)

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    @property
    def embedding(self) -> nn.Embedding:
        """The token embedding."""
        raise located(NotImplementedError(f"{type(self).__name__} has no embedding"))

    @property
    def device(self) -> Device:
        """Where the weights are."""
        return self.embedding.weight.device

    def _start(self, tokens: Tensor, caches: list[nn.KVCache] | None) -> int:
        """Position of the first of ``tokens`` (B, T); ValueError for other shapes or beyond block_size tokens."""
        name = type(self).__name__
        if tokens.ndim != 2:
            raise located(ValueError(f"{name}: tokens of shape {tokens.shape}; expected (B, T)"))
        start = caches[0].length if caches else 0
        if start + tokens.shape[1] > self.config.block_size:
            count = start + tokens.shape[1]
            limit = self.config.block_size
            raise located(ValueError(f"{name}: {count} tokens, but block_size is {limit}; pass the last {limit}"))
        return start

    def _init_weights(self, *into_stream: str) -> None:
        """GPT-2's: matrices normal with standard deviation 0.02, divided by sqrt(2 n_layer) for those that write into
        the residual stream, whose names end so; biases 0."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = math.sqrt(2 * self.config.n_layer) if name.endswith(into_stream) else 1.0
                nn.init.normal_(parameter, std=0.02 / scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def _through(self, blocks: nn.ModuleList, norm: nn.Module, x: Tensor, caches: list[nn.KVCache] | None) -> Tensor:
        """(B, T, C) through all blocks, which are recomputed in backward if the configuration says so, and the norm."""
        again = self.config.checkpoint_blocks and not caches
        if not again and adds_with_norm(x) and all(as_built(block) for block in blocks):
            branch = None
            for i, block in enumerate(blocks):
                x, branch = block.branches(x, branch, caches[i] if caches else None)
            return add_norm(x, branch, norm)[1]
        for i, block in enumerate(blocks):
            x = checkpoint(block, x) if again else block(x, caches[i] if caches else None)
        y: Tensor = norm(x)
        return y

    @property
    def _head(self) -> nn.Linear | nn.Embedding:
        return self.embedding if self.lm_head is None else self.lm_head

    def forward(self, tokens: Tensor, caches: list[nn.KVCache] | None = None) -> Tensor:
        """Token ids (B, T) -> logits of the next token (B, T, vocab_size).

        ``caches`` (from ``new_caches``) makes the tokens continue those seen before. ValueError beyond block_size
        tokens.
        """
        start = self._start(tokens, caches)
        if caches and (logits := self._decoded(tokens, caches)) is not None:
            return logits
        return self._logits(self._features(tokens, start, caches))

    def _features(self, tokens: Tensor, start: int, caches: list[nn.KVCache] | None) -> Tensor:
        """Token ids (B, T), the first at position ``start`` -> what the head reads, (B, T, C)."""
        raise located(NotImplementedError(f"{type(self).__name__} has no _features"))

    def _logits(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, vocab_size), by the head or the token embedding."""
        return F.linear(x, self._head.weight)

    def _decoded(self, tokens: Tensor, caches: list[nn.KVCache]) -> Tensor | None:
        """The logits of ``forward`` in one call of compiled code, as ``decoding.py`` says; None where it does not."""
        if tokens.shape[1] != 1 or self.device.type != "cpu":
            return None
        decoder: Decoder | None = caches[0].decoder
        if decoder is None or not decoder.current(self, caches):
            decoder = caches[0].decoder = Decoder(self, caches)
        return decoder.step(tokens, caches) if decoder.takes(tokens, caches) else None

    def decode_arrays(self, caches: list[nn.KVCache]) -> dict[str, Any] | None:
        """The fields of ``cpu_kernels.decode.Model``, or None for a model that it cannot compute."""
        raise located(NotImplementedError(f"{type(self).__name__} has no decode_arrays"))

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy (nats per token) of targets (B, T) given tokens (B, T).

        The logits never exist all at once (``F.linear_cross_entropy``), except for a model that has forward hooks or
        another ``forward``, which are called.
        """
        if targets.shape != tokens.shape:
            raise located(
                ValueError(
                    f"loss: targets {targets.shape} for tokens {tokens.shape}; expected one for each token, as "
                    "text[:, 1:] has for text[:, :-1]"
                )
            )
        cls = type(self)
        if (
            cls.forward is not CausalLM.forward
            or cls._logits is not CausalLM._logits
            or self._forward_hooks
            or self._forward_pre_hooks
            or "forward" in self.__dict__
        ):
            logits = self(tokens)
            return F.cross_entropy(logits.reshape(-1, self.config.vocab_size), targets.reshape(-1))
        features = self._features(tokens, self._start(tokens, None), None)
        return F.linear_cross_entropy(features, self._head.weight, targets)

    def new_caches(self, batch: int, max_tokens: int | None = None) -> list[nn.KVCache]:
        """Empty key-value caches for ``batch`` sequences of up to ``max_tokens`` (default block_size), one a layer."""
        c: ModelConfig = self.config
        room = c.block_size if max_tokens is None else max_tokens
        like = self.embedding.weight
        return [nn.KVCache(batch, c.n_kv_head, room, c.head_size, like) for _ in range(c.n_layer)]

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
        eos_token_id: int | Sequence[int] | None = None,
    ) -> Tensor:
        """Continue token ids (B, T) by sampling: returns (B, T + max_new_tokens).

        Logits are divided by ``temperature`` (0: always the most likely token); ``top_k`` keeps the k most likely (and
        equals of the last), ``top_p`` the fewest most likely whose probabilities add up to p (Holtzman et al. 2020).
        The same ``seed`` gives the same continuation; None draws from the default generator. The context is the last
        block_size tokens. Dropout is off meanwhile.

        With ``eos_token_id`` (one or several), a sequence ends with such a token and is filled up with it; the result
        is shorter if all sequences end.
        """
        options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        new = generation.stream(self, tokens, max_new_tokens, **options, eos_token_id=eos_token_id)
        return cat([tokens, *new], dim=1)

    # ------------------------------------------------------------------ folders of weights

    @classmethod
    def from_pretrained(
        cls: type[Model],
        folder: str | os.PathLike[str],
        *,
        dtype: Any = None,
        device: str | Device = CPU,
        dropout: float | None = None,
    ) -> Model:
        """Read ``config.json`` and the safetensors of a local folder in Hugging Face's format; in evaluation mode.

        Args:
            folder: with ``model.safetensors``, or shards and ``model.safetensors.index.json``. Weights of any floating
                dtype, tied or untied head, names with the prefix of the whole model or without.
            dtype: of the weights here; None for float32.
            device: where they go.
            dropout: None for the configuration's.

        Raises:
            CheckpointError: a file is missing or damaged, the configuration asks for what this model cannot do, or
                tensors are missing, unexpected or of the wrong shape; the message names them all.
        """
        return pretrained.load(cls, folder, dtype=dtype, device=device, dropout=dropout)

    def save_pretrained(self, folder: str | os.PathLike[str], *, max_shard_size: int | str = "5GB") -> None:
        """Write ``config.json`` and safetensors that `from_pretrained` and Hugging Face's transformers load.

        Args:
            folder: made if missing; a model in it is replaced, other files stay.
            max_shard_size: bytes, or a number with KB, MB or GB; a larger model becomes several files and an index.

        Raises:
            CheckpointError: the files could not be written. The folder then has no ``config.json`` and does not load.
        """
        pretrained.save(self, folder, max_shard_size)

    @classmethod
    def config_from_hub(cls, hub: HubConfig, dropout: float | None) -> Any:
        """The configuration that a ``config.json`` means; every field is used, known to be inert, or refused."""
        raise located(NotImplementedError(f"{cls.__name__} has no config_from_hub"))

    def config_to_hub(self) -> dict[str, Any]:
        """The fields of ``config.json``."""
        raise located(NotImplementedError(f"{type(self).__name__} has no config_to_hub"))

    def hub_zeros(self) -> dict[str, tuple[int, ...]]:
        """Tensors that the stored format has and this model has not, with their shapes; they are 0."""
        return {}


def check_sizes(config: Any, *names: str) -> None:
    """ValueError unless the fields of these names are positive integers."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise located(ValueError(f"{type(config).__name__}: {name}={value!r}; expected a positive integer"))


def check_dropout(config: Any) -> None:
    """ValueError unless ``dropout`` is a probability below 1."""
    if not 0 <= config.dropout < 1:
        raise located(ValueError(f"{type(config).__name__}: dropout={config.dropout}; expected [0, 1)"))
