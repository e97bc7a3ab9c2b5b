"""How most methods of Tensor call their operation: ``combine``, and methods that do no more than that."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..autograd import Function, TensorCore, Version, shares
from ..dtypes import float32
from ..errors import user_line
from ..grad_store import next_id
from ..modes import of_thread
from ..op_inputs import explained
from .kernel_of import kernel_of

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor

_new: Callable[..., Any] = object.__new__

known: dict[Any, Any] = {}
"""By an operation, the backend and kinds of its inputs and the names of its options what ``kernel_of`` says."""


def combine(op: type[Function], x: TensorCore, y: Any = None, **options: Any) -> Tensor:
    """``op.apply(x, y)``, or ``op.apply(x, **options)``, at half the cost where tensors of one device need no casts;
    where nothing is recorded, and ``forward`` is one kernel of the CPU, by a call of that.

    Nothing is called here that need not be: for small tensors that is what an operation costs.
    """
    direct: Any = ()
    mode, two = of_thread.mode, y is not None and isinstance(y, TensorCore)
    if isinstance(x, TensorCore) and mode.autocast is mode.kernels is mode.graph is None:
        a, b, device, kernels = x.data, y.data if two else y, x.device, x.device.native
        if not two or (y.device is device and b.dtype is a.dtype):
            key = (op, kernels, a.dtype, *options) if options else (op, kernels, a.dtype, type(b))
            direct = known.get(key)
    if not direct:
        z = op.apply(x, **options) if y is None else op.apply(x, y)
        if direct is None and type(kernels) is ModuleType:  # a profile's are other ones
            known[key] = kernel_of(op, (x,) if y is None else (x, y), options)
        return z
    function, rest, of_few, few, half = direct
    recording = mode.enabled and op.differentiable
    need_x, need_y = recording and x.requires_grad, recording and two and y.requires_grad
    try:
        if need_x or need_y or function is None:
            node: Any = op()
            node.device, node.kernels, node.saved, node.half = device, kernels, (), half
            node.needs = (need_x,) if y is None else (need_x, need_y)
            out = op.forward(node, a, **options) if y is None else op.forward(node, a, b)
            half = node.half
        elif options:
            out = function(a, *options.values(), *rest)
        elif y is None:
            out = of_few(a) if a.size < few else function(a)
        else:
            out = of_few(a, b) if a.size < few and (not two or a.shape == b.shape) else function(a, b)
    except (ValueError, IndexError, OverflowError, TypeError, AttributeError) as error:
        raise explained(op, error, (x,) if y is None else (x, y)) or error from None
    if half is not None and out.dtype == float32:
        out = kernels.elementwise.cast(out, half)
    z = _new(TensorCore.tensor_type)
    z.data = out if isinstance(out, kernels.Array) else kernels.as_array(out)  # NumPy has scalars for 0-d
    z.device = device
    z._id = number = next_id()
    z._version = version = Version()
    if op.is_view and (out is a or (out.base is not None and shares(kernels, out, a))):
        z._version = version = x._version
    z.node = None
    z.requires_grad = False
    if (need_x or need_y) and (out.dtype is float32 or out.dtype.kind in "fV"):
        edge = (x.node or x) if need_x else None
        node.edges = (edge,) if y is None else (edge, (y.node or y) if need_y else None)
        node.order = number
        node.out_shape, node.out_dtype = out.shape, out.dtype
        if node.saved:
            node.saved_at = number
            node.versions = (x._version, y._version, version) if two else (x._version, version)
        if mode.anomaly:
            node.line = user_line()
        z.node = node
        z.requires_grad = True
    return z


def combine_three(op: type[Function], x: Any, y: Any, z: Any) -> Tensor:
    """``op.apply(x, y, z)``; where nothing is recorded, and ``forward`` is one kernel of the CPU, by a call of that."""
    direct: Any = ()
    mode, two, three = of_thread.mode, isinstance(y, TensorCore), isinstance(z, TensorCore)
    if isinstance(x, TensorCore) and mode.autocast is mode.kernels is mode.graph is None:
        a, b, c, device, kernels = x.data, y.data if two else y, z.data if three else z, x.device, x.device.native
        grad = mode.enabled and (x.requires_grad or (two and y.requires_grad) or (three and z.requires_grad))
        if not grad and (not two or y.device is device) and (not three or z.device is device):
            key = op, kernels, a.dtype, b.dtype if two else type(b), c.dtype if three else type(c)
            direct = known.get(key)
    if not direct or direct[0] is None:
        w = op.apply(x, y, z)
        if direct is None and type(kernels) is ModuleType:
            known[key] = kernel_of(op, (x, y, z), {})
        return w
    function, _, of_few, few, half = direct
    try:
        same = a.size < few and (not two or a.shape == b.shape) and (not three or a.shape == c.shape)
        out = of_few(a, b, c) if same else function(a, b, c)
    except (ValueError, IndexError, OverflowError, TypeError, AttributeError) as error:
        raise explained(op, error, (x, y, z)) or error from None
    out = kernels.elementwise.cast(out, half) if half is not None and out.dtype == float32 else out
    return TensorCore.tensor_type.wrap(kernels.as_array(out), device)


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
