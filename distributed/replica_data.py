"""The samples of a ``DdpBuilder`` run: their order, and how a batch is made of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import minigrad
from minigrad.data import EpochSampler


class EpochOrder:
    """The samples of each batch of each epoch; a pure function of seed and epoch."""

    def __init__(self, samples: int, batch_size: int, seed: int) -> None:
        self._sampler = EpochSampler(samples, batch_size, seed, drop_last=True)
        self._lock = threading.Lock()
        self._batches: dict[int, list[np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self._sampler)

    def indices(self, epoch: int, batch: int) -> np.ndarray:
        """Sample numbers of a batch, (batch_size,) int64."""
        with self._lock:
            if epoch not in self._batches:
                self._sampler.epoch, self._sampler.position = epoch, 0
                self._batches = {e: b for e, b in self._batches.items() if e >= epoch - 1}
                self._batches[epoch] = list(self._sampler)
            return self._batches[epoch][batch]

    def state(self, epoch: int) -> dict[str, int | bool]:
        """The sampler's state at the begin of an epoch."""
        return {**self._sampler.state_dict(), "epoch": epoch, "position": 0}

    def first_epoch(self, state: Mapping[str, Any]) -> int:
        """The epoch of a saved state. Raises DataError if it is of another dataset or other settings."""
        self._sampler.load_state_dict(state)
        return self._sampler.epoch


def fetcher(dataset: Any) -> tuple[int, Callable[[np.ndarray], Any]]:
    """Number of samples, and what gives the batch of some sample numbers.

    ``dataset`` is an array, a tuple of arrays of the same length (a batch is then a tensor, or a tuple of tensors), or
    an object with ``len()`` whose ``dataset[indices]`` is the batch, for indices (batch_size,) int64.
    """
    if isinstance(dataset, np.ndarray):
        return len(dataset), lambda indices: minigrad.tensor(dataset[indices])
    if isinstance(dataset, tuple):
        lengths = {len(array) for array in dataset}
        if len(lengths) != 1:
            raise ValueError(f"dataset: a tuple of arrays of the lengths {sorted(lengths)}, expected equal ones")
        return lengths.pop(), lambda indices: tuple(minigrad.tensor(array[indices]) for array in dataset)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(
            f"dataset is a {type(dataset).__name__}, expected arrays, or an object with len() and [indices]"
        )
    return len(dataset), lambda indices: dataset[indices]
