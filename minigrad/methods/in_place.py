"""Methods of Tensor: changes in place, outside of the graph, with the operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import dtypes, shapes
from ..autograd import TensorCore
from ..errors import bad_state, bad_type, bad_value
from ..indices import bool_mask, parse_index, scatter_source
from ..modes import is_grad_enabled
from ..random import Generator, draw

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor


class InPlaceMethods:
    """See the module."""

    __slots__ = ()

    def _change(self: Tensor, name: str, *others: Any) -> None:
        """Refuse an in-place change that autograd could not follow; count the others."""
        if is_grad_enabled() and any(isinstance(x, TensorCore) and x.requires_grad for x in (self, *others)):
            raise bad_state(
                f"{name} changes a tensor in place where gradients are recorded, which would lose them; "
                "compute a new tensor (x = x + y; total = total + loss, or total += loss.item() to log it), or "
                "work under no_grad() or on .detach()"
            )
        if not self.data.flags.writeable:
            raise bad_state(f"{name}: this tensor's memory is read-only (expanded or borrowed); use .clone() first")
        self.bump_version()

    def _write(self: Tensor, name: str, compute: Callable[..., Tensor], other: Operand) -> Tensor:
        other = self._operand(other)
        y = compute(self.detach(), other)
        if dtypes.category(y.dtype) > dtypes.category(self.dtype):
            raise bad_type(f"{name}: the result is {y.dtype}, which a {self.dtype} tensor cannot hold; use x = x + y")
        if y.shape != self.shape:
            raise bad_value(f"{name}: the result has shape {y.shape}, the tensor {self.shape}; use x = x + y")
        self._change(name, other)
        self.device.kernels.elementwise.assign(self.data, y.data)
        return self

    def add_(self: Tensor, other: Operand) -> Tensor:
        """self += other, in place."""
        return self._write("add_", lambda x, y: x + y, other)

    def sub_(self: Tensor, other: Operand) -> Tensor:
        """self -= other, in place."""
        return self._write("sub_", lambda x, y: x - y, other)

    def mul_(self: Tensor, other: Operand) -> Tensor:
        """self *= other, in place."""
        return self._write("mul_", lambda x, y: x * y, other)

    def div_(self: Tensor, other: Operand) -> Tensor:
        """self /= other, in place."""
        return self._write("div_", lambda x, y: x / y, other)

    def floor_divide_(self: Tensor, other: Operand) -> Tensor:
        """self //= other, in place."""
        return self._write("floor_divide_", lambda x, y: x // y, other)

    def remainder_(self: Tensor, other: Operand) -> Tensor:
        """self %= other, in place."""
        return self._write("remainder_", lambda x, y: x % y, other)

    def pow_(self: Tensor, exponent: Operand) -> Tensor:
        """self **= exponent, in place."""
        return self._write("pow_", lambda x, y: x**y, exponent)

    def bitwise_and_(self: Tensor, other: Operand) -> Tensor:
        """self &= other, in place."""
        return self._write("bitwise_and_", lambda x, y: x & y, other)

    def bitwise_or_(self: Tensor, other: Operand) -> Tensor:
        """self |= other, in place."""
        return self._write("bitwise_or_", lambda x, y: x | y, other)

    def bitwise_xor_(self: Tensor, other: Operand) -> Tensor:
        """self ^= other, in place."""
        return self._write("bitwise_xor_", lambda x, y: x ^ y, other)

    def bitwise_left_shift_(self: Tensor, other: Operand) -> Tensor:
        """self <<= other, in place."""
        return self._write("bitwise_left_shift_", lambda x, y: x << y, other)

    def bitwise_right_shift_(self: Tensor, other: Operand) -> Tensor:
        """self >>= other, in place."""
        return self._write("bitwise_right_shift_", lambda x, y: x >> y, other)

    __iadd__ = add_
    __isub__ = sub_
    __imul__ = mul_
    __itruediv__ = div_
    __ifloordiv__ = floor_divide_
    __imod__ = remainder_
    __ipow__ = pow_
    __iand__ = bitwise_and_
    __ior__ = bitwise_or_
    __ixor__ = bitwise_xor_
    __ilshift__ = bitwise_left_shift_
    __irshift__ = bitwise_right_shift_

    def neg_(self: Tensor) -> Tensor:
        """``neg`` in place."""
        return self._write("neg_", lambda x, _: x.neg(), 0)

    def abs_(self: Tensor) -> Tensor:
        """``abs`` in place."""
        return self._write("abs_", lambda x, _: x.abs(), 0)

    def exp_(self: Tensor) -> Tensor:
        """``exp`` in place."""
        return self._write("exp_", lambda x, _: x.exp(), 0)

    def log_(self: Tensor) -> Tensor:
        """``log`` in place."""
        return self._write("log_", lambda x, _: x.log(), 0)

    def sqrt_(self: Tensor) -> Tensor:
        """``sqrt`` in place."""
        return self._write("sqrt_", lambda x, _: x.sqrt(), 0)

    def rsqrt_(self: Tensor) -> Tensor:
        """``rsqrt`` in place."""
        return self._write("rsqrt_", lambda x, _: x.rsqrt(), 0)

    def reciprocal_(self: Tensor) -> Tensor:
        """``reciprocal`` in place."""
        return self._write("reciprocal_", lambda x, _: x.reciprocal(), 0)

    def square_(self: Tensor) -> Tensor:
        """``square`` in place."""
        return self._write("square_", lambda x, _: x.square(), 0)

    def sigmoid_(self: Tensor) -> Tensor:
        """``sigmoid`` in place."""
        return self._write("sigmoid_", lambda x, _: x.sigmoid(), 0)

    def tanh_(self: Tensor) -> Tensor:
        """``tanh`` in place."""
        return self._write("tanh_", lambda x, _: x.tanh(), 0)

    def relu_(self: Tensor) -> Tensor:
        """``relu`` in place."""
        return self._write("relu_", lambda x, _: x.relu(), 0)

    def round_(self: Tensor) -> Tensor:
        """``round`` in place."""
        return self._write("round_", lambda x, _: x.round(), 0)

    def floor_(self: Tensor) -> Tensor:
        """``floor`` in place."""
        return self._write("floor_", lambda x, _: x.floor(), 0)

    def ceil_(self: Tensor) -> Tensor:
        """``ceil`` in place."""
        return self._write("ceil_", lambda x, _: x.ceil(), 0)

    def trunc_(self: Tensor) -> Tensor:
        """``trunc`` in place."""
        return self._write("trunc_", lambda x, _: x.trunc(), 0)

    def clamp_(self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
        """``clamp`` in place."""
        return self._write("clamp_", lambda x, _: x.clamp(min, max), 0)

    def lerp_(self: Tensor, end: Tensor, weight: Operand) -> Tensor:
        """``lerp`` in place."""
        return self._write("lerp_", lambda x, y: x.lerp(y, weight), end)

    def copy_(self: Tensor, other: Any) -> Tensor:
        """The values of ``other``, of any device, broadcast and cast to this tensor's shape and dtype, in place."""
        other = other if isinstance(other, TensorCore) else self.tensor_type(other, device=self.device)
        try:
            shapes.expanded_shape(self.shape, other.data.shape)
        except ValueError:
            raise bad_value(f"copy_: shape {other.data.shape} does not broadcast to {self.shape}") from None
        self._change("copy_", other)
        source = other if other.device is self.device else other.detach().to(device=self.device)
        self.device.kernels.elementwise.assign(self.data, source.data)
        return self

    def fill_(self: Tensor, value: float) -> Tensor:
        """Every element ``value``, in place."""
        dtypes.check_number("fill_", value, self.dtype)
        self._change("fill_")
        self.device.kernels.elementwise.assign(self.data, value)
        return self

    def zero_(self: Tensor) -> Tensor:
        """Every element 0, in place."""
        return self.fill_(0)

    def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0, generator: Generator | None = None) -> Tensor:
        """Uniform random values in [low, high), in place."""
        return _drawn(self, "uniform", high - low, low, generator)

    def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
        """Normal random values, in place."""
        return _drawn(self, "normal", std, mean, generator)

    def __setitem__(self: Tensor, where: Any, value: Any) -> None:
        value = self._operand(value)
        self._change("item assignment", value)
        first, where, _ = parse_index(where)
        kernels = self.device.kernels.indexing
        target = self.data if first is None else kernels.index(self.data, first)
        kernels.assign_at(target, where, value.data if isinstance(value, TensorCore) else value)

    def masked_fill_(self: Tensor, mask: Tensor, value: float) -> Tensor:
        """``value`` where the bool ``mask``, which broadcasts, holds, in place."""
        dtypes.check_number("masked_fill_", value, self.dtype)
        everywhere = bool_mask("masked_fill_", mask).expand(self.shape)
        self._change("masked_fill_")
        self.device.kernels.indexing.assign_at(self.data, everywhere.data, value)
        return self

    def masked_scatter_(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        """``masked_scatter`` in place."""
        return self._write("masked_scatter_", lambda x, y: x.masked_scatter(mask, y), source)

    def index_put_(self: Tensor, indices: Sequence[Tensor], values: Operand, accumulate: bool = False) -> Tensor:
        """self[indices] = values, in place; with ``accumulate`` they are added, also where a place occurs twice."""
        if not accumulate:
            self[tuple(indices)] = values
            return self
        values = self._operand(values)
        if isinstance(values, TensorCore) and values.dtype != self.dtype:
            raise bad_type(f"index_put_: values are {values.dtype}, the tensor {self.dtype}; convert with .to(dtype)")
        self._change("index_put_", values)
        first, where, _ = parse_index(tuple(indices))
        k = self.device.kernels.indexing
        target = self.data if first is None else k.index(self.data, first)
        k.add_at(target, where, values.data if isinstance(values, TensorCore) else values, distinct=False)
        return self

    def scatter_(self: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
        """``scatter`` in place."""
        return _scattered("scatter_", self, dim, index, src)

    def scatter_add_(self: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
        """``scatter_add`` in place."""
        return _scattered("scatter_add_", self, dim, index, src)


def _drawn(x: Tensor, kind: str, scale: float, shift: float, generator: Generator | None) -> Tensor:
    """x, filled with random numbers of this kind, times ``scale``, plus ``shift``."""
    x._change(f"{kind}_")
    k = x.device.kernels
    values = draw(kind, k, x.shape, x.dtype, generator)
    k.elementwise.assign(x.data, k.elementwise.add(k.elementwise.mul(values, scale), shift))
    return x


def _scattered(name: str, x: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
    """x after ``scatter_`` or ``scatter_add_``, which the kernel is named after."""
    axis = shapes.normalize_dim(dim, x.ndim)
    source = scatter_source(name, x, axis, index, x._operand(src))
    x._change(name, source)
    k = x.device.kernels.indexing
    scatter = k.scatter if name == "scatter_" else k.scatter_add
    scatter(x.data, axis, index.data, source.data if isinstance(source, TensorCore) else source)
    return x
