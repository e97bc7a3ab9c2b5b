"""From a kernel's Python to machine code: Numba makes PTX, nvJitLink assembles it, and the result is kept on disk.

nvJitLink comes with numba-cuda, as NVVM does, and its machine code runs on any driver of its major version of CUDA; the
driver's own assembler refuses the PTX of an NVVM that is newer than the driver. Neither needs a GPU.

A kernel's machine code depends on the kernel's name and signature, the sources of this folder, the compute capability
and the compilers' versions. Their hash names its file. The files lie in the private cache folder of the user beside the
CPU kernels (``MINIGRAD_CACHE_DIR`` overrides it).
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
import math
import os
import re
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import signatures
from .tensor_map import MAP_ALIGNMENT, MAP_BYTES

OLDEST = (7, 5)  # the oldest compute capability
LOSS_WARNING = r"Potential Performance Loss: ([^\n]*)"  # of an assembler's messages
COMPILERS = ("numba", "numba-cuda", "llvmlite")
TOOLKITS = ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink", "nvidia-nvjitlink-cu12")  # those of one extra

_compiling = threading.RLock()

Work = Callable[..., int]  # of a launch's arguments


@dataclass(eq=False)
class Declaration:
    """What a kernel is compiled from, and what ``inspect/`` holds its machine code to.

    signature:     a word for each parameter (``signatures.py``)
    threads:       the block's size, and the most that a launch may use
    registers:     the most registers of a thread, on any architecture
    shared_bytes:  dynamic shared memory
    fastmath:      approximate functions, flushed subnormals
    vector_loads:  it must load 128 bits at once
    capability:    the oldest compute capability
    flops, nbytes: a launch's work, from its arguments
    resident:      as few registers as so many blocks need to share a multiprocessor (default: the compiler's choice)
    slow_path:     what libdevice does for rare arguments may take local memory, and float64
    instructions:  machine instructions that it must contain, by the beginning of their names
    only:          it is compiled for instructions that no later capability has (``sm_90a``)
    """

    function: Callable[..., None]
    name: str
    signature: tuple[str, ...]
    threads: tuple[int, int, int]
    registers: int
    shared_bytes: int = 0
    fastmath: bool = False
    vector_loads: bool = False
    capability: tuple[int, int] = OLDEST
    flops: Work | None = None
    nbytes: Work | None = None
    resident: int = 0
    slow_path: bool = False
    instructions: tuple[str, ...] = ()
    only: bool = False

    @property
    def symbol(self) -> str:
        """The function's name in machine code."""
        return self.name.replace(".", "_")

    @property
    def launch_bounds(self) -> int | tuple[int, int]:
        """A block's threads and, where it is stated, how many blocks share a multiprocessor."""
        threads = math.prod(self.threads)
        return (threads, self.resident) if self.resident else threads

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.signature)})"


def numba_type(word: str) -> Any:
    """The Numba type of a word of a kernel's signature (see ``launch.kernel``)."""
    from numba import types

    if word == signatures.TENSOR_MAP:
        return types.uint64
    if word.endswith("*"):
        return types.CPointer(getattr(types, signatures.storage(word)))
    return getattr(types, word)


def to_ptx(kernel: Declaration, capability: tuple[int, int]) -> str:
    """The kernel as PTX text for a compute capability; needs no GPU.

    Raises Numba's errors where the source cannot be compiled, with the kernel's name and signature on top.
    """
    from numba import cuda, types
    from numba.core.errors import NumbaError
    from numba.cuda import dispatcher

    signature = types.void(*map(numba_type, kernel.signature))
    here = SimpleNamespace(compute_capability=capability)
    with _compiling:  # what is replaced here belongs to all threads
        before = dispatcher.get_current_device
        dispatcher.get_current_device = lambda: here  # device functions ask the driver, also where there is none
        try:
            text, _ = cuda.compile(
                kernel.function,
                signature,
                device=False,
                abi="numba",
                cc=(*capability, "a") if kernel.only else capability,
                fastmath=kernel.fastmath,
                launch_bounds=kernel.launch_bounds,
            )
        except NumbaError as error:
            raise type(error)(f"kernel {kernel} does not compile: {error}") from error
        finally:
            dispatcher.get_current_device = before
    text = str(text)
    entry = re.search(r"\.entry\s+([\w$]+)", text)
    if entry is None:
        raise RuntimeError(f"kernel {kernel}: no entry in its PTX")
    text = text.replace(entry.group(1), kernel.symbol)
    for i in range(kernel.signature.count(signatures.TENSOR_MAP)):
        text = _by_value(text, f"{kernel.symbol}_param_{i}")
    return text


def architecture(kernel: Declaration, capability: tuple[int, int]) -> str:
    """What the assembler calls the capability."""
    return f"sm_{capability[0]}{capability[1]}{'a' if kernel.only else ''}"


def _by_value(text: str, parameter: str) -> str:
    """A 64-bit parameter of PTX text as 128 bytes, whose address the kernel gets (``__grid_constant__`` in C)."""
    bytes_ = f".param .align {MAP_ALIGNMENT} .b8 {parameter}[{MAP_BYTES}]"
    text, declared = re.subn(rf"\.param \.u64 {parameter}\b", bytes_, text)
    address = rf"mov.b64 \t\1, {parameter};\n\tcvta.param.u64 \t\1, \1;"
    text, loaded = re.subn(rf"ld\.param\.u64 \t(%rd\d+), \[{parameter}\];", address, text)
    if declared != 1 or not loaded or len(re.findall(rf"{parameter}\b", text)) != declared + loaded:
        raise RuntimeError(f"parameter {parameter} is not declared once and loaded as a whole in its PTX")
    return text


def to_cubin(kernel: Declaration, capability: tuple[int, int]) -> bytes:
    """The kernel's machine code for a compute capability, from the disk where it has been made before."""
    cubin = cache_folder() / f"{_digest(kernel, capability)}.cubin"
    found = _read(cubin)
    if found is None:
        found = assemble(to_ptx(kernel, capability), architecture(kernel, capability))
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time only
            replace_file(cubin, hashlib.sha256(found).digest() + found)
    return found


def assemble(ptx: str, architecture: str) -> bytes:
    """PTX text as a cubin. Raises RuntimeError with nvJitLink's words where it refuses, and warns where it warns.

    Of an nvJitLink that is older than NVVM the error says which are installed and what to install.
    """
    from cuda.bindings import nvjitlink

    text = ptx.encode()
    handle = nvjitlink.create(1, [f"-arch={architecture}"])
    try:
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text, len(text), "kernel")
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            log = bytearray(nvjitlink.get_error_log_size(handle))
            nvjitlink.get_error_log(handle, log)
            words = log.rstrip(b"\0").decode(errors="replace").strip()
            remedy = _remedy(words, _toolkits(), nvjitlink.version())
            raise RuntimeError(f"assembling for {architecture}: {error}\n{words}{remedy}") from None
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        log = bytearray(nvjitlink.get_info_log_size(handle) or 1)
        nvjitlink.get_info_log(handle, log)
        for words in re.findall(LOSS_WARNING, log.decode(errors="replace")):
            warnings.warn(f"assembling for {architecture}: {words}", RuntimeWarning, stacklevel=2)
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin)


def _remedy(words: str, installed: dict[str, str], linker: tuple[int, int]) -> str:
    """What to add to nvJitLink's words if it does not know NVVM's version of PTX."""
    found = re.search(r"Unsupported \.version ([\d.]+)", words)
    if found is None:
        return ""
    suffix = "" if linker[0] >= 13 else f"-cu{linker[0]}"
    nvvm = installed.get("nvidia-nvvm") if linker[0] >= 13 else installed.get(f"nvidia-cuda-nvcc{suffix}")
    least = ".".join((nvvm or f"{linker[0]}.{linker[1] + 1}").split(".")[:2])
    wheels = ", ".join(f"{name} {version}" for name, version in installed.items()) or "none of their wheels"
    older = f"nvJitLink {linker[0]}.{linker[1]} is older than NVVM, which wrote PTX {found.group(1)}"
    remedy = f'pip install --upgrade "nvidia-nvjitlink{suffix}>={least},<{linker[0] + 1}"'
    return f"\n{older} (installed: {wheels}): {remedy}"


def cache_folder() -> Path:
    """The folder of compiled kernels, made private if it does not exist."""
    above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(os.environ.get("MINIGRAD_CACHE_DIR") or os.path.join(above, "minigrad")) / "cuda"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_others(folder, ", who could plant machine code in it; set MINIGRAD_CACHE_DIR to a private folder")
    return folder


def refuse_others(path: Path, words: str) -> None:
    """Raise PermissionError, which ends with ``words``, if another user could have written a file or folder."""
    info = path.stat()
    if hasattr(os, "getuid") and (info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise PermissionError(f"{path} is owned or writable by somebody else{words}")


def _digest(kernel: Declaration, capability: tuple[int, int]) -> str:
    settings = (kernel.name, kernel.signature, kernel.fastmath, kernel.launch_bounds, _constants(kernel.function))
    text = repr((_versions(), *settings, capability))
    code = _sources() + _file(inspect.getsourcefile(kernel.function))
    return hashlib.sha256(text.encode() + code).hexdigest()[:32]


def _constants(function: Callable[..., Any]) -> dict[str, Any]:
    """The numbers, names and types that a factory gave the kernel: the machine code contains them."""
    found = inspect.getclosurevars(function)
    named = {**found.globals, **found.nonlocals}
    kinds = int | float | str | np.generic | type
    return {name: named[name] for name in sorted(named) if isinstance(named[name], kinds)}


@functools.cache
def _versions() -> tuple[str, ...]:
    found = [f"{name} {importlib.metadata.version(name)}" for name in COMPILERS]
    toolkits = _toolkits()
    found += [f"{name} {version}" for name, version in toolkits.items()]
    wheel = {"nvidia-nvvm", "nvidia-cuda-nvcc-cu12"} & toolkits.keys()  # it is found before these
    return (*found, *("" if wheel else os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")))


def _toolkits() -> dict[str, str]:
    """The versions of those of ``TOOLKITS`` that are installed."""
    found = {}
    for name in TOOLKITS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@functools.cache
def _sources() -> bytes:
    return b"".join(_file(str(path)) for path in sorted(Path(__file__).parents[1].rglob("*.py")))


@functools.cache
def _file(path: str | None) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest() if path else b""


def _read(path: Path) -> bytes | None:
    """The file's content if it is whole: its first 32 bytes are the hash of the rest. None where it is not."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content[32:] if hashlib.sha256(content[32:]).digest() == content[:32] else None


def replace_file(path: Path, content: bytes) -> None:
    """Write a file of the cache, whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(name, path)
