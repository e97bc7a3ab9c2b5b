"""Methods of Tensor: changes in place, outside of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import dtypes, shapes
from ..autograd import TensorCore, is_grad_enabled
from ..errors import located
from ..indices import parse_index, scatter_source
from .checks import bool_mask, check_number
from .elementwise import ElementwiseMethods

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor


class InPlaceMethods:
    """See the module."""

    __slots__ = ()

    def _change(self: Tensor, name: str, *others: Any) -> None:
        """Refuse an in-place change that autograd could not follow; count the others."""
        if is_grad_enabled() and any(isinstance(x, TensorCore) and x.requires_grad for x in (self, *others)):
            raise located(
                RuntimeError(
                    f"{name} changes a tensor in place where gradients are recorded, which would lose them; "
                    "compute a new tensor (x = x + y; total = total + loss, or total += loss.item() to log it), or "
                    "work under no_grad() or on .detach()"
                )
            )
        if not self.data.flags.writeable:
            raise located(
                RuntimeError(f"{name}: this tensor's memory is read-only (expanded or borrowed); use .clone() first")
            )
        self.bump_version()

    def _write(self: Tensor, name: str, compute: Callable[..., Tensor], other: Operand) -> Tensor:
        other = self._operand(other)
        y = compute(self.detach(), other)
        if dtypes.category(y.dtype) > dtypes.category(self.dtype):
            raise located(
                TypeError(f"{name}: the result is {y.dtype}, which a {self.dtype} tensor cannot hold; use x = x + y")
            )
        if y.shape != self.shape:
            raise located(ValueError(f"{name}: the result has shape {y.shape}, the tensor {self.shape}; use x = x + y"))
        self._change(name, other)
        self.device.kernels.elementwise.assign(self.data, y.data)
        return self

    def add_(self: Tensor, other: Operand) -> Tensor:
        """self += other, in place."""
        return self._write("add_", ElementwiseMethods.__add__, other)

    def sub_(self: Tensor, other: Operand) -> Tensor:
        """self -= other, in place."""
        return self._write("sub_", ElementwiseMethods.__sub__, other)

    def mul_(self: Tensor, other: Operand) -> Tensor:
        """self *= other, in place."""
        return self._write("mul_", ElementwiseMethods.__mul__, other)

    def div_(self: Tensor, other: Operand) -> Tensor:
        """self /= other, in place."""
        return self._write("div_", ElementwiseMethods.__truediv__, other)

    __iadd__ = add_
    __isub__ = sub_
    __imul__ = mul_
    __itruediv__ = div_

    def copy_(self: Tensor, other: Any) -> Tensor:
        """The values of ``other``, of any device, broadcast and cast to this tensor's shape and dtype, in place."""
        other = other if isinstance(other, TensorCore) else self.tensor_type(other, device=self.device)
        try:
            shapes.expanded_shape(self.shape, other.data.shape)
        except ValueError:
            raise located(ValueError(f"copy_: shape {other.data.shape} does not broadcast to {self.shape}")) from None
        self._change("copy_", other)
        source = other if other.device is self.device else other.detach().to(device=self.device)
        self.device.kernels.elementwise.assign(self.data, source.data)
        return self

    def fill_(self: Tensor, value: float) -> Tensor:
        """Every element ``value``, in place."""
        check_number("fill_", value, self.dtype)
        self._change("fill_")
        self.device.kernels.elementwise.assign(self.data, value)
        return self

    def zero_(self: Tensor) -> Tensor:
        """Every element 0, in place."""
        return self.fill_(0)

    def __setitem__(self: Tensor, where: Any, value: Any) -> None:
        value = self._operand(value)
        self._change("item assignment", value)
        first, where, _ = parse_index(where)
        kernels = self.device.kernels.indexing
        target = self.data if first is None else kernels.index(self.data, first)
        kernels.assign_at(target, where, value.data if isinstance(value, TensorCore) else value)

    def masked_fill_(self: Tensor, mask: Tensor, value: float) -> Tensor:
        """``value`` where the bool ``mask``, which broadcasts, holds, in place."""
        check_number("masked_fill_", value, self.dtype)
        everywhere = bool_mask("masked_fill_", mask).expand(self.shape)
        self._change("masked_fill_")
        self.device.kernels.indexing.assign_at(self.data, everywhere.data, value)
        return self

    def index_put_(self: Tensor, indices: Sequence[Tensor], values: Operand, accumulate: bool = False) -> Tensor:
        """self[indices] = values, in place; with ``accumulate`` they are added, also where a place occurs twice."""
        if not accumulate:
            self[tuple(indices)] = values
            return self
        values = self._operand(values)
        if isinstance(values, TensorCore) and values.dtype != self.dtype:
            raise located(
                TypeError(f"index_put_: values are {values.dtype}, the tensor {self.dtype}; convert with .to(dtype)")
            )
        self._change("index_put_", values)
        first, where, _ = parse_index(tuple(indices))
        k = self.device.kernels.indexing
        target = self.data if first is None else k.index(self.data, first)
        k.add_at(target, where, values.data if isinstance(values, TensorCore) else values, distinct=False)
        return self

    def scatter_(self: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
        """``scatter`` in place."""
        axis = shapes.normalize_dim(dim, self.ndim)
        source = scatter_source("scatter_", self, axis, index, self._operand(src))
        self._change("scatter_", source)
        k = self.device.kernels.indexing
        k.scatter(self.data, axis, index.data, source.data if isinstance(source, TensorCore) else source)
        return self

    def scatter_add_(self: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
        """``scatter_add`` in place."""
        axis = shapes.normalize_dim(dim, self.ndim)
        source = scatter_source("scatter_add_", self, axis, index, self._operand(src))
        self._change("scatter_add_", source)
        k = self.device.kernels.indexing
        k.scatter_add(self.data, axis, index.data, source.data if isinstance(source, TensorCore) else source)
        return self

    def masked_scatter_(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        """``masked_scatter`` in place."""
        return self._write("masked_scatter_", lambda x, y: x.masked_scatter(mask, y), source)
