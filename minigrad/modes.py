"""The modes of a thread: whether operations are recorded (no_grad), anomaly detection, autocast, kernels, plans.

A *plan* is a faster way to compute a module's method (``plans.py``). ``graph`` is not autograd's, but the one that is
being captured: calls of kernels that are launched again without Python (``cuda/cuda_graph.py``).
"""

import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from .errors import bad_type, located

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound="Closing")


def check_kernels(who: str, name: Any) -> str | None:
    """``"plain"``, or None for ``"cpu"``, the default, if Numba compiles. ValueError for another name of kernels."""
    if name not in ("plain", "cpu"):
        raise located(ValueError(f"{who}: there are no kernels {name!r}; expected 'plain' (NumPy alone) or 'cpu'"))
    return None if name == "cpu" and os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0") else "plain"


def check_fast(value: str) -> bool:
    """Whether MINIGRAD_FAST turns the plans off: "0"; "1" or "" leave them on. Raises ValueError for another value."""
    if value not in ("", "0", "1"):
        raise located(ValueError(f"MINIGRAD_FAST in the environment is {value!r}; expected '0' (no plans) or '1'"))
    return value == "0"


FAST_IS_OFF: bool = check_fast(os.environ.get("MINIGRAD_FAST", ""))
_CHOSEN = check_kernels("MINIGRAD_KERNELS in the environment", os.environ.get("MINIGRAD_KERNELS") or "cpu")


class Mode:
    """The modes of one thread."""

    __slots__ = ("anomaly", "autocast", "enabled", "graph", "kernels", "recorder", "unfused")

    def __init__(self) -> None:
        self.enabled: bool = True
        self.anomaly: bool = False  # within detect_anomaly
        self.graph: Any = None  # the cuda.Graph that the thread captures
        self.autocast: Any = None  # the Autocasting of mixed_precision.py, where one is enabled
        self.kernels: Any = _CHOSEN  # those of tensors on the CPU: "plain", or a backend; see Device.kernels
        # Which plans of minigrad.fast are off: all (True), none (False), or those of these names.
        self.unfused: bool | frozenset[str] = FAST_IS_OFF
        self.recorder: Any = None  # what is told of each module's call (a plans.CallRecorder)


class _OfThread(threading.local):
    def __init__(self) -> None:  # runs once in each thread
        self.mode: Mode = Mode()


# Every operation reads ``of_thread.mode``, once: that costs ten times what reading an attribute of it does.
of_thread: _OfThread = _OfThread()


@contextlib.contextmanager
def holding(target: Any, **values: Any) -> Iterator[None]:
    """Within it, these attributes of ``target``, such as the calling thread's mode, have these values."""
    before = {name: getattr(target, name) for name in values}
    try:
        for name, value in values.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)


class Closing:
    """What has a method ``close`` that a ``with`` statement calls at its end."""

    close: Callable[[], None]

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def is_grad_enabled() -> bool:
    """Whether ops of the calling thread are recorded for ``backward``."""
    return of_thread.mode.enabled


def current_graph() -> Any:
    """The ``cuda.Graph`` that the calling thread captures, or None."""
    return of_thread.mode.graph


def constant(make: Callable[[], Any]) -> Any:
    """The tensor ``make()``; while a graph is captured a copy of it, for data of the host that numbers alone decide."""
    graph = of_thread.mode.graph
    if graph is None:
        return make()
    with graph.paused():
        found = make()
    graph.raw.keep.append(found)
    return found.clone()


def is_autocast_enabled(device_type: str) -> bool:
    """Whether operations of the calling thread on this type of device, "cpu" or "cuda", choose their dtype."""
    autocast = of_thread.mode.autocast
    return autocast is not None and device_type in autocast.dtypes


def cast_inputs(policy: str, *inputs: Any) -> tuple[Any, ...]:
    """Within autocast, the inputs as an operation of this policy gets them; elsewhere as they are. "half" and "float32"
    are those of ``Function.autocast``, "widest" is the widest of the inputs' floating dtypes.
    """
    autocast = of_thread.mode.autocast
    return inputs if autocast is None else autocast.cast(policy, inputs)


def refuse_generators(name: str, fn: Callable[..., Any]) -> None:
    """TypeError for a function whose body does not run within its call, so that ``@name`` would do nothing."""
    if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        why = "is a generator or coroutine function, whose body runs after the call has returned"
        raise bad_type(f"{name}: {fn.__qualname__} {why}; use a with block inside it that contains no yield or await")


class _SetGrad:
    """A context manager and decorator that sets the calling thread's grad mode; instances may be nested and reused."""

    enabled: bool

    def __init__(self) -> None:
        self._previous: list[bool] = []

    def __enter__(self) -> None:
        mode = of_thread.mode
        self._previous.append(mode.enabled)
        mode.enabled = self.enabled

    def __exit__(self, *exception: object) -> None:
        of_thread.mode.enabled = self._previous.pop()

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
        self._before = of_thread.mode.enabled
        self.enabled: bool = bool(mode)
        of_thread.mode.enabled = self.enabled

    def __enter__(self) -> None:
        self._previous.append(self._before)
        of_thread.mode.enabled = self.enabled

    def __call__(self, fn: F) -> F:
        of_thread.mode.enabled = self._before
        return (enable_grad() if self.enabled else no_grad())(fn)


@contextlib.contextmanager
def detect_anomaly(enabled: bool = True) -> Iterator[None]:
    """Within the block (this thread only) operations remember the line that called them, and ``backward`` raises
    RuntimeError where a gradient turns NaN. The error names the operation and its input, and the line if the forward
    pass ran within the block too. Other errors of ``backward`` then name the line as well. Slow; for debugging. The
    counterpart of ``torch.autograd.detect_anomaly``; ``enabled=False`` turns it off within the block.
    """
    with holding(of_thread.mode, anomaly=enabled):
        yield
