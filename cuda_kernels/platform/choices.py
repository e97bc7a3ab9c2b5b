"""What the user chose for matrix products on GPUs. Importing this imports neither numba-cuda nor CuPy.

gemm        which engine multiplies (``products/choose.py``): "numba", "cublaslt", "hopper", or "tuned", the fastest
            of them as measured on this card; MINIGRAD_GEMM is the choice of the environment
precision   of float32 products: "highest" is float32; "high" and "medium" are TensorFloat-32
"""

import os

GEMMS = ("tuned", "numba", "cublaslt", "hopper")

precision: str = "highest"
_gemm: str | None = None


def gemm() -> str:
    """The engine of products, or "tuned". Raises ValueError if MINIGRAD_GEMM is neither."""
    if _gemm is None:
        set_gemm(os.environ.get("MINIGRAD_GEMM") or "tuned", "MINIGRAD_GEMM=")
    return str(_gemm)


def set_gemm(word: str, source: str = "set_gemm ") -> None:
    """Choose the engine. Raises ValueError for another word."""
    global _gemm
    if word not in GEMMS:
        raise ValueError(f"{source}{word!r}: expected one of {', '.join(map(repr, GEMMS))}")
    _gemm = word
