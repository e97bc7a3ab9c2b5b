"""How most methods of Tensor call their operation: ``combine``, and methods that do no more than that."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..autograd import Function, TensorCore, Version, shares
from ..dtypes import float32
from ..grad_store import next_id
from ..modes import of_thread
from ..op_inputs import explained
from .kernel_of import kernel_of

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor

_new: Callable[..., Any] = object.__new__

known: dict[Any, Any] = {}
"""By an operation, the backend and kinds of its inputs and the names of its options what ``kernel_of`` says."""


def combine(op: type[Function], x: TensorCore, y: Any = None, z: Any = None, **options: Any) -> Tensor:
    """``op.apply`` of one, two or three inputs and options, at half the cost where nothing is recorded, and tensors of
    one device need no casts: by a call of the kernel of the CPU that ``forward`` is, or of ``forward``.

    Nothing is called here that need not be: for small tensors that is what an operation costs.
    """
    direct: Any = ()
    mode, two, three = of_thread.mode, isinstance(y, TensorCore), isinstance(z, TensorCore)
    if isinstance(x, TensorCore) and mode.autocast is mode.kernels is None:
        grad = x.requires_grad or (two and y.requires_grad) or (three and z.requires_grad)
        if not (grad and mode.enabled):
            a, b, c, device, kernels = x.data, y.data if two else y, z.data if three else z, x.device, x.device.native
            fits = not two or (y.device is device and (b.dtype is a.dtype or not op.promotes))
            fits = fits and (not three or (z.device is device and (c.dtype is a.dtype or not op.promotes)))
            key: Any = (op, kernels, a.dtype, b.dtype if two else type(b))
            key = key if z is None and not options else (*key, c.dtype if three else type(c), *options)
            direct = known.get(key) if fits else ()
    if not direct:
        inputs = (x,) if y is None else (x, y) if z is None else (x, y, z)
        made = op.apply(*inputs, **options)
        if direct is None and type(kernels) is ModuleType:  # a profile's are other ones
            known[key] = kernel_of(op, inputs, options)
        return made
    function, rest, of_few, few, half = direct
    try:
        if function is None:
            node: Any = op()
            given = (a,) if y is None else (a, b) if z is None else (a, b, c)
            node.device, node.kernels, node.saved, node.half = device, kernels, (), half
            node.needs = (False,) * len(given)
            out, half = op.forward(node, *given, **options), node.half
        elif options:
            out = function(a, *options.values(), *rest)
        elif y is None:
            out = of_few(a) if a.size < few else function(a)
        elif a.size < few and (not two or a.shape == b.shape) and (not three or a.shape == c.shape):
            out = of_few(a, b) if z is None else of_few(a, b, c)
        else:
            out = function(a, b) if z is None else function(a, b, c)
    except (ValueError, IndexError, OverflowError, TypeError, AttributeError) as error:
        raise explained(op, error, (x,) if y is None else (x, y) if z is None else (x, y, z)) or error from None
    if half is not None and out.dtype == float32:
        out = kernels.elementwise.cast(out, half)
    made = _new(TensorCore.tensor_type)
    made.data = out if isinstance(out, kernels.Array) else kernels.as_array(out)  # NumPy has scalars for 0-d
    made.device = device
    made._id = next_id()
    shared = op.is_view and (out is a or (out.base is not None and shares(kernels, out, a)))
    made._version = x._version if shared else Version()
    made.node = None
    made.requires_grad = False
    return made


def of_each(op: type[Function], doc: str, name: str = "") -> Callable[[Tensor], Tensor]:
    """The method that applies an operation of one tensor; it has a name, or the operation's, in small letters."""

    def method(self: Tensor) -> Tensor:
        return combine(op, self)

    return _named(method, op, name or op.__name__.lower(), doc)


def of_two(op: type[Function], name: str, doc: str | None = None) -> Callable[[Tensor, Operand], Tensor]:
    """The method that applies an operation to a tensor and an operand; such as ``__radd__`` in the other order."""

    def method(self: Tensor, other: Operand) -> Tensor:
        return combine(op, self, other if isinstance(other, TensorCore) else self._operand(other))

    def reflected(self: Tensor, other: Operand) -> Tensor:
        return op.apply(self._operand(other), self)

    return _named(reflected if name.startswith("__r") else method, op, name, doc)


def _named(method: Any, op: type[Function], name: str, doc: str | None) -> Any:
    method.__name__, method.__doc__, method.op = name, doc, op
    method.__code__ = method.__code__.replace(co_name=name)  # what tracebacks and captures call it
    return method
