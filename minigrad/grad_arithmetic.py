"""What a program does with all gradients of a GradStore at once, and a warning about those that it never reads."""

import math
import numbers
import sys
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .errors import expect

if TYPE_CHECKING:
    from .device import Device
    from .grad_store import GradStore
    from .nn.module import Module
    from .tensor import Tensor


class GradArithmetic:
    """Methods of GradStore."""

    __slots__ = ()
    __array_ufunc__ = None  # number of NumPy's * store asks the store
    _line: tuple[str, int]  # of a store that nothing has read: where ``backward`` was called

    def __reduce_ex__(self: "GradStore", protocol: Any) -> Any:
        self.numbers()  # to copy a store is to read it: the copy is a plain one
        return object.__reduce_ex__(self, protocol)

    def __add__(self: "GradStore", other: "GradStore") -> "GradStore":
        """A new store with the sums: the gradients of both losses together. Neither store is changed."""
        if not isinstance(other, GradArithmetic):
            return NotImplemented
        mine, theirs = dict(self.numbered()), other.numbered()
        sums = {number: mine[number] + grad if number in mine else grad.clone() for number, grad in theirs}
        return type(self)({number: grad.clone() for number, grad in mine.items() if number not in sums} | sums)

    def __sub__(self: "GradStore", other: "GradStore") -> "GradStore":
        """A new store, of the differences."""
        return self + -other if isinstance(other, GradArithmetic) else NotImplemented

    def __neg__(self: "GradStore") -> "GradStore":
        return self * -1

    def __radd__(self: "GradStore", zero: Any) -> Any:  # as sum() begins
        return self * 1 if isinstance(zero, int) and zero == 0 else NotImplemented

    def __mul__(self: "GradStore", factor: Any) -> "GradStore":
        """A new store, of all gradients times a number."""
        grads = {number: grad.clone() for number, grad in self.numbered()}
        return type(self)(grads).scale_(factor)

    def __truediv__(self: "GradStore", divisor: Any) -> "GradStore":
        """A new store, of all gradients times 1 / ``divisor``."""
        return self * _number(divisor, -1)

    def __itruediv__(self: "GradStore", divisor: Any) -> "GradStore":
        return self.scale_(_number(divisor, -1))

    def scale_(self: "GradStore", factor: Any) -> "GradStore":
        """Multiply all gradients in place, by 1 / n for the mean of n added micro-batches; returns the store."""
        scale_grads(self.values(), _number(factor))
        return self

    __rmul__, __imul__ = __mul__, scale_

    def norm(self: "GradStore") -> float:
        """The norm of all gradients, taken as one vector; 0.0 where there are none."""
        return norm_of(list(self.select(sorted(self.numbers())).values()))

    def named(self: "GradStore", model: "Module") -> dict[str, "Tensor"]:
        """The gradients of a model's parameters by their names, without those that have none."""
        pairs = ((name, self.get(p)) for name, p in model.named_parameters())
        return {name: grad for name, grad in pairs if grad is not None}


def _number(x: Any, power: int = 1) -> float:
    """A factor, or for the power -1 one over a divisor, of a number or a tensor of one element."""
    number = x.item() if hasattr(x, "item") else x
    good = isinstance(number, numbers.Real) and math.isfinite(number) and (number != 0 or power > 0)
    expect(good, "grads * x, grads / x or grads.scale_(x): x", x, "a finite number, which divides if it is not 0")
    return float(number) ** power


_told: set[tuple[str, int]] = set()


def warn_of_unread(file: str, line: int) -> None:
    """A warning, once for each line of a program, that what its ``backward`` returned there was dropped unread. A loop
    as in PyTorch, that calls ``backward`` several times before a step, trains on its last micro-batch alone."""
    if (file, line) not in _told and not sys.is_finalizing():
        _told.add((file, line))
        text = (
            "the gradients that backward returned here were dropped, and nothing has read them. A step takes them: "
            "grads = loss.backward(); optimizer.step(grads). They do not add up on the parameters: accumulate with "
            "grads = grads + loss.backward(), or minigrad.optim.GradAccumulator"
        )
        warnings.warn_explicit(text, UserWarning, file, line)


def by_device(grads: "Iterable[Tensor]") -> "dict[Device, list[Any]]":
    """The raw arrays on each device, an array that several gradients share only once."""
    arrays: dict[Device, dict[int, Any]] = {}
    for grad in grads:
        arrays.setdefault(grad.device, {})[id(grad.data)] = grad.data
    return {device: list(unique.values()) for device, unique in arrays.items()}


def norm_of(grads: "list[Tensor]") -> float:
    """The norm of these gradients, taken as one vector."""
    arrays = {device: [grad.data for grad in grads if grad.device is device] for device in {g.device for g in grads}}
    return math.sqrt(math.fsum(device.kernels.grad_norm.sum_of_squares(a) for device, a in arrays.items()))


def scale_grads(grads: "Iterable[Tensor]", factor: float) -> None:
    """Multiply the gradients in place, in one launch for each device and dtype."""
    from .autograd import bump  # which numbers its changes as GradStore does tensors, and is imported after it

    grads = list(grads)
    for device, arrays in by_device(grads).items():
        device.kernels.grad_norm.scale_(arrays, factor)
    bump(grads)
