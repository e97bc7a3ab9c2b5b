"""Batches of token windows by epochs: every window once in each, in an order of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from .batches import Batch, _split, _windows
from .errors import DataError
from .sampler import EpochSampler


class EpochBatches:
    """Adjacent windows of T + 1 tokens, T apart, each once per epoch, shuffled anew for each epoch.

    Iterating yields what is left of the current epoch; iterating again yields the next epoch::

        for epoch in range(batches.epoch, epochs):
            for x, y in batches:  # int64, (B, T) each
                ...

    Which windows a batch has, which part of them is this rank's, and what a checkpoint needs, is up to an
    `EpochSampler`.

    Args:
        tokens: ``(N,)`` integers, N > T; any integer dtype, also a memory map. What is left after the last whole
            window, fewer than T + 1 tokens, is never seen.
        batch_size: B, of all ranks together.
        block_size: T.
        seed: non-negative, below 2**64.
        drop_last: False: the last batch of an epoch may hold fewer than B windows. True: it is left out then, and
            which windows that concerns differs from epoch to epoch.
        rank, world_size: this rank's number, and how many there are. Each gets its part of every batch.

    Raises:
        DataError: the tokens are too few, or an argument is out of range.
    """

    def __init__(
        self,
        tokens: npt.NDArray[Any],
        batch_size: int,
        block_size: int,
        seed: int,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._windows = _windows(tokens, batch_size, block_size, "training")[::block_size]
        self.block_size = block_size
        self.sampler: EpochSampler = EpochSampler(len(self._windows), batch_size, seed, drop_last, rank, world_size)

    @property
    def epoch(self) -> int:
        """Number of the epoch of the next batch, from 0."""
        return self.sampler.epoch

    @property
    def position(self) -> int:
        """Number of the next batch in its epoch, from 0; also inside of the loop, so that a checkpoint written after a
        step resumes with the batch that follows.
        """
        return self.sampler.position

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        for chosen in self.sampler:
            yield _split(self._windows[chosen])

    def state_dict(self) -> dict[str, int | bool]:
        """Where the iteration stands, and the settings that give this a meaning; JSON values, equal on all ranks."""
        return {**self.sampler.state_dict(), "block_size": self.block_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state_dict` was called, by however many ranks.

        Raises:
            DataError: the state is not one, or of other settings or another number of windows; nothing is changed then.
        """
        if not isinstance(state, Mapping) or "block_size" not in state:
            raise DataError("this is not the state of EpochBatches")
        block_size = state["block_size"]
        if type(block_size) is not int or block_size != self.block_size:
            raise DataError(f"the state is of block_size {block_size!r}, here it is {self.block_size}")
        self.sampler.load_state_dict({key: value for key, value in state.items() if key != "block_size"})
