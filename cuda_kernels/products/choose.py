"""Which engine computes a matrix product. This is the only place where that is decided.

    numba      the kernels of this package: half floats, and float32 where TensorFloat-32 is allowed, on tensor cores
               (``tensor_core.py``), all else without (``simt.py``)
    hopper     the same, but half floats by TMA and wgmma where these can read them (``hopper.py``)
    cublaslt   NVIDIA's library, for float dtypes (``cublaslt.py``)

The user chooses by ``MINIGRAD_GEMM`` or ``minigrad.cuda.set_gemm``. "tuned", the default, is the engine that was
measured to be faster for the dtype, transposition and rough size on this card and driver. What was not measured is
numba's. Integers, empty sums and what no library multiplies are numba's always.

A further engine is an entry of ``ENGINES`` and a word of ``choices.GEMMS``.

``benchmarks/gpu_report.py --tune`` measures and writes. The file, which lies beside the compiled kernels
(``compiler.py``), is JSON:

    {"NVIDIA H200, CUDA 13.0": {"bfloat16 nt 16384 4096 1024 x1": {"engine": "cublaslt", "ms": {"numba": 0.2, ...}}}}

A product is known by its dtype ("tf32" for rounded float32, both where operands and result differ). Two letters say
whether the rows of a and of b are contiguous ("n") or not ("t"). M, N, K and the size of the batch come last, rounded
up to powers of two.
"""

import functools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..platform import choices, compiler, libcuda, memory
from ..platform.language import SIMULATED
from ..rowwise.rows import power_of_two
from . import simt, tensor_core
from .record import Problem

HALVES = ("bfloat16", "float16")
FLOATS = ("float32", "float64", *HALVES)

Engine = Callable[[Problem], None]
Table = dict[str, dict[str, Any]]  # of one card


def multiply(p: Problem) -> None:
    """Compute the product by the engine that was chosen. TypeError for half floats on devices without tensor cores."""
    word = engine_of(p)
    if p.a.dtype.name in HALVES and not memory.has_tensor_cores(p.y.device):
        known = ", ".join(map(str, simt.SMALL_KERNELS))
        raise TypeError(f"matmul has no kernel for {p.a.dtype.name}; it has those of {known}")
    for part in parts(p, 1 if word == "cublaslt" else 2) if p.y.size else ():
        ENGINES[word](part)(part)


def parts(p: Problem, dimensions: int) -> list[Problem]:
    """The product, or rarely parts of it, whose leading dimensions merge to at most so many."""
    if len(p.batch) <= dimensions:
        return [p]
    return [part for i in range(p.y.shape[0]) for part in parts(p.part(i), dimensions)]


def engine_of(p: Problem) -> str:
    """The name of the engine for a product."""
    if p.a.dtype.name not in FLOATS or not p.sizes[2]:
        return "numba"
    word = choices.gemm()
    if word != "tuned":
        return word
    table = _table(p.y.device)
    return str(table[key(p)]["engine"]) if table and key(p) in table else "numba"


def allows_tf32(p: Problem) -> bool:
    """Whether its float32 operands may be rounded to TensorFloat-32."""
    return choices.precision != "highest" and p.a.dtype.name == "float32" and memory.has_tensor_cores(p.y.device)


def _numba(p: Problem) -> Engine:
    rounded = allows_tf32(p) and not (simt.is_small(p) or simt.is_thin(p))
    return tensor_core.multiply if rounded or p.a.dtype.name in HALVES else simt.multiply


def _hopper(p: Problem) -> Engine:
    if p.a.dtype.name not in HALVES:
        return _numba(p)
    from . import hopper  # whose kernels most cards have no use for

    return hopper.multiply


def _cublaslt(p: Problem) -> Engine:
    from . import cublaslt  # which looks for the library

    return functools.partial(cublaslt.multiply, tf32=allows_tf32(p))


ENGINES: dict[str, Callable[[Problem], Engine]] = {"numba": _numba, "hopper": _hopper, "cublaslt": _cublaslt}


# What was measured ----------------------------------------------------------------------------------------------------


def key(p: Problem) -> str:
    """What a product is known by."""
    operand, out = p.a.dtype.name, p.y.dtype.name
    word = "tf32" if allows_tf32(p) else operand if operand == out else f"{operand}>{out}"
    along = "".join("n" if steps[-1] == 1 else "t" for steps in (p.a.steps, p.b.steps))
    return f"{word} {along} {' '.join(str(power_of_two(n)) for n in p.sizes)} x{power_of_two(p.matrices)}"


@functools.cache
def card(device: int) -> str:
    """A device's name and the CUDA version of its driver."""
    version = "none" if SIMULATED else ".".join(map(str, libcuda.driver().cuda))
    return f"{memory.device_name(device)}, CUDA {version}"


def path() -> Path:
    """The file. Raises PermissionError if somebody else could have written it."""
    file = compiler.cache_folder() / "products.json"
    if file.exists():
        compiler.refuse_others(file, "; delete it, or set MINIGRAD_CACHE_DIR to another folder")
    return file


def read() -> dict[str, Table]:
    """What was measured, by card; empty where nothing was. ValueError, naming the file, if it is not such a file."""
    file = path()
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        engines = [entry["engine"] for table in found.values() for entry in table.values()]
        if not set(engines) <= set(ENGINES):
            raise ValueError(f"it names the engines {sorted(set(engines) - set(ENGINES))}")
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
    compiler.replace_file(file, json.dumps(found, indent=1, sort_keys=True).encode())
    _table.cache_clear()
    return file


@functools.cache
def _table(device: int) -> Table:
    try:
        return read().get(card(device), {})
    except ValueError as error:
        remedy = "Delete it, or measure again by python benchmarks/gpu_report.py --tune"
        warnings.warn(f"{error}: products are the numba engine's. {remedy}", RuntimeWarning, stacklevel=2)
        return {}
