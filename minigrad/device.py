"""Devices: where a tensor's memory is, and which package of kernels works on it.

``Device("cpu")`` and ``Device("cuda:1")`` are unique objects, so devices compare with ``is``. ``device.kernels`` is the
backend package: ``minigrad.cpu_kernels``, ``minigrad.cuda_kernels``, or for the CPU within ``kernels("plain")``
``minigrad.plain_kernels``. All have families of the same names, and an op says ``self.kernels.softmax.forward(x)``
without knowing which.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any, ClassVar, TypeAlias

from . import capturing
from .errors import located
from .modes import check_kernels, holding, of_thread


class DeviceError(RuntimeError):
    """A device was asked for that this machine or installation does not have."""


class Device:
    """A place for tensors: ``Device("cpu")``, ``Device("cuda")`` or ``Device("cuda:1")``.

    Raises DeviceError for a name that is none of these. Naming a CUDA device needs no GPU; using it does.
    """

    _known: ClassVar[dict[str, Device]] = {}
    type: str
    index: int

    def __new__(cls, name: str | Device = "cpu") -> Device:
        if isinstance(name, Device):
            return name
        kind, _, index = name.partition(":") if isinstance(name, str) else ("", "", "")
        if kind not in ("cpu", "cuda") or (index and not index.isdecimal()) or (kind == "cpu" and int(index or 0)):
            raise located(DeviceError(f"unknown device {name!r}: expected 'cpu', 'cuda' or 'cuda:N'"))
        key = f"{kind}:{int(index or 0)}"
        device = cls._known.get(key)
        if device is None:
            device = object.__new__(cls if kind == "cpu" else _CudaDevice)
            device.type, device.index = kind, int(index or 0)
            device = cls._known.setdefault(key, device)
        return device

    @property
    def kernels(self) -> Any:
        """The backend package for this thread: the ``native`` one, or the plain one within ``kernels("plain")``. While
        a graph of the CPU is captured, it is the package that notes the calls.
        """
        chosen = of_thread.mode.kernels
        if chosen is None or self.type != "cpu":
            return self.native
        return _backend("plain") if chosen == "plain" else chosen

    @functools.cached_property
    def native(self) -> Any:
        """The backend of this kind of device. Raises DeviceError, saying what is missing, where it cannot be used."""
        return _backend("cpu")

    def kernels_package(self) -> Any:
        """``kernels``, but without making the device the calling thread's current one."""
        return self.kernels

    def activate(self) -> None:
        """Make it the device where the calling thread's new memory lies, if it is a GPU."""

    def __eq__(self, other: object) -> bool:
        """The same device, or its name."""
        if isinstance(other, str):
            return other == str(self) or (other, self.index) == (self.type, 0) or other == f"{self.type}:{self.index}"
        return self is other

    __hash__ = object.__hash__  # by identity: each device is one object

    def __repr__(self) -> str:
        return f"Device('{self}')"

    def __str__(self) -> str:
        return self.type if self.type == "cpu" else f"{self.type}:{self.index}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Device, (str(self),))


class _CudaDevice(Device):
    """A GPU. New memory lies on the thread's current device, so asking for the kernels makes this the current one."""

    _package: Any = None

    @property
    def native(self) -> Any:
        package = self.kernels_package()
        package.select(self.index)
        return package

    def activate(self) -> None:
        self.kernels_package().select(self.index)

    def kernels_package(self) -> Any:
        if self._package is not None:
            return self._package
        package = _backend("cuda")
        available, reason = package.availability()
        if not available:
            without = "without a GPU use 'cpu', the default; NUMBA_ENABLE_CUDASIM=1 runs CUDA kernels in the simulator"
            raise located(DeviceError(f"device {self} cannot be used: {reason} ({without})"))
        if self.index >= (count := package.memory.device_count()):
            there = f"the simulator has {count}" if package.simulated() else f"this process sees {count}"
            names = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
            raise located(DeviceError(f"device {self} cannot be used: of CUDA devices {there}, {names}"))
        self._package = package
        return package


CPU = Device("cpu")
Place: TypeAlias = str | Device  # a device, or its name


@functools.cache
def _backend(name: str) -> Any:
    package = importlib.import_module(f"minigrad.{name}_kernels")
    if os.environ.get("MINIGRAD_DEBUG", "0") not in ("", "0") and (plain := getattr(package, "PLAIN_ONLY", ())):
        print(f"minigrad: {name}: plain kernels: {', '.join(plain)}", file=sys.stderr)
    return package


@contextlib.contextmanager
def kernels(name: str) -> Iterator[None]:
    """Choose the kernels for tensors on the CPU, in this thread, within ``with kernels(name):``.

    - ``"plain"``: NumPy alone. Slow, and easy to follow with a debugger. Results differ by rounding, random numbers do
      not.
    - ``"cpu"``: the compiled ones, which are the default.

    ``backward`` computes with the kernels of its forward pass. ``MINIGRAD_KERNELS`` in the environment chooses for the
    whole process. Tensors on a GPU keep the kernels of their device. ValueError for another name.
    """
    chosen = check_kernels("kernels", name)
    capturing.refuse("it chooses other kernels", "choose them around the capture")
    with holding(of_thread.mode, kernels=chosen):
        yield


def plain_families(device: str | Device = "cpu") -> tuple[str, ...]:
    """The families of kernels that a device has from the plain ones; within ``kernels("plain")`` all families."""
    return tuple(getattr(Device(device).kernels, "PLAIN_ONLY", ()))
