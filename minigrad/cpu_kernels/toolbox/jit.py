"""How the CPU kernels are compiled: the decorators ``kernel``, ``inline`` and ``emits``, and their disk cache.

Numba's own cache has three weaknesses for a library. A kernel is not recompiled when a function that it inlines changes
in another file. It is written beside the source, which is often read-only. And it is pickle: a damaged file raises in
the middle of a call, and a planted one runs code. Ours lives in a private folder of the user, named after a hash of all
kernel sources, and a damaged entry is compiled again.

``MINIGRAD_CACHE_DIR`` overrides the folder (default: ``$XDG_CACHE_HOME/minigrad`` or ``~/.cache/minigrad``).

A kernel gives the same bits in every process: see ``KernelLibrary``.
"""

import atexit
import contextlib
import functools
import hashlib
import inspect
import os
import pickle
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from llvmlite.binding import Linkage
from numba.core.caching import NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult
from numba.core.inline_closurecall import InlineWorker
from numba.core.serialize import dumps
from numba.core.types import unliteral, void
from numba.extending import intrinsic

from .compile_ahead import Team

# IEEE semantics for NaN and infinities are kept (no ``nnan``, no ``ninf``): -inf is a legal attention mask and a NaN
# must reach the loss. Reassociation and contraction are what let LLVM vectorise sums and use FMA.
FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": FASTMATH,
    "no_cfunc_wrapper": True,  # a second entry, for C, which nothing here calls: compile time
}


def _second_level_cache() -> int:
    """Bytes of a core's L2 cache, if Linux tells; else 0."""
    for size in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):  # some containers show the folder and not what is in it
            if size.with_name("level").read_text().strip() == "2":
                return int(size.read_text().strip().removesuffix("K")) * 1024
    return 0


DIGEST_BYTES = 32  # of sha256
L2_BYTES = _second_level_cache()  # block sizes are compiled for it


def cache_directory() -> Path:
    """The folder of compiled kernels, created private (0700); one that others can write to is refused.

    Unpickling is running code, so a folder that another user owns or may write to is not used: the kernels are then
    compiled into a temporary folder that goes with the process, with a warning, because each process pays for it again.
    """
    above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = os.environ.get("MINIGRAD_CACHE_DIR") or os.path.join(above, "minigrad")
    folder = Path(root) / f"cpu-{_source_hash()}"
    try:
        if not folder.exists():
            _remove_old(Path(root))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info, root_mode = folder.stat(), Path(root).stat().st_mode
        if hasattr(os, "getuid") and (info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise PermissionError(f"{folder} is owned or writable by somebody else; chmod go-w mends the second")
        if hasattr(os, "getuid") and root_mode & stat.S_IWOTH and not root_mode & stat.S_ISVTX:
            raise PermissionError(f"everybody may rename what is in {root}; chmod o-w or chmod +t mends it")
        tempfile.TemporaryFile(dir=folder).close()
        if (locks := folder / "locks").exists() and not locks.is_file():  # damage
            shutil.rmtree(locks) if locks.is_dir() and not locks.is_symlink() else locks.unlink()
        return folder
    except OSError as error:
        temporary = Path(tempfile.mkdtemp(prefix="minigrad-kernels-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        folder = temporary / folder.name  # helpers find it by its root
        folder.mkdir()
        warnings.warn(
            f"the kernel cache cannot be used ({error}); kernels are compiled again in each process, into {temporary}. "
            "Set MINIGRAD_CACHE_DIR to a private, writable folder.",
            RuntimeWarning,
            stacklevel=2,
        )
        return folder


def _remove_old(root: Path) -> None:
    """Delete what versions of the sources that were last compiled more than a month ago have left."""
    for folder in root.glob("cpu-*"):
        with contextlib.suppress(FileNotFoundError):  # another process has just removed it
            if time.time() - folder.stat().st_mtime > 30 * 86400:
                shutil.rmtree(folder, ignore_errors=True)


def _source_hash() -> str:
    digest = hashlib.sha256(f"{numba.__version__} {L2_BYTES}".encode())
    package = Path(__file__).parents[1]  # all of cpu_kernels: a kernel inlines what other rooms define
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class KernelCache(NullCache):
    """The machine code of a kernel on disk: for each signature a file, which begins with the sha256 of the rest.

    What is damaged, or was written with other versions of what Numba needs, counts as absent and is written anew.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        path = self._path(sig, target_context)
        return TEAM.load(name_of(self._fn), sig, lambda: self._read(path, target_context), path.exists)

    def save_overload(self, sig: Any, data: Any) -> None:
        if not data.library.has_dynamic_globals:  # addresses, which are of this process only
            with TEAM.saving:
                write_entry(self._path(sig, data.target_context), dumps(data._reduce()))

    def holds(self, sig: Any, target_context: Any) -> bool:
        """Whether there is an entry, be it damaged."""
        return self._path(sig, target_context).exists()

    def _path(self, sig: Any, target_context: Any) -> Path:
        """Of an entry. Its name has a hash of what the machine code depends on, beside the sources of this package."""
        code, closure = self._fn.__code__, [cell.cell_contents for cell in self._fn.__closure__ or ()]
        source = _digest_of(sys.executable if getattr(sys, "frozen", False) else code.co_filename)
        defined = name_of(self._fn), code.co_firstlineno, source, dumps(closure)
        compiled_for = str(sig), target_context.codegen().magic_tuple(), sys.implementation.cache_tag
        digest = hashlib.sha256(repr((defined, compiled_for)).encode()).hexdigest()
        return CACHE_DIRECTORY / f"{self._fn.__name__}-{digest}.nbc"

    @staticmethod
    def _read(path: Path, target_context: Any) -> Any:
        """The digest is of the content: unpickling damaged code raises anything, aborts the process, or runs it."""
        with contextlib.suppress(AttributeError, ImportError, TypeError):
            data = read_entry(path)
            if data is not None:
                target_context.refresh()
                return CompileResult._rebuild(target_context, *pickle.loads(data))
        return None


def write_entry(path: Path, content: bytes) -> None:
    """A file of the cache, whole or not at all; it begins with the content's sha256."""
    CACHE_DIRECTORY.mkdir(mode=0o700, parents=True, exist_ok=True)  # it may have been removed
    with tempfile.TemporaryDirectory(dir=CACHE_DIRECTORY) as folder:
        if path.is_dir() and not path.is_symlink():  # damage that a file cannot take the place of
            shutil.rmtree(path)
        whole = Path(folder, path.name)
        whole.write_bytes(hashlib.sha256(content).digest() + content)
        with contextlib.suppress(PermissionError):  # on Windows, while another process reads it
            whole.replace(path)


def read_entry(path: Path) -> bytes | None:
    """The content of a file of the cache; None if there is none, or it is damaged."""
    with contextlib.suppress(FileNotFoundError):
        content = path.read_bytes() if path.is_file() else b""  # reading a named pipe would wait for ever
        digest, data = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if digest == hashlib.sha256(data).digest():
            return data
    return None


_digest_of = functools.cache(lambda path: hashlib.sha256(Path(path).read_bytes()).digest())


def name_of(fn: Callable[..., Any]) -> str:
    """Of a kernel: its module's and its own."""
    return f"{fn.__module__}.{fn.__qualname__}"


class KernelLibrary(JITCodeLibrary):
    """The machine code of a kernel, which calls its own copies of the functions that it was linked with.

    Numba leaves such copies replaceable by a definition of the same name that the process loaded earlier. That one was
    optimised apart, and with ``reassoc`` may add in another order: last bits would depend on which kernels the process
    compiled, or took from the cache, before. A resumed training run would then not repeat the uninterrupted one.

    Numba optimises each function by itself, and then all once they are linked. Here only the second is done: the
    first is an eighth of the compile time, and kernels are as fast without it (docs/lab/first_step.md).
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if function.linkage in (Linkage.linkonce_odr, Linkage.weak_odr) and not function.is_declaration:
                function.linkage = "internal"
        super()._optimize_final_module()


class KernelCompiler(Compiler):
    """Numba's compiler, writing into a KernelLibrary."""

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        if self.state.library is None:
            self.state.library = KernelLibrary(self.state.targetctx.codegen(), func.__qualname__)
            self.state.library.enable_object_caching()
        return super().compile_extra(func)


def _inline_function(self: Any, caller_ir: Any, block: Any, i: int, function: Any, arg_typs: Any = None) -> Any:
    """Numba's ``InlineWorker.inline_function``, which copies what it has read for this call alone, of each block of
    the function all its names, twice: half of the compile time of a fold.
    """
    read = self.run_untyped_passes(function)
    for one in read.blocks.values():
        one.__deepcopy__ = lambda memo, one=one: one
    inlined = self.inline_ir(caller_ir, block, i, read, function.__code__.co_freevars, arg_typs)
    for one in read.blocks.values():
        del one.__deepcopy__
    return inlined


InlineWorker.inline_function = _inline_function
CACHE_DIRECTORY = cache_directory()
TEAM = Team(CACHE_DIRECTORY)


def compiled(fn: Callable[..., Any], **options: Any) -> Any:
    dispatcher = numba.njit(**OPTIONS, **options, pipeline_class=KernelCompiler)(fn)
    if numba.config.DISABLE_JIT:
        return dispatcher  # which is fn
    dispatcher._cache = KernelCache(fn)
    dispatcher.compile = functools.partial(TEAM.compile, dispatcher)
    TEAM.kernels[name_of(fn)] = dispatcher
    template = dispatcher.get_call_template

    def compiled_once(args: Any, kws: Any) -> Any:
        """Numba would compile a kernel that others call anew for each constant among its arguments."""
        return template(tuple(map(unliteral, args)), {name: unliteral(arg) for name, arg in kws.items()})

    dispatcher.get_call_template = compiled_once
    return dispatcher


def kernel(fn: Callable[..., Any]) -> Any:
    """Compile a serial kernel, cached on disk; may be called from Python and from other kernels."""
    return compiled(fn)


def inline(fn: Callable[..., Any]) -> Any:
    """A scalar helper that is inlined into the kernels that call it."""
    return numba.njit(inline="always", **OPTIONS)(fn)


def emits(types_of: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """An intrinsic, whose calls in kernels become the LLVM code that fn(context, builder, signature, *values) emits.

    ``types_of`` gives a call's signature from the types of its arguments, or None where there is none. Where that says
    void, ``fn`` returns nothing.
    """

    def made(fn: Callable[..., Any]) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            result = fn(context, builder, signature, *values)
            return context.get_dummy_value() if signature.return_type == void else result

        def typed(typing_context: Any, *arguments: Any) -> Any:
            signature = types_of(*arguments)
            return signature and (signature, generate)

        parameters = inspect.signature(lambda typing_context: None).parameters | inspect.signature(types_of).parameters
        vars(typed)["__signature__"] = inspect.Signature([*parameters.values()])
        return intrinsic(functools.update_wrapper(typed, fn))

    return made
