"""Methods of Tensor: changes in place, outside of the graph, with the operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from .. import dtypes, shapes
from ..autograd import Function, TensorCore, bump
from ..device import CPU
from ..errors import bad_index, bad_state, bad_type, bad_value
from ..hints import HINTS
from ..modes import F, of_thread
from ..op_inputs import explained
from ..ops import comparison, elementwise
from ..ops.indexing import Index
from ..random import Source, draw
from .comparison import ComparisonMethods
from .indexing import IndexingMethods
from .kernel_of import CalledKernel, kernel_of, noted, takes_as_they_are
from .math import MathMethods

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor


def _in_place(method: F, op: type[Function] | None = None, of_number: type[Function] | None = None) -> F:
    """The method that writes what ``method`` gives over the values of its tensor.

    On the CPU that is the result of one kernel, called by an operation ``op``, or another if the last argument is a
    number: then it is computed where it belongs. Whether ``forward`` may have arrays like these, the first call says.
    """
    name, op = f"{method.__name__}_", op or getattr(method, "op", None)
    writers: dict[Any, Any] = {}

    def changed(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        kinds = self.data.dtype
        for x in args:
            kinds = kinds, x.data.dtype if isinstance(x, TensorCore) else type(x)
        write = () if kwargs else writers.get(kinds)
        if write and _written(write, self, args):
            return self
        new = _held(name, self, method(self.detach(), *args, **kwargs))
        self._change(name, *args, *kwargs.values())
        self.device.kernels.elementwise.assign(self.data, new.data)
        fits = write is None and new.dtype == self.dtype
        if fits and of_thread.mode.kernels is None and type(CPU.native) is ModuleType:
            applied: Any = of_number if of_number and args and type(args[-1]) in (float, int) else op
            plain = all(isinstance(x, TensorCore) or type(x) in (int, float, bool, type(None)) for x in args)
            if plain and applied is not None and takes_as_they_are(applied, self, *args)[0]:
                direct = kernel_of(applied, (self, *args), {}) if applied is op else ()
                known = direct and hasattr(direct[0], "into")
                writers[kinds] = (direct[0].into, *direct[2:4]) if known else (_by_forward(applied), None, 0)
        return self

    functools.update_wrapper(changed, method)
    changed.__name__, changed.__doc__ = name, f"``{method.__name__}`` in place."
    changed.__code__ = changed.__code__.replace(co_name=name)  # what tracebacks and captures call it
    return changed  # type: ignore[return-value]  # functools.wraps keeps the signature


def _by_forward(op: Any) -> Callable[..., Any]:
    """What writes the result of ``forward``, which numbers decide about, into an array."""

    def into(out: Any, *inputs: Any) -> Any:
        call = noted(op, inputs, {})
        given = [x.function(*x.given) if isinstance(x, CalledKernel) else x for x in call.given]
        return call.function.into(out, *given) if hasattr(call.function, "into") else call.function(*given)

    return into


def _written(write: tuple[Any, Any, int], x: Tensor, args: tuple[Any, ...]) -> bool:
    """Whether the operation has put its result into x, as it does where nothing is cast, recorded or wrong."""
    mode, out, (into, of_few, few) = of_thread.mode, x.data, write
    if mode.kernels is not None or mode.autocast is not None or not out.flags.writeable:
        return False
    if type(CPU.native) is not ModuleType:  # a profile's kernels, which are seen
        return False
    arrays: list[Any] = []
    for y in (x, *args):
        if isinstance(y, TensorCore):
            if y.device is not CPU or y.data.ndim > out.ndim or (y.requires_grad and mode.enabled):
                return False
            y = y.data
        arrays.append(y)
    try:
        new = of_few(*arrays, out) if out.size < few else into(out, *arrays)
        if new is None:  # the result would not fit
            return False
        if new is not out:
            CPU.native.elementwise.assign(out, new)
    except (ValueError, OverflowError, TypeError, AttributeError):
        return False  # the method will say what is wrong
    bump((x,))
    return True


def _held(name: str, own: Tensor, new: Tensor) -> Tensor:
    """``new``, if a tensor such as ``own`` can hold it."""
    if dtypes.category(new.dtype) > dtypes.category(own.dtype):
        raise bad_type(f"{name}: the result is {new.dtype}, which a {own.dtype} tensor cannot hold; use x = x + y")
    if new.shape != own.shape:
        raise bad_value(f"{name}: the result has shape {new.shape}, the tensor {own.shape}; use x = x + y")
    return new


def _operator(method: Callable[..., Tensor], in_place: F) -> F:
    """``x += y``: in place, but where gradients are recorded a new x, which other names of the old one do not see.

    A leaf that requires grad, and a view of a leaf, are refused as by ``add_``: the leaf would keep its values.
    """

    @functools.wraps(in_place)
    def operator(self: Tensor, other: Operand) -> Tensor:
        recorded = of_thread.mode.enabled and (
            self.requires_grad or (isinstance(other, TensorCore) and other.requires_grad)
        )
        source: Any = self if self.node is None else self.node
        while isinstance(source, Function) and source.is_view and source.edges:
            source = source.edges[0]
        leaf = isinstance(source, TensorCore) and source._version is self._version
        if not recorded or (leaf and (source.requires_grad or self.data.base is not None)):
            return in_place(self, other)
        return _held(in_place.__name__, self, method(self, other)).to(self.dtype)

    return operator  # type: ignore[return-value]


class InPlaceMethods:
    """See the module."""

    __slots__ = ()

    def _change(self: Tensor, name: str, *others: Any) -> None:
        """Refuse an in-place change that autograd could not follow; count the others."""
        for x in (self, *others) if of_thread.mode.enabled else ():
            if isinstance(x, TensorCore) and x.requires_grad:
                instead = HINTS["in place"].get(name, f"compute a new tensor (x = x.{name[:-1]}(...))")
                raise bad_state(
                    f"{name} changes a tensor in place where gradients are recorded, which would lose them; {instead}, "
                    "or work under no_grad() or on .detach()"
                )
        if not self.data.flags.writeable:
            raise bad_state(f"{name}: this tensor's memory is read-only (expanded or borrowed); use .clone() first")
        bump((self,))

    add_: Final = _in_place(MathMethods.add, elementwise.Add)
    sub_: Final = _in_place(MathMethods.sub, elementwise.Sub)
    mul_: Final = _in_place(MathMethods.mul)
    div_: Final = _in_place(MathMethods.div, elementwise.Div)
    floor_divide_: Final = _in_place(MathMethods.floor_divide)
    remainder_: Final = _in_place(MathMethods.remainder)
    pow_: Final = _in_place(MathMethods.pow, elementwise.Pow, elementwise.PowScalar)
    bitwise_and_: Final = _in_place(ComparisonMethods.bitwise_and, comparison.BitwiseAnd)
    bitwise_or_: Final = _in_place(ComparisonMethods.bitwise_or, comparison.BitwiseOr)
    bitwise_xor_: Final = _in_place(ComparisonMethods.bitwise_xor, comparison.BitwiseXor)
    bitwise_left_shift_: Final = _in_place(ComparisonMethods.bitwise_left_shift, comparison.LeftShift)
    bitwise_right_shift_: Final = _in_place(ComparisonMethods.bitwise_right_shift, comparison.RightShift)

    __iadd__: Final = _operator(MathMethods.add, add_)
    __isub__: Final = _operator(MathMethods.sub, sub_)
    __imul__: Final = _operator(MathMethods.mul, mul_)
    __itruediv__: Final = _operator(MathMethods.div, div_)
    __ifloordiv__: Final = _operator(MathMethods.floor_divide, floor_divide_)
    __imod__: Final = _operator(MathMethods.remainder, remainder_)
    __ipow__: Final = _operator(MathMethods.pow, pow_)
    __iand__ = bitwise_and_
    __ior__ = bitwise_or_
    __ixor__ = bitwise_xor_
    __ilshift__ = bitwise_left_shift_
    __irshift__ = bitwise_right_shift_

    neg_: Final = _in_place(MathMethods.neg)
    abs_: Final = _in_place(MathMethods.abs)
    exp_: Final = _in_place(MathMethods.exp)
    log_: Final = _in_place(MathMethods.log)
    sqrt_: Final = _in_place(MathMethods.sqrt)
    rsqrt_: Final = _in_place(MathMethods.rsqrt)
    reciprocal_: Final = _in_place(MathMethods.reciprocal)
    square_: Final = _in_place(MathMethods.square, elementwise.Square)
    sigmoid_: Final = _in_place(MathMethods.sigmoid)
    tanh_: Final = _in_place(MathMethods.tanh)
    relu_: Final = _in_place(MathMethods.relu)
    round_: Final = _in_place(MathMethods.round, elementwise.Round)
    floor_: Final = _in_place(MathMethods.floor)
    ceil_: Final = _in_place(MathMethods.ceil)
    trunc_: Final = _in_place(MathMethods.trunc)
    clamp_: Final = _in_place(MathMethods.clamp, elementwise.Clamp)
    lerp_: Final = _in_place(MathMethods.lerp, None, elementwise.Lerp)
    masked_fill_: Final = _in_place(MathMethods.masked_fill, elementwise.MaskedFill)
    masked_scatter_: Final = _in_place(IndexingMethods.masked_scatter)

    def copy_(self: Tensor, other: Any) -> Tensor:
        """The values of ``other``, of any device, broadcast and cast to this tensor's shape and dtype, in place."""
        if not isinstance(other, TensorCore):
            other = self.tensor_type(other, dtype=self.dtype if self.is_floating_point() else None, device=self.device)
        try:
            _ = self.data.shape == other.data.shape or shapes.expanded_shape(self.data.shape, other.data.shape)
        except ValueError:
            raise bad_value(f"copy_: shape {other.data.shape} does not broadcast to {self.shape}") from None
        self._change("copy_", other)
        source = other if other.device is self.device else other.detach().to(device=self.device)
        self.device.kernels.elementwise.assign(self.data, source.data)
        return self

    def fill_(self: Tensor, value: float) -> Tensor:
        """Every element ``value``, in place."""
        dtypes.check_number("fill_", value, self.data.dtype)
        self._change("fill_")
        self.device.kernels.elementwise.assign(self.data, value)
        return self

    def zero_(self: Tensor) -> Tensor:
        """Every element 0, in place."""
        self._change("zero_")
        self.device.kernels.elementwise.assign(self.data, 0)
        return self

    def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0, generator: Source = None) -> Tensor:
        """Uniform random values in [low, high), in place."""
        return _drawn(self, "uniform", high - low, low, generator)

    def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, generator: Source = None) -> Tensor:
        """Normal random values, in place."""
        return _drawn(self, "normal", std, mean, generator)

    def __setitem__(self: Tensor, where: Any, value: Any) -> None:
        self._write("item assignment", where, value)

    def index_put_(self: Tensor, indices: Sequence[Tensor], values: Operand, accumulate: bool = False) -> Tensor:
        """self[indices] = values, in place; with ``accumulate`` they are added, also where a place occurs twice."""
        self._write("index_put_" if accumulate else "item assignment", tuple(indices), values, accumulate)
        return self

    def _write(self: Tensor, name: str, where: Any, value: Any, adds: bool = False) -> None:
        value = self._operand(value)
        if adds and isinstance(value, TensorCore) and value.data.dtype != self.dtype:
            raise bad_type(f"{name}: values are {value.data.dtype}, the tensor {self.dtype}; convert with .to(dtype)")
        self._change(name, value)
        first, where, _ = shapes.parse_index(where)
        kernels, target = self.device.kernels.indexing, None
        try:
            target = self.data if first is None else kernels.index(self.data, first)
            write = kernels.add_at if adds else kernels.assign_at
            write(target, where, value.data if isinstance(value, TensorCore) else value)
        except (IndexError, ValueError) as error:
            if target is not None and isinstance(error, ValueError) and isinstance(value, TensorCore):
                place = kernels.index(target, where).shape
                error = ValueError(f"a value of shape {value.data.shape} does not broadcast to the place's, {place}")
            raise explained(Index, error, (self, value)) or error from None

    def scatter_(self: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
        """``scatter`` in place."""
        return _scattered("scatter_", self, dim, index, src)

    def scatter_add_(self: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
        """``scatter_add`` in place."""
        return _scattered("scatter_add_", self, dim, index, src)


def _drawn(x: Tensor, kind: str, scale: float, shift: float, generator: Source) -> Tensor:
    """x, filled with random numbers of this kind, times ``scale``, plus ``shift``."""
    x._change(f"{kind}_")
    k = x.device.kernels
    values = draw(kind, k, x.data.shape, x.data.dtype, generator)
    if (scale, shift) != (1, 0):
        values = k.elementwise.add(k.elementwise.mul(values, scale), shift)
    k.elementwise.assign(x.data, values)
    return x


def _scattered(name: str, x: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
    """x after ``scatter_`` or ``scatter_add_``, which the kernel is named after."""
    axis = shapes.normalize_dim(dim, x.ndim)
    source = shapes.scatter_source(name, x, axis, index, x._operand(src))
    x._change(name, source)
    scatter = getattr(x.device.kernels.indexing, name[:-1])
    try:
        scatter(x.data, axis, index.data, source.data if isinstance(source, TensorCore) else source)
    except IndexError as error:
        raise bad_index(f"{name}: {error}") from None
    return x
