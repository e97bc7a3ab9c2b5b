"""Keys and values of earlier tokens, for generation."""

import functools
import weakref
from typing import Any

import numpy as np

from .. import capturing
from ..autograd import is_grad_enabled
from ..creation import arange, empty, ones
from ..dtypes import bool_, float32, float64
from ..errors import bad_state, bad_value
from ..ops.attention import ExtendedAttention
from ..tensor import Tensor
from . import functional as F


class KVCache:
    """Keys and values of the tokens seen so far, for one attention layer: (2, B, nh, max_tokens, hs).

    Generation feeds one new token at a time; the cache spares computing all earlier ones again. In a captured graph
    each launch appends one token of each sequence.
    """

    def __init__(self, batch: int, n_head: int, max_tokens: int, head_size: int, like: Tensor) -> None:
        self._held: Tensor = empty(2, batch, n_head, max_tokens, head_size, dtype=like.dtype, device=like.device)
        self._graph: Any = None  # a weak reference to the graph that appends tokens, and how many in each launch
        self._tokens_of_launch = 0
        self.decoder: Any = None  # what ``minigrad.fast`` keeps here for the next token
        self.length: int = 0
        self.max_tokens = max_tokens

    def begin_again(self, batch: int, max_tokens: int, like: Tensor) -> bool:
        """Forget all tokens; whether these arguments would make such a cache."""
        held, self.length = self._held, 0
        self.decoder = self.decoder and self.decoder.for_next_text()
        return (held.shape[1], self.max_tokens, held.dtype, held.device) == (batch, max_tokens, like.dtype, like.device)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, nh, T, hs) keys and values; returns all so far. ValueError when the cache is full."""
        capturing.refuse("the number of tokens in a cache is the host's", "let the cache attend, one token at a time")
        self._check(k, v)
        start, end = self.length, self.length + k.shape[2]
        self._held[0, :, :, start:end] = k
        self._held[1, :, :, start:end] = v
        self.length = end
        return self._held[0, :, :, :end], self._held[1, :, :, :end]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, window: int | None = None) -> Tensor:
        """Append the keys and values k, v (B, T, nh, hs) of new tokens; their queries attend -> (B, T, n_head hs).

        The queries q (B, T, n_head, hs) see all tokens so far, or the last ``window``. Each nh-th part of them has the
        same keys.

        One token at a time, or any number into an empty cache; under no_grad. ValueError when the cache is full.
        """
        B, T, heads, hs = q.shape
        if is_grad_enabled():
            raise bad_state("a KV cache is for generation; wrap the call in no_grad()")
        if self.length and T > 1:
            raise bad_value(f"{T} tokens for a cache that holds {self.length}; pass one at a time")
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        graph = capturing.recorded()
        if graph is None:
            y = causal_attention(q, *self.extend(k, v), dropout, window)
        else:
            if window is not None and window < self.max_tokens:
                capturing.refuse("the attention slides over fewer tokens than it keeps", "call it before the capture")
            if T > 1 or dropout or q.dtype != self._held.dtype or q.dtype not in (float32, float64):
                what = f"a launch appends one token, in float32 or float64 and without dropout, not {T} of {q.dtype}"
                capturing.refuse(what, "call it before the capture")
            self._check(k, v)
            places = self.positions(1)
            self._tokens_of_launch += 1
            y = ExtendedAttention.apply(q, k, v, cache=self._held.data, length=places.data)
        return y.transpose(1, 2).reshape(B, T, heads * hs)

    def positions(self, T: int) -> Tensor:
        """Of T tokens that continue those in the cache: int64 (T,)."""
        graph, device = capturing.recorded(), self._held.device
        if graph is None:
            return arange(self.length, self.length + T, device=device)
        me: Any = weakref.proxy(self)
        if self._graph is None or self._graph() is not graph:
            self._graph, self._tokens_of_launch = weakref.ref(graph), 0
            graph.before(lambda: me._check_room(me._tokens_of_launch))
            graph.count(functools.partial(KVCache._launched, me))
        before = self._tokens_of_launch
        return graph.number(lambda: np.arange(me.length + before, me.length + before + T))

    def _launched(self, sign: int) -> None:
        self.length += sign * self._tokens_of_launch

    def _check(self, k: Tensor, v: Tensor) -> None:
        """ValueError for keys and values that do not fit into the cache."""
        _, B, nh, _, hs = self._held.shape
        if k.shape != v.shape or k.shape[:2] + k.shape[3:] != (B, nh, hs):
            raise bad_value(f"KVCache: keys {k.shape}, values {v.shape}; this cache expects ({B}, {nh}, T, {hs})")
        self._check_room(k.shape[2])

    def _check_room(self, T: int) -> None:
        if self.length + T > self.max_tokens:
            raise bad_value(f"KVCache holds {self.max_tokens} tokens; {self.length} are in it and {T} more came")


def causal_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float, window: int | None) -> Tensor:
    """Queries (B, H, T, hs) of the last T tokens to keys and values (B, nh, Tk, hs) -> (B, H, T, hs).

    Tk is T, or any number for one query. Each token sees itself and earlier ones, the last ``window`` if that is a
    number.
    """
    T, mask = q.shape[2], None
    if window is not None and k.shape[2] > window:
        if T > 1:
            mask = ones(T, T, dtype=bool_, device=q.device).tril().triu(1 - window)
        else:
            k, v = k[:, :, -window:], v[:, :, -window:]
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, T > 1 and mask is None, enable_gqa=True)
