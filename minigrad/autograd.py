"""Reverse-mode automatic differentiation: the graph that operations leave behind. ``engine.py`` walks it.

``TensorCore`` is what autograd knows of a tensor. Its ``Version`` shows changes in place that would make gradients
wrong.

A graph node *is* the Function instance that computed a tensor. ``Function.apply`` runs ``forward`` on raw arrays. If a
gradient will be wanted, it keeps the instance. An edge leads from it to each input's node, or to the input itself if
that is a leaf. ``backward`` gets raw arrays too, so it records nothing, and there are no higher-order gradients.

What every op would otherwise repeat is done once, here: dtype promotion, device checks, errors that name the inputs.
``op_inputs.py`` has the words of these errors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .device import Device
from .dtypes import default_dtype, float32, float64, int64, is_floating, is_half, result_dtype
from .errors import bad_type, user_line
from .grad_store import next_id
from .modes import Mode, is_grad_enabled as is_grad_enabled, no_grad as no_grad, of_thread
from .op_inputs import describe, explained, mixed_devices

if TYPE_CHECKING:
    from .tensor import Tensor

_new: Callable[..., Any] = object.__new__
_lock = threading.Lock()


class Version:
    """Counts the in-place changes of one piece of memory; shared by a tensor and its views."""

    # Attributes of the class: each result of an operation has a Version, and few are ever changed.
    count: int = 0
    changed_at: int = 0
    """The number of the last change."""
    memory: int = 0
    """The ``id`` of the array that owns what was changed then."""


anywhere: Version = Version()
"""Of all memory: ``changed_at`` is the number of the last change, from the counter that numbers tensors and nodes."""


def bump(tensors: Iterable[TensorCore]) -> None:
    """The memory of these tensors is changed in place."""
    with _lock:
        anywhere.changed_at = number = next_id()
        for tensor in tensors:
            version, data = tensor._version, tensor.data
            version.count += 1
            version.changed_at = number
            base = data.base
            version.memory = id(data if base is None else base)  # of the owner, without a call of it


def owner(array: Any) -> Any:
    """The array whose memory this one is, or is a view of."""
    return array if array.base is None else array.base


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
    """Stands in ``node.saved`` for arrays that are computed when ``backward`` needs them, as ``checkpoint`` does."""

    def restore(self, node: Function) -> None:
        """Fill ``saved`` of ``node`` and of the others in which this object stands; with another Deferred, perhaps."""
        raise NotImplementedError


class FunctionType(type):
    """The type of ``Function``: minigrad's own operations have the slots that they name, and no ``__dict__``."""

    def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> FunctionType:
        if members.get("__module__", "").startswith("minigrad."):
            members.setdefault("__slots__", ())
        return super().__new__(cls, name, bases, members)


class Function(metaclass=FunctionType):
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
    and keyword parameters. It returns one new array. With ``is_view`` the array may share the first input's memory.
    What backward needs goes into ``self.saved``: it is freed as backward goes, and a later in-place change of it is
    noticed. ``backward`` gets the gradient of the output. It returns one gradient for each positional input, alone or
    as a tuple; None means zero. Gradients may have the broadcast shape. ``self.needs[i]`` tells whether input ``i``
    needs one. ``self.kernels`` is the device's kernel package.

    An op whose gradient is mostly zeros (indexing, embedding) sets ``adds_in_place`` and defines
    ``backward_into(dy, dx)`` instead. That adds to the gradient of its input in place. If several inputs are
    differentiable, it gets a gradient for each that needs one, in order.

    float16 and bfloat16 inputs arrive as float32 copies, and the result and the gradients are rounded back. An op that
    only moves or chooses values sets ``widens = False`` and gets them as they are. So does an op that names its
    ``half_kernels``, on devices whose kernels compute with them; if it ``folds`` them, to a float32 that is rounded.
    """

    __slots__ = (
        "__weakref__", "device", "edges", "half", "kernels", "line", "needs", "order", "out_dtype", "out_shape",
        "saved", "saved_at", "versions",
    )  # fmt: skip

    promotes: ClassVar[bool] = False  # cast the inputs to their common dtype, by PyTorch's rules, before forward
    compares: ClassVar[bool] = False  # and integers of several dtypes to int64, which holds them all
    floats: ClassVar[bool] = False  # and integer inputs to the default floating dtype
    not_of_bool: ClassVar[str | None] = None  # refuse bool (NumPy's int8 is no dtype of ours), under this name
    widens: ClassVar[bool] = True  # compute with float16 and bfloat16 as float32, and round results and gradients once
    half_kernels: ClassVar[str | None] = None  # but not where this kernel family takes them: its supports_half(array);
    # "elementwise" ones take half floats and float32 together
    folds: ClassVar[bool] = False  # and make float32 of them
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
        needs: list[bool] = []
        edges: list[Any] = []
        device: Device | None = None
        dtype: Any = None
        mixed = False
        for x in inputs:
            if isinstance(x, TensorCore):
                array = x.data
                arrays.append(array)
                if device is None:
                    device, dtype = x.device, array.dtype
                elif x.device is not device:
                    raise mixed_devices(cls, inputs)
                elif array.dtype is not dtype:
                    mixed = True
                if recording and x.requires_grad:
                    needs.append(True)
                    edges.append(x.node or x)
                    continue
            else:
                arrays.append(x)
            needs.append(False)
            edges.append(None)
        if device is None:
            raise bad_type(f"{cls.__name__}: expected at least one Tensor\n  inputs: {describe(inputs)}")

        if mode.graph is not None:
            mode.graph.check_function(cls)
        node = cls()
        node.device = device
        node.kernels = kernels = device.native if mode.kernels is None else device.kernels
        node.saved = ()
        node.needs = needs
        usual = not mixed and (dtype is float32 or dtype is float64)
        node.half = None if usual else (prepare if mixed else _prepared)(cls, inputs, arrays, dtype, kernels)
        try:
            out = node.forward(*arrays, **params) if params else node.forward(*arrays)
        except (ValueError, IndexError, OverflowError, TypeError, AttributeError) as error:
            told = explained(cls, error, inputs)
            if told is None:
                raise
            raise told from None  # which says all that this one does
        if not isinstance(out, kernels.Array):
            if isinstance(out, tuple | list) or out is None:
                raise bad_type(f"{cls.__name__}.forward returned a {type(out).__name__}; expected one array")
            out = kernels.as_array(out)  # NumPy turns 0-d results into scalars
        if node.half is not None and out.dtype == float32:
            out = kernels.as_array(kernels.elementwise.cast(out, node.half))
        shared = cls.is_view and (out is arrays[0] or (out.base is not None and shares(kernels, out, arrays[0])))
        return node._output(out, inputs[0] if shared else None, inputs, mode, edges if True in needs else None)

    def _output(self, out: Any, shared: TensorCore | None, inputs: tuple[Any, ...], mode: Mode, edges: Any) -> Tensor:
        """The tensor of the array that ``forward`` returned, with this instance as its node if a gradient is needed.

        ``shared``: the input whose memory it may share.
        """
        y: Tensor = _new(TensorCore.tensor_type)
        y.data = out
        y.device = self.device
        y._id = next_id()
        y._version = Version() if shared is None else shared._version
        if edges and (out.dtype is float32 or out.dtype.kind in "fV"):  # V: bfloat16
            y.requires_grad = True
            y.node = self
            self.edges = edges
            self.order = y._id
            self.out_shape = out.shape
            self.out_dtype = out.dtype
            if not isinstance(self.saved, tuple):
                raise bad_type(f"{type(self).__name__}.forward saved {type(self.saved).__name__}; expected a tuple")
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


def shares(kernels: Any, view: Any, x: Any) -> Any:
    return view.base is x or view.base is x.base or kernels.may_share_memory(view, x)


as_they_are: dict[Any, Any] = {}
"""By an operation, kernels, the dtype of all arrays and the types of the inputs what ``prepare`` returns, where it
leaves these as they are."""


def _prepared(cls: type[Any], inputs: tuple[Any, ...], arrays: list[Any], dtype: Any, kernels: Any) -> Any:
    """``prepare`` of arrays of one dtype."""
    key = cls, kernels, dtype, *map(type, arrays)
    if key in as_they_are:
        return as_they_are[key]
    before, half = [*arrays], prepare(cls, inputs, arrays, dtype, kernels)
    if kernels.in_host_memory and all(a is b for a, b in zip(arrays, before)):  # GPUs differ in what they have
        as_they_are[key] = half
    return half


def prepare(cls: type[Any], inputs: tuple[Any, ...], arrays: list[Any], dtype: Any, kernels: Any) -> Any:
    """Promote and widen the arrays, where the op asks for it; the half-width dtype to round the result to, or None."""
    if cls.promotes or cls.floats:
        dtype = _promote(cls, inputs, arrays)
    if cls.not_of_bool is not None and dtype.kind == "b":
        raise bad_type(f"{cls.not_of_bool} of bool tensors has no value; convert with .long() or .float()")
    if not cls.widens:
        for i, x in enumerate(arrays if cls.promotes and is_half(dtype) else ()):
            if isinstance(x, int | float):  # 0.1 equals what a float16 makes of it
                arrays[i] = kernels.elementwise.cast(kernels.full((), float(x), float64), dtype)
        return None
    halves = [i for i, x in enumerate(arrays) if isinstance(x, kernels.Array) and is_half(x.dtype)]
    family = cls.half_kernels if is_half(dtype) or (cls.promotes and cls.half_kernels == "elementwise") else None
    if halves and family and getattr(kernels, family).supports_half(arrays[halves[0]]):
        return dtype if cls.folds else None
    for i in halves:
        arrays[i] = kernels.elementwise.cast(arrays[i], float32)
    return dtype if is_half(dtype) else None


def _promote(cls: type[Any], inputs: tuple[Any, ...], arrays: list[Any]) -> Any:
    """Cast the arrays to the op's dtype. Python numbers stay: they never widen an array of their own kind."""
    dtype = result_dtype([x for x in arrays if x is not None])
    if cls.floats and not is_floating(dtype):
        dtype = default_dtype()
    largest = max(getattr(x, "dtype", dtype).itemsize for x in arrays) if cls.compares else 0
    if dtype.kind in "iu" and largest > dtype.itemsize:
        dtype = int64  # a 0-d int32 of -1 is below every uint8, though such a tensor does not widen others
    for i, x in enumerate(inputs):
        left = cls.widens and dtype == float32 and isinstance(x, TensorCore) and is_half(x.data.dtype)
        if isinstance(x, TensorCore) and x.data.dtype != dtype and not left:  # to ``prepare``: kernels may read them
            arrays[i] = x.device.kernels.elementwise.cast(x.data, dtype)
    return dtype


def shape_and_dtype(source: Function | TensorCore) -> tuple[tuple[int, ...], Any]:
    """Of the output of a node, or of a leaf: what its gradient has too."""
    if isinstance(source, Function):
        return source.out_shape, source.out_dtype
    return source.data.shape, source.data.dtype
