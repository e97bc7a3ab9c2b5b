"""Which engine was measured to be faster for a product, remembered on disk for each card and driver.

``benchmarks/gpu_report.py --tune`` measures and writes. The file, which lies beside the compiled kernels
(``compiler.py``), is JSON:

    {"NVIDIA H200, CUDA 13.0": {"bfloat16 nt 16384 4096 1024 x1": {"engine": "cublaslt", "ms": {"numba": 0.2, ...}}}}

A product is known by its dtype ("tf32" for rounded float32, both where operands and result differ), by whether the rows
of a and of b are contiguous ("n") or not ("t"), and by M, N, K and the size of the batch, rounded up to powers of two.
"""

from __future__ import annotations

import functools
import json
import os
import stat
import tempfile
import warnings
from pathlib import Path
from typing import Any

from . import compiler, libcuda, memory
from .language import SIMULATED
from .matmul_operands import Product

FLOATS = ("float32", "float64", "bfloat16", "float16")
NAME = "products.json"
MEASURED = ("numba", "cublaslt", "hopper")  # engines that a file may name

Table = dict[str, dict[str, Any]]  # of one card


def engine_of(p: Product) -> str:
    """The fastest engine for a product; numba for what was not measured."""
    table = _table(p.y.device)
    return str(table[key(p)]["engine"]) if table and key(p) in table else "numba"


def key(p: Product) -> str:
    """What a product is known by."""
    from .matmul_engines import allows_tf32  # which asks this module

    (M, N, K), operand, out = p.sizes, p.a.dtype.name, p.y.dtype.name
    word = "tf32" if allows_tf32(p) else operand if operand == out else f"{operand}>{out}"
    along = "".join("n" if steps[-1] == 1 else "t" for steps in (p.a.steps, p.b.steps))
    return f"{word} {along} {_rounded(M)} {_rounded(N)} {_rounded(K)} x{_rounded(p.y.size // (M * N))}"


def _rounded(n: int) -> int:
    return 1 << (n - 1).bit_length()


@functools.cache
def card(device: int) -> str:
    """A device's name and the CUDA version of its driver."""
    version = "none" if SIMULATED else ".".join(map(str, libcuda.driver().cuda))
    return f"{memory.device_name(device)}, CUDA {version}"


def path() -> Path:
    """The file. Raises PermissionError if somebody else could have written it."""
    file = compiler.cache_folder() / NAME
    if file.exists() and hasattr(os, "getuid"):
        info = file.stat()
        if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(
                f"{file} is owned or writable by somebody else; delete it, or set MINIGRAD_CACHE_DIR to another folder"
            )
    return file


def read() -> dict[str, Table]:
    """What was measured, by card; empty where nothing was. ValueError, naming the file, if it is not such a file."""
    file = path()
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        engines = [entry["engine"] for table in found.values() for entry in table.values()]
        if not set(engines) <= set(MEASURED):
            raise ValueError(f"it names the engines {sorted(set(engines) - set(MEASURED))}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} is not a table of measured products ({type(error).__name__}: {error})") from error
    return dict(found)


def write(device: int, measured: Table) -> Path:
    """Add what was measured on a device; entries of the same products are replaced. Returns the file."""
    try:
        found = read()
    except ValueError:
        found = {}  # it is replaced
    found[card(device)] = {**found.get(card(device), {}), **measured}
    file = path()
    handle, name = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as new:
        json.dump(found, new, indent=1, sort_keys=True)
    os.replace(name, file)
    _table.cache_clear()
    return file


@functools.cache
def _table(device: int) -> Table:
    try:
        return read().get(card(device), {})
    except ValueError as error:
        warnings.warn(
            f"{error}: products are the numba engine's. Delete it, or measure again by "
            "python benchmarks/gpu_report.py --tune",
            RuntimeWarning,
            stacklevel=2,
        )
        return {}
