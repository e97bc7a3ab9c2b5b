"""How exactly float32 matrix products are computed."""

from __future__ import annotations

from .device import CPU


def get_float32_matmul_precision() -> str:
    """``"highest"`` or ``"medium"``: what ``set_float32_matmul_precision`` chose last."""
    return str(CPU.kernels.bfloat16_product.precision)


def set_float32_matmul_precision(precision: str) -> None:
    """Choose how products of float32 tensors on the CPU are computed, forward and backward, in the whole process.

    - ``"highest"``, the default: in float32.
    - ``"medium"``: operands are rounded to bfloat16, sums and results are float32, on CPUs with ``avx512_bf16``. An
      element of ``a @ b`` is off by at most 2^-7 + 2^-16 of ``|a| @ |b|`` and the roundings of a float32 sum.

    It holds for ``linear``, ``matmul``, ``@``, ``einsum`` and what is made of them. Products with at most two rows or
    columns, which wait for memory and not for arithmetic, and attention are float32 always; so is everything on GPUs.

    PyTorch's third precision, ``"high"``, is TensorFloat-32 or sums of bfloat16 parts. No kernel here has it. PyTorch
    would then use ``"highest"`` without a word: here it is an error.

    Raises ValueError for another word, RuntimeError for ``"medium"`` on a CPU without ``avx512_bf16``.
    """
    CPU.kernels.bfloat16_product.set_float32_matmul_precision(precision)
