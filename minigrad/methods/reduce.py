"""Methods of Tensor: sums, means, extrema and the like over dimensions, running ones, and softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes, shapes
from ..autograd import TensorCore
from ..errors import bad_type, bad_value, check_choice, expect
from ..modes import constant
from ..ops import elementwise, indexing, movement, reduce, softmax
from ..shapes import Axis, Dim
from .combine import combine
from .indexing import ValuesAndIndices

if TYPE_CHECKING:
    from ..tensor import Tensor


class ReduceMethods:
    """See the module."""

    __slots__ = ()

    def sum(
        self: Tensor, dim: Dim = None, keepdim: bool = False, *,
        dtype: Any = None, axis: Dim = None, keepdims: bool = False,
    ) -> Tensor:  # fmt: skip
        """Sum over ``dim`` (default all), cast to ``dtype`` first; integers and bool give int64."""
        axes = shapes.normalize_dims(dim, axis, self.ndim)
        x = self if dtype is None else self.to(dtype)
        y = combine(reduce.Sum, x, axes=axes, keepdim=keepdim or keepdims)
        return y if dtype is None else y.to(dtype)

    def nansum(self: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Sum over ``dim`` of what is not NaN."""
        op = reduce.NanSum if self.is_floating_point() else reduce.Sum
        return combine(op, self, axes=shapes.normalize_dims(dim, None, self.ndim), keepdim=keepdim)

    def mean(
        self: Tensor, dim: Dim = None, keepdim: bool = False, *,
        dtype: Any = None, axis: Dim = None, keepdims: bool = False,
    ) -> Tensor:  # fmt: skip
        """Mean over ``dim`` (default all), cast to ``dtype`` first; floating tensors only."""
        if dtype is not None:
            return self.to(dtype).mean(dim, keepdim, axis=axis, keepdims=keepdims)
        _floating("mean", self)
        axes = shapes.normalize_dims(dim, axis, self.ndim)
        return combine(reduce.Mean, self, axes=axes, keepdim=keepdim or keepdims)

    def nanmean(self: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Mean over ``dim`` of what is not NaN; NaN if there is nothing else."""
        return self.nansum(dim, keepdim) / (self == self).sum(dim, keepdim)

    def var(
        self: Tensor, dim: Dim = None, unbiased: bool = True, keepdim: bool = False, *,
        correction: float | None = None, axis: Dim = None, keepdims: bool = False,
    ) -> Tensor:  # fmt: skip
        """Variance over ``dim``, divided by n - correction. ``unbiased=False`` is a correction of 0, NumPy's default.

        ``x.var(False)`` is ``x.var(unbiased=False)``.
        """
        return self._spread(reduce.Var, dim, unbiased, keepdim or keepdims, correction, axis)

    def std(
        self: Tensor, dim: Dim = None, unbiased: bool = True, keepdim: bool = False, *,
        correction: float | None = None, axis: Dim = None, keepdims: bool = False,
    ) -> Tensor:  # fmt: skip
        """Square root of ``var``; its gradient is 0 where it is 0."""
        return self._spread(reduce.Std, dim, unbiased, keepdim or keepdims, correction, axis)

    def _spread(
        self: Tensor, op: type[reduce.Var], dim: Dim, unbiased: bool, keepdim: bool, correction: float | None, axis: Dim
    ) -> Tensor:
        name = op.__name__.lower()
        _floating(name, self)
        if isinstance(dim, bool):
            unbiased, dim = dim, None
        if correction is None:
            correction = 1 if unbiased else 0
        elif not unbiased:
            raise bad_type(f"{name}: pass correction={correction} or unbiased=False, not both")
        axes = shapes.normalize_dims(dim, axis, self.ndim)
        return combine(op, self, axes=axes, keepdim=keepdim, correction=float(correction))

    def norm(
        self: Tensor, p: float | str = 2, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None,
        axis: Dim = None, keepdims: bool = False,
    ) -> Tensor:  # fmt: skip
        """(sum |x|^p)^(1/p) over ``dim`` (default all), cast to ``dtype`` first; for infinite p the largest (smallest)
        |x|, for p = 0 the number of x that are not 0. The gradient of the Euclidean norm is 0 where it is 0.
        """
        wide = dtype is not None and dtypes.is_half(self.dtype) and dtypes.as_dtype(dtype) == dtypes.float32
        x = self if dtype is None or wide else self.to(dtype)
        _floating("norm", x)
        axes = shapes.normalize_dims(dim, axis, self.ndim)
        expect(not isinstance(p, str) or p == "fro", "norm: p", p, "a number or 'fro' (dim is the second argument)")
        p = 2.0 if p == "fro" else float(p)
        if math.isinf(p):
            self._nonempty("norm", dim, axis)
        return combine(reduce.Norm, x, axes=axes, keepdim=keepdim or keepdims, p=p, wide=wide)

    def prod(self: Tensor, dim: Axis = None, keepdim: bool = False, *, dtype: Any = None, axis: Axis = None) -> Tensor:
        """Product along ``dim`` (default all), cast to ``dtype`` first; integers and bool give int64.

        The gradient is right at zeros too.
        """
        if dtype is not None:
            return self.to(dtype).prod(dim, keepdim, axis=axis).to(dtype)
        found = shapes.one_dim(dim, axis, self.ndim)
        if not self.ndim:
            return (self if self.is_floating_point() else self.long()).clone()
        axes = shapes.normalize_dims(found, None, self.ndim)
        return combine(reduce.Prod if found is not None else reduce.ProdOfAll, self, axes=axes, keepdim=keepdim)

    def any(self: Tensor, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None) -> Tensor:
        """Whether any value over ``dim`` is not zero."""
        return combine(reduce.AnyOf, self, axes=shapes.normalize_dims(dim, axis, self.ndim), keepdim=keepdim)

    def all(self: Tensor, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None) -> Tensor:
        """Whether all values over ``dim`` are not zero."""
        return combine(reduce.AllOf, self, axes=shapes.normalize_dims(dim, axis, self.ndim), keepdim=keepdim)

    def count_nonzero(self: Tensor, dim: shapes.Dim = None) -> Tensor:
        """How many values over ``dim`` (default all) are not 0."""
        k, axes = self.device.kernels, shapes.normalize_dims(dim, None, self.ndim)
        return self.wrap(k.reduce.sum(k.comparison.ne(self.data, 0), axes, False, "int64"), self.device)

    def trace(self: Tensor) -> Tensor:
        """The sum of a matrix's diagonal."""
        if self.ndim != 2:
            raise bad_value(f"trace of shape {self.shape}: expected a matrix; see .diagonal")
        return self.diagonal().sum()

    def amax(
        self: Tensor, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None, keepdims: bool = False
    ) -> Tensor:
        """Largest value over ``dim``; ties share the gradient evenly."""
        return combine(reduce.AMax, self, axes=self._nonempty("amax", dim, axis), keepdim=keepdim or keepdims)

    def amin(
        self: Tensor, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None, keepdims: bool = False
    ) -> Tensor:
        """Smallest value over ``dim``; ties share the gradient evenly."""
        return combine(reduce.AMin, self, axes=self._nonempty("amin", dim, axis), keepdim=keepdim or keepdims)

    def max(self: Tensor, dim: Tensor | Axis = None, keepdim: bool = False, *, axis: Axis = None) -> Any:
        """The largest value, along ``dim`` the pair (values, indices), or ``maximum`` with a tensor.

        Along ``dim`` the first of equals gets the gradient.
        """
        return self._extreme("max", dim, keepdim, axis)

    def min(self: Tensor, dim: Tensor | Axis = None, keepdim: bool = False, *, axis: Axis = None) -> Any:
        """The smallest value, along ``dim`` the pair (values, indices), or ``minimum`` with a tensor.

        Along ``dim`` the first of equals gets the gradient.
        """
        return self._extreme("min", dim, keepdim, axis)

    def _extreme(self: Tensor, name: str, dim: Tensor | Axis, keepdim: bool, axis: Axis) -> Any:
        if isinstance(dim, TensorCore):
            return self.maximum(dim) if name == "max" else self.minimum(dim)
        found = shapes.one_dim(dim, axis, self.ndim)
        if found is None:
            axes = self._nonempty(name, None, None)
            return combine(reduce.Max if name == "max" else reduce.Min, self, axes=axes, keepdim=False)
        self._nonempty(name, found, None)
        return _placed(self, found, name == "max", running=False, keepdim=keepdim)

    def median(self: Tensor, dim: Axis = None, keepdim: bool = False, *, axis: Axis = None) -> Any:
        """The value in the middle (of an even number the lower one), or along ``dim`` the pair (values, indices).

        NaN if there is one. Of all values, those that tie share the gradient evenly; along ``dim``, that of the index
        gets it: of equals, the one that a stable sort puts there (PyTorch's choice is not specified).
        """
        found = shapes.one_dim(dim, axis, self.ndim)
        if found is None:
            if not self.is_floating_point():
                self._nonempty("median", None, None)
            return combine(reduce.Median, self)
        self._nonempty("median", found, None)
        if not self.ndim:
            return ValuesAndIndices(self.clone(), self.argsort())
        x, k, n = self.data, self.device.kernels, self.data.shape[found]
        missing = k.reduce.sum(k.comparison.ne(x, x), (found,), True, "int64")  # NaNs are the last
        middle = k.elementwise.fused(_median_place, missing, n, (n - 1) // 2)
        return _picked(self, found, k.indexing.gather(self.argsort(found).data, found, middle), keepdim)

    def quantile(
        self: Tensor, q: Any, dim: Dim = None, keepdim: bool = False, *, interpolation: str = "linear"
    ) -> Tensor:
        """The value below which the share ``q``, 0 to 1, of those along ``dim`` (default all) lies; NaN if one is.

        Several shares, a vector, are the first dimension of the result. Where it lies between two values,
        ``interpolation`` is "linear", or takes the "lower", "higher" or "nearest" one, or the "midpoint".
        """
        check_choice("quantile", "interpolation", interpolation, ("linear", "midpoint", *_ROUNDED))
        _floating("quantile", self)
        whole = dim is None or not self.ndim
        x, at = (self.flatten(), 0) if whole else (self, self._nonempty("quantile", dim, None)[0])
        share = np.asarray(q.tolist() if isinstance(q, self.tensor_type) else q)
        if share.ndim > 1 or share.dtype.kind not in "biuf" or not x.numel() or not ((share >= 0) & (share <= 1)).all():
            raise bad_value(f"quantile of shape {self.shape}, q={q}: expected values, and a share or a vector, 0 to 1")
        order, n = x.argsort(at), x.shape[at]
        place = getattr(np, _ROUNDED.get(interpolation, "positive"))(share.reshape(-1).astype(np.float64) * (n - 1))
        part = (place % 1).reshape(-1, *(1,) * (x.ndim - 1))
        weight = constant(lambda: self.tensor_type(part, dtype=self.dtype, device=x.device))
        ends = np.concatenate((np.floor(place), np.ceil(place), [n - 1])).astype(np.int64)
        places = order.index_select(at, constant(lambda: self.tensor_type(ends, device=x.device)))
        low, high, last = x._at(at, places).movedim(at, 0).split([place.size, place.size, 1])
        y = low.lerp(high, 0.5 if interpolation == "midpoint" else weight).masked_fill(last.isnan(), math.nan)
        y = (y.reshape((-1,) + (1,) * self.ndim) if whole else y.unsqueeze(at + 1)) if keepdim else y
        return y if share.ndim else y[0]

    def argmax(self: Tensor, dim: Axis = None, keepdim: bool = False, *, axis: Axis = None) -> Tensor:
        """Index (int64) of the first largest value, along ``dim`` or of the flattened tensor."""
        self._nonempty("argmax", dim, axis)
        return combine(reduce.ArgMax, self, axis=shapes.one_dim(dim, axis, self.ndim), keepdim=keepdim)

    def argmin(self: Tensor, dim: Axis = None, keepdim: bool = False, *, axis: Axis = None) -> Tensor:
        """Index (int64) of the first smallest value, along ``dim`` or of the flattened tensor."""
        self._nonempty("argmin", dim, axis)
        return combine(reduce.ArgMin, self, axis=shapes.one_dim(dim, axis, self.ndim), keepdim=keepdim)

    def _nonempty(self: Tensor, name: str, dim: Dim, axis: Dim) -> tuple[int, ...]:
        axes = shapes.normalize_dims(dim, axis, self.ndim)
        if 0 in self.data.shape and any(self.shape[i] == 0 for i in axes):
            raise bad_value(f"{name} over an empty dimension of shape {self.shape} has no value")
        return axes

    def cumsum(self: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        """Sums of the first 1, 2, ... values along ``dim``, cast to ``dtype`` first; integers and bool give int64."""
        return _cumulative(reduce.CumSum, self, dim, dtype)

    def cumprod(self: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        """Products of the first 1, 2, ... values along ``dim``, cast to ``dtype`` first; integers and bool give int64.

        The gradient is right at zeros too.
        """
        return _cumulative(reduce.CumProd, self, dim, dtype)

    def cummax(self: Tensor, dim: int) -> ValuesAndIndices:
        """The largest of the first 1, 2, ... values along ``dim``, and its index: of equals the last; NaN is largest.

        The gradient goes to that index.
        """
        return _placed(self, shapes.normalize_dim(dim, self.ndim), largest=True)

    def cummin(self: Tensor, dim: int) -> ValuesAndIndices:
        """The smallest of the first 1, 2, ... values along ``dim``, and its index: of equals the last; NaN is smallest.

        The gradient goes to that index.
        """
        return _placed(self, shapes.normalize_dim(dim, self.ndim), largest=False)

    def diff(self: Tensor, n: int = 1, dim: int = -1) -> Tensor:
        """Each value less the one before it along ``dim``, ``n`` times over; of bool whether they differ."""
        at = shapes.normalize_dim(dim, self.ndim)
        if not self.ndim or n < 0:
            raise bad_value(f"diff of shape {self.shape}, n={n}: expected at least one dimension, and n >= 0")
        y = self
        for _ in range(min(n, self.shape[at])):
            y = combine(movement.Diff, y, axis=at, back=False)
        return y

    def logsumexp(self: Tensor, dim: Dim, keepdim: bool = False) -> Tensor:
        """log(sum(exp(self))) over ``dim``, without overflow."""
        return combine(reduce.LogSumExp, self, axes=shapes.normalize_dims(dim, None, self.ndim), keepdim=keepdim)

    def logaddexp(self: Tensor, other: Tensor) -> Tensor:
        """log(exp(self) + exp(other)) without overflow; the two broadcast; floating tensors only.

        The gradient of two equal infinities is NaN.
        """
        y = self._operand(other)
        _floating("logaddexp", self if self.is_floating_point() or not isinstance(y, TensorCore) else y)
        return combine(elementwise.LogAddExp, self, y)

    def softmax(self: Tensor, dim: Axis = None, dtype: Any = None, *, axis: Axis = None) -> Tensor:
        """exp(self) along ``dim`` (or ``axis``; one must be given), divided by its sum; cast to ``dtype`` first."""
        x = self if dtype is None else self.to(dtype)
        return combine(softmax.Softmax, x, axis=shapes.some_dim("softmax", dim, axis, self.ndim))

    def log_softmax(self: Tensor, dim: Axis = None, dtype: Any = None, *, axis: Axis = None) -> Tensor:
        """log(softmax(self)) along ``dim`` (or ``axis``; one must be given); cast to ``dtype`` first."""
        x = self if dtype is None else self.to(dtype)
        return combine(softmax.LogSoftmax, x, axis=shapes.some_dim("log_softmax", dim, axis, self.ndim))


def _median_place(k: Any, missing: Any, n: int, middle: int) -> Any:
    return k.where(k.gt(missing, 0), k.sub(n, missing), middle)


_ROUNDED = {"lower": "floor", "higher": "ceil", "nearest": "round"}


def _floating(name: str, x: Tensor) -> None:
    if x.data.dtype.kind not in "fV":
        raise bad_type(f"{name} of {x.dtype} values is no integer; convert with .float() first")


def _cumulative(op: type[reduce.CumSum | reduce.CumProd], x: Tensor, dim: int, dtype: Any) -> Tensor:
    axis = shapes.normalize_dim(dim, x.ndim)
    wide = x.to(dtype) if dtype is not None else x if x.is_floating_point() else x.long()
    y = combine(op, wide, axis=axis) if x.ndim else wide.clone()
    return y if dtype is None else y.to(dtype)


def _placed(x: Tensor, at: int, largest: bool, running: bool = True, keepdim: bool = True) -> ValuesAndIndices:
    if not x.ndim:
        return ValuesAndIndices(x.clone(), x.new_zeros((), dtype=dtypes.int64))
    made, places = x.device.kernels.reduce.extremes(x.data, at, largest, running)
    return _picked(x, at, places, keepdim, made)


def _picked(x: Tensor, at: int, places: Any, keepdim: bool, made: Any = None) -> ValuesAndIndices:
    """The values, perhaps ``made`` already, at the places found along a dimension of x."""
    index = x.wrap(places if keepdim else places.reshape(x.data.shape[:at] + x.data.shape[at + 1 :]), x.device)
    return ValuesAndIndices(indexing.Gather.apply(x, index, axis=at, made=made), index)
