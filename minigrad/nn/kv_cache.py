"""Keys and values of earlier tokens, for generation."""

from __future__ import annotations

from typing import Any

from .. import capturing
from ..autograd import is_grad_enabled
from ..creation import empty
from ..dtypes import float32, float64
from ..errors import bad_state, bad_value
from ..ops.attention import CachedAttention
from ..tensor import Tensor
from . import functional as F


class KVCache:
    """Keys and values of the tokens seen so far, for one attention layer: two (B, nh, max_tokens, hs) tensors.

    Generation feeds one new token at a time; the cache spares computing all earlier ones again.
    """

    def __init__(self, batch: int, n_head: int, max_tokens: int, head_size: int, like: Tensor) -> None:
        shape = (batch, n_head, max_tokens, head_size)
        self._keys, self._values = (empty(shape, dtype=like.dtype, device=like.device) for _ in range(2))
        self.tensors: tuple[Tensor, Tensor] = (self._keys, self._values)  # keys and values
        self.decoder: Any = None  # what ``minigrad.fast`` keeps here for the next token
        self.length: int = 0

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, nh, T, hs) keys and values; returns all so far. ValueError when the cache is full."""
        B, nh, _, hs = self._keys.shape
        if k.shape != v.shape or k.shape[:2] + k.shape[3:] != (B, nh, hs):
            raise bad_value(f"KVCache: keys {k.shape}, values {v.shape}; this cache expects ({B}, {nh}, T, {hs})")
        start, end = self._room(k.shape[2])
        self._keys[:, :, start:end] = k
        self._values[:, :, start:end] = v
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def attend(self, qkv: Tensor, dropout: float = 0.0) -> Tensor:
        """Append the keys and values of new tokens and let their queries attend to all so far.

        qkv (B, T, 3 nh hs) is what one projection made -> (B, T, nh hs). One token at a time, or any number into an
        empty cache. ValueError when the cache is full or qkv does not fit.
        """
        B, nh, _, hs = self._keys.shape
        T = qkv.shape[1]
        if dropout or qkv.dtype not in (float32, float64):
            q, k, v = qkv.reshape(*qkv.shape[:2], 3, nh, -1).unbind(2)
            return causal_attention(q, k, v, dropout, self)
        check_use(self, T)
        if qkv.shape[0] != B or qkv.shape[2] != 3 * nh * hs or qkv.dtype != self._keys.dtype:
            raise bad_value(
                f"KVCache: qkv {qkv.shape} of {qkv.dtype}; this cache expects ({B}, T, {3 * nh * hs}) of "
                f"{self._keys.dtype}"
            )
        start, end = self._room(T)
        y = CachedAttention.apply(qkv, keys=self._keys.data, values=self._values.data, start=start)
        self.length = end
        return y

    def _room(self, T: int) -> tuple[int, int]:
        """The places of T new tokens; ValueError when the cache is full. CaptureError during capture."""
        capturing.refuse("the cache counts its tokens on the host", "capture a pass without caches")
        start, end, max_tokens = self.length, self.length + T, self._keys.shape[2]
        if end > max_tokens:
            raise bad_value(f"KVCache holds {max_tokens} tokens; {start} are in it and {T} more came")
        return start, end


def check_use(cache: KVCache, T: int) -> None:
    """RuntimeError or ValueError unless T more tokens may be attended to with this cache."""
    if is_grad_enabled():
        raise bad_state("a KV cache is for generation; wrap the call in no_grad()")
    if cache.length and T > 1:
        raise bad_value(f"{T} tokens for a cache that holds {cache.length}; pass one at a time")


def causal_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float, cache: KVCache | None) -> Tensor:
    """Attention of each token to itself and those before it: q (B, T, nh, hs), k and v (B, T, n_kv, hs) -> (B, T,
    nh hs).

    With a cache (under no_grad), the tokens continue those that are in it: one at a time, or any number into an empty
    cache.
    """
    B, T, nh, hs = q.shape
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    causal = True
    if cache is not None:
        check_use(cache, T)
        causal = cache.length == 0  # one new token sees all that came before
        k, v = cache.extend(k, v)
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal, enable_gqa=True)
    return y.transpose(1, 2).reshape(B, T, nh * hs)
