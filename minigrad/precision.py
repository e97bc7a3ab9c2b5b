"""How exactly float32 matrix products are computed."""

from __future__ import annotations

import importlib
from typing import Any

from .device import CPU


def get_float32_matmul_precision() -> str:
    """``"highest"``, ``"high"`` or ``"medium"``: what ``set_float32_matmul_precision`` chose last."""
    return str(CPU.kernels.bfloat16_product.precision)


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
    CPU.kernels.bfloat16_product.set_float32_matmul_precision(precision)
    choices: Any = importlib.import_module("minigrad.cuda_kernels.choices")
    choices.precision = precision
