"""The embeddings of tokens and of their positions in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import nn
from ..autograd import Function
from ..dtypes import float32, float64
from ..models.gpt2 import GPT2
from ..modes import of_thread
from ..nn.functional import check_indices
from ..ops.embedding import add_rows
from ..plans import Plan
from ..tensor import Tensor
from .parts import CHANGED, are


class PositionedEmbedding(Function):
    """y[b, t] = weight[indices[b, t]] + positions[start + t];  dweight as in ``Embedding``, dpositions[start + t] +=
    the sum over b of dy[b, t]. indices (B, T), both tables (rows, C), float32 or float64, on the CPU.
    """

    __slots__ = ("start",)
    adds_in_place = True
    start: int

    def forward(self, weight: Any, indices: Any, positions: Any, *, start: int) -> Any:
        self.start, self.saved = start, (indices,)
        rows = positions[start : start + indices.shape[1]]
        return self.kernels.stages.positioned_embedding.forward(weight, indices, rows)

    def backward_into(self, dy: Any, dx: Any, *more: Any) -> None:
        if self.needs[0]:
            add_rows(self.kernels, dy, self.saved[0], dx)
        if self.needs[2]:
            rows = (dx, *more)[-1][self.start : self.start + dy.shape[1]]
            self.kernels.elementwise.add_into(rows, self.kernels.reduce.sum(dy, (0,), False))


class Embeddings(Plan):
    """``PositionedEmbedding`` instead of two embeddings, a range and a sum."""

    name = "embeddings"
    equality = "the same bits"

    def reasons(self, model: GPT2, tokens: Tensor, start: int) -> Iterator[str]:
        wte, wpe = model.wte, model.wpe
        if of_thread.mode.anomaly:
            yield "detect_anomaly names each operation"
        if not are((nn.Embedding, nn.Embedding), wte, wpe):
            yield CHANGED
            return
        if wte.padding_idx is not None or wpe.padding_idx is not None:
            yield "a table has a padding_idx"
        table, places = wte.weight, wpe.weight
        x, y = table.data, places.data
        if table.device is not places.device or table.device.kernels.stages is None:
            yield "these kernels have no stages"
        if x.dtype != y.dtype or x.dtype not in (float32, float64):
            yield "the tables are not both float32, or both float64"
        if not (x.ndim == y.ndim == 2 and x.shape[1] == y.shape[1] > 0):
            yield "the tables are no matrices of the same width"
        elif not 0 < tokens.shape[1] <= y.shape[0] - start:
            yield "there are no tokens, or no rows for their positions"

    def run(self, model: GPT2, tokens: Tensor, start: int) -> Tensor:
        table = model.wte.weight
        rows = PositionedEmbedding.apply(table, check_indices(tokens, table), model.wpe.weight, start=start)
        y: Tensor = model.drop(rows)
        return y
