"""The methods of Tensor that PyTorch also has as functions: ``minigrad.exp(x)`` is ``x.exp()``; and a few that are no
methods there: questions, pairs, searches.

Some names hide Python's own (``sum``, ``max``, ``abs``), so import the module rather than its names.
"""

import functools
import inspect
from typing import Any, Final

import numpy as np

from . import dtypes, hints
from .autograd import TensorCore
from .errors import bad_state, bad_type, bad_value
from .modes import F
from .random import Source
from .shapes import Dim
from .tensor import Operand, Tensor


def _function(method: F) -> F:
    """The method as a function, which tells what to pass if its first argument is no tensor."""
    name = method.__name__
    called = hints.answering(method) if hints.OFTEN.fullmatch(name) else method

    def of_one(x: Any, *more: Any, **wrong: Any) -> Any:  # in half the time
        return called(x) if isinstance(x, TensorCore) and not more and not wrong else of_more(x, *more, **wrong)

    def of_more(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, TensorCore):
            raise bad_type(f"{name} of a {type(x).__name__}: expected a tensor; make one with minigrad.tensor(...)")
        return called(x, *args, **kwargs) if kwargs else called(x, *args)

    function = functools.wraps(method)(of_one if len(inspect.signature(method).parameters) == 1 else of_more)
    function.__module__, function.__qualname__ = __name__, name
    return function  # type: ignore[return-value]  # functools.wraps keeps the signature


# Arithmetic and functions of each element.
add: Final = _function(Tensor.add)
sub: Final = _function(Tensor.sub)
subtract: Final = _function(Tensor.subtract)
mul: Final = _function(Tensor.mul)
multiply: Final = _function(Tensor.multiply)
div: Final = _function(Tensor.div)
divide: Final = _function(Tensor.divide)
true_divide: Final = _function(Tensor.true_divide)
floor_divide: Final = _function(Tensor.floor_divide)
remainder: Final = _function(Tensor.remainder)
fmod: Final = _function(Tensor.fmod)
pow: Final = _function(Tensor.pow)
neg: Final = _function(Tensor.neg)
negative: Final = _function(Tensor.negative)
abs: Final = _function(Tensor.abs)
absolute: Final = _function(Tensor.absolute)
exp: Final = _function(Tensor.exp)
exp2: Final = _function(Tensor.exp2)
expm1: Final = _function(Tensor.expm1)
log: Final = _function(Tensor.log)
log2: Final = _function(Tensor.log2)
log10: Final = _function(Tensor.log10)
log1p: Final = _function(Tensor.log1p)
sqrt: Final = _function(Tensor.sqrt)
rsqrt: Final = _function(Tensor.rsqrt)
square: Final = _function(Tensor.square)
reciprocal: Final = _function(Tensor.reciprocal)
sin: Final = _function(Tensor.sin)
cos: Final = _function(Tensor.cos)
tan: Final = _function(Tensor.tan)
sinh: Final = _function(Tensor.sinh)
cosh: Final = _function(Tensor.cosh)
tanh: Final = _function(Tensor.tanh)
asin: Final = _function(Tensor.asin)
acos: Final = _function(Tensor.acos)
atan: Final = _function(Tensor.atan)
atan2: Final = _function(Tensor.atan2)
asinh: Final = _function(Tensor.asinh)
acosh: Final = _function(Tensor.acosh)
atanh: Final = _function(Tensor.atanh)
erf: Final = _function(Tensor.erf)
sigmoid: Final = _function(Tensor.sigmoid)
relu: Final = _function(Tensor.relu)
sign: Final = _function(Tensor.sign)
floor: Final = _function(Tensor.floor)
ceil: Final = _function(Tensor.ceil)
round: Final = _function(Tensor.round)
trunc: Final = _function(Tensor.trunc)
clamp: Final = _function(Tensor.clamp)
clamp_min: Final = _function(Tensor.clamp_min)
clamp_max: Final = _function(Tensor.clamp_max)
clip: Final = _function(Tensor.clip)
nan_to_num: Final = _function(Tensor.nan_to_num)
maximum: Final = _function(Tensor.maximum)
minimum: Final = _function(Tensor.minimum)
lerp: Final = _function(Tensor.lerp)
masked_fill: Final = _function(Tensor.masked_fill)
clone: Final = _function(Tensor.clone)

# Comparison, logic and bits.
eq: Final = _function(Tensor.eq)
ne: Final = _function(Tensor.ne)
lt: Final = _function(Tensor.lt)
le: Final = _function(Tensor.le)
gt: Final = _function(Tensor.gt)
ge: Final = _function(Tensor.ge)
isclose: Final = _function(Tensor.isclose)
allclose: Final = _function(Tensor.allclose)
equal: Final = _function(Tensor.equal)
isnan: Final = _function(Tensor.isnan)
isinf: Final = _function(Tensor.isinf)
isfinite: Final = _function(Tensor.isfinite)
isposinf: Final = _function(Tensor.isposinf)
isneginf: Final = _function(Tensor.isneginf)
logical_not: Final = _function(Tensor.logical_not)
logical_and: Final = _function(Tensor.logical_and)
logical_or: Final = _function(Tensor.logical_or)
logical_xor: Final = _function(Tensor.logical_xor)
bitwise_not: Final = _function(Tensor.bitwise_not)
bitwise_and: Final = _function(Tensor.bitwise_and)
bitwise_or: Final = _function(Tensor.bitwise_or)
bitwise_xor: Final = _function(Tensor.bitwise_xor)
bitwise_left_shift: Final = _function(Tensor.bitwise_left_shift)
bitwise_right_shift: Final = _function(Tensor.bitwise_right_shift)

# Over dimensions.
sum: Final = _function(Tensor.sum)
nansum: Final = _function(Tensor.nansum)
mean: Final = _function(Tensor.mean)
nanmean: Final = _function(Tensor.nanmean)
var: Final = _function(Tensor.var)
std: Final = _function(Tensor.std)
norm: Final = _function(Tensor.norm)
prod: Final = _function(Tensor.prod)
any: Final = _function(Tensor.any)
all: Final = _function(Tensor.all)
count_nonzero: Final = _function(Tensor.count_nonzero)
trace: Final = _function(Tensor.trace)
amax: Final = _function(Tensor.amax)
amin: Final = _function(Tensor.amin)
max: Final = _function(Tensor.max)
min: Final = _function(Tensor.min)
median: Final = _function(Tensor.median)
quantile: Final = _function(Tensor.quantile)
argmax: Final = _function(Tensor.argmax)
argmin: Final = _function(Tensor.argmin)
cumsum: Final = _function(Tensor.cumsum)
cumprod: Final = _function(Tensor.cumprod)
cummax: Final = _function(Tensor.cummax)
cummin: Final = _function(Tensor.cummin)
diff: Final = _function(Tensor.diff)
logsumexp: Final = _function(Tensor.logsumexp)
logaddexp: Final = _function(Tensor.logaddexp)
softmax: Final = _function(Tensor.softmax)
log_softmax: Final = _function(Tensor.log_softmax)

# The same elements in another shape, order or number.
flatten: Final = _function(Tensor.flatten)
ravel: Final = _function(Tensor.ravel)
unflatten: Final = _function(Tensor.unflatten)
squeeze: Final = _function(Tensor.squeeze)
unsqueeze: Final = _function(Tensor.unsqueeze)
transpose: Final = _function(Tensor.transpose)
swapdims: Final = _function(Tensor.swapdims)
movedim: Final = _function(Tensor.movedim)
moveaxis: Final = _function(Tensor.moveaxis)
t: Final = _function(Tensor.t)
roll: Final = _function(Tensor.roll)
repeat_interleave: Final = _function(Tensor.repeat_interleave)
diagonal: Final = _function(Tensor.diagonal)
tril: Final = _function(Tensor.tril)
triu: Final = _function(Tensor.triu)
narrow: Final = _function(Tensor.narrow)
select: Final = _function(Tensor.select)
split: Final = _function(Tensor.split)
chunk: Final = _function(Tensor.chunk)
unbind: Final = _function(Tensor.unbind)

# By place.
gather: Final = _function(Tensor.gather)
take_along_dim: Final = _function(Tensor.take_along_dim)
index_select: Final = _function(Tensor.index_select)
masked_select: Final = _function(Tensor.masked_select)
nonzero: Final = _function(Tensor.nonzero)
diag: Final = _function(Tensor.diag)
scatter: Final = _function(Tensor.scatter)
scatter_add: Final = _function(Tensor.scatter_add)
scatter_reduce: Final = _function(Tensor.scatter_reduce)
masked_scatter: Final = _function(Tensor.masked_scatter)
index_add: Final = _function(Tensor.index_add)
index_copy: Final = _function(Tensor.index_copy)
index_fill: Final = _function(Tensor.index_fill)
index_put: Final = _function(Tensor.index_put)
argsort: Final = _function(Tensor.argsort)
sort: Final = _function(Tensor.sort)
topk: Final = _function(Tensor.topk)
unique: Final = _function(Tensor.unique)
bincount: Final = _function(Tensor.bincount)

# Products.
matmul: Final = _function(Tensor.matmul)
mm: Final = _function(Tensor.mm)
bmm: Final = _function(Tensor.bmm)
mv: Final = _function(Tensor.mv)
dot: Final = _function(Tensor.dot)
outer: Final = _function(Tensor.outer)
addmm: Final = _function(Tensor.addmm)
addmv: Final = _function(Tensor.addmv)
baddbmm: Final = _function(Tensor.baddbmm)

# Questions.
numel: Final = _function(Tensor.numel)
is_floating_point: Final = _function(Tensor.is_floating_point)


# Of methods that accept the numbers of a shape one by one: here they are one argument.


def reshape(x: Tensor, shape: Any) -> Tensor:
    """The same elements in another shape (one size may be -1)."""
    return x.reshape(shape)


def broadcast_to(x: Tensor, shape: Any) -> Tensor:
    """A read-only view with size-1 and new leading dimensions repeated."""
    return x.broadcast_to(shape)


def permute(x: Tensor, dims: Any) -> Tensor:
    """A view with the dimensions in the given order."""
    return x.permute(dims)


def flip(x: Tensor, dims: Any) -> Tensor:
    """A copy with the order along ``dims`` reversed."""
    return x.flip(dims)


def tile(x: Tensor, dims: Any) -> Tensor:
    """Copies side by side along each dimension."""
    return x.tile(dims)


def swapaxes(x: Tensor, axis0: int, axis1: int) -> Tensor:
    """A view with two dimensions exchanged."""
    return x.swapaxes(axis0, axis1)


def is_tensor(obj: Any) -> bool:
    """Whether ``obj`` is a Tensor."""
    return isinstance(obj, Tensor)


def result_type(tensor1: Operand, tensor2: Operand) -> np.dtype[Any]:
    """The dtype of an operation on these two tensors or numbers, as in PyTorch."""
    return dtypes.result_dtype([x.data if isinstance(x, TensorCore) else x for x in (tensor1, tensor2)])


def std_mean(input: Tensor, dim: Dim = None, *, correction: float = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """``std`` and ``mean`` over ``dim``."""
    return input.std(dim, correction=correction, keepdim=keepdim), input.mean(dim, keepdim)


def var_mean(input: Tensor, dim: Dim = None, *, correction: float = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """``var`` and ``mean`` over ``dim``."""
    return input.var(dim, correction=correction, keepdim=keepdim), input.mean(dim, keepdim)


def searchsorted(sorted_sequence: Tensor, values: Operand, *, right: bool = False, side: str | None = None) -> Tensor:
    """Where to insert ``values`` into the ascending last dimension of ``sorted_sequence`` (int64, the shape of values).

    Before equals, or behind them with ``right`` or ``side="right"``. The sequence is one vector for all values, or has
    their dimensions but the last. NaN belongs at the end.
    """
    if side not in (None, "left", "right") or (right and side == "left"):
        raise bad_value(f"searchsorted: side={side!r}, right={right}; expected 'left' or 'right', not both")
    if not isinstance(sorted_sequence, Tensor):
        found = type(sorted_sequence).__name__
        raise bad_type(f"searchsorted: the sequence is a {found}; make it a tensor: minigrad.tensor(...)")
    x = sorted_sequence
    v = values if isinstance(values, Tensor) else Tensor(values, device=x.device)
    if not x.ndim or (x.ndim > 1 and x.shape[:-1] != v.shape[:-1]):
        raise bad_value(f"searchsorted of shapes {x.shape} and {v.shape}: expected one vector, or equal leading sizes")
    if v.device is not x.device:
        raise bad_state(f"searchsorted: values on {v.device} for a sequence on {x.device}; move them with .to(device)")
    dtype = dtypes.result_dtype((x.data, v.data))
    sequence, sought = (t.to(dtypes.float32 if dtypes.is_half(dtype) else dtype).data for t in (x, v))
    return Tensor.wrap(x.device.kernels.indexing.searchsorted(sequence, sought, right or side == "right"), x.device)


def bucketize(input: Operand, boundaries: Tensor, *, right: bool = False) -> Tensor:
    """``searchsorted`` of the values in one ascending vector: the number of the interval that each lies in."""
    if not isinstance(boundaries, Tensor) or boundaries.ndim != 1:
        found = f"shape {boundaries.shape}" if isinstance(boundaries, Tensor) else type(boundaries).__name__
        raise bad_value(f"bucketize: boundaries of {found}; expected a vector, a tensor")
    return searchsorted(boundaries, input, right=right)


# Of methods whose tensor has a name of its own here, as in PyTorch.
def bernoulli(p: Tensor, *, generator: Source = None) -> Tensor:
    """0 or 1, 1 with the probability ``p``; see ``Tensor.bernoulli``."""
    return _bernoulli(p, generator=generator)


def multinomial(weights: Tensor, num_samples: int, replacement: bool = False, *, generator: Source = None) -> Tensor:
    """Indices drawn in proportion to ``weights``; see ``Tensor.multinomial``."""
    return _multinomial(weights, num_samples, replacement, generator=generator)


_bernoulli: Final = _function(Tensor.bernoulli)
_multinomial: Final = _function(Tensor.multinomial)


hints.list_names(__name__)
