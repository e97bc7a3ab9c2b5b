"""Tensor: an array on a device that remembers how it was computed. The methods are PyTorch's.

Here is what a tensor is, and its way into and out of the library. The operations are inherited from ``methods/``. Each
is one line that names the Function behind it (``ops/``), so a call is easy to follow: ``Tensor.softmax`` ->
``ops.softmax.Softmax.forward`` -> ``device.kernels.softmax.forward``. Where PyTorch says ``dim`` and ``keepdim``,
NumPy's ``axis`` and ``keepdims`` work as well.
"""

from __future__ import annotations

import math
import operator
from typing import Any, TypeAlias

import numpy as np

from . import dlpack, dtypes, hints, printing, shapes
from .autograd import TensorCore
from .device import CPU, Device, Place
from .engine import BackwardHook, backward
from .errors import bad_state, bad_type, bad_value, expect
from .grad_store import GradStore, TensorId
from .methods.casts import CastsMethods
from .methods.comparison import ComparisonMethods
from .methods.in_place import InPlaceMethods
from .methods.indexing import IndexingMethods, ValuesAndIndices as ValuesAndIndices
from .methods.math import MathMethods
from .methods.matmul import MatmulMethods
from .methods.reduce import ReduceMethods
from .methods.shape import ShapeMethods
from .modes import is_autocast_enabled


class Tensor(
    MathMethods,
    ComparisonMethods,
    ReduceMethods,
    ShapeMethods,
    IndexingMethods,
    MatmulMethods,
    InPlaceMethods,
    CastsMethods,
    TensorCore,
):
    """An n-dimensional array. ``Tensor([[1.0, 2.0]], requires_grad=True)`` copies its data, as ``torch.tensor`` does.

    ``data`` may be numbers, nested lists, NumPy arrays or tensors; Python floats become the default dtype (float32).
    Raises TypeError for data or dtypes that are none of the supported ones, ValueError for ragged lists.
    """

    __slots__ = ()

    def __init__(
        self, data: Any = (), *sizes: int, dtype: Any = None, device: Place = CPU, requires_grad: bool = False
    ) -> None:
        if sizes:
            wanted = ", ".join(map(str, (data, *sizes)))
            raise bad_type(f"Tensor(data) takes values, not sizes; use minigrad.zeros({wanted}) or empty({wanted})")
        device = Device(device)
        if isinstance(data, TensorCore):
            data = data.device.kernels.to_host(data.data)
        python_data = not isinstance(data, np.ndarray | np.generic)
        try:
            array = np.array(data, copy=True)
        except ValueError as error:
            raise bad_value(
                "the data is ragged: lists of different lengths in one dimension; pad them to one length"
            ) from error
        if dtype is None and python_data and array.dtype == np.float64:
            dtype = dtypes.default_dtype()
        dtype = dtypes.as_dtype(array.dtype if dtype is None else dtype)
        if python_data:
            dtypes.check_numbers(array, dtype)
        with np.errstate(over="ignore"):  # to infinity, as everywhere
            array = array.astype(dtype, order="C", copy=False)
        self._init(device.kernels.from_host(array), device)
        if requires_grad:
            self.requires_grad_()

    @staticmethod
    def wrap(array: Any, device: Device = CPU) -> Tensor:
        """A Tensor around a raw array of the device, sharing its memory."""
        tensor = Tensor.__new__(Tensor)
        tensor._init(array, device)
        return tensor

    # ------------------------------------------------------------------ what it is

    @property
    def id(self) -> TensorId:
        """The tensor's identity, the key of its gradient in a GradStore."""
        return TensorId(self._id)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return shapes.Size(self.data.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype (NumPy's)."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.data.ndim

    @property
    def is_leaf(self) -> bool:
        """True if no recorded operation computed it."""
        return self.node is None

    grad_fn: Any = property(operator.attrgetter("node"), doc="``node``: the operation that computed it, or None.")

    @property
    def version(self) -> int:
        """How often this memory (shared with views) was changed in place."""
        return self._version.count

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[shapes.normalize_dim(dim, self.ndim)]

    def dim(self) -> int:
        """Number of dimensions."""
        return self.ndim

    ndimension = dim

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.data.shape)

    def element_size(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    def stride(self, dim: int | None = None) -> Any:
        """How many elements lie between neighbours in each dimension, or in one."""
        strides = tuple(step // self.dtype.itemsize for step in self.data.strides)
        return strides if dim is None else strides[shapes.normalize_dim(dim, self.ndim)]

    def is_contiguous(self) -> bool:
        """Whether the elements lie in memory in row-major order."""
        return bool(self.data.flags.c_contiguous)

    def is_floating_point(self) -> bool:
        """Whether the dtype is a floating one."""
        return dtypes.is_floating(self.dtype)

    def __len__(self) -> int:
        if not self.shape:
            raise bad_type("len() of a 0-d tensor")
        return self.shape[0]

    __hash__ = object.__hash__  # by identity, though == is elementwise; a method of ours would be a slow one

    def __repr__(self) -> str:
        return printing.represent(self)

    def _repr_html_(self) -> str:
        return printing.represent_html(self)

    def __format__(self, spec: str) -> str:
        if spec and not self.ndim:
            return format(self.item(), spec)
        try:
            return format(str(self), spec)
        except ValueError as error:
            remedy = "format its elements (.tolist()), or see minigrad.set_printoptions(precision=...)"
            found = f"a tensor of shape {self.shape}"
            raise bad_value(f"format {spec!r} is for one number, not for {found}; {remedy}") from error

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if name not in hints.HINTS["Tensor"]]

    # ------------------------------------------------------------------ autograd

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Ask for (or stop asking for) gradients of this leaf; returns it."""
        if requires_grad and not self.is_floating_point():
            raise bad_state(f"only floating tensors can require grad, not {self.dtype}; convert with .float()")
        if not self.is_leaf and not requires_grad:
            raise bad_state("this tensor was computed by a recorded operation; use .detach() to cut it off")
        self.requires_grad = requires_grad
        return self

    def backward(
        self,
        gradient: Tensor | None = None,
        *,
        retain_graph: bool = False,
        create_graph: bool = False,
        hook: BackwardHook | None = None,
    ) -> GradStore:
        """Gradients of this scalar with respect to all leaves that require grad. See ``minigrad.backward``."""
        return backward(self, gradient, retain_graph=retain_graph, create_graph=create_graph, hook=hook)

    def detach(self) -> Tensor:
        """The same memory, outside of the graph."""
        tensor = Tensor.__new__(Tensor)
        tensor._init(self.data, self.device, self._version)
        return tensor

    # ------------------------------------------------------------------ out of the library

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """The values as a NumPy array, sharing memory with a CPU tensor. RuntimeError if it requires grad, or is on
        another device; ``force=True`` is ``.detach().cpu().numpy()``.
        """
        if force:
            return self.detach().cpu().numpy()
        if self.requires_grad:
            raise bad_state("numpy() of a tensor that requires grad: use .detach().numpy(), or stack for several")
        if self.device.type != "cpu":
            raise bad_state(f"numpy() of a tensor on {self.device}; use .cpu().numpy()")
        return self.device.kernels.to_host(self.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        return array if dtype is None and not copy else np.array(array, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """``array + tensor`` is a tensor, and so is ``np.add(array, tensor)``, which is the same call. All else gives
        arrays: ``array += tensor``, as of ``p.data``, ``np.add(tensor, array)``, options, other functions of NumPy.
        """
        reflected = _REFLECTED.get(ufunc.__name__, "") if method == "__call__" and not options else ""
        if reflected and inputs[1] is self and not isinstance(inputs[0], Tensor):
            return getattr(self, reflected)(inputs[0])
        if any(isinstance(x, Tensor) for x in (*options.get("out", ()), *(inputs[:1] if method == "at" else ()))):
            raise bad_type(f"{ufunc.__name__} would change a tensor unseen by its graph; write into the array x.data")
        arrays, named = (x.__array__() if isinstance(x, Tensor) else x for x in inputs), options.items()
        return getattr(ufunc, method)(*arrays, **{k: x.__array__() if isinstance(x, Tensor) else x for k, x in named})

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        return dlpack.export(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self.data.__dlpack_device__()
        return int(kind), int(index)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """``minigrad.array_api``: the functions of the Python array API standard."""
        from . import array_api

        if api_version not in (None, "2021.12", "2022.12", "2023.12", array_api.__array_api_version__):
            raise bad_value(f"array API version {api_version!r}: there is {array_api.__array_api_version__}")
        return array_api

    def to_device(self, device: Place, /, *, stream: Any = None) -> Tensor:
        """``to(device)`` under the array API standard's name; the stream is always the current one, ``None``."""
        expect(stream is None, "to_device: stream", stream, "None, the current stream")
        return self.to(device=device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory of a CUDA tensor, version 3 of the protocol. AttributeError on the CPU: there is none."""
        if self.device.type != "cuda":
            raise AttributeError(f"__cuda_array_interface__ of a tensor on {self.device}: its memory is no GPU's")
        if self.requires_grad:
            raise bad_state("__cuda_array_interface__ of a tensor that requires grad leaves the graph: use .detach()")
        return self.data.__cuda_array_interface__

    def item(self) -> Any:
        """The one element as a Python number; RuntimeError if there are more or none."""
        if self.numel() != 1:
            raise bad_state(f"item() of a tensor of shape {self.shape}: expected one element; .tolist() gives all")
        return self.device.kernels.to_host(self.data).item()

    def tolist(self) -> Any:
        """The values as nested Python lists (a number for a 0-d tensor)."""
        return self.device.kernels.to_host(self.data).tolist()

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise bad_state(f"the truth of a tensor of shape {self.shape} is ambiguous; use .any() or .all()")
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iub":
            raise bad_type(f"a {self.dtype} tensor is not an index; convert with .long()")
        return int(self.item())

    def __reduce__(self) -> Any:
        raise bad_type("tensors are not pickled (loading a pickle runs code); use minigrad.save")

    def __copy__(self) -> Tensor:
        """A leaf that shares the memory, of the same class, which requires grad if this one does."""
        tensor = type(self).__new__(type(self))
        tensor._init(self.data, self.device, self._version)
        tensor.requires_grad = self.requires_grad
        return tensor

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A copy of a leaf in new memory, of the same class; so ``copy.deepcopy(model)`` copies a model."""
        if not self.is_leaf:
            raise bad_state("deepcopy of a tensor that an operation computed; use .detach() or .clone()")
        tensor = type(self).__new__(type(self))
        tensor._init(self.device.kernels.copy(self.data), self.device)
        tensor.requires_grad = self.requires_grad
        memo[id(self)] = tensor
        return tensor


TensorCore.tensor_type = Tensor

_REFLECTED = {
    "add": "__radd__", "subtract": "__rsub__", "multiply": "__rmul__", "divide": "__rtruediv__",
    "remainder": "__rmod__", "matmul": "__rmatmul__", "floor_divide": "__rfloordiv__", "power": "__rpow__",
    "equal": "__eq__", "not_equal": "__ne__", "less": "__gt__", "less_equal": "__ge__", "greater": "__lt__",
    "greater_equal": "__le__", "bitwise_and": "__rand__", "bitwise_or": "__ror__", "bitwise_xor": "__rxor__",
    "left_shift": "__rlshift__", "right_shift": "__rrshift__",
}  # fmt: skip
"""By the name of a function of NumPy: the method of Tensor for its second argument."""

for _kind in (Tensor, GradStore):
    for _name in hints.HINTS[_kind.__name__]:
        setattr(_kind, _name, hints.NotInMinigrad(_kind.__name__, _name))

for _base in (*Tensor.__bases__[:-1], Tensor):
    hints.complete(_base, "Tensor")

# What a tensor combines with: the ``other`` of ``x + other``.
Operand: TypeAlias = Tensor | int | float | np.generic | np.ndarray | list[Any] | tuple[Any, ...]


def check_tensor(name: str, x: Any) -> Tensor:
    """``x``, if it is a tensor."""
    if not isinstance(x, Tensor):
        raise bad_type(f"{name} expects a tensor, not {type(x).__name__}; make one with minigrad.tensor(...)")
    return x


def floating(name: str, x: Tensor) -> Tensor:
    """``x``, if it is a tensor of a floating dtype."""
    if isinstance(x, Tensor) and x.data.dtype.kind == "f":  # the usual case, quickly
        return x
    if not check_tensor(name, x).is_floating_point():
        raise bad_type(f"{name} expects a floating tensor, not {x.dtype}; convert with .float()")
    return x


def in_dtype_of(x: Tensor, y: Tensor) -> Tensor:
    """``y`` in the dtype of ``x``; within autocast, which chose another, as it is."""
    dtype = x.data.dtype
    return y if y.data.dtype is dtype or y.data.dtype == dtype or is_autocast_enabled(x.device.type) else y.to(dtype)
