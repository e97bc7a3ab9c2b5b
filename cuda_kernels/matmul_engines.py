"""Which engine computes a matrix product. This is the only place where that is decided.

    numba      the kernels of this package: half floats, and float32 where TensorFloat-32 is allowed, on tensor cores
               (``matmul_tensor_core.py``), all else without (``matmul_simt.py``)
    hopper     the same, but half floats by TMA and wgmma where these can read them (``matmul_hopper.py``)
    cublaslt   NVIDIA's library, for float dtypes (``cublaslt.py``)

The user chooses by ``MINIGRAD_GEMM`` or ``minigrad.cuda.set_gemm``. "tuned", the default, is the engine that was found
faster for the dtype, the transposition and about the size on this card and driver (``matmul_tuning.py``), and numba for
what was not measured. Integers, empty sums and what no library multiplies are numba's always.

A further engine is an entry of ``ENGINES`` and a word of ``choices.GEMMS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import choices, matmul_simt, matmul_tensor_core, matmul_tuning
from .matmul_operands import Product, flatten


def multiply(p: Product) -> None:
    """Compute the product by the engine that was chosen."""
    if p.y.size:
        p = flatten(p)
        ENGINES[engine_of(p)](p)


def engine_of(p: Product) -> str:
    """The name of the engine for a product."""
    if p.a.dtype.name not in matmul_tuning.FLOATS or not p.a.shape[-1]:
        return "numba"
    word = choices.gemm()
    return matmul_tuning.engine_of(p) if word == "tuned" else word


def allows_tf32(p: Product) -> bool:
    """Whether its float32 operands may be rounded to TensorFloat-32."""
    return choices.precision != "highest" and p.a.dtype.name == "float32" and matmul_tensor_core.takes(p.y.device)


def _numba(p: Product) -> None:
    half = p.a.dtype.name in ("bfloat16", "float16")
    if half or (allows_tf32(p) and not (matmul_simt.is_small(p) or matmul_simt.is_thin(p))):
        matmul_tensor_core.multiply(p)
    else:
        matmul_simt.multiply(p)


def _hopper(p: Product) -> None:
    from . import matmul_hopper  # whose kernels most cards have no use for

    if not matmul_hopper.multiply(p):
        _numba(p)


def _cublaslt(p: Product) -> None:
    from . import cublaslt  # which looks for the library

    cublaslt.multiply(p, allows_tf32(p))


ENGINES: dict[str, Callable[[Product], Any]] = {"numba": _numba, "hopper": _hopper, "cublaslt": _cublaslt}
