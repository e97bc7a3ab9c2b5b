"""Batches by epochs: every window once in each, in an order of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cpu_kernels import random
from .batches import Batch, _split, _windows
from .errors import DataError

# Mixed into the seed, so that the order shares no random numbers with weights, dropout or `RandomBatches`.
_STREAM = 0x6570_6F63_6862_6174  # "epochbat"


class EpochBatches:
    """Adjacent windows of T + 1 tokens, T apart, each once per epoch, shuffled anew for each epoch.

    Iterating yields what is left of the current epoch; iterating again yields the next epoch::

        for epoch in range(batches.epoch, epochs):
            for x, y in batches:  # int64, (B, T) each
                ...

    The order of an epoch is a pure function of ``(seed, epoch)``. `epoch` and `position` name the batch that comes
    next, also inside of the loop, so a checkpoint written after a step resumes with the batch that follows.

    Args:
        tokens: ``(N,)`` integers, N > T; any integer dtype, also a memory map. What is left after the last whole
            window, fewer than T + 1 tokens, is never seen.
        batch_size: B.
        block_size: T.
        seed: non-negative, below 2**64.
        drop_last: False: the last batch of an epoch may hold fewer than B windows. True: it is left out then, and
            which windows that concerns differs from epoch to epoch.

    Attributes:
        epoch: number of the epoch of the next batch, from 0.
        position: number of the next batch in it, from 0.

    Raises:
        DataError: the tokens are too few, or an argument is out of range.
    """

    def __init__(
        self, tokens: npt.NDArray[Any], batch_size: int, block_size: int, seed: int, drop_last: bool = False
    ) -> None:
        self._windows = _windows(tokens, batch_size, block_size, "training")[::block_size]
        if not 0 <= seed < 2**64:
            raise DataError(f"seed must be in [0, 2**64), got {seed}")
        if drop_last and len(self._windows) < batch_size:
            raise DataError(
                f"{len(self._windows)} windows do not fill one batch of {batch_size}, and drop_last drops what is not "
                "full: use a smaller batch size or drop_last=False"
            )
        self.batch_size = batch_size
        self.block_size = block_size
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self.position = 0
        self._order: tuple[int, npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(len(self._windows), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.epoch
        while self.epoch == epoch:
            first = self.position * self.batch_size
            chosen = self._permutation(epoch)[first : first + self.batch_size]
            self.position += 1
            if self.position == len(self):
                self.epoch, self.position = epoch + 1, 0
            yield _split(self._windows[chosen])

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, random.permutation(len(self._windows), self.seed ^ _STREAM, epoch)
        return self._order[1]

    def state_dict(self) -> dict[str, int | bool]:
        """Where the iteration stands, and the settings that give this a meaning; JSON values."""
        return {"epoch": self.epoch, "position": self.position, **self._settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state_dict` was called.

        Raises:
            DataError: the state is not one, or of other settings or another number of windows; nothing is changed then.
        """
        settings = self._settings()
        if not isinstance(state, Mapping) or state.keys() != {"epoch", "position", *settings}:
            raise DataError("this is not the state of EpochBatches")
        for name, value in settings.items():
            if type(state[name]) is not type(value) or state[name] != value:
                raise DataError(f"the state is of {name} {state[name]!r}, these batches have {value!r}")
        epoch, position = state["epoch"], state["position"]
        if type(epoch) is not int or not 0 <= epoch < 2**63:
            raise DataError(f"{epoch!r} is not the number of an epoch")
        if type(position) is not int or not 0 <= position < len(self):
            raise DataError(f"position {position!r} is not in [0, {len(self)}), the batches of an epoch")
        self.epoch, self.position = epoch, position

    def _settings(self) -> dict[str, int | bool]:
        return {
            "seed": self.seed,
            "batch_size": self.batch_size,
            "block_size": self.block_size,
            "drop_last": self.drop_last,
            "windows": len(self._windows),
        }
