"""Matrix products in each dtype and by each engine, and the shapes that ``--tune`` compares the engines at."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from gpu_case import Arrays, Call, Case, Sizes, normal

from minigrad.cuda_kernels.platform import choices
from minigrad.cuda_kernels.products import choose, cublaslt, hopper as wgmma, simt, tensor_core
from minigrad.cuda_kernels.products.record import broadcast, problem
from minigrad.dtypes import bfloat16

DTYPES: dict[str, Any] = {"float32": np.float32, "tf32": np.float32, "bfloat16": bfloat16, "float16": np.float16}
RATES = {"float32": "matrix rate"} | {word: f"matrix rate {word}" for word in ("tf32", "bfloat16", "float16")}
TOLERANCES = {"float32": 1e-5, "tf32": 2e-3, "bfloat16": 5e-3, "float16": 1e-3}
SHORT = {"tf32": "tf32", "bfloat16": "bf16", "float16": "fp16"}

# What the operands' shapes are, (rows of a, columns of a, rows of b, columns of b), and which of them is transposed:
# those of GPT-2's layer from C to 4 C, forward, input gradient and weight gradient.
Shapes = Callable[[Sizes], tuple[int, int, int, int]]
VIEWS: dict[str, tuple[Shapes, str]] = {
    "square": (lambda s: (s.M, s.M, s.M, s.M), ""),
    "x @ w.T": (lambda s: (s.R // 4, s.C, s.wide, s.C), "b"),
    "dy @ w": (lambda s: (s.R // 4, s.wide, s.wide, s.C), ""),
    "dy.T @ x": (lambda s: (s.R // 4, s.wide, s.R // 4, s.C), "a"),
}


def views(transposed: str, a: Any, b: Any) -> tuple[Any, Any]:
    """The operands as the product takes them."""
    return (a.T if transposed == "a" else a), (b.T if transposed == "b" else b)


# Engines --------------------------------------------------------------------------------------------------------------


def numba(k: Any, p: Any, word: str) -> Any:
    """The kernels of this package: mma on tensor cores, multiply-adds for float32."""
    return simt.multiply(p) if word in ("float32", "float64") else tensor_core.multiply(p)


def library(k: Any, p: Any, word: str) -> Any:
    """NVIDIA's library."""
    return cublaslt.multiply(p, word == "tf32")


def hopper(k: Any, p: Any, word: str) -> Any:
    """TMA and wgmma, for compute capability 9.0."""
    if not wgmma.supports(p):
        raise ValueError(f"TMA and wgmma do not take {p.a!r} times {p.b!r}")
    return wgmma.multiply(p)


def no_library(k: Any) -> str | None:
    """Why cuBLASLt cannot be measured, or None."""
    try:
        cublaslt.library()
    except OSError as error:
        return str(error)
    return None


def no_hopper(k: Any) -> str | None:
    """Why wgmma cannot be measured, or None."""
    device = k.memory.current_device()
    return None if wgmma.supports_device(device) else "wgmma needs compute capability 9.0"


# Names in the report: what computes, what it may lack, and the goals by dtype in per cent of cuBLAS.
Engine = tuple[Callable[[Any, Any, str], Any], Callable[[Any], str | None], dict[str, float]]
ENGINES: dict[str, Engine] = {
    "": (numba, lambda k: None, {"float32": 80, "tf32": 44, "bfloat16": 45, "float16": 45}),
    ", wgmma": (hopper, no_hopper, {"bfloat16": 70, "float16": 70}),
    ", cuBLASLt": (library, no_library, {"float32": 95, "tf32": 95, "bfloat16": 95, "float16": 95}),
}


def product(k: Any, a: Any, b: Any) -> Any:
    """A product of two operands, with an array for its result."""
    a, b, shape = broadcast(a, b)
    return problem(k.empty(shape, a.dtype), a, b)


def _ours(engine: Callable[[Any, Any, str], Any], word: str, transposed: str) -> Callable[..., Call]:
    def prepare(k: Any, a: Any, b: Any) -> Call:
        p = product(k, *views(transposed, a, b))

        def call() -> Any:
            engine(k, p, word)
            return p.y

        return call

    return prepare


def _torch(word: str, transposed: str) -> Callable[..., Call]:
    def prepare(t: Any, a: Any, b: Any) -> Call:
        def call() -> Any:
            t.backends.cuda.matmul.allow_tf32 = word == "tf32"
            return t.matmul(*views(transposed, a, b))

        return call

    return prepare


def _case(word: str, view: str, name: str) -> Case:
    shapes, transposed = VIEWS[view]
    engine, missing, goals = ENGINES[name]
    step = 8 if engine is hopper else 1  # TMA reads rows that begin at multiples of 16 bytes

    def sizes(s: Sizes) -> tuple[int, ...]:
        return tuple(-(-max(n, 2) // step) * step for n in shapes(s))

    def inputs(s: Sizes, rng: np.random.Generator) -> Arrays:
        rows, columns, rows_b, columns_b = sizes(s)
        return tuple(normal(rng, *shape).astype(DTYPES[word]) for shape in ((rows, columns), (rows_b, columns_b)))

    def flops(s: Sizes) -> int:
        rows, columns, rows_b, columns_b = sizes(s)
        M, K = (columns, rows) if transposed == "a" else (rows, columns)
        return 2 * M * K * (rows_b if transposed == "b" else columns_b)

    return Case(
        f"matmul {SHORT[word] + ' ' if word in SHORT else ''}{view}{name}",
        inputs,
        _ours(engine, word, transposed),
        lambda a, b: np.matmul(*views(transposed, a, b)),
        _torch(word, transposed),
        flops=flops,
        goal=goals[word],
        rate=RATES[word],
        tolerance=TOLERANCES[word],
        missing=missing,
    )


CASES: Sequence[Case] = tuple(
    _case(word, view, name)
    for word, chosen in {
        "float32": list(VIEWS),
        "tf32": ["square", "x @ w.T"],
        "bfloat16": list(VIEWS),
        "float16": ["square"],
    }.items()
    for view in chosen
    for name, (_, _, goals) in ENGINES.items()
    if word in goals and not (word == "float32" and name and view != "square")
)


# Tuning ---------------------------------------------------------------------------------------------------------------


def tuned_shapes(s: Sizes) -> Iterator[tuple[tuple[int, int], tuple[int, int], str]]:
    """Operands and which is transposed: the layers of a GPT-2 and its logits, forward and backward."""
    C, V = s.C, s.V
    for rows in (s.R // 4, s.R):
        for wide, narrow in ((3 * C, C), (C, C), (4 * C, C), (C, 4 * C), (V, C)):
            if wide != V or rows != s.R:
                yield (rows, narrow), (wide, narrow), "b"
                yield (rows, wide), (wide, narrow), ""
                yield (rows, wide), (rows, narrow), "a"


def tune(
    k: Any, word: str, s: Sizes, timer: Callable[[Sequence[Call]], float], most: int | None = None
) -> Iterator[dict[str, Any]]:
    """Measure the engines for each shape of a dtype, and remember the fastest one (``choose.py``).

    With ``most`` only that many shapes, and nothing is remembered.
    """
    rng, measured, errors = np.random.default_rng(0), {}, {}
    half = word in ("bfloat16", "float16")
    engines = {n: f for n, f in choose.ENGINES.items() if n != "hopper" or (half and no_hopper(k) is None)}
    choices.precision = "high" if word == "tf32" else "highest"
    for shape_a, shape_b, transposed in itertools.islice(tuned_shapes(s), most):
        host = [normal(rng, *(max(n, 2) for n in shape)).astype(DTYPES[word]) for shape in (shape_a, shape_b)]
        p = product(k, *views(transposed, *map(k.from_host, host)))
        ms = {}
        for name, engine_of in engines.items():
            try:
                ms[name] = 1e3 * timer([functools.partial(engine_of(p), p)])
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {error}"[:400]
        if len(ms) > 1:
            measured[choose.key(p)] = {"engine": min(ms, key=ms.__getitem__), "ms": ms}
    choices.precision = "highest"
    yield {"products": measured, "errors": errors}
    if not measured:
        yield {"skipped": f"only one engine could be measured, so nothing is remembered: {errors}"}
        return
    if most is None:  # a rehearsal's choice would be nobody's
        yield {"file": str(choose.write(k.memory.current_device(), measured))}
