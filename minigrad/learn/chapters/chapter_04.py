"""Chapter 4: a GPT. Embedding, layer norm, attention, blocks; a model, and text from it, with a cache."""

import math
from typing import Any

import numpy as np

from .chapter_02 import Array, Op, Tensor
from .chapter_03 import Linear, Module, Relu


class Embedding(Op):
    """z = the rows of a table at some places: for integers of shape (B, T) and a table (rows, C), z is (B, T, C)."""

    def __init__(self, places: Array) -> None:
        self.places = places

    def forward(self, table: Array) -> Array:
        """The rows. Keep in ``self`` what ``backward`` needs."""
        self.shape = table.shape
        return table[self.places]

    def backward(self, dz: Array) -> Array:
        """The gradient of the table: a row gets the sum over all its uses, and 0 if it was not used."""
        grad = np.zeros(self.shape)
        np.add.at(grad, self.places, dz)
        return grad  # given


class LayerNorm(Op):
    """z = (x - mean) / s with s = √(variance + 1e-5), both over the last axis."""

    def forward(self, x: Array) -> Array:
        """Every row with mean 0 and variance 1. Keep z and s in ``self``."""
        centred = x - x.mean(axis=-1, keepdims=True)
        self.s = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
        self.z = centred / self.s
        return self.z  # given

    def backward(self, dz: Array) -> Array:
        """dx = (dz - mean(dz) - z mean(dz z)) / s, with means over the last axis."""
        along = (dz * self.z).mean(axis=-1, keepdims=True)
        return (dz - dz.mean(axis=-1, keepdims=True) - self.z * along) / self.s


class Softmax(Op):
    """z = exp(x) / sum(exp(x)) over the last axis."""

    def forward(self, x: Array) -> Array:
        """Probabilities. As in chapter 3, subtract the largest of each row first. Keep z in ``self``."""
        powers = np.exp(x - x.max(axis=-1, keepdims=True))
        self.z = powers / powers.sum(axis=-1, keepdims=True)
        return self.z  # given

    def backward(self, dz: Array) -> Array:
        """dx = z (dz - sum(dz z)), with the sum over the last axis."""
        return self.z * (dz - (dz * self.z).sum(axis=-1, keepdims=True))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """For queries (B, H, T, D), keys and values (B, H, S, D): the values, mixed for each query, (B, H, T, D).

    The weights are the softmax of q kᵀ / √D. The queries stand at the last T of S places. A query sees the keys at its
    own place and before it. Add -1e9 to the other scores: their weights become 0.
    """
    T, S, D = q.shape[-2], k.shape[-2], q.shape[-1]  # given
    later = np.triu(np.full((T, S), -1e9), S - T + 1)
    scores = q @ k.transpose(0, 1, 3, 2) * (1.0 / math.sqrt(D)) + Tensor(later)
    return Softmax()(scores) @ v


def split(x: Tensor, heads: int) -> Tensor:
    """(B, T, C) as (B, heads, T, C / heads): head h has the h-th piece of each row."""
    B, T, C = x.shape  # given
    return x.reshape(B, T, heads, C // heads).transpose(0, 2, 1, 3)


def join(x: Tensor) -> Tensor:
    """The way back: (B, heads, T, D) as (B, T, heads * D)."""
    B, H, T, D = x.shape  # given
    return x.transpose(0, 2, 1, 3).reshape(B, T, H * D)


class Cache:
    """The keys and values that a block has computed for the tokens before, each (B, H, S, D)."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def length(self) -> int:
        """How many tokens it holds."""
        return 0 if self.k is None else self.k.shape[2]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens; keep and return all of them. No gradients are needed here."""
        if self.k is not None and self.v is not None:
            k = Tensor(np.concatenate([self.k.data, k.data], axis=2))
            v = Tensor(np.concatenate([self.v.data, v.data], axis=2))
        self.k, self.v = k, v  # given
        return k, v  # given


class Attention(Module):
    """Attention with weights: queries, keys and values are linear in x, and so is the output."""

    def __init__(self, rng: np.random.Generator, C: int, heads: int) -> None:
        self.heads = heads
        self.q, self.k, self.v, self.out = (Linear(rng, C, C) for _ in range(4))

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T, C) as (B, T, C).

        ``q``, ``k`` and ``v`` of x are split into heads, a cache extends the keys and values, the heads' attention is
        joined, and goes through ``out``.
        """
        q, k, v = (split(layer(x), self.heads) for layer in (self.q, self.k, self.v))
        if cache is not None:
            k, v = cache.extend(k, v)
        return self.out(join(attention(q, k, v)))


class Norm(Module):
    """LayerNorm with a weight and a bias for each channel."""

    def __init__(self, C: int) -> None:
        self.weight, self.bias = Tensor(np.ones(C), True), Tensor(np.zeros(C), True)

    def forward(self, x: Tensor) -> Tensor:
        """The layer norm of x, times ``weight``, plus ``bias``."""
        return LayerNorm()(x) * self.weight + self.bias


class Block(Module):
    """x plus attention, then plus two linear layers."""

    def __init__(self, rng: np.random.Generator, C: int, heads: int) -> None:
        self.norm1, self.attention = Norm(C), Attention(rng, C, heads)
        self.norm2, self.up, self.down = Norm(C), Linear(rng, C, 4 * C), Linear(rng, 4 * C, C)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """x plus the attention of ``norm1`` of x; then that plus ``down`` of Relu of ``up`` of ``norm2`` of it."""
        x = x + self.attention(self.norm1(x), cache)
        return x + self.down(Relu()(self.up(self.norm2(x))))


class GPT(Module):
    """Tokens in, logits for the next token out."""

    def __init__(self, rng: np.random.Generator, vocabulary: int, places: int, C: int, heads: int, layers: int) -> None:
        self.tokens = Tensor(0.1 * rng.normal(size=(vocabulary, C)), requires_grad=True)
        self.places = Tensor(0.1 * rng.normal(size=(places, C)), requires_grad=True)
        self.blocks = [Block(rng, C, heads) for _ in range(layers)]
        self.norm = Norm(C)

    def forward(self, tokens: Array, caches: list[Cache] | None = None) -> Tensor:
        """The logits (B, T, vocabulary) for tokens (B, T).

        x is the row of the table ``tokens`` for each token, plus the row of ``places`` for its place. It goes through
        the blocks, each with its cache if there are caches, then through ``norm``. The logits are x times the table of
        tokens, transposed. If the caches hold S tokens, these tokens stand at places S, S + 1, ...
        """
        start = caches[0].length() if caches else 0  # given
        places = np.arange(start, start + tokens.shape[1])  # given
        x = Embedding(tokens)(self.tokens) + Embedding(places)(self.places)
        for k, block in enumerate(self.blocks):
            x = block(x, caches[k] if caches else None)
        return self.norm(x) @ self.tokens.transpose(1, 0)


def sample(model: Any, tokens: list[int], count: int, temperature: float, rng: np.random.Generator) -> list[int]:
    """The tokens, and ``count`` new ones after them, each drawn by softmax(logits / temperature) of the last place.

    Temperature 0 takes the largest logit. There is one Cache for each of ``model.blocks``: the first call of the model
    gets all tokens, each later call the new one only. Draw with ``rng.choice(len(p), p=p)``.
    """
    caches = [Cache() for _ in model.blocks]  # given
    tokens, new = list(tokens), list(tokens)  # given
    for _ in range(count):
        logits = model(np.array([new]), caches).data[0, -1]
        p = Softmax().forward(logits / temperature) if temperature > 0 else logits == logits.max()
        new = [int(rng.choice(len(p), p=p / p.sum()))]
        tokens += new
    return tokens  # given
