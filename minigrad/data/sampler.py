"""Which samples make up which batch: every one once in each epoch, in an order of its own, shared among ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..device import CPU
from .errors import DataError

Row: TypeAlias = npt.NDArray[Any]  # of tokens: (N,), integers of any dtype

# Mixed into the seed, so that the order shares no random numbers with weights, dropout or `RandomBatches`.
_STREAM = 0x6570_6F63_6862_6174  # "epochbat"


def shard(n: int, rank: int, world_size: int) -> slice:
    """The part of n samples that is rank's own: neighbours, and no two ranks' counts differ by more than one.

    The parts of all ranks are disjoint and complete; with n < world_size some are empty.

    Raises:
        DataError: unless 0 <= rank < world_size.
    """
    if not 0 <= rank < world_size:
        raise DataError(f"rank is {rank} of {world_size}, expected a rank from 0 to world_size - 1")
    return slice(rank * n // world_size, (rank + 1) * n // world_size)


class EpochSampler:
    """Batches of sample numbers, shuffled anew for each epoch. Each rank gets its own part of a batch.

    Iterating yields what is left of the current epoch; iterating again yields the next epoch::

        for indices in sampler:  # int64, (batch_size / world_size,) or one more
            x, y = images[indices], labels[indices]

    The order of an epoch is a pure function of ``(seed, epoch)``, and a rank's part one of the batch alone. So all
    ranks make equally many steps, whatever remains at the end of an epoch, and any number of ranks sees the same
    batches. In an epoch's last batch a rank's part may be empty: it then takes part in the step with weight 0.

    Args:
        n: number of samples.
        batch_size: samples per batch, of all ranks together.
        seed: non-negative, below 2**64.
        drop_last: False: the last batch of an epoch may be smaller. True: it is left out then, and which samples that
            concerns differs from epoch to epoch.
        rank, world_size: this rank's number, and how many there are.

    Attributes:
        epoch: number of the epoch of the next batch, from 0.
        position: number of the next batch in it, from 0.

    Raises:
        DataError: an argument is out of range.
    """

    def __init__(
        self, n: int, batch_size: int, seed: int, drop_last: bool = False, rank: int = 0, world_size: int = 1
    ) -> None:
        if n < 1 or batch_size < 1:
            raise DataError(f"n and batch_size must be at least 1, got {n} and {batch_size}")
        if not 0 <= seed < 2**64:
            raise DataError(f"seed must be in [0, 2**64), got {seed}")
        if drop_last and n < batch_size:
            raise DataError(
                f"{n} samples do not fill one batch of {batch_size}, and drop_last drops what is not full: use a "
                "smaller batch size or drop_last=False"
            )
        shard(n, rank, world_size)  # checks both
        self.n = n
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self.epoch: int = 0
        self.position: int = 0
        self._order: tuple[int, npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(self.n, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        epoch = self.epoch
        while self.epoch == epoch:
            first = self.position * self.batch_size
            batch = self._permutation(epoch)[first : first + self.batch_size]
            self.position += 1
            if self.position == len(self):
                self.epoch, self.position = epoch + 1, 0
            yield batch[shard(len(batch), self.rank, self.world_size)]

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, CPU.kernels.random.permutation(self.n, self.seed ^ _STREAM, epoch)
        return self._order[1]

    def state_dict(self) -> dict[str, int | bool]:
        """Where the iteration stands, and the settings that give this a meaning; JSON values, equal on all ranks."""
        return {"epoch": self.epoch, "position": self.position, **self._settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state_dict` was called, by however many ranks.

        Raises:
            DataError: the state is not one, or of other settings or another number of samples; nothing is changed then.
        """
        settings = self._settings()
        if not isinstance(state, Mapping) or state.keys() != {"epoch", "position", *settings}:
            raise DataError(f"this is not the state of an {type(self).__name__}")
        for name, value in settings.items():
            if type(state[name]) is not type(value) or state[name] != value:
                raise DataError(f"the state is of {name} {state[name]!r}, here it is {value!r}")
        epoch, position = state["epoch"], state["position"]
        if type(epoch) is not int or not 0 <= epoch < 2**63:
            raise DataError(f"{epoch!r} is not the number of an epoch")
        if type(position) is not int or not 0 <= position < len(self):
            raise DataError(f"position {position!r} is not in [0, {len(self)}), the batches of an epoch")
        self.epoch, self.position = epoch, position

    def _settings(self) -> dict[str, int | bool]:
        return {"seed": self.seed, "batch_size": self.batch_size, "drop_last": self.drop_last, "samples": self.n}
