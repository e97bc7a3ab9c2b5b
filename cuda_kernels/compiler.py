"""From a kernel's Python to machine code: Numba makes PTX, the driver assembles it, and both are kept on disk.

The PTX of a kernel depends on the sources of this folder, the kernel's name and signature, the compute capability and
the versions of the compilers; their hash names its file. The cubin depends on the driver as well. The files lie in the
private cache folder of the user beside the CPU kernels (``MINIGRAD_CACHE_DIR`` overrides it).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
import os
import re
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from . import libcuda, signatures

if TYPE_CHECKING:
    from .launch import Kernel

OLDEST = (7, 5)  # the oldest compute capability


def numba_type(word: str) -> Any:
    """The Numba type of a word of a kernel's signature (see ``launch.kernel``)."""
    from numba import types

    if word.endswith("*"):
        return types.CPointer(getattr(types, signatures.storage(word)))
    return getattr(types, word)


def to_ptx(kernel: Kernel, capability: tuple[int, int]) -> str:
    """The kernel as PTX text for a compute capability; needs no GPU.

    Raises Numba's errors where the source cannot be compiled, with the kernel's name and signature on top.
    """
    from numba import cuda, types
    from numba.core.errors import NumbaError
    from numba.cuda import dispatcher

    signature = types.void(*map(numba_type, kernel.signature))
    here = SimpleNamespace(compute_capability=capability)
    before = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: here  # device functions ask the driver, also where there is none
    try:
        text, _ = cuda.compile(
            kernel.function,
            signature,
            device=False,
            abi="numba",
            cc=capability,
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
    return text.replace(entry.group(1), kernel.symbol)


def to_cubin(kernel: Kernel, capability: tuple[int, int]) -> bytes:
    """The kernel's machine code for the current device, from the disk where it has been made before."""
    key = _digest(kernel, capability)
    folder = cache_folder()
    cubin = folder / f"{key}-{libcuda.driver().cuda[0]}{libcuda.driver().cuda[1]}.cubin"
    found = _read(cubin)
    if found is None:
        saved = folder / f"{key}.ptx"
        text = _read(saved)
        if text is None:
            text = to_ptx(kernel, capability).encode()
            _write(saved, text)
        found = libcuda.assemble(text.decode(), f"sm_{capability[0]}{capability[1]}")
        _write(cubin, found)
    return found


def cache_folder() -> Path:
    """The folder of compiled kernels, made private if it does not exist."""
    root = os.environ.get("MINIGRAD_CACHE_DIR")
    if root is None:
        root = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "minigrad")
    folder = Path(root) / "cuda"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = folder.stat()
    if hasattr(os, "getuid") and (info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise PermissionError(
            f"{folder} is owned or writable by somebody else, who could plant machine code in it; "
            "set MINIGRAD_CACHE_DIR to a private folder"
        )
    return folder


def _digest(kernel: Kernel, capability: tuple[int, int]) -> str:
    text = repr((_versions(), kernel.name, kernel.signature, kernel.fastmath, kernel.launch_bounds, capability))
    code = _sources() + _file(inspect.getsourcefile(kernel.function))
    return hashlib.sha256(text.encode() + code).hexdigest()[:32]


@functools.cache
def _versions() -> tuple[str, ...]:
    return tuple(importlib.metadata.version(name) for name in ("numba", "numba-cuda", "llvmlite"))


@functools.cache
def _sources() -> bytes:
    return b"".join(_file(str(path)) for path in sorted(Path(__file__).parent.glob("*.py")))


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


def _write(path: Path, content: bytes) -> None:
    """Put the file into the cache, whole or not at all; a cache that cannot be written costs time only."""
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        os.replace(name, path)
