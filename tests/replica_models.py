"""Models for the tests of replicas, pipelines and shards; processes import them, so they need no pytest."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from minigrad import Tensor, nn
from minigrad.nn import functional as F


class Net(nn.Module):
    """tanh(x W + b), perhaps shifted by a running mean and dropped out, times a head (5, C); x (rows, 5)."""

    def __init__(
        self,
        classes: int = 4,
        dtype: str = "float64",
        seed: int = 0,
        tied: bool = False,
        frozen: tuple[str, ...] = (),
        running: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(Tensor(np.asarray(rng.standard_normal(shape), dtype)))

        self.first = parameter(5, 5)
        self.bias = parameter(5)
        self.unused = parameter(3)
        self.head = self.first if tied else parameter(5, classes)
        self.running, self.dropout = running, dropout
        if running:
            self.register_buffer("mean", Tensor(np.zeros(5, dtype)))
            self.register_buffer("batches", Tensor(np.zeros((), np.int64)))
            self.register_buffer("third", Tensor(np.full(3, 1 / 3, dtype)))
        for name, p in self.named_parameters():
            p.requires_grad_(name not in frozen)

    def forward(self, x: Tensor) -> Tensor:
        h = (x @ self.first + self.bias).tanh()
        if self.running:  # as batch normalisation keeps its averages, while the batch itself has no part in the result
            h = h - self.mean
            self.mean = self.mean * 0.9 + h.detach().mean(0) * 0.1
            self.batches = self.batches + 1
        return F.dropout(h, self.dropout, True) @ self.head


class Failing(Net):
    """Raises ValueError, or ends its thread or process, or sleeps, where a feature is larger than 1000."""

    def __init__(self, how: str, **options: Any) -> None:
        super().__init__(**options)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() and x.max().item() > 1000:
            if self.how == "raise":
                raise ValueError("a feature is above 1000")
            if self.how == "exit":
                raise SystemExit(3)
            if self.how == "kill":
                os.kill(os.getpid(), 9)
            time.sleep(1.5)
        return super().forward(x)


def broken() -> nn.Module:
    """A function that makes no model."""
    raise RuntimeError("no model today")


def rows(n: int, seed: int = 0, classes: int | None = None, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """A batch: features (n, 5), and labels (n, 4), or class indices (n,)."""
    rng = np.random.default_rng([3, seed])
    x, y = rng.standard_normal((n, 5)).astype(dtype), rng.standard_normal((n, 4)).astype(dtype)
    return x, y if classes is None else rng.integers(0, classes, n)
