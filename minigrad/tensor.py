"""Tensor: an array on a device that remembers how it was computed. The methods are PyTorch's.

Each method is one line that names the Function behind it (``ops/``), so a call is easy to follow: ``Tensor.softmax`` ->
``ops.softmax.Softmax.forward`` -> ``device.kernels.softmax.forward``. Where PyTorch says ``dim`` and ``keepdim``,
NumPy's ``axis`` and ``keepdims`` work as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import dlpack, dtypes, hints, printing, shapes
from .autograd import BackwardHook, TensorCore, backward, is_grad_enabled
from .derived import DerivedMethods
from .device import CPU, Device
from .errors import located
from .grad_store import GradStore, TensorId
from .indices import check_range, parse_index, repeated_positions, scatter_source
from .ops import comparison, elementwise, indexing, matmul, movement, reduce, softmax, trigonometry
from .random import Generator, draw
from .shapes import Dim


class ValuesAndIndices(NamedTuple):
    """What ``max(dim)``, ``min(dim)``, ``sort`` and ``topk`` return."""

    values: Tensor
    indices: Tensor


class _Casts(DerivedMethods):
    """Methods named like Python's types; apart, because in Tensor's own annotations these names mean the types."""

    __slots__ = ()

    def _cast(self, dtype: np.dtype[Any]) -> Tensor:
        same = self.data.dtype == dtype
        return self if same else elementwise.Cast.apply(self, dtype=dtype)  # type: ignore[return-value]  # self is a Tensor

    def float(self) -> Tensor:
        """As float32."""
        return self._cast(dtypes.float32)

    def double(self) -> Tensor:
        """As float64."""
        return self._cast(dtypes.float64)

    def long(self) -> Tensor:
        """As int64."""
        return self._cast(dtypes.int64)

    def int(self) -> Tensor:
        """As int32."""
        return self._cast(dtypes.int32)

    def bool(self) -> Tensor:
        """As bool."""
        return self._cast(dtypes.bool_)


class Tensor(_Casts):
    """An n-dimensional array. ``Tensor([[1.0, 2.0]], requires_grad=True)`` copies its data, as ``torch.tensor`` does.

    ``data`` may be numbers, nested lists, NumPy arrays or tensors; Python floats become the default dtype (float32).
    Raises TypeError for data or dtypes that are none of the supported ones, ValueError for ragged lists.
    """

    __slots__ = ()
    __array_priority__ = 1000  # ndarray + Tensor asks the Tensor

    def __init__(
        self, data: Any, *, dtype: Any = None, device: str | Device = CPU, requires_grad: bool = False
    ) -> None:
        device = Device(device)
        if isinstance(data, TensorCore):
            data = data.device.kernels.to_host(data.data)
        python_data = not isinstance(data, np.ndarray | np.generic)
        try:
            array = np.array(data, copy=True)
        except ValueError as error:
            raise located(
                ValueError("the data is ragged: lists of different lengths in one dimension; pad them to one length")
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
        return self.data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype (NumPy's)."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.data.shape)

    @property
    def is_leaf(self) -> bool:
        """True if no recorded operation computed it."""
        return self.node is None

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
            raise located(TypeError("len() of a 0-d tensor"))
        return self.shape[0]

    def __hash__(self) -> int:  # by identity, though == is elementwise
        return object.__hash__(self)

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
            raise located(
                ValueError(
                    f"format {spec!r} is for one number, not for a tensor of shape {self.shape}; format its elements "
                    "(.tolist()), or see minigrad.set_printoptions(precision=...)"
                )
            ) from error

    def __getattr__(self, name: str) -> Any:
        raise hints.missing("Tensor", name, dir(type(self)), type(self).__name__)

    # ------------------------------------------------------------------ autograd

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Ask for (or stop asking for) gradients of this leaf; returns it."""
        if requires_grad and not self.is_floating_point():
            raise located(
                RuntimeError(f"only floating tensors can require grad, not {self.dtype}; convert with .float()")
            )
        if not self.is_leaf and not requires_grad:
            raise located(RuntimeError("this tensor was computed by a recorded operation; use .detach() to cut it off"))
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

    def clone(self) -> Tensor:
        """A copy in new memory; gradients flow through it."""
        return elementwise.Clone.apply(self)

    # ------------------------------------------------------------------ out of the library

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """The values as a NumPy array, sharing memory with a CPU tensor. RuntimeError if it requires grad, or is on
        another device; ``force=True`` is ``.detach().cpu().numpy()``.
        """
        if force:
            return self.detach().cpu().numpy()
        if self.requires_grad:
            raise located(
                RuntimeError("numpy() of a tensor that requires grad would leave the graph; use .detach().numpy()")
            )
        if self.device.type != "cpu":
            raise located(RuntimeError(f"numpy() of a tensor on {self.device}; use .cpu().numpy()"))
        return self.data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        return array if dtype is None and not copy else np.array(array, dtype=dtype, copy=copy)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        return dlpack.export(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self.data.__dlpack_device__()
        return int(kind), int(index)

    def item(self) -> Any:
        """The one element as a Python number; RuntimeError if there are more or none."""
        if self.numel() != 1:
            raise located(
                RuntimeError(f"item() of a tensor of shape {self.shape}: expected one element; .tolist() gives all")
            )
        return self.device.kernels.to_host(self.data).item()

    def tolist(self) -> Any:
        """The values as nested Python lists (a number for a 0-d tensor)."""
        return self.device.kernels.to_host(self.data).tolist()

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise located(
                RuntimeError(f"the truth of a tensor of shape {self.shape} is ambiguous; use .any() or .all()")
            )
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iub":
            raise located(TypeError(f"a {self.dtype} tensor is not an index; convert with .long()"))
        return int(self.item())

    def __reduce__(self) -> Any:
        raise located(
            TypeError(
                "tensors are not pickled (loading a pickle runs code); use minigrad.serialization.save_safetensors"
            )
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A copy of a leaf in new memory, of the same class; so ``copy.deepcopy(model)`` copies a model."""
        if not self.is_leaf:
            raise located(RuntimeError("deepcopy of a tensor that an operation computed; use .detach() or .clone()"))
        tensor = type(self).__new__(type(self))
        tensor._init(self.device.kernels.copy(self.data), self.device)
        tensor.requires_grad = self.requires_grad
        memo[id(self)] = tensor
        return tensor

    # ------------------------------------------------------------------ device and dtype

    def to(self, *args: Any, dtype: Any = None, device: str | Device | None = None) -> Tensor:
        """A tensor of another dtype or device: ``to("cuda")``, ``to(minigrad.float64)``, ``to(dtype=..., device=...)``,
        or those of another tensor, ``to(other)``. Itself if nothing changes.
        """
        for arg in args:
            if isinstance(arg, TensorCore):
                dtype, device = arg.data.dtype, arg.device
            elif isinstance(arg, Device) or (isinstance(arg, str) and arg.partition(":")[0] in ("cpu", "cuda")):
                device = arg
            else:
                dtype = arg
        x = self
        if dtype is not None:
            x = x._cast(dtypes.as_dtype(dtype))
        if device is not None and (target := Device(device)) is not x.device:
            raise located(
                RuntimeError(f"copying from {x.device} to {target} needs the kernels of {target.kernels.__name__}")
            )
        return x

    def cpu(self) -> Tensor:
        """On the CPU."""
        return self.to(device=CPU)

    # ------------------------------------------------------------------ arithmetic

    def _operand(self, other: Any) -> Any:
        """A Tensor, a Python number, or an array-like made a Tensor on this tensor's device."""
        if isinstance(other, np.generic):  # np.float64 is a Python float too, and NumPy would widen the result to it
            return other.item()
        if isinstance(other, TensorCore | int | float):
            return other
        if isinstance(other, np.ndarray | list | tuple):
            return Tensor(other, device=self.device)
        raise located(
            TypeError(f"a tensor and {type(other).__name__} do not combine; expected a tensor, a number or an array")
        )

    def __add__(self, other: Any) -> Tensor:
        return elementwise.Add.apply(self, self._operand(other))

    def __radd__(self, other: Any) -> Tensor:
        return elementwise.Add.apply(self._operand(other), self)

    def __sub__(self, other: Any) -> Tensor:
        return elementwise.Sub.apply(self, self._operand(other))

    def __rsub__(self, other: Any) -> Tensor:
        return elementwise.Sub.apply(self._operand(other), self)

    def __mul__(self, other: Any) -> Tensor:
        return elementwise.Mul.apply(self, self._operand(other))

    def __rmul__(self, other: Any) -> Tensor:
        return elementwise.Mul.apply(self._operand(other), self)

    def __truediv__(self, other: Any) -> Tensor:
        return elementwise.Div.apply(self, self._operand(other))

    def __rtruediv__(self, other: Any) -> Tensor:
        return elementwise.Div.apply(self._operand(other), self)

    def __floordiv__(self, other: Any) -> Tensor:
        return elementwise.FloorDiv.apply(self, self._operand(other))

    def __rfloordiv__(self, other: Any) -> Tensor:
        return elementwise.FloorDiv.apply(self._operand(other), self)

    def __mod__(self, other: Any) -> Tensor:
        return elementwise.Remainder.apply(self, self._operand(other))

    def __rmod__(self, other: Any) -> Tensor:
        return elementwise.Remainder.apply(self._operand(other), self)

    def __pow__(self, other: Any) -> Tensor:
        other = self._operand(other)
        op = elementwise.PowScalar if isinstance(other, int | float) else elementwise.Pow
        return op.apply(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        # A 0-d tensor of this dtype, so that a number base promotes like a number.
        other = self._operand(other)
        dtype = dtypes.result_dtype((self.data, other)) if isinstance(other, int | float) else None
        return elementwise.Pow.apply(Tensor(other, dtype=dtype, device=self.device), self)

    def __matmul__(self, other: Any) -> Tensor:
        return _matmul(self, self._operand(other))

    def __rmatmul__(self, other: Any) -> Tensor:
        return _matmul(self._operand(other), self)

    def __neg__(self) -> Tensor:
        return elementwise.Neg.apply(self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return elementwise.Abs.apply(self)

    def add(self, other: Any, *, alpha: float = 1) -> Tensor:
        """self + alpha * other."""
        return self + (other if alpha == 1 else self._operand(other) * alpha)

    def sub(self, other: Any, *, alpha: float = 1) -> Tensor:
        """self - alpha * other."""
        return self - (other if alpha == 1 else self._operand(other) * alpha)

    def mul(self, other: Any) -> Tensor:
        """self * other."""
        return self * other

    def div(self, other: Any, *, rounding_mode: str | None = None) -> Tensor:
        """self / other; rounded down with ``rounding_mode="floor"``, towards 0 with "trunc"."""
        if rounding_mode not in (None, "floor", "trunc"):
            raise located(ValueError(f"div: rounding_mode={rounding_mode!r}; expected None, 'floor' or 'trunc'"))
        if rounding_mode is None:
            return self / other
        y = self // other
        if rounding_mode == "floor":
            return y
        return (self / other).trunc() if y.is_floating_point() else y + ((y < 0) & (self % other != 0))

    def pow(self, exponent: Any) -> Tensor:
        """self ** exponent."""
        return self**exponent

    def remainder(self, other: Any) -> Tensor:
        """self % other, of the sign of ``other``."""
        return self % other

    def fmod(self, other: Any) -> Tensor:
        """The remainder of a division that rounds towards 0, of the sign of self."""
        return elementwise.FMod.apply(self, self._operand(other))

    def neg(self) -> Tensor:
        """-self."""
        return -self

    def abs(self) -> Tensor:
        """Absolute value."""
        return elementwise.Abs.apply(self)

    def exp(self) -> Tensor:
        """e to the power of self."""
        return elementwise.Exp.apply(self)

    def exp2(self) -> Tensor:
        """2 to the power of self."""
        return elementwise.Exp2.apply(self)

    def expm1(self) -> Tensor:
        """exp(self) - 1, exact for small values."""
        return elementwise.Expm1.apply(self)

    def log(self) -> Tensor:
        """Natural logarithm."""
        return elementwise.Log.apply(self)

    def log2(self) -> Tensor:
        """Logarithm to base 2."""
        return elementwise.Log2.apply(self)

    def log10(self) -> Tensor:
        """Logarithm to base 10."""
        return elementwise.Log10.apply(self)

    def log1p(self) -> Tensor:
        """log(1 + self), exact for small values."""
        return elementwise.Log1p.apply(self)

    def sqrt(self) -> Tensor:
        """Square root."""
        return elementwise.Sqrt.apply(self)

    def rsqrt(self) -> Tensor:
        """1 / sqrt(self)."""
        return elementwise.Rsqrt.apply(self)

    def square(self) -> Tensor:
        """self * self; of bool in int64."""
        return elementwise.Square.apply(self.long() if self.dtype == dtypes.bool_ else self)

    def reciprocal(self) -> Tensor:
        """1 / self."""
        return elementwise.Reciprocal.apply(self)

    def sin(self) -> Tensor:
        """Sine."""
        return elementwise.Sin.apply(self)

    def cos(self) -> Tensor:
        """Cosine."""
        return elementwise.Cos.apply(self)

    def tan(self) -> Tensor:
        """Tangent."""
        return elementwise.Tan.apply(self)

    def sinh(self) -> Tensor:
        """Hyperbolic sine."""
        return trigonometry.Sinh.apply(self)

    def cosh(self) -> Tensor:
        """Hyperbolic cosine."""
        return trigonometry.Cosh.apply(self)

    def asin(self) -> Tensor:
        """Inverse sine, in [-pi / 2, pi / 2]."""
        return trigonometry.Asin.apply(self)

    def acos(self) -> Tensor:
        """Inverse cosine, in [0, pi]."""
        return trigonometry.Acos.apply(self)

    def atan(self) -> Tensor:
        """Inverse tangent, in (-pi / 2, pi / 2)."""
        return trigonometry.Atan.apply(self)

    def atan2(self, other: Tensor) -> Tensor:
        """The angle, in [-pi, pi], of the points with y = self and x = other."""
        return trigonometry.Atan2.apply(self, self._operand(other))

    def asinh(self) -> Tensor:
        """Inverse hyperbolic sine."""
        return trigonometry.Asinh.apply(self)

    def acosh(self) -> Tensor:
        """Inverse hyperbolic cosine, of values of at least 1."""
        return trigonometry.Acosh.apply(self)

    def atanh(self) -> Tensor:
        """Inverse hyperbolic tangent, of values in [-1, 1]."""
        return trigonometry.Atanh.apply(self)

    def erf(self) -> Tensor:
        """Error function."""
        return elementwise.Erf.apply(self)

    def tanh(self) -> Tensor:
        """Hyperbolic tangent."""
        return elementwise.Tanh.apply(self)

    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-self))."""
        return elementwise.Sigmoid.apply(self)

    def relu(self) -> Tensor:
        """max(self, 0), with gradient 0 at 0."""
        return elementwise.Relu.apply(self)

    def sign(self) -> Tensor:
        """-1, 0 or 1."""
        return self.clone() if self.dtype == dtypes.bool_ else elementwise.Sign.apply(self)

    def floor(self) -> Tensor:
        """Largest integer not above."""
        return elementwise.Floor.apply(self)

    def ceil(self) -> Tensor:
        """Smallest integer not below."""
        return elementwise.Ceil.apply(self)

    def round(self, *, decimals: int = 0) -> Tensor:
        """Nearest integer (or number of so many ``decimals``), halves to even."""
        scale = 10.0**decimals
        return (self * scale).round() / scale if decimals else elementwise.Round.apply(self)

    def trunc(self) -> Tensor:
        """Integer part."""
        return elementwise.Trunc.apply(self)

    def clamp(self, min: Any = None, max: Any = None) -> Tensor:
        """Values limited to [min, max], numbers or tensors; None does not limit."""
        if min is None and max is None:
            raise located(ValueError("clamp: expected min, max or both"))
        low, high = (None if bound is None else self._operand(bound) for bound in (min, max))
        if isinstance(low, TensorCore) or isinstance(high, TensorCore):
            x = self if low is None else self.where((self >= low) | self.isnan(), low)
            return x if high is None else x.where((x <= high) | x.isnan(), high)
        x = self._cast(dtypes.result_dtype([self.data, *(bound for bound in (low, high) if bound is not None)]))
        return elementwise.Clamp.apply(x, low=low, high=high)

    def nan_to_num(self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
        """NaN and the infinities replaced by numbers; None means the largest (smallest) finite one of the dtype."""
        if self.is_floating_point():
            limits = dtypes.finfo(self.dtype)
            posinf = float(limits.max) if posinf is None else posinf
            neginf = float(limits.min) if neginf is None else neginf
        return elementwise.NanToNum.apply(self, nan=nan, posinf=posinf, neginf=neginf)

    def maximum(self, other: Any) -> Tensor:
        """Elementwise larger one; ties share the gradient."""
        return elementwise.Maximum.apply(self, self._operand(other))

    def minimum(self, other: Any) -> Tensor:
        """Elementwise smaller one; ties share the gradient."""
        return elementwise.Minimum.apply(self, self._operand(other))

    def where(self, condition: Tensor, other: Any) -> Tensor:
        """self where the bool ``condition`` holds, else ``other``."""
        other = self._operand(other)
        if not isinstance(other, TensorCore):
            other = Tensor(other, dtype=dtypes.result_dtype((self.data, other)), device=self.device)
        dtype = dtypes.result_dtype((self.data, other.data))
        return elementwise.Where.apply(self._cast(dtype), other._cast(dtype), _mask("where", condition))

    def masked_fill(self, mask: Tensor, value: float) -> Tensor:
        """``value`` where the bool ``mask`` holds, else self."""
        _check_number("masked_fill", value, self.dtype)
        return elementwise.MaskedFill.apply(self, _mask("masked_fill", mask), value=value)

    # ------------------------------------------------------------------ comparison

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]  # elementwise, as in NumPy and PyTorch
        if other is None:
            return NotImplemented
        return comparison.Eq.apply(self, self._operand(other))

    def __ne__(self, other: Any) -> Tensor:  # type: ignore[override]  # elementwise, as in NumPy and PyTorch
        if other is None:
            return NotImplemented
        return comparison.Ne.apply(self, self._operand(other))

    def __lt__(self, other: Any) -> Tensor:
        return comparison.Lt.apply(self, self._operand(other))

    def __le__(self, other: Any) -> Tensor:
        return comparison.Le.apply(self, self._operand(other))

    def __gt__(self, other: Any) -> Tensor:
        return comparison.Gt.apply(self, self._operand(other))

    def __ge__(self, other: Any) -> Tensor:
        return comparison.Ge.apply(self, self._operand(other))

    def __invert__(self) -> Tensor:
        return comparison.BitwiseNot.apply(_bits("~", self))

    def __and__(self, other: Any) -> Tensor:
        return comparison.BitwiseAnd.apply(_bits("&", self), _bits("&", self._operand(other)))

    def __or__(self, other: Any) -> Tensor:
        return comparison.BitwiseOr.apply(_bits("|", self), _bits("|", self._operand(other)))

    def __xor__(self, other: Any) -> Tensor:
        return comparison.BitwiseXor.apply(_bits("^", self), _bits("^", self._operand(other)))

    def __rand__(self, other: Any) -> Tensor:
        return self & other

    def __ror__(self, other: Any) -> Tensor:
        return self | other

    def __rxor__(self, other: Any) -> Tensor:
        return self ^ other

    def __lshift__(self, other: Any) -> Tensor:
        return comparison.LeftShift.apply(_bits("<<", self), _bits("<<", self._operand(other)))

    def __rlshift__(self, other: Any) -> Tensor:
        return comparison.LeftShift.apply(_bits("<<", self._operand(other)), _bits("<<", self))

    def __rshift__(self, other: Any) -> Tensor:
        return comparison.RightShift.apply(_bits(">>", self), _bits(">>", self._operand(other)))

    def __rrshift__(self, other: Any) -> Tensor:
        return comparison.RightShift.apply(_bits(">>", self._operand(other)), _bits(">>", self))

    def bitwise_not(self) -> Tensor:
        """~self, of integers or bool."""
        return ~self

    def bitwise_and(self, other: Any) -> Tensor:
        """self & other, of integers or bool."""
        return self & other

    def bitwise_or(self, other: Any) -> Tensor:
        """self | other, of integers or bool."""
        return self | other

    def bitwise_xor(self, other: Any) -> Tensor:
        """self ^ other, of integers or bool."""
        return self ^ other

    def logical_not(self) -> Tensor:
        """Where the value is 0."""
        return comparison.LogicalNot.apply(self)

    def logical_and(self, other: Any) -> Tensor:
        """Where neither value is 0."""
        return comparison.LogicalAnd.apply(self, self._operand(other))

    def logical_or(self, other: Any) -> Tensor:
        """Where not both values are 0."""
        return comparison.LogicalOr.apply(self, self._operand(other))

    def logical_xor(self, other: Any) -> Tensor:
        """Where exactly one of the two values is 0."""
        return comparison.LogicalXor.apply(self, self._operand(other))

    def isnan(self) -> Tensor:
        """Where the value is NaN."""
        return comparison.IsNan.apply(self)

    def isinf(self) -> Tensor:
        """Where the value is infinite."""
        return comparison.IsInf.apply(self)

    def isfinite(self) -> Tensor:
        """Where the value is neither NaN nor infinite."""
        return comparison.IsFinite.apply(self)

    def isposinf(self) -> Tensor:
        """Where the value is +inf."""
        return self == math.inf

    def isneginf(self) -> Tensor:
        """Where the value is -inf."""
        return self == -math.inf

    # ------------------------------------------------------------------ reduction

    def sum(
        self, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None, axis: Dim = None, keepdims: bool = False
    ) -> Tensor:
        """Sum over ``dim`` (default all), cast to ``dtype`` first; integers and bool give int64."""
        axes = shapes.normalize_dims(dim, axis, self.ndim)
        x = self if dtype is None else self.to(dtype)
        y = reduce.Sum.apply(x, axes=axes, keepdim=keepdim or keepdims)
        return y if dtype is None else y.to(dtype)

    def mean(
        self, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None, axis: Dim = None, keepdims: bool = False
    ) -> Tensor:
        """Mean over ``dim`` (default all), cast to ``dtype`` first; floating tensors only."""
        if dtype is not None:
            return self.to(dtype).mean(dim, keepdim, axis=axis, keepdims=keepdims)
        if not self.is_floating_point():
            raise located(TypeError(f"mean of {self.dtype} values is no integer; convert with .float() first"))
        axes = shapes.normalize_dims(dim, axis, self.ndim)
        return reduce.Mean.apply(self, axes=axes, keepdim=keepdim or keepdims)

    def var(
        self,
        dim: Dim = None,
        unbiased: bool = True,
        keepdim: bool = False,
        *,
        correction: float | None = None,
        axis: Dim = None,
        keepdims: bool = False,
    ) -> Tensor:
        """Variance over ``dim``, divided by n - correction. ``unbiased=False`` is a correction of 0, NumPy's default.

        ``x.var(False)`` is ``x.var(unbiased=False)``.
        """
        return self._spread(reduce.Var, dim, unbiased, keepdim or keepdims, correction, axis)

    def std(
        self,
        dim: Dim = None,
        unbiased: bool = True,
        keepdim: bool = False,
        *,
        correction: float | None = None,
        axis: Dim = None,
        keepdims: bool = False,
    ) -> Tensor:
        """Square root of ``var``; its gradient is 0 where it is 0."""
        return self._spread(reduce.Std, dim, unbiased, keepdim or keepdims, correction, axis)

    def _spread(
        self, op: type[reduce.Var], dim: Dim, unbiased: bool, keepdim: bool, correction: float | None, axis: Dim
    ) -> Tensor:
        name = op.__name__.lower()
        if not self.is_floating_point():
            raise located(TypeError(f"{name} of {self.dtype} values is no integer; convert with .float() first"))
        if isinstance(dim, bool):
            unbiased, dim = dim, None
        if correction is None:
            correction = 1 if unbiased else 0
        elif not unbiased:
            raise located(TypeError(f"{name}: pass correction={correction} or unbiased=False, not both"))
        return op.apply(self, axes=shapes.normalize_dims(dim, axis, self.ndim), keepdim=keepdim, correction=correction)

    def norm(
        self,
        p: float | str = 2,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        axis: Dim = None,
        keepdims: bool = False,
    ) -> Tensor:
        """(sum |x|^p)^(1/p) over ``dim`` (default all); for infinite p the largest (smallest) |x|, for p = 0 the number
        of x that are not 0. The gradient of the Euclidean norm is 0 where it is 0.
        """
        if not self.is_floating_point():
            raise located(TypeError(f"norm of {self.dtype} values is no integer; convert with .float() first"))
        axes = shapes.normalize_dims(dim, axis, self.ndim)
        keep = keepdim or keepdims
        if p in (2, "fro"):
            return reduce.Norm.apply(self, axes=axes, keepdim=keep)
        if isinstance(p, str):
            raise located(ValueError(f"norm: p={p!r}; expected a number or 'fro' (dim is the second argument)"))
        if p == 0:
            return self.nan_to_num(1.0).abs().sign().sum(axes, keep)  # steps, so the gradient is 0
        if math.isinf(p):
            return self.abs().amax(axes, keep) if p > 0 else self.abs().amin(axes, keep)
        return self.abs().sum(axes, keep) if p == 1 else (self.abs() ** p).sum(axes, keep) ** (1 / p)

    def logsumexp(self, dim: Dim, keepdim: bool = False) -> Tensor:
        """log(sum(exp(self))) over ``dim``, without overflow."""
        return reduce.LogSumExp.apply(self, axes=shapes.normalize_dims(dim, None, self.ndim), keepdim=keepdim)

    def amax(self, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None, keepdims: bool = False) -> Tensor:
        """Largest value over ``dim``; ties share the gradient evenly."""
        return reduce.AMax.apply(self, axes=self._nonempty("amax", dim, axis), keepdim=keepdim or keepdims)

    def amin(self, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None, keepdims: bool = False) -> Tensor:
        """Smallest value over ``dim``; ties share the gradient evenly."""
        return reduce.AMin.apply(self, axes=self._nonempty("amin", dim, axis), keepdim=keepdim or keepdims)

    def max(self, dim: Any = None, keepdim: bool = False, *, axis: int | None = None) -> Any:
        """The largest value, along ``dim`` the pair (values, indices), or ``maximum`` with a tensor.

        Along ``dim`` the first of equals gets the gradient.
        """
        if isinstance(dim, Tensor):
            return self.maximum(dim)
        found = shapes.one_dim(dim, axis, self.ndim)
        return self.amax() if found is None else self._select(self.argmax(found, keepdim=True), found, keepdim)

    def min(self, dim: Any = None, keepdim: bool = False, *, axis: int | None = None) -> Any:
        """The smallest value, along ``dim`` the pair (values, indices), or ``minimum`` with a tensor.

        Along ``dim`` the first of equals gets the gradient.
        """
        if isinstance(dim, Tensor):
            return self.minimum(dim)
        found = shapes.one_dim(dim, axis, self.ndim)
        return self.amin() if found is None else self._select(self.argmin(found, keepdim=True), found, keepdim)

    def argmax(self, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None) -> Tensor:
        """Index (int64) of the first largest value, along ``dim`` or of the flattened tensor."""
        self._nonempty("argmax", dim, axis)
        return reduce.ArgMax.apply(self, axis=shapes.one_dim(dim, axis, self.ndim), keepdim=keepdim)

    def argmin(self, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None) -> Tensor:
        """Index (int64) of the first smallest value, along ``dim`` or of the flattened tensor."""
        self._nonempty("argmin", dim, axis)
        return reduce.ArgMin.apply(self, axis=shapes.one_dim(dim, axis, self.ndim), keepdim=keepdim)

    def _nonempty(self, name: str, dim: Dim, axis: Dim) -> tuple[int, ...]:
        axes = shapes.normalize_dims(dim, axis, self.ndim)
        if any(self.shape[i] == 0 for i in axes):
            raise located(ValueError(f"{name} over an empty dimension of shape {self.shape} has no value"))
        return axes

    def _select(self, indices: Tensor, dim: int, keepdim: bool) -> ValuesAndIndices:
        values = self.gather(dim, indices) if self.ndim else self.clone()
        if keepdim or not self.ndim:
            return ValuesAndIndices(values, indices)
        return ValuesAndIndices(values.squeeze(dim), indices.squeeze(dim))

    def any(self, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None) -> Tensor:
        """Whether any value over ``dim`` is not zero."""
        return reduce.AnyOf.apply(self, axes=shapes.normalize_dims(dim, axis, self.ndim), keepdim=keepdim)

    def all(self, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None) -> Tensor:
        """Whether all values over ``dim`` are not zero."""
        return reduce.AllOf.apply(self, axes=shapes.normalize_dims(dim, axis, self.ndim), keepdim=keepdim)

    def cumsum(self, dim: int, *, dtype: Any = None) -> Tensor:
        """Sums of the first 1, 2, ... values along ``dim``, cast to ``dtype`` first; integers and bool give int64."""
        dim = shapes.normalize_dim(dim, self.ndim)
        x = self.to(dtype) if dtype is not None else self if self.is_floating_point() else self.long()
        return reduce.CumSum.apply(x, axis=dim) if self.ndim else x.clone()

    def prod(
        self, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None, axis: int | None = None
    ) -> Tensor:
        """Product along ``dim`` (default all), cast to ``dtype`` first; integers and bool give int64.

        The gradient is right at zeros too.
        """
        if dtype is not None:
            return self.to(dtype).prod(dim, keepdim, axis=axis).to(dtype)
        found = shapes.one_dim(dim, axis, self.ndim)
        if found is not None and self.ndim:
            return reduce.Prod.apply(self, axis=found, keepdim=keepdim)
        y = reduce.Prod.apply(self.flatten(), axis=0, keepdim=False)
        return y.reshape((1,) * self.ndim) if keepdim else y

    def cumprod(self, dim: int, *, dtype: Any = None) -> Tensor:
        """Products of the first 1, 2, ... values along ``dim``, cast to ``dtype`` first; integers and bool give int64.

        The gradient is right at zeros too.
        """
        dim = shapes.normalize_dim(dim, self.ndim)
        x = self.to(dtype) if dtype is not None else self if self.is_floating_point() else self.long()
        return reduce.CumProd.apply(x, axis=dim) if self.ndim else x.clone()

    def nansum(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Sum over ``dim`` of what is not NaN."""
        return self.masked_fill(self.isnan(), 0).sum(dim, keepdim)

    def nanmean(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Mean over ``dim`` of what is not NaN; NaN if there is nothing else."""
        return self.nansum(dim, keepdim) / self.isnan().logical_not().sum(dim, keepdim)

    def softmax(self, dim: int | None = None, *, axis: int | None = None) -> Tensor:
        """exp(self) along ``dim``, divided by its sum."""
        return softmax.Softmax.apply(self, axis=shapes.some_dim("softmax", dim, axis, self.ndim))

    def log_softmax(self, dim: int | None = None, *, axis: int | None = None) -> Tensor:
        """log(softmax(self)) along ``dim``, computed without overflow."""
        return softmax.LogSoftmax.apply(self, axis=shapes.some_dim("log_softmax", dim, axis, self.ndim))

    # ------------------------------------------------------------------ movement

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape (one size may be -1); a view where memory allows, else a copy."""
        new = shapes.infer_shape(shapes.shape_argument(shape), self.numel(), self.shape)
        return movement.Reshape.apply(self, shape=new)

    def view(self, *shape: Any) -> Tensor:
        """``reshape`` that never copies: ValueError if the memory layout does not allow a view."""
        y = self.reshape(*shape)
        if self.numel() and not self.device.kernels.may_share_memory(y.data, self.data):
            raise located(
                ValueError(
                    f"view of shape {self.shape} with strides {self.data.strides} as {y.shape} needs a copy; "
                    "use .reshape"
                )
            )
        return y

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """Dimensions from start_dim to end_dim, inclusive, as one."""
        start, end = shapes.normalize_dim(start_dim, self.ndim), shapes.normalize_dim(end_dim, self.ndim)
        if start > end:
            raise located(ValueError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}"))
        if not self.ndim:
            return self.reshape(1)
        return self.reshape(*self.shape[:start], math.prod(self.shape[start : end + 1]), *self.shape[end + 1 :])

    def squeeze(self, dim: Dim = None) -> Tensor:
        """Without the dimensions of size 1 (all, or those of ``dim``)."""
        axes = shapes.normalize_dims(dim, None, self.ndim)
        return self.reshape(*(n for i, n in enumerate(self.shape) if n != 1 or i not in axes))

    def unsqueeze(self, dim: int) -> Tensor:
        """With a new dimension of size 1 at ``dim``."""
        at = shapes.normalize_dim(dim, self.ndim + 1)
        return self.reshape(*self.shape[:at], 1, *self.shape[at:])

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """A view with two dimensions exchanged."""
        order = list(range(self.ndim))
        i, j = shapes.normalize_dim(dim0, self.ndim), shapes.normalize_dim(dim1, self.ndim)
        if order:
            order[i], order[j] = j, i
        return movement.Permute.apply(self, order=tuple(order))

    swapaxes = transpose

    def movedim(self, source: Dim, destination: Dim) -> Tensor:
        """A view with dimensions moved to new places; the others keep their order."""
        return movement.Permute.apply(self, order=shapes.moved_order(source, destination, self.ndim))

    def permute(self, *dims: Any) -> Tensor:
        """A view with the dimensions in the given order."""
        order = tuple(shapes.normalize_dim(d, self.ndim) for d in shapes.shape_argument(dims))
        if sorted(order) != list(range(self.ndim)):
            raise located(ValueError(f"permute{dims}: expected each of the {self.ndim} dimensions once"))
        return movement.Permute.apply(self, order=order)

    @property
    def T(self) -> Tensor:
        """A matrix transposed (a view)."""
        if self.ndim != 2:
            raise located(ValueError(f".T of shape {self.shape}: expected a matrix; use .mT or .permute"))
        return self.transpose(0, 1)

    @property
    def mT(self) -> Tensor:
        """The last two dimensions exchanged (a view)."""
        if self.ndim < 2:
            raise located(ValueError(f".mT of shape {self.shape}: expected at least two dimensions"))
        return self.transpose(-2, -1)

    def expand(self, *shape: Any) -> Tensor:
        """A read-only view with size-1 and new leading dimensions repeated; -1 keeps a size."""
        return movement.Expand.apply(self, shape=shapes.expanded_shape(shapes.shape_argument(shape), self.shape))

    broadcast_to = expand

    def contiguous(self) -> Tensor:
        """Itself if row-major in memory, else a copy that is."""
        return self if self.is_contiguous() else self.clone()

    def flip(self, *dims: Any) -> Tensor:
        """A copy with the order along ``dims`` reversed."""
        axes = tuple(shapes.normalize_dim(d, self.ndim) for d in shapes.shape_argument(dims))
        if len(set(axes)) != len(axes):
            raise located(ValueError(f"flip{dims} names a dimension twice"))
        return movement.Flip.apply(self, axes=axes if self.ndim else ())

    def roll(self, shifts: Dim, dims: Dim = None) -> Tensor:
        """Elements moved on by ``shifts`` along ``dims``, around the end; without ``dims`` in the flattened tensor."""
        if dims is None:
            return self.flatten().roll(shifts, 0).reshape(self.shape)
        self._needs_dimension("roll with dims")
        shifts, axes = shapes.roll_arguments(shifts, dims, self.ndim)
        return movement.Roll.apply(self, shifts=shifts, axes=axes)

    def repeat(self, *sizes: Any) -> Tensor:
        """Copies side by side: ``sizes[i]`` of them along dimension i; more sizes than dimensions add leading ones."""
        repeats = shapes.shape_argument(sizes)
        if len(repeats) < self.ndim or any(n < 0 for n in repeats):
            raise located(
                ValueError(f"repeat{repeats} of shape {self.shape}: expected a count for each dimension, or more")
            )
        return movement.Tile.apply(self, repeats=repeats)

    def tile(self, *dims: Any) -> Tensor:
        """``repeat`` that takes fewer counts, too: they are for the last dimensions."""
        repeats = shapes.shape_argument(dims)
        return self.repeat(*((1,) * (self.ndim - len(repeats)) + repeats))

    def repeat_interleave(self, repeats: Any, dim: int | None = None) -> Tensor:
        """Each element (of ``dim``, else of the flattened tensor) ``repeats`` times in a row; a number or one each."""
        if dim is None:
            return self.flatten().repeat_interleave(repeats, 0)
        positions = repeated_positions(repeats, self.shape[shapes.normalize_dim(dim, self.ndim)])
        return self.index_select(dim, Tensor(positions, device=self.device))

    def pad(self, pad: Sequence[int], value: float = 0.0) -> Tensor:
        """With borders of ``value``: ``pad`` is (before, after) of the last dimension, then of the last but one, ...

        Negative numbers remove elements.
        """
        _check_number("pad", value, self.dtype)
        return movement.Pad.apply(self, widths=shapes.pad_widths(pad, self.shape), value=value)

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """A view of the diagonal of two dimensions, ``offset`` above the main one, as the last dimension."""
        axis1, axis2 = shapes.normalize_dim(dim1, self.ndim), shapes.normalize_dim(dim2, self.ndim)
        if axis1 == axis2:
            raise located(
                ValueError(f"diagonal of dimensions {dim1} and {dim2} of shape {self.shape}: they are the same")
            )
        return movement.Diagonal.apply(self, offset=offset, axis1=axis1, axis2=axis2)

    def tril(self, diagonal: int = 0) -> Tensor:
        """Lower triangle of the last two dimensions, zeros above ``diagonal``."""
        return movement.Tril.apply(_matrices("tril", self), diagonal=diagonal)

    def triu(self, diagonal: int = 0) -> Tensor:
        """Upper triangle of the last two dimensions, zeros below ``diagonal``."""
        return movement.Triu.apply(_matrices("triu", self), diagonal=diagonal)

    def split(self, split_size: int | list[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Consecutive views along ``dim``: of ``split_size`` (the last may be smaller), or of the listed sizes."""
        self._needs_dimension("split")
        dim = shapes.normalize_dim(dim, self.ndim)
        total = self.shape[dim]
        if isinstance(split_size, int):
            if split_size <= 0:
                raise located(ValueError(f"split: split_size {split_size} must be positive"))
            sizes = [min(split_size, total - start) for start in range(0, total, split_size)] or [0]
        else:
            sizes = list(split_size)
            if sum(sizes) != total or any(n < 0 for n in sizes):
                raise located(ValueError(f"split: sizes {sizes} do not add up to {total}, the size of dim {dim}"))
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        before = (slice(None),) * dim
        places = [(*before, slice(i, i + n)) for i, n in zip(starts, sizes, strict=True)]
        return tuple(self[place] for place in places)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """At most ``chunks`` consecutive views of equal size (the last may be smaller) along ``dim``."""
        if chunks <= 0:
            raise located(ValueError(f"chunk: {chunks} chunks; expected at least 1"))
        self._needs_dimension("chunk")
        total = self.shape[shapes.normalize_dim(dim, self.ndim)]
        if not total:
            return self.split([0] * chunks, dim)
        return self.split(max(-(-total // chunks), 1), dim)

    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        """The slices along ``dim``, without it."""
        self._needs_dimension("unbind")
        before = (slice(None),) * shapes.normalize_dim(dim, self.ndim)
        places = [(*before, i) for i in range(self.shape[len(before)])]
        return tuple(self[place] for place in places)

    def _needs_dimension(self, name: str) -> None:
        if not self.ndim:
            raise located(ValueError(f"{name} of a 0-d tensor: it has no dimension"))

    # ------------------------------------------------------------------ indexing

    def __getitem__(self, where: Any) -> Tensor:
        first, where, basic = parse_index(where)
        x = self if first is None else indexing.Index.apply(self, where=first, basic=True)
        return indexing.Index.apply(x, where=where, basic=basic)

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any().item())

    def __iter__(self) -> Iterator[Tensor]:
        if not self.ndim:
            raise located(TypeError("iteration over a 0-d tensor"))
        return iter(self.unbind(0))

    def gather(self, dim: int, index: Tensor) -> Tensor:
        """y[i][j] = self[i][index[i][j]] for dim 1; ``index`` (int) has as many dimensions, none larger except dim."""
        dim = shapes.normalize_dim(dim, self.ndim)
        if not self.ndim and not index.ndim:
            return self.reshape(1).gather(0, index.reshape(1)).reshape(())
        sizes = zip(index.shape, self.shape, strict=False)
        if index.ndim != self.ndim or any(n > m for i, (n, m) in enumerate(sizes) if i != dim):
            raise located(
                ValueError(f"gather along {dim}: index shape {index.shape} does not fit the tensor's {self.shape}")
            )
        check_range("gather", index, self.shape[dim])
        return indexing.Gather.apply(self, index, axis=dim)

    def take_along_dim(self, indices: Tensor, dim: int | None = None) -> Tensor:
        """``gather`` that broadcasts the other dimensions; without ``dim`` from the flattened tensor."""
        if dim is None:
            return self.flatten().gather(0, indices.flatten())
        axis = shapes.normalize_dim(dim, self.ndim)
        if indices.ndim != self.ndim:
            raise located(
                ValueError(f"take_along_dim: indices of shape {indices.shape} for a tensor of shape {self.shape}")
            )
        x, found = shapes.broadcast_except(axis, self.shape, indices.shape)
        return self.expand(x).gather(axis, indices.expand(found))

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """The slices of ``dim`` at the places in ``index`` (1-d, int), repeated and in any order; a copy."""
        self._needs_dimension("index_select")
        axis = shapes.normalize_dim(dim, self.ndim)
        if index.ndim > 1:
            raise located(ValueError(f"index_select: index of shape {index.shape}; expected one dimension"))
        check_range("index_select", index, self.shape[axis])
        where = (slice(None),) * axis + (index.data.reshape(-1),)
        return indexing.Index.apply(self, where=where, basic=False)

    def scatter(self, dim: int, index: Tensor, src: Any) -> Tensor:
        """A copy in which y[i][index[i][j]] = src[i][j] (for dim 1); ``src`` is a tensor or a number, as in ``gather``.

        If a place is written twice, the last value stays and gets the gradient.
        """
        axis = shapes.normalize_dim(dim, self.ndim)
        source = scatter_source("scatter", self, axis, index, self._operand(src))
        return indexing.Scatter.apply(self, source, index, axis=axis)

    def scatter_add(self, dim: int, index: Tensor, src: Tensor) -> Tensor:
        """A copy in which y[i][index[i][j]] += src[i][j] (for dim 1); a place may occur more than once."""
        axis = shapes.normalize_dim(dim, self.ndim)
        source = scatter_source("scatter_add", self, axis, index, self._operand(src))
        return indexing.ScatterAdd.apply(self, source, index, axis=axis)

    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
        """Indices (int64) that sort along ``dim``; stable even if not asked, NaN last (first if descending)."""
        if not self.ndim:
            return self.reshape(1).argsort(dim).reshape(())
        return indexing.ArgSort.apply(self, axis=shapes.normalize_dim(dim, self.ndim), descending=descending)

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> ValuesAndIndices:
        """(values, indices) sorted along ``dim``; stable even if not asked."""
        order = self.argsort(dim, descending)
        return ValuesAndIndices(self.gather(dim, order), order)

    def topk(self, k: int, dim: int = -1, largest: bool = True) -> ValuesAndIndices:
        """(values, indices) of the ``k`` largest (or smallest) along ``dim``, best first."""
        dim = shapes.normalize_dim(dim, self.ndim)
        if not self.ndim:
            return ValuesAndIndices(*(x.reshape(()) for x in self.reshape(1).topk(k)))
        if not 0 <= k <= self.shape[dim]:
            raise located(ValueError(f"topk: k={k}; expected 0 to {self.shape[dim]}, the size of dim {dim}"))
        order = self.argsort(dim, largest)[(slice(None),) * dim + (slice(k),)]
        return ValuesAndIndices(self.gather(dim, order), order)

    # ------------------------------------------------------------------ in place, outside of the graph

    def _change(self, name: str, *others: Any) -> None:
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

    def _write(self, name: str, compute: Callable[..., Tensor], other: Any) -> Tensor:
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

    def add_(self, other: Any) -> Tensor:
        """self += other, in place."""
        return self._write("add_", Tensor.__add__, other)

    def sub_(self, other: Any) -> Tensor:
        """self -= other, in place."""
        return self._write("sub_", Tensor.__sub__, other)

    def mul_(self, other: Any) -> Tensor:
        """self *= other, in place."""
        return self._write("mul_", Tensor.__mul__, other)

    def div_(self, other: Any) -> Tensor:
        """self /= other, in place."""
        return self._write("div_", Tensor.__truediv__, other)

    __iadd__ = add_
    __isub__ = sub_
    __imul__ = mul_
    __itruediv__ = div_

    def copy_(self, other: Any) -> Tensor:
        """The values of ``other``, broadcast and cast to this tensor's shape and dtype, in place."""
        other = other if isinstance(other, TensorCore) else Tensor(other, device=self.device)
        try:
            shapes.expanded_shape(self.shape, other.data.shape)
        except ValueError:
            raise located(ValueError(f"copy_: shape {other.data.shape} does not broadcast to {self.shape}")) from None
        self._change("copy_", other)
        self.device.kernels.elementwise.assign(self.data, other.data)
        return self

    def fill_(self, value: float) -> Tensor:
        """Every element ``value``, in place."""
        _check_number("fill_", value, self.dtype)
        self._change("fill_")
        self.device.kernels.elementwise.assign(self.data, value)
        return self

    def zero_(self) -> Tensor:
        """Every element 0, in place."""
        return self.fill_(0)

    def __setitem__(self, where: Any, value: Any) -> None:
        value = self._operand(value)
        self._change("item assignment", value)
        first, where, _ = parse_index(where)
        kernels = self.device.kernels.indexing
        target = self.data if first is None else kernels.index(self.data, first)
        kernels.assign_at(target, where, value.data if isinstance(value, TensorCore) else value)

    def masked_fill_(self, mask: Tensor, value: float) -> Tensor:
        """``value`` where the bool ``mask``, which broadcasts, holds, in place."""
        _check_number("masked_fill_", value, self.dtype)
        everywhere = _mask("masked_fill_", mask).expand(self.shape)
        self._change("masked_fill_")
        self.device.kernels.indexing.assign_at(self.data, everywhere.data, value)
        return self

    def index_put_(self, indices: Sequence[Tensor], values: Any, accumulate: bool = False) -> Tensor:
        """self[indices] = values, in place; with ``accumulate`` they are added, also where a place occurs twice."""
        if not accumulate:
            self[tuple(indices)] = values
            return self
        values = self._operand(values)
        if isinstance(values, Tensor) and values.dtype != self.dtype:
            raise located(
                TypeError(f"index_put_: values are {values.dtype}, the tensor {self.dtype}; convert with .to(dtype)")
            )
        self._change("index_put_", values)
        first, where, _ = parse_index(tuple(indices))
        k = self.device.kernels.indexing
        target = self.data if first is None else k.index(self.data, first)
        k.add_at(target, where, values.data if isinstance(values, Tensor) else values, distinct=False)
        return self

    def scatter_(self, dim: int, index: Tensor, src: Any) -> Tensor:
        """``scatter`` in place."""
        axis = shapes.normalize_dim(dim, self.ndim)
        source = scatter_source("scatter_", self, axis, index, self._operand(src))
        self._change("scatter_", source)
        k = self.device.kernels.indexing
        k.scatter(self.data, axis, index.data, source.data if isinstance(source, TensorCore) else source)
        return self

    def scatter_add_(self, dim: int, index: Tensor, src: Tensor) -> Tensor:
        """``scatter_add`` in place."""
        axis = shapes.normalize_dim(dim, self.ndim)
        source = scatter_source("scatter_add_", self, axis, index, self._operand(src))
        self._change("scatter_add_", source)
        k = self.device.kernels.indexing
        k.scatter_add(self.data, axis, index.data, source.data if isinstance(source, TensorCore) else source)
        return self

    def uniform_(self, low: float = 0.0, high: float = 1.0, generator: Generator | None = None) -> Tensor:
        """Uniform random values in [low, high), in place."""
        self._change("uniform_")
        k = self.device.kernels
        values = draw("uniform", k, self.shape, self.dtype, generator)
        k.elementwise.assign(self.data, k.elementwise.add(k.elementwise.mul(values, high - low), low))
        return self

    def normal_(self, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
        """Normal random values, in place."""
        self._change("normal_")
        k = self.device.kernels
        values = draw("normal", k, self.shape, self.dtype, generator)
        k.elementwise.assign(self.data, k.elementwise.add(k.elementwise.mul(values, std), mean))
        return self

    def bernoulli(self, *, generator: Generator | None = None) -> Tensor:
        """A new tensor: 1 with the probability that this one (floating, in [0, 1]) gives for the place, else 0."""
        if not self.is_floating_point():
            raise located(
                TypeError(f"bernoulli of a {self.dtype} tensor: probabilities are floating; convert with .float()")
            )
        if not ((self >= 0) & (self <= 1)).all():
            raise located(
                ValueError(
                    f"bernoulli: expected probabilities in [0, 1], not {self.amin().item()} to {self.amax().item()}"
                )
            )
        k = self.device.kernels
        values = draw("uniform", k, self.shape, dtypes.float64, generator)
        return Tensor.wrap(k.elementwise.cast(k.comparison.lt(values, self.data), self.dtype), self.device)

    # ------------------------------------------------------------------ products

    def matmul(self, other: Any) -> Tensor:
        """self @ other: dot product, matrix product, or batched with broadcasting, as in PyTorch."""
        return self @ other

    def mm(self, other: Tensor) -> Tensor:
        """self @ other of two matrices."""
        return _ranks("mm", self, 2, other, 2) @ other

    def bmm(self, other: Tensor) -> Tensor:
        """self @ other of two batches of matrices: (B, m, k) and (B, k, n)."""
        if _ranks("bmm", self, 3, other, 3).shape[0] != other.shape[0]:
            raise located(
                ValueError(f"bmm of shapes {self.shape} and {other.shape}: expected equal batches; @ broadcasts them")
            )
        return self @ other

    def mv(self, vec: Tensor) -> Tensor:
        """self @ vec of a matrix and a vector."""
        return _ranks("mv", self, 2, vec, 1) @ vec

    def dot(self, other: Tensor) -> Tensor:
        """Sum of the products of two vectors."""
        return _ranks("dot", self, 1, other, 1) @ other

    def outer(self, vec2: Tensor) -> Tensor:
        """The matrix of all products self[i] * vec2[j] of two vectors."""
        return _ranks("outer", self, 1, vec2, 1).unsqueeze(1) * vec2


TensorCore.tensor_type = Tensor


def _matmul(a: Any, b: Any) -> Tensor:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        raise located(TypeError("@ of a tensor and a number; use * to scale a tensor"))
    if not a.ndim or not b.ndim:
        raise located(ValueError(f"@ of shapes {a.shape} and {b.shape}: a 0-d tensor has no matrix product; use *"))
    y = matmul.MatMul.apply(a.unsqueeze(0) if a.ndim == 1 else a, b.unsqueeze(1) if b.ndim == 1 else b)
    if a.ndim == 1:
        y = y.squeeze(-2)
    return y.squeeze(-1) if b.ndim == 1 else y


def _ranks(name: str, a: Tensor, m: int, b: Any, n: int) -> Tensor:
    """``a``, if it is of ``m`` dimensions and ``b`` is a tensor of ``n``."""
    if not isinstance(b, Tensor) or (a.ndim, b.ndim) != (m, n):
        found = f"shapes {a.shape} and {b.shape}" if isinstance(b, Tensor) else f"a tensor and {type(b).__name__}"
        raise located(ValueError(f"{name} of {found}: expected {m} and {n} dimensions; @ takes any"))
    return a


def _mask(name: str, mask: Any) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype != dtypes.bool_:
        found = f"a {mask.dtype} tensor" if isinstance(mask, Tensor) else type(mask).__name__
        raise located(
            TypeError(f"{name} expects a bool tensor, not {found}; compare first (x > 0), or convert with .bool()")
        )
    return mask


def _bits(name: str, x: Any) -> Any:
    dtype = x.dtype if isinstance(x, Tensor) else np.asarray(x).dtype
    if dtypes.is_floating(dtype):
        raise located(
            TypeError(f"{name} is for integers and bool, not {dtype}; compare first (x > 0), or convert with .long()")
        )
    return x


def _check_number(name: str, value: float, dtype: np.dtype[Any]) -> None:
    if dtype.kind in "iu" and not math.isfinite(value):
        raise located(ValueError(f"{name}: no {dtype} is {value}; convert the tensor with .float() first"))


def _matrices(name: str, x: Tensor) -> Tensor:
    if x.ndim < 2:
        raise located(ValueError(f"{name} of shape {x.shape}: expected at least two dimensions"))
    return x
