"""The rungs of the ladders (``cuda_kernels/ladder_*.py``): the same result, from the plain kernel to the fast one."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_case import Arrays, Call, Case, Sizes, elements, normal, normals, softmax

from minigrad.cuda_kernels.ladders import (
    ladder_matmul as multiplying,
    ladder_reduction as summing,
    ladder_softmax as normalising,
    ladder_transpose as transposing,
)
from minigrad.cuda_kernels.platform.array import DeviceArray, empty
from minigrad.cuda_kernels.platform.launch import Kernel
from minigrad.cuda_kernels.rowwise import transposes


def cases() -> list[Case]:
    """A case for each rung."""
    return [*sum_rungs(), *transpose_rungs(), *softmax_rungs(), *product_rungs()]


def of_whole_vectors(s: Sizes, rng: np.random.Generator) -> Arrays:
    """One array (R, C), both multiples of 4: the last rung moves 16 bytes at a time along either side."""
    return (normal(rng, -(-s.R // 4) * 4, -(-s.C // 4) * 4),)


def transpose_rungs() -> list[Case]:
    """y = x.T of (R, C), by each kernel."""
    kernels = {
        "naive": transposing.naive,
        "tile": transposing.tile,
        "padded": transposes.PADDED_TILES[4],
        "wide": transposes.WIDE_TILES[4][0],
    }
    return [
        Case(
            f"transpose ladder, {rung}",
            of_whole_vectors,
            lambda k, x, kernel=kernel: _transpose(kernel, x),
            np.transpose,
            None,
            elements(2),
            goal=85 if rung == "wide" else None,
        )
        for rung, kernel in kernels.items()
    ]


def _transpose(kernel: Kernel, x: DeviceArray) -> Call:
    rows, columns = x.shape

    def call() -> Any:
        y = empty((columns, rows), x.dtype)
        kernel.launch((-(-columns // 32), -(-rows // 32), 1), y, x, rows, columns, rows, columns, 0, 0)
        return y

    return call


def sum_rungs() -> list[Case]:
    """The sum of a quarter of (R, C), all positive, by each kernel."""
    last = len(summing.LADDER)
    return [
        Case(
            f"sum ladder, {kernel.name.partition('.')[2]}",
            lambda s, rng: (abs(normal(rng, s.R * s.C // 4)),),
            lambda k, x, step=step: lambda: summing.reduce(step, x),
            lambda x: x.sum(keepdims=True),
            None,
            lambda s: 4 * (s.R * s.C // 4),
            goal=92 if step == last else None,
        )
        for step, (kernel, _) in enumerate(summing.LADDER, 1)
    ]


SOFTMAX_STEPS = ("row_per_thread", "row_per_block", "online", "registers")


def softmax_rungs() -> list[Case]:
    """softmax of the rows of (R, C), by each kernel."""
    return [
        Case(
            f"softmax ladder, {name}",
            normals(1),
            lambda k, x, step=step: lambda: normalising.softmax(step, x),
            softmax,
            None,
            elements(2),
            goal=90 if step == len(SOFTMAX_STEPS) else None,
        )
        for step, name in enumerate(SOFTMAX_STEPS, 1)
    ]


def product_rungs() -> list[Case]:
    """y = a b of square matrices half as wide as those of the other products, by each kernel."""

    def inputs(s: Sizes, rng: np.random.Generator) -> Arrays:
        return normal(rng, _side(s), _side(s)), normal(rng, _side(s), _side(s))

    return [
        Case(
            f"matmul ladder, {rung}",
            inputs,
            lambda k, a, b, rung=rung: lambda: multiplying.multiply(rung, a, b),
            np.matmul,
            None,
            flops=lambda s: 2 * _side(s) ** 3,
        )
        for rung in multiplying.STEPS
    ]


def _side(s: Sizes) -> int:
    """M / 2, rounded up to a multiple of 4."""
    return -(-s.M // 8) * 4
