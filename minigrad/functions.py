"""The methods of Tensor that PyTorch also has as functions: ``minigrad.exp(x)`` is ``x.exp()``.

Arguments are PyTorch's (``dim``, ``keepdim``); what they mean stands in the docstrings of the methods. Some names hide
Python's own (``sum``, ``max``, ``abs``), so import the module rather than its names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .shapes import Dim
from .tensor import Tensor, ValuesAndIndices

# Elementwise ----------------------------------------------------------------------------------------------------------


def abs(x: Tensor) -> Tensor:
    """Absolute value."""
    return x.abs()


def neg(x: Tensor) -> Tensor:
    """-x."""
    return x.neg()


def exp(x: Tensor) -> Tensor:
    """e to the power of x."""
    return x.exp()


def exp2(x: Tensor) -> Tensor:
    """2 to the power of x."""
    return x.exp2()


def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, exact for small x."""
    return x.expm1()


def log(x: Tensor) -> Tensor:
    """Natural logarithm."""
    return x.log()


def log2(x: Tensor) -> Tensor:
    """Logarithm to base 2."""
    return x.log2()


def log10(x: Tensor) -> Tensor:
    """Logarithm to base 10."""
    return x.log10()


def log1p(x: Tensor) -> Tensor:
    """log(1 + x), exact for small x."""
    return x.log1p()


def sqrt(x: Tensor) -> Tensor:
    """Square root."""
    return x.sqrt()


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return x.rsqrt()


def square(x: Tensor) -> Tensor:
    """x * x."""
    return x.square()


def reciprocal(x: Tensor) -> Tensor:
    """1 / x."""
    return x.reciprocal()


def sin(x: Tensor) -> Tensor:
    """Sine."""
    return x.sin()


def cos(x: Tensor) -> Tensor:
    """Cosine."""
    return x.cos()


def tan(x: Tensor) -> Tensor:
    """Tangent."""
    return x.tan()


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return x.tanh()


def sinh(x: Tensor) -> Tensor:
    """Hyperbolic sine."""
    return x.sinh()


def cosh(x: Tensor) -> Tensor:
    """Hyperbolic cosine."""
    return x.cosh()


def asin(x: Tensor) -> Tensor:
    """Inverse sine."""
    return x.asin()


def acos(x: Tensor) -> Tensor:
    """Inverse cosine."""
    return x.acos()


def atan(x: Tensor) -> Tensor:
    """Inverse tangent."""
    return x.atan()


def asinh(x: Tensor) -> Tensor:
    """Inverse hyperbolic sine."""
    return x.asinh()


def acosh(x: Tensor) -> Tensor:
    """Inverse hyperbolic cosine."""
    return x.acosh()


def atanh(x: Tensor) -> Tensor:
    """Inverse hyperbolic tangent."""
    return x.atanh()


def atan2(x: Tensor, other: Tensor) -> Tensor:
    """The angle of the points with y = x and x = other."""
    return x.atan2(other)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return x.sigmoid()


def relu(x: Tensor) -> Tensor:
    """max(x, 0), with gradient 0 at 0."""
    return x.relu()


def erf(x: Tensor) -> Tensor:
    """Error function."""
    return x.erf()


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1."""
    return x.sign()


def floor(x: Tensor) -> Tensor:
    """Largest integer not above."""
    return x.floor()


def ceil(x: Tensor) -> Tensor:
    """Smallest integer not below."""
    return x.ceil()


def round(x: Tensor, *, decimals: int = 0) -> Tensor:
    """Nearest integer (or number of so many ``decimals``), halves to even."""
    return x.round(decimals=decimals)


def trunc(x: Tensor) -> Tensor:
    """Integer part."""
    return x.trunc()


def clone(x: Tensor) -> Tensor:
    """A copy in new memory; gradients flow through it."""
    return x.clone()


def add(x: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    """x + alpha * other."""
    return x.add(other, alpha=alpha)


def sub(x: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    """x - alpha * other."""
    return x.sub(other, alpha=alpha)


def mul(x: Tensor, other: Any) -> Tensor:
    """x * other."""
    return x.mul(other)


def div(x: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """x / other; rounded down with ``rounding_mode="floor"``, towards 0 with "trunc"."""
    return x.div(other, rounding_mode=rounding_mode)


def remainder(x: Tensor, other: Any) -> Tensor:
    """x % other, of the sign of ``other``."""
    return x.remainder(other)


def fmod(x: Tensor, other: Any) -> Tensor:
    """The remainder of a division that rounds towards 0, of the sign of x."""
    return x.fmod(other)


def maximum(x: Tensor, other: Any) -> Tensor:
    """Elementwise larger one; ties share the gradient."""
    return x.maximum(other)


def minimum(x: Tensor, other: Any) -> Tensor:
    """Elementwise smaller one; ties share the gradient."""
    return x.minimum(other)


def pow(x: Tensor, exponent: Any) -> Tensor:
    """x ** exponent."""
    return x.pow(exponent)


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Values limited to [min, max]; None does not limit."""
    return x.clamp(min, max)


def masked_fill(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """``value`` where the bool ``mask`` holds, else x."""
    return x.masked_fill(mask, value)


def nan_to_num(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """NaN and the infinities replaced by numbers; None means the largest (smallest) finite one."""
    return x.nan_to_num(nan, posinf, neginf)


# Comparison and logic -------------------------------------------------------------------------------------------------


def eq(x: Tensor, other: Any) -> Tensor:
    """Where x == other."""
    return x == other


def ne(x: Tensor, other: Any) -> Tensor:
    """Where x != other."""
    return x != other


def lt(x: Tensor, other: Any) -> Tensor:
    """Where x < other."""
    return x < other


def le(x: Tensor, other: Any) -> Tensor:
    """Where x <= other."""
    return x <= other


def gt(x: Tensor, other: Any) -> Tensor:
    """Where x > other."""
    return x > other


def ge(x: Tensor, other: Any) -> Tensor:
    """Where x >= other."""
    return x >= other


def isnan(x: Tensor) -> Tensor:
    """Where the value is NaN."""
    return x.isnan()


def isinf(x: Tensor) -> Tensor:
    """Where the value is infinite."""
    return x.isinf()


def isposinf(x: Tensor) -> Tensor:
    """Where the value is +inf."""
    return x.isposinf()


def isneginf(x: Tensor) -> Tensor:
    """Where the value is -inf."""
    return x.isneginf()


def isfinite(x: Tensor) -> Tensor:
    """Where the value is neither NaN nor infinite."""
    return x.isfinite()


def logical_not(x: Tensor) -> Tensor:
    """Where the value is 0."""
    return x.logical_not()


def bitwise_not(x: Tensor) -> Tensor:
    """~x, of integers or bool."""
    return x.bitwise_not()


def logical_and(x: Tensor, other: Any) -> Tensor:
    """Where neither value is 0."""
    return x.logical_and(other)


def logical_or(x: Tensor, other: Any) -> Tensor:
    """Where not both values are 0."""
    return x.logical_or(other)


def logical_xor(x: Tensor, other: Any) -> Tensor:
    """Where exactly one of the two values is 0."""
    return x.logical_xor(other)


def bitwise_and(x: Tensor, other: Any) -> Tensor:
    """x & other, of integers or bool."""
    return x.bitwise_and(other)


def bitwise_or(x: Tensor, other: Any) -> Tensor:
    """x | other, of integers or bool."""
    return x.bitwise_or(other)


def bitwise_xor(x: Tensor, other: Any) -> Tensor:
    """x ^ other, of integers or bool."""
    return x.bitwise_xor(other)


# Reduction ------------------------------------------------------------------------------------------------------------


def sum(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Sum over ``dim`` (default all)."""
    return x.sum(dim, keepdim, dtype=dtype)


def mean(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Mean over ``dim`` (default all)."""
    return x.mean(dim, keepdim, dtype=dtype)


def nansum(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Sum over ``dim`` of what is not NaN."""
    return x.nansum(dim, keepdim)


def nanmean(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Mean over ``dim`` of what is not NaN."""
    return x.nanmean(dim, keepdim)


def amax(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Largest value over ``dim``; ties share the gradient evenly."""
    return x.amax(dim, keepdim)


def amin(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Smallest value over ``dim``; ties share the gradient evenly."""
    return x.amin(dim, keepdim)


def any(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether any value over ``dim`` is not zero."""
    return x.any(dim, keepdim)


def all(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether all values over ``dim`` are not zero."""
    return x.all(dim, keepdim)


def var(
    x: Tensor, dim: Dim = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    """Variance over ``dim``, divided by n - correction."""
    return x.var(dim, unbiased, keepdim, correction=correction)


def std(
    x: Tensor, dim: Dim = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    """Square root of ``var``."""
    return x.std(dim, unbiased, keepdim, correction=correction)


def norm(x: Tensor, p: float | str = 2, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Euclidean norm over ``dim`` (default all)."""
    return x.norm(p, dim, keepdim)


def logsumexp(x: Tensor, dim: Dim, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over ``dim``, without overflow."""
    return x.logsumexp(dim, keepdim)


def prod(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Product along ``dim`` (default all)."""
    return x.prod(dim, keepdim, dtype=dtype)


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the first largest value along ``dim``, or of the flattened tensor."""
    return x.argmax(dim, keepdim)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the first smallest value along ``dim``, or of the flattened tensor."""
    return x.argmin(dim, keepdim)


def max(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest value, or along ``dim`` the pair (values, indices)."""
    return x.max(dim, keepdim)


def min(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest value, or along ``dim`` the pair (values, indices)."""
    return x.min(dim, keepdim)


def cumsum(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Sums of the first 1, 2, ... values along ``dim``."""
    return x.cumsum(dim, dtype=dtype)


def cumprod(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Products of the first 1, 2, ... values along ``dim``."""
    return x.cumprod(dim, dtype=dtype)


def softmax(x: Tensor, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """exp(x) along ``dim``, divided by its sum."""
    return x.softmax(dim, axis=axis)


def log_softmax(x: Tensor, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """log(softmax(x)) along ``dim``, computed without overflow."""
    return x.log_softmax(dim, axis=axis)


# Shape and order ------------------------------------------------------------------------------------------------------


def reshape(x: Tensor, shape: Any) -> Tensor:
    """The same elements in another shape (one size may be -1)."""
    return x.reshape(shape)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dimensions from start_dim to end_dim, inclusive, as one."""
    return x.flatten(start_dim, end_dim)


def squeeze(x: Tensor, dim: Dim = None) -> Tensor:
    """Without the dimensions of size 1 (all, or those of ``dim``)."""
    return x.squeeze(dim)


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """With a new dimension of size 1 at ``dim``."""
    return x.unsqueeze(dim)


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """A view with two dimensions exchanged."""
    return x.transpose(dim0, dim1)


def swapaxes(x: Tensor, axis0: int, axis1: int) -> Tensor:
    """A view with two dimensions exchanged."""
    return x.swapaxes(axis0, axis1)


def permute(x: Tensor, dims: Any) -> Tensor:
    """A view with the dimensions in the given order."""
    return x.permute(dims)


def movedim(x: Tensor, source: Dim, destination: Dim) -> Tensor:
    """A view with dimensions moved to new places; the others keep their order."""
    return x.movedim(source, destination)


def broadcast_to(x: Tensor, shape: Any) -> Tensor:
    """A read-only view with size-1 and new leading dimensions repeated."""
    return x.broadcast_to(shape)


def flip(x: Tensor, dims: Any) -> Tensor:
    """A copy with the order along ``dims`` reversed."""
    return x.flip(dims)


def roll(x: Tensor, shifts: Dim, dims: Dim = None) -> Tensor:
    """Elements moved on by ``shifts`` along ``dims``, around the end."""
    return x.roll(shifts, dims)


def tile(x: Tensor, dims: Any) -> Tensor:
    """Copies side by side along each dimension."""
    return x.tile(dims)


def repeat_interleave(x: Tensor, repeats: Any, dim: int | None = None) -> Tensor:
    """Each element (of ``dim``, else of the flattened tensor) ``repeats`` times in a row."""
    return x.repeat_interleave(repeats, dim)


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of the diagonal of two dimensions as the last dimension."""
    return x.diagonal(offset, dim1, dim2)


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """Lower triangle of the last two dimensions, zeros above ``diagonal``."""
    return x.tril(diagonal)


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """Upper triangle of the last two dimensions, zeros below ``diagonal``."""
    return x.triu(diagonal)


def split(x: Tensor, split_size: int | list[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Consecutive views along ``dim``, of one size or of the listed sizes."""
    return x.split(split_size, dim)


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most ``chunks`` consecutive views of equal size along ``dim``."""
    return x.chunk(chunks, dim)


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along ``dim``, without it."""
    return x.unbind(dim)


# Indexing and sorting -------------------------------------------------------------------------------------------------


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """y[i][j] = x[i][index[i][j]] for dim 1."""
    return x.gather(dim, index)


def take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """``gather`` that broadcasts the other dimensions; without ``dim`` from the flattened tensor."""
    return x.take_along_dim(indices, dim)


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of ``dim`` at the places in ``index``."""
    return x.index_select(dim, index)


def scatter(x: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    """A copy of x in which y[i][index[i][j]] = src[i][j] for dim 1."""
    return x.scatter(dim, index, src)


def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """A copy of x in which y[i][index[i][j]] += src[i][j] for dim 1."""
    return x.scatter_add(dim, index, src)


def argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Indices that sort along ``dim``; stable."""
    return x.argsort(dim, descending)


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> ValuesAndIndices:
    """(values, indices) sorted along ``dim``; stable."""
    return x.sort(dim, descending)


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True) -> ValuesAndIndices:
    """(values, indices) of the ``k`` largest (or smallest) along ``dim``, best first."""
    return x.topk(k, dim, largest)


# Products -------------------------------------------------------------------------------------------------------------


def matmul(x: Tensor, other: Any) -> Tensor:
    """x @ other."""
    return x.matmul(other)


def mm(x: Tensor, other: Tensor) -> Tensor:
    """x @ other of two matrices."""
    return x.mm(other)


def bmm(x: Tensor, other: Tensor) -> Tensor:
    """x @ other of two batches of matrices."""
    return x.bmm(other)


def mv(x: Tensor, vec: Tensor) -> Tensor:
    """x @ vec of a matrix and a vector."""
    return x.mv(vec)


def dot(x: Tensor, other: Tensor) -> Tensor:
    """Sum of the products of two vectors."""
    return x.dot(other)


def outer(x: Tensor, vec2: Tensor) -> Tensor:
    """The matrix of all products x[i] * vec2[j] of two vectors."""
    return x.outer(vec2)


# Further names --------------------------------------------------------------------------------------------------------


def subtract(x: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    """x - alpha * other."""
    return x.subtract(other, alpha=alpha)


def multiply(x: Tensor, other: Any) -> Tensor:
    """x * other."""
    return x.multiply(other)


def divide(x: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """``div``."""
    return x.divide(other, rounding_mode=rounding_mode)


def true_divide(x: Tensor, other: Any) -> Tensor:
    """x / other."""
    return x.true_divide(other)


def floor_divide(x: Tensor, other: Any) -> Tensor:
    """x // other."""
    return x.floor_divide(other)


def negative(x: Tensor) -> Tensor:
    """-x."""
    return x.negative()


def absolute(x: Tensor) -> Tensor:
    """Absolute value."""
    return x.absolute()


def clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """``clamp``."""
    return x.clip(min, max)


def clamp_min(x: Tensor, min: Any) -> Tensor:
    """Values limited from below."""
    return x.clamp_min(min)


def clamp_max(x: Tensor, max: Any) -> Tensor:
    """Values limited from above."""
    return x.clamp_max(max)


def bitwise_left_shift(x: Tensor, other: Any) -> Tensor:
    """x << other, of integers."""
    return x.bitwise_left_shift(other)


def bitwise_right_shift(x: Tensor, other: Any) -> Tensor:
    """x >> other, of integers."""
    return x.bitwise_right_shift(other)


def moveaxis(x: Tensor, source: Dim, destination: Dim) -> Tensor:
    """``movedim``."""
    return x.moveaxis(source, destination)


def swapdims(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """``transpose``."""
    return x.swapdims(dim0, dim1)


def ravel(x: Tensor) -> Tensor:
    """All dimensions as one."""
    return x.ravel()


def t(x: Tensor) -> Tensor:
    """A matrix transposed (a view)."""
    return x.t()


def unflatten(x: Tensor, dim: int, sizes: Any) -> Tensor:
    """One dimension as several of the given sizes."""
    return x.unflatten(dim, sizes)


def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A view of ``length`` places of a dimension from ``start`` on."""
    return x.narrow(dim, start, length)


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """A view of one place of a dimension, without it."""
    return x.select(dim, index)


def isclose(x: Tensor, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """Where |x - other| <= atol + rtol |other|."""
    return x.isclose(other, rtol, atol, equal_nan)


def count_nonzero(x: Tensor, dim: Dim = None) -> Tensor:
    """How many values over ``dim`` are not 0."""
    return x.count_nonzero(dim)


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The values where the bool ``mask`` holds, as a vector."""
    return x.masked_select(mask)


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The values of ``source``, in order, where the bool ``mask`` holds, else x."""
    return x.masked_scatter(mask, source)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """A copy in which y[index[i]] += alpha * source[i] along ``dim``."""
    return x.index_add(dim, index, source, alpha=alpha)


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """A copy in which y[index[i]] = source[i] along ``dim``."""
    return x.index_copy(dim, index, source)


def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """A copy in which y[index[i]] = value along ``dim``."""
    return x.index_fill(dim, index, value)


def index_put(x: Tensor, indices: Sequence[Tensor], values: Any, accumulate: bool = False) -> Tensor:
    """A copy in which y[indices] = values; with ``accumulate`` they are added."""
    return x.index_put(indices, values, accumulate)


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """A copy of x in which y[i][index[i][j]] is reduced with src[i][j] for dim 1."""
    return x.scatter_reduce(dim, index, src, reduce, include_self=include_self)


def nonzero(x: Tensor, *, as_tuple: bool = False) -> Any:
    """Where x is not 0: indices of shape (count, ndim), or one vector per dimension."""
    return x.nonzero(as_tuple=as_tuple)


def unique(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The different values, sorted; with where each element is among them, and how often each occurs."""
    return x.unique(sorted, return_inverse, return_counts, dim)


def diag(x: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix, or the matrix with this vector on its diagonal."""
    return x.diag(diagonal)


def lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    """x + weight * (end - x)."""
    return x.lerp(end, weight)


def allclose(x: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether ``isclose`` holds everywhere."""
    return x.allclose(other, rtol, atol, equal_nan)


def equal(x: Tensor, other: Tensor) -> bool:
    """Whether shape and all values are equal."""
    return x.equal(other)
