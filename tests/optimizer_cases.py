"""What the tests of all optimizers share: every optimizer, parameters, gradients, and the bits that a step decides."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minigrad.grad_store import GradStore
from minigrad.optim import SGD, AdaGrad, Adam, AdamW, Lamb, Muon, Optimizer
from minigrad.tensor import Tensor

SHAPES: list[tuple[int, ...]] = [(), (3,), (4, 5), (0, 2), (2, 3, 4), (33, 70)]
MATRICES: list[tuple[int, ...]] = [(4, 5), (33, 70), (40, 8), (0, 2), (1, 1), (6, 6)]


class Case(NamedTuple):
    """An optimizer with options that use all of it; ``make(params, **options)``."""

    make: Callable[..., Optimizer]
    shapes: list[tuple[int, ...]] = SHAPES


def _case(kind: Any, shapes: list[tuple[int, ...]] = SHAPES, **options: Any) -> Case:
    return Case(lambda params=None, **more: kind(params, **{**options, **more}), shapes)


CASES = {
    "SGD": _case(SGD, lr=0.02),
    "SGD momentum": _case(SGD, lr=0.02, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "SGD nesterov": _case(SGD, lr=0.02, momentum=0.9, nesterov=True),
    "Adam": _case(Adam, lr=0.02, weight_decay=0.1),
    "AdamW": _case(AdamW, lr=0.02, weight_decay=0.1),
    "AdaGrad": _case(AdaGrad, lr=0.02, weight_decay=0.1, initial_accumulator_value=0.2, lr_decay=0.1),
    "Lamb": _case(Lamb, lr=0.02, weight_decay=0.1),
    "LARS": _case(Lamb, lr=0.02, weight_decay=0.1, use_adam=False),
    "Muon": _case(Muon, MATRICES, weight_decay=0.1),
}


def make_params(dtype: Any = np.float32, seed: int = 0, shapes: list[tuple[int, ...]] = SHAPES) -> list[Tensor]:
    """Parameters of normally distributed values."""
    rng = np.random.default_rng(seed)
    return [Tensor(np.asarray(rng.standard_normal(s), dtype), requires_grad=True) for s in shapes]


def make_grads(params: list[Tensor], step: int, skip: tuple[int, ...] = (), smallest: int = -9) -> GradStore:
    """Gradients of magnitudes from 10^smallest to 10, those at the positions in ``skip`` left out."""
    grads = GradStore()
    for i, p in enumerate(params):
        rng = np.random.default_rng([step, i])
        g = rng.standard_normal(p.shape) * 10.0 ** rng.integers(smallest, 2, p.shape)
        if i not in skip:
            grads.insert(p, Tensor(np.asarray(g, p.dtype)))
    return grads


def bits(optimizer: Optimizer, params: list[Tensor]) -> list[bytes]:
    """Everything that a step may change."""
    arrays, meta = optimizer.state_dict()
    saved = [arrays[name].tobytes() for name in sorted(arrays)]
    return [p.data.tobytes() for p in params] + saved + [json.dumps(meta).encode()]


# Kernels: how many states a parameter has, and rows of scalars.
FAMILIES: dict[str, tuple[int, list[list[float]]]] = {
    "adamw": (2, [[0.99, 0.1, 0.9, 0.1, 0.01, 0.3, 1e-8, 0.2], [1.0, 0.7, 0.99, 0.01, 0.1, 0.2, 1e-3, 0.0]]),
    "sgd": (1, [[0.1, 0.2, 0.9, 0.7, 0.9, 0.0], [0.3, 0.0, 0.0, 1.0, 0.9, 1.0]]),
    "adagrad": (1, [[0.1, 0.2, 1e-10], [0.3, 0.0, 1e-3]]),
    "lamb": (2, [[0.1, 0.2, 0.9, 0.99, 0.2, 0.3, 1e-6, 10.0], [0.1, 0.0, 0.9, 0.99, 0.2, 0.3, 1e-6, np.inf]]),
}
