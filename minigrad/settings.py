"""Settings of the process: the precision of products, threads of the CPU, memory. Kernels are told; they never ask.

Settings of a thread (``no_grad``, ``autocast``, ...) are in ``modes.py``. These come from the environment, read once:

=============================  =========================================================================================
MINIGRAD_CACHE_DIR             the folder of compiled kernels and of corpora; default ``~/.cache/minigrad``
MINIGRAD_KERNELS               plain: tensors on the CPU are computed with NumPy alone, as in ``minigrad.kernels``
MINIGRAD_FAST                  0: modules compute what their methods say, as within ``minigrad.unfused``
MINIGRAD_DEBUG                 1: how often memory was used again, at the end; 2: each CUDA launch and its time
MINIGRAD_POISON                1: new memory is NaN, to find results that depend on it
MINIGRAD_MALLOPT               0: the C library's allocator stays as it is
MINIGRAD_GEMM                  the engine of products on GPUs, as ``minigrad.cuda.set_gemm``
MINIGRAD_CUDASIM_ORDER         a seed: the simulator runs threads in another order
MINIGRAD_RENDEZVOUS_SECRET     what ranks of one job share, see ``minigrad.distributed``
=============================  =========================================================================================
"""

import importlib
from typing import Any

from . import hints
from .device import CPU

_precision = "highest"


def get_float32_matmul_precision() -> str:
    """``"highest"``, ``"high"`` or ``"medium"``: what ``set_float32_matmul_precision`` chose last."""
    return _precision


def set_float32_matmul_precision(precision: str) -> None:
    """Choose how products of float32 tensors are computed, forward and backward, in the whole process, on all devices.

    The words are PyTorch's. Each permits a rounding, and a device that has no instruction for it computes more exactly:

    - ``"highest"``, the default: in float32.
    - ``"high"``: GPUs round operands to TensorFloat-32, 10 bits of mantissa, for their tensor cores (compute capability
      8.0). CPUs have no such instruction and compute in float32, as PyTorch does there.
    - ``"medium"``: CPUs with ``avx512_bf16`` round operands to bfloat16. GPUs do as with ``"high"``, as PyTorch does.

    Sums and results are float32 always. An element of ``a @ b`` is off by at most 2^-10 + 2^-22 (TensorFloat-32) or
    2^-7 + 2^-16 (bfloat16) of ``|a| @ |b|``, and the roundings of a float32 sum.

    It holds for ``linear``, ``matmul``, ``@``, ``einsum`` and what is made of them. Products of few rows or columns,
    which wait for memory and not for arithmetic, very small ones, and attention are float32 always.

    Raises ValueError for another word, RuntimeError for ``"medium"`` on a CPU without ``avx512_bf16``.
    """
    global _precision
    CPU.native.bfloat16_product.set_float32_matmul_precision(precision)
    choices: Any = importlib.import_module("minigrad.cuda_kernels.platform.choices")
    choices.precision = _precision = precision


def get_num_threads() -> int:
    """Threads that an operation on a CPU tensor uses when called from this thread."""
    return int(CPU.native.threads.get_num_threads())


def set_num_threads(n: int) -> None:
    """Let CPU operations called from this thread use ``n`` threads. ValueError if the pool has fewer."""
    CPU.native.threads.set_num_threads(n)


def memory_stats() -> dict[str, int]:
    """What the process holds: ``page_faults`` so far, ``peak`` and, where the system tells, ``resident``, ``heap`` and
    ``heap_used``, in bytes. For a GPU's memory see ``minigrad.cuda``.

    Freed tensors stay in the heap and are used again, so a training step in its stride adds no page faults.
    """
    return dict(CPU.native.heap.statistics())


def release_memory() -> int:
    """Give memory that no tensor uses back to the system; the number of bytes by which the process shrank.

    Worth a call after the largest step of a process; one that computes nothing for a minute does it by itself. The next
    step takes the memory anew.
    """
    return int(CPU.native.heap.release())


hints.list_names(__name__)
