"""Layers whose weights are split over the ranks: column- and row-parallel linear, vocabulary-parallel embedding and
cross-entropy; and the operations that move what they need between ranks.

    column-parallel      y_r = x W_r^T          W by rows:     every rank has all of x and a part of y
    row-parallel         y = sum_r x_r W_r^T    W by columns:  every rank has a part of x and all of y

A column-parallel layer, something elementwise, and a row-parallel layer need one all-reduce in forward and one in
backward. What every rank has whole (inputs, outputs, targets) must be the same on all ranks. All ranks call the same
layers in the same order. Source: Shoeybi et al., "Megatron-LM" (2019), whose names and defaults these layers have.

Each operation says what it does in both directions: where forward gives every rank the same x, backward adds up what
each made of it; without that, gradients further down would be those of one rank's part only.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

from minigrad import Function, Tensor
from minigrad.errors import bad_index, bad_value
from minigrad.nn import Embedding, Linear, Module, Parameter, functional as F

from ..comm.calls import ReduceOp
from ..comm.communicator import Communicator, all_gather_columns, part_of

Between = Callable[[Any, Any], Any]


class _OverRanks(Function):
    """An operation that knows the other ranks, and how many columns ``n`` all of them have together. ``there`` and
    ``back`` are those of the methods below that are its forward and its backward."""

    __slots__ = ("communicator", "n")
    communicator: Communicator
    n: int
    widens = False
    there: ClassVar[Between]
    back: ClassVar[Between]

    def forward(self, x: Any, *, communicator: Communicator, n: int | None = None) -> Any:
        self.communicator, self.n = communicator, x.shape[-1] if n is None else n
        return type(self).there(self, x)

    def backward(self, dy: Any) -> Any:
        return type(self).back(self, dy)

    def same(self, x: Any) -> Any:
        """The array itself."""
        return x

    def sum_of(self, x: Any) -> Any:
        """The sum of all ranks' arrays, in new memory."""
        total = Tensor.wrap(self.kernels.copy(x), self.device)
        self.communicator.all_reduce(total)
        return total.data

    def own(self, whole: Any) -> Any:
        """This rank's part of (..., n)."""
        begin, end = part_of(whole.shape[-1], self.communicator)
        return self.kernels.copy(whole[..., begin:end])

    def gathered(self, part: Any) -> Any:
        """The ranks' parts side by side: (..., n)."""
        return all_gather_columns(self.communicator, part, self.n)


class CopyToRanks(_OverRanks):
    """y = x on every rank;  dx = sum of dy over the ranks, each of which used x for another part."""

    is_view = True
    there: ClassVar[Between] = _OverRanks.same
    back: ClassVar[Between] = _OverRanks.sum_of


class SumOverRanks(_OverRanks):
    """y = sum of x over the ranks;  dx = dy, which is the same on every rank."""

    there: ClassVar[Between] = _OverRanks.sum_of
    back: ClassVar[Between] = _OverRanks.same


class GatherFromRanks(_OverRanks):
    """y (..., n) = the ranks' x (..., n_r) side by side;  dx = this rank's part of dy."""

    there: ClassVar[Between] = _OverRanks.gathered
    back: ClassVar[Between] = _OverRanks.own


class SplitToRanks(_OverRanks):
    """y (..., n_r) = this rank's part of x (..., n);  dx = the ranks' dy side by side."""

    there: ClassVar[Between] = _OverRanks.own
    back: ClassVar[Between] = _OverRanks.gathered


class SplitModule(Module):
    """A layer of which each rank has a part.

    ``split`` has for each parameter the dimension that is cut into parts, None for one that every rank has whole;
    ``size`` is what the whole parameters measure along it. Where ``groups`` of equal size lie side by side there, such
    as queries, keys and values, each rank has a part of each.
    """

    split: ClassVar[dict[str, int | None]]
    size: int
    groups: int = 1
    communicator: Communicator

    @classmethod
    def of(cls, whole: Any, communicator: Communicator, groups: int = 1, **options: Any) -> "SplitModule":
        """This rank's part of rank 0's layer of the full size; ``options`` are attributes that the class has."""
        part = cls.__new__(cls)
        Module.__init__(part)
        vars(part).update({key: n for key, n in vars(whole).items() if isinstance(n, int)}, groups=groups, **options)
        part._begin(communicator, whole)
        return part

    def _begin(self, communicator: Communicator, whole: Any) -> None:
        """Take this rank's part of rank 0's new layer of the full size."""
        self.communicator, self._shape = communicator, whole.weight.shape
        self.size = self._shape[self.split["weight"] or 0]
        for p in whole.to(device=communicator.device).parameters():
            communicator.broadcast(p)
        self.take(whole)

    def take(self, whole: Any) -> None:
        """Make this rank's part of ``whole``, a layer of the full size, its own."""
        if whole.weight.shape != self._shape:
            raise bad_value(f"a layer with a weight of shape {whole.weight.shape}, expected {self._shape}")
        for name, dim in self.split.items():
            p: Parameter | None = getattr(whole, name)
            if p is not None:
                p = Parameter(self.cut(p.detach(), dim).clone(), p.requires_grad)
            setattr(self, name, p)

    def whole(self) -> dict[str, Tensor]:
        """The parameters of all ranks, of the full size, on each of them: a collective."""
        params = ((name, getattr(self, name), dim) for name, dim in self.split.items())
        return {name: self.joined(p.detach(), dim).clone() for name, p, dim in params if p is not None}

    def cut(self, whole: Tensor, dim: int | None) -> Tensor:
        """This rank's part of something of a whole parameter's shape, whose dimension ``dim`` is split."""
        if dim is None:
            return whole
        begin, end = part_of(self.size // self.groups, self.communicator)
        return whole.unflatten(dim, (self.groups, -1)).narrow(dim + 1, begin, end - begin).flatten(dim, dim + 1)

    def joined(self, part: Tensor, dim: int | None) -> Tensor:
        """What all ranks' parts were cut from: a collective."""
        if dim is None:
            return part
        size = self.size // self.groups
        begin, end = part_of(size, self.communicator)
        last = part.unflatten(dim, (self.groups, end - begin)).transpose(dim + 1, -1)
        columns = all_gather_columns(self.communicator, last.data, size)
        return Tensor.wrap(columns, part.device).transpose(dim + 1, -1).flatten(dim, dim + 1).contiguous()

    def extra_repr(self) -> str:
        """Whose part it is."""
        return f"part {self.communicator.rank} of {self.communicator.world_size}"


class _ParallelLinear(SplitModule):
    in_features: int
    out_features: int
    weight: Parameter
    bias: Parameter | None

    def __init__(self, in_features: int, out_features: int, communicator: Communicator, bias: bool, dtype: Any) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self._begin(communicator, Linear(in_features, out_features, bias, dtype=dtype))

    def extra_repr(self) -> str:
        """Sizes, and whose part it is."""
        return f"in_features={self.in_features}, out_features={self.out_features}, {super().extra_repr()}"


class ColumnParallelLinear(_ParallelLinear):
    """y = x W^T + b with the outputs split: x (..., in) -> (..., out), or with ``gather_output=False`` this rank's part
    of that, (..., out_r). Weight (out_r, in), bias (out_r,). Begins as a Linear of rank 0's; ``take`` sets others.
    """

    split: ClassVar[dict[str, int | None]] = {"weight": 0, "bias": 0}
    gather_output: bool = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        communicator: Communicator,
        bias: bool = True,
        gather_output: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, communicator, bias, dtype)
        self.gather_output = gather_output

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out) or (..., out_r)."""
        y = F.linear(CopyToRanks.apply(x, communicator=self.communicator), self.weight, self.bias)
        if not self.gather_output:
            return y
        return GatherFromRanks.apply(y, n=self.out_features, communicator=self.communicator)


class RowParallelLinear(_ParallelLinear):
    """y = x W^T + b with the inputs split: x (..., in), or with ``input_is_parallel`` this rank's part of it,
    (..., in_r), -> (..., out). Weight (out, in_r), bias (out,) whole on every rank. Begins as a Linear of rank 0's;
    ``take`` sets others.
    """

    split: ClassVar[dict[str, int | None]] = {"weight": 1, "bias": None}
    input_is_parallel: bool = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        communicator: Communicator,
        bias: bool = True,
        input_is_parallel: bool = False,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, communicator, bias, dtype)
        self.input_is_parallel = input_is_parallel

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) or (..., in_r) -> (..., out)."""
        if not self.input_is_parallel:
            x = SplitToRanks.apply(x, communicator=self.communicator)
        y = SumOverRanks.apply(F.linear(x, self.weight), communicator=self.communicator)
        return y if self.bias is None else y + self.bias  # once, after the sum


class VocabParallelEmbedding(SplitModule):
    """A table of vectors of which each rank has some rows: integer indices of any shape -> (*shape, embedding_dim).
    Weight (num_r, embedding_dim). Begins as an Embedding of rank 0's; ``take`` sets others."""

    split: ClassVar[dict[str, int | None]] = {"weight": 0}
    num_embeddings: int
    embedding_dim: int
    weight: Parameter

    def __init__(
        self, num_embeddings: int, embedding_dim: int, communicator: Communicator, *, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self._begin(communicator, Embedding(num_embeddings, embedding_dim, dtype=dtype))

    def forward(self, indices: Tensor) -> Tensor:
        """Indices -> their vectors. IndexError, on all ranks, for one that is out of range."""
        F.check_rows(indices.long(), self.num_embeddings)
        begin, end = part_of(self.num_embeddings, self.communicator)
        if begin < end:
            mine = (indices >= begin) & (indices < end)
            y = F.embedding((indices - begin).where(mine, 0), self.weight).where(mine.unsqueeze(-1), 0.0)
        else:
            w = self.weight
            y = Tensor.wrap(w.device.kernels.zeros((*indices.shape, self.embedding_dim), w.dtype), w.device)
        return SumOverRanks.apply(y, communicator=self.communicator)

    def extra_repr(self) -> str:
        """Sizes, and whose part it is."""
        return f"{self.num_embeddings}, {self.embedding_dim}, {super().extra_repr()}"


def vocab_parallel_cross_entropy(
    logits: Tensor,
    target: Tensor,
    classes: int,
    communicator: Communicator,
    weight: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """The mean of -log softmax(logits)[target] over rows, of logits whose classes are split over the ranks.

    logits (N, classes_r) of this rank, target (N,) of class indices, whole; weight (classes,) or None. The result is
    the same on all ranks, and so is what ``nn.functional.cross_entropy`` gives for the whole logits; these are nowhere
    made. Raises ValueError for shapes that do not fit, IndexError for targets out of range.
    """
    begin, end = part_of(classes, communicator)
    if logits.ndim != 2 or logits.shape[1] != end - begin or target.shape != logits.shape[:1]:
        expected = f"(N, {end - begin}) for classes {begin} to {end} of {classes}, and (N,)"
        got = f"logits {logits.shape}, target {target.shape}"
        raise bad_value(f"vocab_parallel_cross_entropy: {got}; expected {expected}")
    if weight is not None and weight.shape != (classes,):
        raise bad_value(f"vocab_parallel_cross_entropy: weight {weight.shape}; expected ({classes},)")
    bad = logits.device.kernels.cross_entropy.check_targets(target.long().data, classes, ignore_index)
    if bad >= 0:
        raise bad_index(f"target {int(target[bad])} at position {bad} is out of range for {classes} classes")
    highest = Tensor.wrap(logits.device.kernels.full((logits.shape[0],), -math.inf, logits.dtype), logits.device)
    if begin < end:
        highest = logits.detach().amax(1)
    communicator.all_reduce(highest, ReduceOp.MAX)
    shifted = logits - highest.unsqueeze(1)
    total = SumOverRanks.apply(shifted.exp().sum(1), communicator=communicator)
    kept = target != ignore_index
    mine = (target >= begin) & (target < end) & kept
    picked = shifted.sum(1) * 0.0
    if begin < end:
        picked = shifted.gather(1, (target - begin).where(mine, 0).long().unsqueeze(1)).squeeze(1).where(mine, 0.0)
    losses = (total.log() - SumOverRanks.apply(picked, communicator=communicator)).where(kept, 0.0)
    if weight is None:
        return losses.sum() / float(kept.sum().item())
    weights = weight.detach().to(logits.dtype)[target.where(kept, 0)].where(kept, 0.0)
    return (losses * weights).sum() / weights.sum()
