"""Reverse-mode automatic differentiation: Function, backward, no_grad.

A graph node *is* the Function instance that computed a tensor. ``Function.apply`` runs ``forward`` on raw arrays, and
if a gradient will be wanted, keeps the instance with edges to where its inputs came from. ``backward`` walks the nodes
from the newest to the oldest: ids grow with time and a node's inputs are older than itself, so that is a topological
order and no recursion is needed. Raw arrays also mean that backward records nothing: there are no higher-order
gradients.

What every op would otherwise repeat is done here, once: dtype promotion, device checks, summing gradients back over
broadcast dimensions, adding the gradients of a tensor that is used several times, freeing saved arrays on the way.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from .device import Device
from .dtypes import default_dtype, float32, float64, is_floating, is_half, result_dtype
from .errors import located, user_line
from .grad_store import GradStore, TensorId, next_id

if TYPE_CHECKING:
    from .tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


class BackwardHook(Protocol):
    """Told, during ``backward``, about each leaf as soon as nothing can add to its gradient any more."""

    def on_leaf_grad_ready(self, id: TensorId, grad: Any) -> None:
        """``grad`` is the leaf's final gradient, the same Tensor that the GradStore will hold."""


class _GradMode(threading.local):
    enabled = True
    anomaly = False  # within detect_anomaly
    autocast: Any = None  # the Autocasting of mixed_precision.py, where one is enabled


_grad_mode = _GradMode()


def is_grad_enabled() -> bool:
    """Whether ops of the calling thread are recorded for ``backward``."""
    return _grad_mode.enabled


def refuse_generators(name: str, fn: Callable[..., Any]) -> None:
    """TypeError for a function whose body does not run within its call, so that ``@name`` would do nothing."""
    if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise located(
            TypeError(
                f"{name}: {fn.__qualname__} is a generator or coroutine function, whose body runs "
                "after the call has returned; use a with block inside it that contains no yield or await"
            )
        )


class _SetGrad:
    """A context manager and decorator that sets the calling thread's grad mode; instances may be nested and reused."""

    enabled: bool

    def __init__(self) -> None:
        self._previous: list[bool] = []

    def __enter__(self) -> None:
        self._previous.append(_grad_mode.enabled)
        _grad_mode.enabled = self.enabled

    def __exit__(self, *exception: object) -> None:
        _grad_mode.enabled = self._previous.pop()

    def __call__(self, fn: F) -> F:
        refuse_generators(type(self).__name__, fn)

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with type(self)():
                return fn(*args, **kwargs)

        return wrapped  # type: ignore[return-value]  # functools.wraps keeps the signature


class no_grad(_SetGrad):
    """Within ``with no_grad():``, or in a function decorated ``@no_grad()``, no graph is recorded (this thread
    only).
    """

    enabled = False


class enable_grad(_SetGrad):
    """Records again inside an outer ``no_grad``."""

    enabled = True


class set_grad_enabled(_SetGrad):
    """Records, or does not, as ``mode`` says: from the call on, or with ``with`` or as a decorator until the end."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._before = _grad_mode.enabled
        self.enabled: bool = bool(mode)
        _grad_mode.enabled = self.enabled

    def __enter__(self) -> None:
        self._previous.append(self._before)
        _grad_mode.enabled = self.enabled

    def __call__(self, fn: F) -> F:
        _grad_mode.enabled = self._before
        return (enable_grad() if self.enabled else no_grad())(fn)


class Version:
    """Counts the in-place changes of one piece of memory; shared by a tensor and its views."""

    count: int = 0  # of the class: each result of an operation has a Version, and few are ever changed


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
        self._version.count += 1


class _Released:
    """Stands in ``node.saved`` once ``backward`` has used and freed the saved arrays."""


_RELEASED: Any = _Released()
_new: Callable[..., Any] = object.__new__


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
    ``backward_into(dy, dx)`` instead, which adds to the gradient of its one differentiable input in place.

    float16 and bfloat16 inputs arrive as float32 copies, and the result and the gradients are rounded back. An op that
    only moves or chooses values sets ``widens = False`` and gets them as they are; so does one that names its
    ``half_kernels``, on devices whose kernels compute with them.
    """

    __slots__ = ("__weakref__", "_versions", "device", "edges", "half", "kernels", "line", "needs", "order", "saved")

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
    needs: tuple[bool, ...]
    edges: tuple[tuple[Any, tuple[int, ...], Any] | None, ...]
    half: Any  # the dtype that results are rounded to, or None
    order: int
    line: str | None  # the user's line that called the op; set within detect_anomaly only
    _versions: tuple[tuple[Version, int], ...]

    if TYPE_CHECKING:  # a slot, which type checkers take for a new attribute of each op that sets it, unless it is one

        @property
        def saved(self) -> tuple[Any, ...]:
            """What ``forward`` keeps for ``backward``."""

        @saved.setter
        def saved(self, arrays: tuple[Any, ...]) -> None: ...

    def forward(self, *inputs: Any, **params: Any) -> Any:
        """Compute the output array from the input arrays."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(self, dy: Any) -> Any:
        """Compute the inputs' gradients from the output's."""
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    def backward_into(self, dy: Any, dx: Any) -> None:
        """Add the input's gradient to ``dx`` in place."""
        raise NotImplementedError(f"{type(self).__name__} has no backward_into")

    @classmethod
    def apply(cls, *inputs: Any, **params: Any) -> Tensor:
        """Run the op on tensors (and other values) and return a Tensor that remembers how it was made."""
        # This runs for every operation, so it is one loop, and what is rare is asked last.
        if cls.autocast is not None and _grad_mode.autocast is not None:
            inputs = _grad_mode.autocast.cast(cls.autocast, inputs)
        arrays: list[Any] = []
        edges: list[Any] = []
        needs: list[bool] = []
        device: Device | None = None
        dtype: Any = None
        mixed = False
        recording = _grad_mode.enabled and cls.differentiable
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
                    edges.append((x if x.node is None else x.node, array.shape, array.dtype))
                    needs.append(True)
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
        node.edges = tuple(edges)
        node.needs = tuple(needs)
        node.half = _prepare(cls, inputs, arrays, dtype, kernels) if mixed or dtype.char not in "fd" else None
        try:
            out = node.forward(*arrays, **params)
        except (ValueError, IndexError, OverflowError) as error:
            kind = type(error)
            if kind not in (ValueError, IndexError, OverflowError) or not isinstance(
                error.args[0] if error.args else None, str
            ):
                raise
            reason = _broadcast_problem(inputs) if "broadcast together" in str(error) else str(error)
            raise located(kind(f"{cls.__name__}: {reason}\n  inputs: {_describe(inputs)}")) from error
        if not isinstance(out, kernels.Array):
            if isinstance(out, tuple | list) or out is None:
                raise located(TypeError(f"{cls.__name__}.forward returned a {type(out).__name__}; expected one array"))
            out = kernels.as_array(out)  # NumPy turns 0-d results into scalars
        if node.half is not None and out.dtype == float32:
            out = kernels.elementwise.cast(out, node.half)

        y: Tensor = _new(TensorCore.tensor_type)
        y.data = out
        y.device = device
        y._id = next_id()
        y._version = inputs[0]._version if cls.is_view and kernels.may_share_memory(out, arrays[0]) else Version()
        if True in needs and out.dtype.kind in "fV":
            node._record(y, inputs, arrays)
        else:
            y.requires_grad = False
            y.node = None
        return y

    def _record(self, y: TensorCore, inputs: tuple[Any, ...], arrays: list[Any]) -> None:
        """Make this instance the node of the graph that computed ``y``."""
        y.requires_grad = True
        y.node = self
        self.order = y._id
        self._versions = _versions_of_saved(self.saved, inputs, arrays, y) if self.saved else ()
        if _grad_mode.anomaly:
            self.line = user_line()


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
        node.saved, node.half, node.needs = (), None, (x.requires_grad,)
        node.edges = ((x if x.node is None else x.node, x.data.shape, x.data.dtype),)
        y: Tensor = _new(TensorCore.tensor_type)
        y._init(_transferred(x.data, x.device, target, params["wait"]), target)
        if x.requires_grad and _grad_mode.enabled:
            node._record(y, inputs, [x.data])
        return y

    def backward(self, dy: Any) -> Any:
        return _transferred(dy, self.device, self.source, True)


def _transferred(array: Any, source: Device, target: Device, wait: bool) -> Any:
    """A copy of the array on the device ``target``."""
    if source.type == "cpu":
        return target.kernels.from_host(array, wait=wait)
    if target.type == "cpu":
        return source.kernels.to_host(array, wait=wait)
    return target.kernels.from_device(array, target.index)


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


def _versions_of_saved(
    saved: tuple[Any, ...], inputs: tuple[Any, ...], arrays: list[Any], y: TensorCore
) -> tuple[tuple[Version, int], ...]:
    """The version counters of those tensors whose memory ``saved`` refers to, with their present counts."""
    array_type = y.device.kernels.Array
    owners = {id(s if s.base is None else s.base) for s in saved if isinstance(s, array_type)}
    found = [
        (x._version, x._version.count)
        for x, array in zip((*inputs, y), (*arrays, y.data))
        if isinstance(x, TensorCore) and id(array if array.base is None else array.base) in owners
    ]
    return tuple(found)


def _describe(inputs: tuple[Any, ...]) -> str:
    return ", ".join(
        f"{tuple(x.data.shape)} {x.data.dtype} on {x.device}" if isinstance(x, TensorCore) else repr(x) for x in inputs
    )


def backward(
    root: Any,
    gradient: Any = None,
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
    hook: BackwardHook | None = None,
) -> GradStore:
    """Gradients of ``root`` with respect to the leaves that require grad (boostr's ``backward`` and
    ``backward_with_hooks``).

    ``root`` must be a scalar (one element) unless ``gradient``, a tensor of its shape and dtype, says what to multiply
    the Jacobian with. Saved arrays are freed as they are used; ``retain_graph=True`` keeps them for a second call.
    ``hook.on_leaf_grad_ready(id, grad)`` is called as soon as a leaf's gradient is final.

    Raises RuntimeError if ``root`` does not require grad, if the graph was freed by an earlier call, or if a saved
    tensor was changed in place; NotImplementedError for ``create_graph=True``.
    """
    if create_graph:
        raise located(
            NotImplementedError(
                "create_graph=True: backward works on raw arrays and is not itself recorded; "
                "there are no higher-order gradients"
            )
        )
    if not root.requires_grad:
        raise located(
            RuntimeError(
                "backward of a tensor that does not require grad: no input of its computation had requires_grad=True, "
                "or it was computed under no_grad or detached"
            )
        )
    kernels = root.device.kernels
    if gradient is None:
        if root.data.size != 1:
            raise located(
                RuntimeError(
                    f"backward of a tensor of shape {tuple(root.data.shape)}: only a scalar has a gradient by itself; "
                    "reduce it (for example .sum() or .mean()) or pass gradient="
                )
            )
        seed = kernels.ones(root.data.shape, root.data.dtype)
    else:
        seed = gradient.data if isinstance(gradient, TensorCore) else kernels.as_array(gradient)
        if seed.shape != root.data.shape or seed.dtype != root.data.dtype:
            raise located(
                ValueError(
                    f"gradient has shape {tuple(seed.shape)} and dtype {seed.dtype}, "
                    f"but the tensor has {tuple(root.data.shape)} and {root.data.dtype}"
                )
            )

    start = root if root.node is None else root.node
    nodes, uses = _reachable(start)
    pending = _Pending()
    pending.add(start, seed, owned=False)
    grads = GradStore()
    if not nodes:
        _finish_leaf(root, pending, grads, hook)
    entries = pending.entries
    with kernels.quiet():
        while nodes:
            node = nodes.pop()  # sorted: the newest is last
            entry = entries.pop(node, None)
            if entry is not None:
                _run(node, entry[0], pending)
                del entry
            if not retain_graph and node.saved:
                node.saved = _RELEASED
            for edge in node.edges:
                if edge is not None and edge[0] in uses:
                    leaf = edge[0]
                    uses[leaf] -= 1
                    if not uses[leaf]:
                        _finish_leaf(leaf, pending, grads, hook)
    return grads


def _reachable(start: Any) -> tuple[list[Function], dict[Any, int]]:
    """All nodes below ``start``, oldest first, and for each leaf the number of edges that lead to it."""
    if not isinstance(start, Function):
        return [], {}
    nodes: list[Function] = [start]
    seen: set[Function] = {start}
    uses: dict[Any, int] = {}
    for node in nodes:  # grows while it is walked
        for edge in node.edges:
            if edge is None:
                continue
            target = edge[0]
            if not isinstance(target, Function):
                uses[target] = uses.get(target, 0) + 1
            elif target not in seen:
                seen.add(target)
                nodes.append(target)
    nodes.sort(key=_order)
    return nodes, uses


_order: Callable[[Function], int] = operator.attrgetter("order")


class _Pending:
    """Gradients under construction, each with a flag that says whether its array is ours to write to.

    The first contribution is stored as it is, the second allocates their sum unless one of the two is owned, later ones
    add in place. So nothing that somebody else can see is ever written to. A gradient is on its target's device.
    """

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[Any, tuple[Any, bool]] = {}

    def add(self, target: Any, grad: Any, owned: bool) -> None:
        entry = self.entries.get(target)
        if entry is None:
            self.entries[target] = (grad, owned)
            return
        total, total_owned = entry
        elementwise = target.device.kernels.elementwise
        if total_owned:
            elementwise.add_into(total, grad)
        elif owned:
            elementwise.add_into(grad, total)
            self.entries[target] = (grad, True)
        else:
            self.entries[target] = (elementwise.add(total, grad), True)

    def writable(self, target: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """The gradient of ``target`` so far, as an array that may be added to in place."""
        entry = self.entries.get(target)
        if entry is None:
            array = target.device.kernels.zeros(shape, dtype)
        elif entry[1]:
            return entry[0]
        else:
            array = target.device.kernels.copy(entry[0])
        self.entries[target] = (array, True)
        return array

    def take_owned(self, target: Any) -> Any:
        """The finished gradient as a contiguous array that nothing else refers to, or None."""
        entry = self.entries.pop(target, None)
        if entry is None:
            return None
        array, owned = entry
        return array if owned and array.flags.c_contiguous else target.device.kernels.copy(array)


def _run(node: Function, dy: Any, pending: _Pending) -> None:
    """Call the node's backward and hand the results to its inputs."""
    if type(node.saved) is not tuple:
        _restore(node)
    for version, count in node._versions:
        if version.count != count:
            raise located(
                RuntimeError(
                    f"a tensor that {type(node).__name__} needs for its gradient was changed in place after it was "
                    f"computed (version {version.count}, expected {count}); change a copy instead (.clone())"
                    f"{_called_at(node)}"
                )
            )
    node.device.activate()
    kernels = node.kernels
    if node.half is not None and dy.dtype == node.half:
        dy = kernels.elementwise.cast(dy, float32)
    if node.adds_in_place:
        for edge in node.edges:
            if edge is not None and node.half is None:
                node.backward_into(dy, pending.writable(*edge))
            elif edge is not None:
                wide = kernels.zeros(edge[1], float32)
                node.backward_into(dy, wide)
                pending.add(edge[0], kernels.elementwise.cast(wide, edge[2]), owned=True)
        return
    result = node.backward(dy)
    # A list of our own: a tuple that the op keeps would hide that its arrays have another owner.
    results = [*result] if type(result) is tuple else [result]
    del result
    edges = node.edges
    if len(results) != len(edges):
        name = type(node).__name__
        raise located(RuntimeError(f"{name}.backward returned {len(results)} gradients for {len(edges)} inputs"))
    anomaly, entries = _grad_mode.anomaly, pending.entries
    for i, edge in enumerate(edges):
        if edge is None:
            continue
        # An array that only `results` refers to (that reference and the argument's make two) was made for us and is
        # ours to write to. Anything else, like dy itself, a view or a saved array, has another owner.
        owned = sys.getrefcount(results[i]) == 2
        grad = results[i]
        if grad is None:
            continue
        if not isinstance(grad, kernels.Array):
            grad = kernels.as_array(grad)
        if anomaly:
            _refuse_nan(node, i, grad)
        owned = owned and grad.base is None
        target, shape, dtype = edge
        if grad.shape != shape:
            grad = _sum_to(type(node).__name__, i, grad, shape, kernels)
            owned = True
        if grad.dtype != dtype:
            grad = kernels.elementwise.cast(grad, dtype)
            owned = True
        if target in entries:
            pending.add(target, grad, owned)
        else:
            entries[target] = (grad, owned)


def _restore(node: Function) -> None:
    """Compute saved arrays that were put off; refuse to go on without those that an earlier backward has freed."""
    if node.saved is _RELEASED:
        raise located(
            RuntimeError(
                f"backward through {type(node).__name__} a second time: its saved arrays were freed by the first; "
                f"pass retain_graph=True to the first call, or compute the loss again{_called_at(node)}"
            )
        )
    while isinstance(node.saved, Deferred):
        node.saved.restore(node)


def _called_at(node: Function) -> str:
    line = getattr(node, "line", None)
    return f"\n  {type(node).__name__} was called at {line}" if line else ""


def _refuse_nan(node: Function, i: int, grad: Any) -> None:
    kernels = node.kernels
    if kernels.reduce.any(kernels.comparison.isnan(grad), tuple(range(grad.ndim)), False):
        raise located(
            RuntimeError(
                f"{type(node).__name__}.backward returned NaN in the gradient of input {i} of shape {tuple(grad.shape)}"
                f"{_called_at(node)}"
            )
        )


def _sum_to(name: str, i: int, grad: Any, shape: tuple[int, ...], kernels: Any) -> Any:
    """Undo broadcasting: sum ``grad`` over the dimensions that broadcasting added or stretched."""
    extra = grad.ndim - len(shape)
    if extra < 0 or any(n != m and n != 1 for n, m in zip(shape, grad.shape[extra:], strict=True)):
        raise located(
            RuntimeError(
                f"{name}.backward returned a gradient of shape {tuple(grad.shape)} "
                f"for input {i} of shape {tuple(shape)}"
            )
        )
    axes = tuple(range(extra)) + tuple(extra + j for j, n in enumerate(shape) if n == 1 and grad.shape[extra + j] != 1)
    return kernels.reduce.sum(grad, axes, False).reshape(shape)


def _finish_leaf(leaf: Any, pending: _Pending, grads: GradStore, hook: BackwardHook | None) -> None:
    array = pending.take_owned(leaf)
    if array is None:
        return
    grad = _new(TensorCore.tensor_type)
    grad._init(array, leaf.device)
    grads.insert(leaf, grad)
    if hook is not None:
        hook.on_leaf_grad_ready(TensorId(leaf._id), grad)
