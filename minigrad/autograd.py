"""Reverse-mode automatic differentiation: the graph that operations leave behind. ``engine.py`` walks it.

A graph node *is* the Function instance that computed a tensor. ``Function.apply`` runs ``forward`` on raw arrays, and
if a gradient will be wanted, keeps the instance with edges to where its inputs came from: the nodes that computed them,
or leaf tensors. Raw arrays also mean that backward records nothing: there are no higher-order gradients.

What every op would otherwise repeat is done here, once: dtype promotion, device checks, errors that name the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .device import CPU, Device
from .dtypes import default_dtype, float32, float64, is_floating, is_half, result_dtype
from .errors import located, user_line
from .grad_mode import Mode, of_thread
from .grad_mode import enable_grad as enable_grad
from .grad_mode import is_grad_enabled as is_grad_enabled
from .grad_mode import no_grad as no_grad
from .grad_mode import set_grad_enabled as set_grad_enabled
from .grad_store import next_id
from .versions import Version, bump

if TYPE_CHECKING:
    from .tensor import Tensor

_new: Callable[..., Any] = object.__new__


class TensorCore:
    """What autograd knows of a tensor. ``minigrad.Tensor`` adds the operations."""

    __slots__ = ("__weakref__", "_id", "_version", "data", "device", "node", "requires_grad")

    tensor_type: ClassVar[type[Tensor]]  # the class of what ops return: Tensor, which minigrad.tensor puts here

    data: Any
    device: Device
    requires_grad: bool
    node: Function | None
    _id: int
    _version: Version

    def _init(self, data: Any, device: Device, version: Version | None = None) -> None:
        self.data = data
        self.device = device
        self.requires_grad = False
        self.node = None
        self._id = next_id()
        self._version = version or Version()

    def bump_version(self) -> None:
        """Tell autograd that this tensor's memory was changed in place."""
        bump((self,))


class Deferred:
    """Stands in ``node.saved`` for arrays that are computed when ``backward`` needs them (``recompute.py``)."""

    def restore(self, node: Function) -> None:
        """Fill ``saved`` of ``node`` and of the others in which this object stands; with another Deferred, perhaps."""
        raise NotImplementedError


class Function:
    """An operation with a derivative. Subclass it, write ``forward`` and ``backward``, call ``MyOp.apply(x, ...)``.

    ::

        class Cube(Function):
            '''y = x^3;  dx = 3 x^2 dy.'''

            def forward(self, x):
                self.saved = (x,)
                return x * x * x

            def backward(self, dy):
                (x,) = self.saved
                return 3 * x * x * dy

    ``forward`` gets the raw arrays of its tensor inputs (NumPy arrays on the CPU), other positional inputs as they are,
    and keyword parameters; it returns one new array (or, with ``is_view``, one that may share the first input's
    memory). What backward needs of them goes into ``self.saved``: it is freed as backward goes, and a later in-place
    change of it is noticed. ``backward`` gets the gradient of the output and returns one gradient (or None, meaning
    zero) for each positional input, alone or as a tuple; gradients may have the broadcast shape. ``self.needs[i]``
    tells whether input ``i`` needs one. ``self.kernels`` is the device's kernel package.

    An op whose gradient is mostly zeros (indexing, embedding) sets ``adds_in_place`` and defines
    ``backward_into(dy, dx)`` instead, which adds to the gradient of its input in place; one with several differentiable
    inputs gets a gradient for each of those that need one, in order.

    float16 and bfloat16 inputs arrive as float32 copies, and the result and the gradients are rounded back. An op that
    only moves or chooses values sets ``widens = False`` and gets them as they are; so does one that names its
    ``half_kernels``, on devices whose kernels compute with them.
    """

    __slots__ = (
        "__weakref__",
        "device",
        "edges",
        "half",
        "kernels",
        "line",
        "needs",
        "order",
        "out_dtype",
        "out_shape",
        "saved",
        "saved_at",
        "versions",
    )

    promotes: ClassVar[bool] = False  # cast the inputs to their common dtype, by PyTorch's rules, before forward
    floats: ClassVar[bool] = False  # and integer inputs to the default floating dtype
    widens: ClassVar[bool] = True  # compute with float16 and bfloat16 as float32, and round results and gradients once
    half_kernels: ClassVar[str | None] = None  # but not where this kernel family takes them: its takes_halves(array)
    differentiable: ClassVar[bool] = True  # False: the output never requires grad
    is_view: ClassVar[bool] = False  # the output may share the first input's memory
    adds_in_place: ClassVar[bool] = False  # the op defines backward_into instead of backward
    autocast: ClassVar[str | None] = None  # within autocast: "half" or "float32", what its inputs are cast to

    device: Device
    kernels: Any
    needs: Sequence[bool]
    edges: Sequence[Function | TensorCore | None]  # of each input its node, or the leaf itself; None: needs no gradient
    half: Any  # the dtype that results are rounded to, or None
    order: int  # the output's id: inputs have smaller ones
    out_shape: tuple[int, ...]
    out_dtype: Any
    versions: Sequence[Version]  # where anything is saved: of the tensors that ``saved`` may hold the memory of
    saved_at: int  # a change of theirs that has a later number came after ``forward``
    line: str | None  # the user's line that called the op; set within detect_anomaly only

    if TYPE_CHECKING:  # a slot, which type checkers take for a new attribute of each op that sets it, unless it is one

        @property
        def saved(self) -> tuple[Any, ...]:
            """What ``forward`` keeps for ``backward``."""

        @saved.setter
        def saved(self, arrays: tuple[Any, ...]) -> None: ...

    @classmethod
    def apply(cls, *inputs: Any, **params: Any) -> Tensor:
        """Run the op on tensors (and other values) and return a Tensor that remembers how it was made."""
        # This runs for every operation, so it is one loop, and what is rare is asked last.
        mode = of_thread.mode
        if mode.autocast is not None and cls.autocast is not None:
            inputs = mode.autocast.cast(cls.autocast, inputs)
        recording = mode.enabled and cls.differentiable
        arrays: list[Any] = []
        edges: list[Function | TensorCore | None] = []
        needs: list[bool] = []
        device: Device | None = None
        dtype: Any = None
        mixed = needed = False
        for x in inputs:
            if isinstance(x, TensorCore):
                array = x.data
                arrays.append(array)
                if device is None:
                    device, dtype = x.device, array.dtype
                elif x.device is not device:
                    raise _mixed_devices(cls, inputs)
                elif array.dtype is not dtype:
                    mixed = True
                if recording and x.requires_grad:
                    edges.append(x if x.node is None else x.node)
                    needs.append(True)
                    needed = True
                    continue
            else:
                arrays.append(x)
            edges.append(None)
            needs.append(False)
        if device is None:
            raise located(TypeError(f"{cls.__name__}: expected at least one Tensor\n  inputs: {_describe(inputs)}"))

        node = cls()
        node.device = device
        node.kernels = kernels = device.kernels
        node.saved = ()
        node.edges = edges
        node.needs = needs
        node.half = None
        if mixed or (dtype is not float32 and dtype is not float64):
            node.half = _prepare(cls, inputs, arrays, dtype, kernels)
        try:
            out = node.forward(*arrays, **params) if params else node.forward(*arrays)
        except (ValueError, IndexError, OverflowError) as error:
            explained = _explained(cls, error, inputs)
            if explained is None:
                raise
            raise explained from error
        if not isinstance(out, kernels.Array):
            if isinstance(out, tuple | list) or out is None:
                raise located(TypeError(f"{cls.__name__}.forward returned a {type(out).__name__}; expected one array"))
            out = kernels.as_array(out)  # NumPy turns 0-d results into scalars
        if node.half is not None and out.dtype == float32:
            out = kernels.elementwise.cast(out, node.half)
        shared = inputs[0] if cls.is_view and kernels.may_share_memory(out, arrays[0]) else None
        return node._output(out, shared, inputs, mode, needed)

    def _output(self, out: Any, shared: TensorCore | None, inputs: tuple[Any, ...], mode: Mode, needed: bool) -> Tensor:
        """The tensor of the array that ``forward`` returned, with this instance as its node if a gradient is needed.

        ``shared``: the input whose memory it may share.
        """
        y: Tensor = _new(TensorCore.tensor_type)
        y.data = out
        y.device = self.device
        y._id = next_id()
        y._version = Version() if shared is None else shared._version
        if needed and (out.dtype is float32 or out.dtype.kind in "fV"):
            y.requires_grad = True
            y.node = self
            self.order = y._id
            self.out_shape = out.shape
            self.out_dtype = out.dtype
            if self.saved:
                self.saved_at = y._id
                self.versions = versions = [y._version]
                for x in inputs:  # not a comprehension, whose call costs more than a small operation's inputs
                    if isinstance(x, TensorCore):
                        versions.append(x._version)
            if mode.anomaly:
                self.line = user_line()
        else:
            y.requires_grad = False
            y.node = None
        return y

    def forward(self, *inputs: Any, **params: Any) -> Any:
        """Compute the output array from the input arrays."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(self, dy: Any) -> Any:
        """Compute the inputs' gradients from the output's."""
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    def backward_into(self, dy: Any, dx: Any) -> None:
        """Add the input's gradient to ``dx`` in place."""
        raise NotImplementedError(f"{type(self).__name__} has no backward_into")


class _Unrecorded(Function):
    """Stands for the instance in a ``forward`` on the CPU that is not recorded: it keeps nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        self.device, self.needs = CPU, (False, False)

    if not TYPE_CHECKING:
        saved = property(None, lambda self, arrays: None)


_unrecorded = _Unrecorded()


def combine(op: type[Function], x: TensorCore, y: TensorCore) -> Tensor:
    """``op.apply(x, y)`` of arithmetic, at half the cost where both are float32 or float64 on one device.

    Nothing is called here that need not be: for small tensors that is what an operation costs.
    """
    a, b = x.data, y.data
    dtype, device, mode = a.dtype, x.device, of_thread.mode
    if (
        (dtype is not float32 and dtype is not float64)
        or b.dtype is not dtype
        or y.device is not device
        or mode.autocast is not None
    ):
        return op.apply(x, y)
    need_x, need_y = x.requires_grad, y.requires_grad
    needed = (need_x or need_y) and mode.enabled and op.differentiable
    if not needed and device is not CPU:
        return op.apply(x, y)
    node = op() if needed else _unrecorded
    node.kernels = kernels = device.kernels
    if needed:
        node.needs = (need_x, need_y)
        node.saved = ()
    try:
        out = op.forward(node, a, b)
    except ValueError:
        return op.apply(x, y)  # which explains it
    if not isinstance(out, kernels.Array):
        out = kernels.as_array(out)
    z: Tensor = _new(TensorCore.tensor_type)
    z.data = out
    z.device = device
    z._id = number = next_id()
    z._version = version = Version()
    if needed:
        source_x, source_y = x.node or x, y.node or y
        node.edges = (source_x if need_x else None, source_y if need_y else None)
        node.device = device
        node.half = None
        node.order = number
        node.out_shape = out.shape
        node.out_dtype = out.dtype
        if node.saved:
            node.saved_at = number
            node.versions = (x._version, y._version, version)
        if mode.anomaly:
            node.line = user_line()
        z.node = node
        z.requires_grad = True
    else:
        z.node = None
        z.requires_grad = False
    return z


class ToDevice(Function):
    """y = x on another device;  dx = dy on the device of x. The one operation of two devices."""

    __slots__ = ("source",)
    source: Device

    @classmethod
    def apply(cls, *inputs: Any, **params: Any) -> Tensor:
        """``x, target=device, wait=bool``: without ``wait`` the copy is part of the stream (see ``Tensor.to``)."""
        (x,), target = inputs, params["target"]
        node = cls()
        node.source, node.device, node.kernels = x.device, target, x.device.kernels
        node.saved, node.half = (), None
        node.needs, node.edges = (x.requires_grad,), (x if x.node is None else x.node,)
        mode = of_thread.mode
        out = _transferred(x.data, x.device, target, params["wait"])
        return node._output(out, None, (), mode, x.requires_grad and mode.enabled)

    def backward(self, dy: Any) -> Any:
        return _transferred(dy, self.device, self.source, True)


def _transferred(array: Any, source: Device, target: Device, wait: bool) -> Any:
    """A copy of the array on the device ``target``."""
    if source.type == "cpu":
        return target.kernels.from_host(array, wait=wait)
    if target.type == "cpu":
        return source.kernels.to_host(array, wait=wait)
    return target.kernels.from_device(array, target.index)


def _explained(cls: type[Function], error: Exception, inputs: tuple[Any, ...]) -> Exception | None:
    """The error of ``forward`` with the op and its inputs; None for errors of other kinds, which explain themselves."""
    kind = type(error)
    if kind not in (ValueError, IndexError, OverflowError) or not isinstance(next(iter(error.args), None), str):
        return None
    reason = _broadcast_problem(inputs) if "broadcast together" in str(error) else str(error)
    return located(kind(f"{cls.__name__}: {reason}\n  inputs: {_describe(inputs)}"))


def _mixed_devices(cls: type[Function], inputs: tuple[Any, ...]) -> RuntimeError:
    return located(
        RuntimeError(
            f"{cls.__name__}: inputs are on different devices; move them to one with .to(device)\n"
            f"  inputs: {_describe(inputs)}"
        )
    )


def _broadcast_problem(inputs: tuple[Any, ...]) -> str:
    shapes = [tuple(x.data.shape)[::-1] for x in inputs if isinstance(x, TensorCore)]
    for i in range(max(map(len, shapes))):
        sizes = dict.fromkeys(shape[i] for shape in shapes if i < len(shape) and shape[i] != 1)
        if len(sizes) > 1:
            found = " and ".join(map(str, sizes))
            return f"the shapes do not broadcast: dim {-1 - i} has sizes {found}; they must be equal, or 1"
    return "the shapes do not broadcast"


def _prepare(cls: type[Function], inputs: tuple[Any, ...], arrays: list[Any], dtype: Any, kernels: Any) -> Any:
    """Promote and widen the arrays, where the op asks for it; the half-width dtype to round the result to, or None."""
    if cls.promotes or cls.floats:
        dtype = _promote(cls, inputs, arrays)
    if not cls.widens:
        if cls.promotes and is_half(dtype):  # numbers too: 0.1 equals what a float16 makes of it
            cast = kernels.elementwise.cast
            arrays[:] = [
                cast(kernels.full((), float(x), float64), dtype) if isinstance(x, int | float) else x for x in arrays
            ]
        return None
    if cls.half_kernels is not None and is_half(dtype) and getattr(kernels, cls.half_kernels).takes_halves(arrays[0]):
        return None
    for i, x in enumerate(arrays):
        if isinstance(x, kernels.Array) and is_half(x.dtype):
            arrays[i] = kernels.elementwise.cast(x, float32)
    return dtype if is_half(dtype) else None


def _promote(cls: type[Function], inputs: tuple[Any, ...], arrays: list[Any]) -> Any:
    """Cast the arrays to the op's dtype. Python numbers stay: they never widen an array of their own kind."""
    dtype = result_dtype(arrays) if len(arrays) > 1 else arrays[0].dtype
    if cls.floats and not is_floating(dtype):
        dtype = default_dtype()
    for i, x in enumerate(inputs):
        if isinstance(x, TensorCore) and x.data.dtype != dtype:
            arrays[i] = x.device.kernels.elementwise.cast(x.data, dtype)
    return dtype


def _describe(inputs: tuple[Any, ...]) -> str:
    return ", ".join(
        f"{tuple(x.data.shape)} {x.data.dtype} on {x.device}" if isinstance(x, TensorCore) else repr(x) for x in inputs
    )


def shape_and_dtype(source: Function | TensorCore) -> tuple[tuple[int, ...], Any]:
    """Of the output of a node, or of a leaf: what its gradient has too."""
    if isinstance(source, Function):
        return source.out_shape, source.out_dtype
    return source.data.shape, source.data.dtype
