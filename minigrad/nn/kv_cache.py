"""Keys and values of earlier tokens, for generation."""

from __future__ import annotations

from typing import Any

from .. import capturing
from ..autograd import is_grad_enabled
from ..creation import empty
from ..errors import located
from ..ops.attention import CachedAttention
from ..tensor import Tensor


class KVCache:
    """Keys and values of the tokens seen so far, for one attention layer: two (B, nh, max_tokens, hs) tensors.

    Generation feeds one new token at a time; the cache spares computing all earlier ones again.
    """

    length: int
    tensors: tuple[Tensor, Tensor]  # keys and values
    decoder: Any  # what a model keeps here for the next token (``models/decoding.py``)

    def __init__(self, batch: int, n_head: int, max_tokens: int, head_size: int, like: Tensor) -> None:
        shape = (batch, n_head, max_tokens, head_size)
        self._keys = empty(shape, dtype=like.dtype, device=like.device)
        self._values = empty(shape, dtype=like.dtype, device=like.device)
        self.tensors, self.decoder, self.length = (self._keys, self._values), None, 0

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, nh, T, hs) keys and values; returns all so far. ValueError when the cache is full."""
        B, nh, _, hs = self._keys.shape
        if k.shape != v.shape or k.shape[:2] + k.shape[3:] != (B, nh, hs):
            raise located(
                ValueError(f"KVCache: keys {k.shape}, values {v.shape}; this cache expects ({B}, {nh}, T, {hs})")
            )
        start, end = self._room(k.shape[2])
        self._keys[:, :, start:end] = k
        self._values[:, :, start:end] = v
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def attend(self, qkv: Tensor) -> Tensor:
        """Append the keys and values of new tokens and let their queries attend to all so far, in one operation.

        qkv (B, T, 3 nh hs) is what one projection made -> (B, T, nh hs). One token at a time, or any number into an
        empty cache. ValueError when the cache is full or qkv does not fit.
        """
        B, nh, _, hs = self._keys.shape
        if qkv.shape[0] != B or qkv.shape[2] != 3 * nh * hs or qkv.dtype != self._keys.dtype:
            raise located(
                ValueError(
                    f"KVCache: qkv {qkv.shape} of {qkv.dtype}; this cache expects ({B}, T, {3 * nh * hs}) of "
                    f"{self._keys.dtype}"
                )
            )
        start, end = self._room(qkv.shape[1])
        y = CachedAttention.apply(qkv, keys=self._keys.data, values=self._values.data, start=start)
        self.length = end
        return y

    def _room(self, T: int) -> tuple[int, int]:
        """The places of T new tokens; ValueError when the cache is full. CaptureError during capture."""
        capturing.refuse("the cache counts its tokens on the host", "capture a pass without caches")
        start, end, max_tokens = self.length, self.length + T, self._keys.shape[2]
        if end > max_tokens:
            raise located(ValueError(f"KVCache holds {max_tokens} tokens; {start} are in it and {T} more came"))
        return start, end


def check_use(cache: KVCache, T: int) -> None:
    """RuntimeError or ValueError unless T more tokens may be attended to with this cache."""
    if is_grad_enabled():
        raise located(RuntimeError("a KV cache is for generation; wrap the call in no_grad()"))
    if cache.length and T > 1:
        raise located(ValueError(f"{T} tokens for a cache that holds {cache.length}; pass one at a time"))
