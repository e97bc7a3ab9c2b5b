"""Functions that make tensors, with PyTorch's names and arguments, and those that join several."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import capturing, dlpack, dtypes, hints, shapes
from .autograd import TensorCore
from .device import CPU, Device, Place
from .errors import bad_type, bad_value, check_choice
from .modes import constant
from .ops import indexing, movement
from .random import Source, default_generator, draw
from .tensor import Operand, Tensor


def _finish(array: Any, device: Device, requires_grad: bool) -> Tensor:
    x = Tensor.wrap(array, device)
    return x.requires_grad_() if requires_grad else x


def _of_numbers(make: Callable[[], np.ndarray], dtype: Any, device: Place) -> Tensor:
    """``make()``, a new array that numbers alone decide, as a tensor of this dtype; None: of the array's."""
    dtype = None if dtype is None else dtypes.as_dtype(dtype)
    device = Device(device)

    def made() -> Tensor:
        array = make()
        with np.errstate(over="ignore"):  # to infinity, as everywhere
            return Tensor.wrap(device.kernels.from_host(array.astype(dtype or array.dtype, copy=False)), device)

    return constant(made)


def tensor(data: Any, *, dtype: Any = None, device: Place = CPU, requires_grad: bool = False) -> Tensor:
    """A tensor of a copy of ``data`` (numbers, nested lists, arrays, tensors); Python floats become float32."""
    return Tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)


def as_tensor(data: Any, *, dtype: Any = None, device: Place | None = None) -> Tensor:
    """``data`` as a tensor, copied only if it must be: a tensor is taken as it is, a NumPy array shares its memory.

    So does an array on a GPU, of a library that speaks DLPack or has ``__cuda_array_interface__`` only.
    """
    if isinstance(data, Tensor):
        return data.to(dtype=dtype, device=device)
    if isinstance(data, np.ndarray) and data.dtype in dtypes.SUPPORTED:
        return from_numpy(data).to(dtype=dtype, device=device)
    if hasattr(data, "__cuda_array_interface__"):
        if hasattr(data, "__dlpack__"):
            return from_dlpack(data).to(dtype=dtype, device=device)
        array = Device("cuda").kernels_package().array.from_cuda_array(data)
        dtypes.as_dtype(array.dtype)
        return Tensor.wrap(array, Device(f"cuda:{array.device}")).to(dtype=dtype, device=device)
    return Tensor(data, dtype=dtype, device=CPU if device is None else device)


def from_numpy(array: np.ndarray) -> Tensor:
    """A CPU tensor that shares the array's memory. TypeError for unsupported dtypes, ValueError for negative
    strides.
    """
    if not isinstance(array, np.ndarray):
        raise bad_type(f"from_numpy expects a NumPy array, not {type(array).__name__}; use minigrad.tensor")
    dtypes.as_dtype(array.dtype)
    if any(s < 0 for s in array.strides):
        raise bad_value("from_numpy: negative strides are not supported; pass array.copy()")
    return Tensor.wrap(array)


def from_dlpack(x: Any, *, device: Place | None = None, copy: bool | None = None) -> Tensor:
    """A tensor on the memory of ``x``, an object with ``__dlpack__``: an array or tensor of another library.

    ``device``: where the result shall be; ``x`` must be there. ``copy=True`` always copies, None and False never do.
    A read-only array stays read-only. What others write to shared memory, autograd cannot notice.

    Raises TypeError for an object without the protocol and for unsupported dtypes, ValueError for negative strides and
    another device, BufferError if the other library refuses.
    """
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise bad_type(f"from_dlpack expects an object with __dlpack__, not {type(x).__name__}; use minigrad.tensor")
    kind, index = (int(part) for part in x.__dlpack_device__())
    if kind not in (dlpack.ON_CPU, dlpack.ON_CUDA):
        raise bad_type(f"from_dlpack: device type {kind} of DLPack is neither the CPU (1) nor CUDA (2)")
    source = CPU if kind == dlpack.ON_CPU else Device(f"cuda:{index}")
    if device is not None and Device(device) is not source:
        raise bad_value(f"from_dlpack: the memory is on {source}, not {device}; import it there, then use .to(device)")
    if isinstance(x, Tensor):  # with the version that its views share
        if x.requires_grad:
            raise BufferError("from_dlpack of a tensor that requires grad would leave the graph; use .detach() first")
        return x.clone() if copy else x.detach()
    relay = dlpack.Relay(x)
    array = source.kernels.from_dlpack(relay)
    if relay.is_bfloat16:
        array = source.kernels.reinterpret(array, dtypes.bfloat16)
    dtypes.as_dtype(array.dtype)
    if relay.is_read_only and source is not CPU:  # NumPy sees it by itself
        array.writeable = False
    tensor = from_numpy(array) if source is CPU else Tensor.wrap(array, source)
    return tensor.clone() if copy else tensor


def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Place = CPU, requires_grad: bool = False) -> Tensor:
    """A tensor of the shape ``size`` filled with a number, ``fill_value``, whose dtype it has if none is given."""
    value, device = fill_value, Device(device)
    dtype = dtypes.as_dtype(dtype or (dtypes.default_dtype() if isinstance(value, float) else np.asarray(value).dtype))
    return _finish(device.kernels.full(shapes.new_shape((size,)), value, dtype), device, requires_grad)


def zeros(*shape: Any, size: Any = None, dtype: Any = None, device: Place = CPU, requires_grad: bool = False) -> Tensor:
    """Zeros: ``zeros(2, 3)`` or ``zeros((2, 3))``."""
    return full(shapes.new_shape(shape, size), 0.0, dtype=dtype, device=device, requires_grad=requires_grad)


def ones(*shape: Any, size: Any = None, dtype: Any = None, device: Place = CPU, requires_grad: bool = False) -> Tensor:
    """Ones: ``ones(2, 3)`` or ``ones((2, 3))``."""
    return full(shapes.new_shape(shape, size), 1.0, dtype=dtype, device=device, requires_grad=requires_grad)


def empty(*shape: Any, size: Any = None, dtype: Any = None, device: Place = CPU, requires_grad: bool = False) -> Tensor:
    """Uninitialised memory of the shape."""
    device = Device(device)
    array = device.kernels.empty(shapes.new_shape(shape, size), dtypes.as_dtype(dtype or dtypes.default_dtype()))
    return _finish(array, device, requires_grad)


def zeros_like(x: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros of the shape, dtype and device of ``x``."""
    return zeros(x.shape, dtype=dtype or x.dtype, device=x.device, requires_grad=requires_grad)


def ones_like(x: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones of the shape, dtype and device of ``x``."""
    return ones(x.shape, dtype=dtype or x.dtype, device=x.device, requires_grad=requires_grad)


def full_like(x: Tensor, fill_value: float, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """``fill_value`` everywhere, in the shape, dtype and device of ``x``."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=x.device, requires_grad=requires_grad)


def empty_like(x: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Uninitialised memory of the shape, dtype and device of ``x``."""
    return empty(x.shape, dtype=dtype or x.dtype, device=x.device, requires_grad=requires_grad)


def arange(
    start: float, end: float | None = None, step: float = 1, *, dtype: Any = None, device: Place = CPU
) -> Tensor:
    """start, start + step, ... below end; ``arange(n)`` counts from 0. int64 for integers, else the default dtype."""
    given: Any = (0, start, step) if end is None else (start, end, step)
    start, end, step = (v.item() if hasattr(v, "item") else v for v in given)
    if step == 0:
        raise bad_value("arange: step must not be 0")
    if dtype is None and any(isinstance(v, float) for v in (start, end, step)):
        dtype = dtypes.default_dtype()
    return _of_numbers(lambda: np.arange(start, end, step), dtype, device)


def linspace(start: float, end: float, steps: int, *, dtype: Any = None, device: Place = CPU) -> Tensor:
    """``steps`` evenly spaced values from start to end, both included."""
    return _of_numbers(lambda: np.linspace(start, end, steps), dtype or dtypes.default_dtype(), device)


def logspace(
    start: float, end: float, steps: int, base: float = 10.0, *, dtype: Any = None, device: Place = CPU
) -> Tensor:
    """``steps`` values from base**start to base**end, both included, whose exponents are evenly spaced."""
    return _of_numbers(lambda: np.logspace(start, end, steps, base=base), dtype or dtypes.default_dtype(), device)


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Place = CPU) -> Tensor:
    """The (n, m) matrix with ones on the diagonal."""
    return _of_numbers(lambda: np.eye(n, m), dtype or dtypes.default_dtype(), device)


def tril_indices(row: int, col: int, offset: int = 0, *, device: Place = CPU) -> Tensor:
    """Indices (int64, shape (2, count)) of the lower triangle of a (row, col) matrix, row by row; see ``tril``."""
    return _of_numbers(lambda: np.stack(np.tril_indices(row, offset, col)), dtypes.int64, device)


def triu_indices(row: int, col: int, offset: int = 0, *, device: Place = CPU) -> Tensor:
    """Indices (int64, shape (2, count)) of the upper triangle of a (row, col) matrix, row by row; see ``triu``."""
    return _of_numbers(lambda: np.stack(np.triu_indices(row, offset, col)), dtypes.int64, device)


def _draw(kind: str, shape: tuple[int, ...], dtype: Any, device: Place, generator: Source, grad: bool) -> Tensor:
    device = Device(device)
    dtype = dtypes.as_dtype(dtype or dtypes.default_dtype())
    return _finish(draw(kind, device.kernels, shape, dtype, generator), device, grad)


def rand(
    *shape: Any, size: Any = None, dtype: Any = None, device: Place = CPU, generator: Source = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Uniform random values in [0, 1)."""
    return _draw("uniform", shapes.new_shape(shape, size), dtype, device, generator, requires_grad)


def randn(
    *shape: Any, size: Any = None, dtype: Any = None, device: Place = CPU, generator: Source = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Standard normal random values."""
    return _draw("normal", shapes.new_shape(shape, size), dtype, device, generator, requires_grad)


def randint(
    low: int = 0, high: Any = None, shape: Any = None, *, size: Any = None, dtype: Any = None, device: Place = CPU,
    generator: Source = None,
) -> Tensor:  # fmt: skip
    """Random integers (int64 without ``dtype``) in [low, high): ``randint(low, high, shape)``, or from 0
    ``randint(high, shape)``. The shape may be called ``size``."""
    if size is None and shape is None:
        high, shape = None, high
    low, high = (0, low) if high is None else (low, high)
    if not low < high:
        raise bad_value(f"randint: no integer in [{low}, {high}) of randint(low, high, shape)")
    shape = shapes.new_shape((shape,) if size is None else (), size)
    device = Device(device)
    place = (generator or default_generator).next()
    return Tensor.wrap(device.kernels.random.integers(low, high, shape, *place), device).to(dtype=dtype)


def rand_like(x: Tensor, *, dtype: Any = None, generator: Source = None, requires_grad: bool = False) -> Tensor:
    """Uniform random values in [0, 1), of the shape, dtype and device of ``x``."""
    return rand(x.shape, dtype=dtype or x.dtype, device=x.device, generator=generator, requires_grad=requires_grad)


def randn_like(x: Tensor, *, dtype: Any = None, generator: Source = None, requires_grad: bool = False) -> Tensor:
    """Standard normal random values of the shape, dtype and device of ``x``."""
    return randn(x.shape, dtype=dtype or x.dtype, device=x.device, generator=generator, requires_grad=requires_grad)


def randint_like(
    x: Tensor, low: int, high: int | None = None, *, dtype: Any = None, generator: Source = None
) -> Tensor:
    """Random integers in [low, high), or [0, low), of the shape, dtype (also a floating one) and device of ``x``."""
    return randint(low, high, size=x.shape, dtype=dtype or x.dtype, device=x.device, generator=generator)


def randperm(n: int, *, device: Place = CPU, generator: Source = None) -> Tensor:
    """A random permutation (int64) of 0 ... n - 1."""
    device = Device(device)
    return Tensor.wrap(device.kernels.random.permutation(n, *(generator or default_generator).next()), device)


def _listed(name: str, tensors: Any) -> list[Tensor]:
    """The tensors, if they are tensors in a list or the like."""
    found = [] if isinstance(tensors, TensorCore) or not hasattr(tensors, "__iter__") else list(tensors)
    if not found or False in [isinstance(t, TensorCore) for t in found]:
        given = ", ".join(dict.fromkeys(type(t).__name__ for t in (found or [tensors])))
        raise bad_type(f"{name} of {given}; expected a non-empty list of tensors, such as {name}([x, y])")
    return found


def cat(tensors: Sequence[Tensor], dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """The tensors one after the other along ``dim`` (or ``axis``; 0); all other sizes must agree. As in PyTorch, an
    empty vector fits everything.
    """
    tensors = _listed("cat", tensors)
    if (0,) in [t.data.shape for t in tensors]:
        like = max([t.data.shape for t in tensors], key=len)
        at = shapes.one_dim(dim, axis, len(like)) or 0
        tensors = [t.reshape(*like[:at], 0, *like[at + 1 :]) if t.data.shape == (0,) else t for t in tensors]
    if not tensors[0].ndim:
        raise bad_value("cat: 0-d tensors cannot be joined; use stack")
    axis = shapes.one_dim(dim, axis, tensors[0].ndim) or 0
    found = {t.data.shape for t in tensors}
    if len(found) > 1 and len({(*shape[:axis], *shape[axis + 1 :], len(shape)) for shape in found}) > 1:
        raise bad_value(f"cat: shapes {[t.shape for t in tensors]}; only the sizes of dim {axis} may differ")
    return movement.Cat.apply(*tensors, axis=axis)


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """The tensors, of equal shape, along a new dimension ``dim`` (or ``axis``; 0)."""
    tensors = _listed("stack", tensors)
    if len({t.data.shape for t in tensors}) > 1:
        raise bad_value(f"stack: shapes {[t.shape for t in tensors]} differ; cat joins them along a dimension")
    axis = shapes.one_dim(dim, axis, tensors[0].ndim + 1) or 0
    return movement.Cat.apply(*tensors, axis=axis, new=True)


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors side by side: along dimension 1, vectors and 0-d tensors (as vectors of one element) along 0."""
    tensors = [t if t.ndim else t.reshape(1) for t in _listed("hstack", tensors)]
    return cat(tensors, min(tensors[0].ndim - 1, 1))


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors below each other, along dimension 0; vectors and 0-d tensors are rows."""
    return cat([t if t.ndim > 1 else t.reshape(1, t.numel()) for t in _listed("vstack", tensors)])


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Read-only views of the vectors (or 0-d tensors) over their grid: the i-th varies along dimension i.

    ``indexing="xy"`` exchanges the first two dimensions, as NumPy does by default. The tensors may come in one list.
    """
    vectors = list(tensors[0]) if len(tensors) == 1 and not isinstance(tensors[0], TensorCore) else list(tensors)
    check_choice("meshgrid", "indexing", indexing, ("ij", "xy"))
    if not vectors or any(t.ndim > 1 or t.dtype != vectors[0].dtype for t in vectors):
        found = ", ".join(f"{t.shape} {t.dtype}" for t in vectors) or "none"
        raise bad_value(f"meshgrid of tensors {found}; expected vectors of one dtype")
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    shape = [vectors[i].numel() for i in order]
    return tuple(v.reshape(*(-1 if i == place else 1 for i in order)).expand(*shape) for place, v in enumerate(vectors))


def one_hot(indices: Tensor, num_classes: int = -1) -> Tensor:
    """int64 of shape (*indices.shape, num_classes), 1 at the index; by default as many classes as the largest needs."""
    if indices.dtype.kind not in "iu":
        raise bad_type(f"one_hot: indices must be integers, not {indices.dtype}")
    if num_classes == -1:
        num_classes = int(indices.amax()) + 1 if indices.numel() else 0
    bad = indices.device.kernels.embedding.check_indices(indices.long().data, max(num_classes, 0))
    index = int(indices.reshape(-1)[bad]) if bad >= 0 else -1
    if bad >= 0 and index < 0:
        raise bad_value(f"one_hot: negative index {index}")
    if bad >= 0 or num_classes < 1:
        raise bad_value(f"one_hot: {num_classes} classes cannot hold index {index}")
    return indexing.OneHot.apply(indices, classes=num_classes)


def where(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """x where the bool ``condition`` holds, else y; x and y broadcast, numbers allowed."""
    if not isinstance(x, TensorCore):
        like = y.data if isinstance(y, TensorCore) else y
        x = capturing.number(x, Tensor, dtypes.result_dtype((like, x)), condition.device)
    return x.where(condition, y)


hints.complete(__name__)
hints.list_names(__name__)
