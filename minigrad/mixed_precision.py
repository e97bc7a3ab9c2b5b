"""Mixed precision: within ``autocast``, an operation chooses the dtype that it computes in (``torch.autocast``).

Products of matrices and attention run in the half dtype. What adds up many numbers or has a wide range (exponentials,
softmax, norms, sums, losses) runs in float32. All others run in the dtype that they are given. ``Function.autocast``
says which operation is which. The lists are those of ``torch.autocast("cuda")``, on every device. Source: Micikevicius
et al., "Mixed precision training" (2018).
"""

import copy
import functools
import threading
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from .autograd import TensorCore
from .dtypes import as_dtype, bfloat16, float16, float32, float64, is_floating, is_half
from .errors import bad_value
from .modes import F, holding, is_autocast_enabled, of_thread, refuse_generators
from .ops.elementwise import Cast

_DEFAULT_DTYPE = {"cpu": bfloat16, "cuda": float16}  # PyTorch's

# A weight's copies in a half dtype: (id, dtype) -> (the weight, which keeps the id its own; the copy; its version then)
_Cache = dict[tuple[int, np.dtype[Any]], tuple[TensorCore, TensorCore, int]]


class _Thread(threading.local):
    depth = 0
    cache: _Cache | None = None
    cache_enabled = True


_thread = _Thread()


def with_new_copies() -> AbstractContextManager[None]:
    """Within, no weight's copy of before is used, and those that are made are gone afterwards."""
    return holding(_thread, cache=None if _thread.cache is None else {})


class Autocasting:
    """What the autocasts that a thread is within say: the half dtype of each type of device for which one is enabled.

    An operation that uses a tensor whose id is in ``keep`` computes in float32.
    """

    __slots__ = ("dtypes", "keep")

    def __init__(self, dtypes: dict[str, np.dtype[Any]], keep: Collection[int] = ()) -> None:
        self.dtypes: dict[str, np.dtype[Any]] = dtypes
        self.keep: Collection[int] = keep

    def cast(self, policy: str, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs of an operation whose ``Function.autocast`` is ``policy``. float64 and integers stay."""
        if self.keep and any(isinstance(x, TensorCore) and x._id in self.keep for x in inputs):
            policy = "float32"
        target: Any = float32 if policy == "float32" else None
        if policy == "widest":
            found = {x.data.dtype for x in inputs if isinstance(x, TensorCore) and is_floating(x.data.dtype)}
            if len(found) < 2:
                return inputs
            target = float64 if float64 in found else float32
        return tuple(
            _converted(x, self.dtypes[x.device.type] if target is None else target) if self._eligible(x) else x
            for x in inputs
        )

    def _eligible(self, x: Any) -> bool:
        floating = isinstance(x, TensorCore) and is_floating(x.data.dtype) and x.data.dtype != float64
        return floating and x.device.type in self.dtypes


def _converted(x: TensorCore, dtype: np.dtype[Any]) -> TensorCore:
    """``x`` in this dtype; a weight's copy in a half dtype is kept until the outermost autocast ends."""
    if x.data.dtype == dtype:
        return x
    cache = _thread.cache
    if cache is None or not _thread.cache_enabled or x.data.dtype != float32 or not x.requires_grad or x.node:
        return Cast.apply(x, dtype=dtype)
    key, version = (x._id, dtype), x._version.count
    found = cache.get(key)
    if found is None or found[2] != version or (of_thread.mode.enabled and not found[1].requires_grad):
        found = cache[key] = (x, Cast.apply(x, dtype=dtype), version)
    return found[1]


class autocast:
    """Within ``with autocast("cpu", minigrad.bfloat16):``, or in a function so decorated, operations of this thread on
    tensors of that type of device (None: of any) choose the dtype that they compute in (``torch.autocast``).

    Parameters stay float32, and so do their gradients. ``dtype`` is bfloat16 or float16; None: bfloat16 on the CPU,
    float16 on CUDA. ``enabled=False`` switches an outer one off, whatever the dtype. Instances may be nested and
    reused. With ``cache_enabled`` (None: as the outer one, or True) the half copy of a parameter is made once. It is
    kept until the outermost autocast ends, or the parameter is changed in place. Call ``backward`` after the context:
    its operations use the dtypes of the forward pass.

    Raises ValueError for other types of device, and for other dtypes if enabled.
    """

    def __init__(
        self, device_type: str | None = None, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        types = tuple(_DEFAULT_DTYPE) if device_type is None else (device_type,)
        if types[0] not in _DEFAULT_DTYPE:
            raise bad_value(f"autocast: device_type is {device_type!r}, expected 'cpu', 'cuda', or None for both")
        self.device_type = device_type
        self._dtypes = {name: _DEFAULT_DTYPE[name] if dtype is None else as_dtype(dtype) for name in types}
        self.dtype: np.dtype[Any] = self._dtypes[types[0]]
        if enabled and not is_half(self.dtype):
            raise bad_value(f"autocast: dtype is {self.dtype}, expected bfloat16 or float16")
        self.enabled: bool = bool(enabled)
        self.cache_enabled: bool | None = cache_enabled
        self._keep: Collection[int] = ()
        self._previous: list[tuple[Autocasting | None, bool]] = []

    def keeping(self, ids: Collection[int]) -> "autocast":
        """The same; but an operation that uses one of the tensors with these ids computes in float32."""
        self._keep = ids
        return self

    def __enter__(self) -> "autocast":
        outer: Autocasting | None = of_thread.mode.autocast
        self._previous.append((outer, _thread.cache_enabled))
        dtypes = {} if outer is None else {t: dtype for t, dtype in outer.dtypes.items() if t not in self._dtypes}
        if self.enabled:
            dtypes.update(self._dtypes)
        keep = self._keep or (() if outer is None else outer.keep)
        of_thread.mode.autocast = Autocasting(dtypes, keep) if dtypes else None
        if self.cache_enabled is not None:
            _thread.cache_enabled = self.cache_enabled
        _thread.depth += 1
        if _thread.cache is None:
            _thread.cache = {}
        return self

    def __exit__(self, *exception: object) -> None:
        of_thread.mode.autocast, _thread.cache_enabled = self._previous.pop()
        _thread.depth -= 1
        if not _thread.depth:
            _thread.cache = None

    def __call__(self, fn: F) -> F:
        refuse_generators("autocast", fn)

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            one = copy.copy(self)  # other threads may be in the function, too
            one._previous = []
            with one:
                return fn(*args, **kwargs)

        return wrapped  # type: ignore[return-value]  # functools.wraps keeps the signature


def get_autocast_dtype(device_type: str) -> np.dtype[Any]:
    """The half dtype of the autocast that the calling thread is within; where none is enabled, the default."""
    state: Autocasting | None = of_thread.mode.autocast
    default = _DEFAULT_DTYPE[device_type]
    return default if state is None else state.dtypes.get(device_type, default)


@contextmanager
def autocasting(state: Autocasting | None) -> Iterator[None]:
    """What is within runs as under ``state`` (None: without any autocast) and casts weights anew: what it computes does
    not depend on what was cast before it.
    """
    with holding(of_thread.mode, autocast=state), holding(_thread, cache=None if state is None else {}):
        yield


def autocast_to_float32(function: F, rounded: bool = False, taken: int = 0) -> F:
    """A function of several operations, which float16 and bfloat16 tensors pass in float32, so the result is rounded
    once, to the dtype of the first. Beside a wider second one, and within autocast, it stays, if it is not to be
    ``rounded``. The first
    ``taken`` tensors are not cast: for operations whose kernels read them and give float32.
    """

    def half(x: Any) -> bool:
        return isinstance(x, TensorCore) and is_half(x.data.dtype)

    @functools.wraps(function)
    def wrapped(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not half(x):
            return function(x, *args, **kwargs)
        wide = [a.float() if half(a) and i >= taken else a for i, a in enumerate((x, *args))]
        named = {k: a.float() if half(a) else a for k, a in kwargs.items()}
        with autocasting(None) if of_thread.mode.autocast else nullcontext():
            y = function(*wide, **named)
        second = args[0] if args else next(iter(kwargs.values()), None)
        mixed = isinstance(second, TensorCore) and second.data.dtype.kind == "f" and not half(second)
        return y if not rounded and (mixed or is_autocast_enabled(x.device.type)) else y.to(x.dtype)

    return wrapped  # type: ignore[return-value]  # functools.wraps keeps the signature


def in_float32(function: F) -> F:
    """``autocast_to_float32``, but the result is always rounded."""
    return autocast_to_float32(function, rounded=True)


def of_halves(function: F) -> F:
    """``autocast_to_float32`` of what follows the first two tensors."""
    return autocast_to_float32(function, taken=2)
