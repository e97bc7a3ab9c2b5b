"""Which samples make up which batch, and batches of token windows: random ones, whole epochs, fixed ones to evaluate.

A window of T + 1 tokens gives T predictions: ``x`` is its first T tokens, ``y`` the T that follow each of them.
"""

import bisect
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from ..device import CPU
from .errors import DataError

Row: TypeAlias = npt.NDArray[Any]  # of tokens: (N,), integers of any dtype
Batch = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]

# Mixed into the seed, so that neither windows nor orders share random numbers with weights or dropout of that seed.
_STREAM = 0x6D69_6E69_6261_7463  # "minibatc"
_EPOCHS = 0x6570_6F63_6862_6174  # "epochbat"


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
            remedy = "drop_last drops what is not full: use a smaller batch size or drop_last=False"
            raise DataError(f"{n} samples do not fill one batch of {batch_size}, and {remedy}")
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
            position = self.position
            self.position += 1
            if self.position == len(self):
                self.epoch, self.position = epoch + 1, 0
            yield self.batch(epoch, position)

    def batch(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """The sample numbers of any batch, wherever the iteration stands."""
        first = position * self.batch_size
        batch = self._permutation(epoch)[first : first + self.batch_size]
        return batch[shard(len(batch), self.rank, self.world_size)]

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        order = self._order  # of another epoch perhaps, in another thread
        if order is None or order[0] != epoch:
            self._order = order = epoch, CPU.kernels.random.permutation(self.n, self.seed ^ _EPOCHS, epoch)
        return order[1]

    def state_dict(self) -> dict[str, Any]:
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

    def _settings(self) -> dict[str, Any]:
        return {"seed": self.seed, "batch_size": self.batch_size, "drop_last": self.drop_last, "samples": self.n}


class InOrder(EpochSampler):
    """The same without shuffling: each epoch has the samples as they are numbered."""

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.arange(self.n)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "seed": None}


class RandomBatches:
    """Uniformly random windows, drawn with replacement; batch `step` is a pure function of ``(seed, step)``.

    Nothing is remembered between calls: a resumed run needs only its step, and any batch can be drawn again.

    Args:
        tokens: ``(N,)`` integers, N > T; any integer dtype, also a memory map. Or a list of such rows, the shards of a
            text: a window lies within one of them, all windows are equally likely, a shorter shard has none.
        batch_size: B, windows per batch, of all ranks together.
        block_size: T, tokens per window.
        seed: non-negative, below 2**64.
        rank, world_size: this rank's number, and how many there are. Each gets its part of every batch.

    Raises:
        DataError: the tokens are too few, or an argument is out of range.
    """

    def __init__(
        self,
        tokens: Row | Sequence[Row],
        batch_size: int,
        block_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        one = isinstance(tokens, np.ndarray) or hasattr(tokens, "ids") or isinstance(next(iter(tokens), None), Integral)
        rows: list[Any] = [tokens] if one else [*map(row_of, tokens)]
        if not rows:
            raise DataError("there are no shards of tokens to train on")
        # A shard that is shorter than a window has none; that all are is an error, which names the longest.
        long = [row for row in rows if len(row) > block_size] or [max(rows, key=len)]
        self._windows = [_windows(row, batch_size, block_size, "training") for row in long]
        self._ends = np.cumsum([len(windows) for windows in self._windows])
        if not 0 <= seed < 2**64:
            raise DataError(f"seed must be in [0, 2**64), got {seed}")
        self.batch_size = batch_size
        self.block_size = block_size
        self.seed = seed
        self._part = shard(batch_size, rank, world_size)

    def batch(self, step: int) -> Batch:
        """This rank's part of batch number `step` (0 or more): ``x`` and ``y``, int64 ``(B, T)``; ``y[:, t]`` follows
        ``x[:, t]``.
        """
        if step < 0:
            raise DataError(f"step must not be negative, got {step}")
        draw = 0, int(self._ends[-1]), (self.batch_size,), self.seed ^ _STREAM, step
        starts = CPU.kernels.random.integers(*draw)[self._part]
        if len(self._windows) == 1:
            return _split(self._windows[0][starts])
        rows = np.empty((len(starts), self.block_size + 1), np.int64)
        for row, start, i in zip(rows, starts, np.searchsorted(self._ends, starts, side="right")):
            windows = self._windows[i]
            row[:] = windows[start - (self._ends[i] - len(windows))]
        return _split(rows)


class FixedBatches:
    """The same windows in the same order each time, to evaluate on; iterable, ``len()`` is the number of batches.

    Args:
        tokens: ``(N,)`` integers, N > T.
        batch_size: B.
        block_size: T.
        max_batches: None covers the tokens by adjacent windows (the rest, shorter than a window, is left out) and the
            last batch may hold fewer than B. A number takes that many batches at most, spread evenly over the tokens.

    Raises:
        DataError: the tokens are too few, or an argument is out of range.
    """

    def __init__(self, tokens: Row, batch_size: int, block_size: int, max_batches: int | None = None) -> None:
        self._windows = _windows(tokens, batch_size, block_size, "validation")
        if max_batches is not None and max_batches < 1:
            raise DataError(f"max_batches must be at least 1, got {max_batches}")
        self.batch_size = batch_size
        starts = np.arange(0, len(self._windows), block_size)
        if max_batches is not None and max_batches * batch_size < len(starts):
            count = max_batches * batch_size
            starts = starts[np.arange(count) * len(starts) // count]
        self._starts = starts

    def __len__(self) -> int:
        return -(-len(self._starts) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for first in range(0, len(self._starts), self.batch_size):
            yield _split(self._windows[self._starts[first : first + self.batch_size]])


class EpochBatches(EpochSampler):
    """Adjacent windows of T + 1 tokens, T apart, each once per epoch, shuffled anew for each epoch.

    Iterating yields what is left of the current epoch; iterating again yields the next epoch::

        for epoch in range(batches.epoch, epochs):
            for x, y in batches:  # int64, (B, T) each
                ...

    Which windows a batch has, which part of them is this rank's, and what a checkpoint needs, is as in `EpochSampler`.
    ``epoch`` and ``position`` are those of the next batch, also inside of the loop: a checkpoint written after a step
    resumes with the batch that follows.

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
        tokens: Row,
        batch_size: int,
        block_size: int,
        seed: int,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._windows = _windows(tokens, batch_size, block_size, "training")[::block_size]
        self.block_size = block_size
        super().__init__(len(self._windows), batch_size, seed, drop_last, rank, world_size)

    @property
    def sampler(self) -> EpochSampler:
        """What stands at ``epoch`` and ``position``: the batches themselves."""
        return self

    def __iter__(self) -> Iterator[Any]:
        for chosen in super().__iter__():
            yield _split(self._windows[chosen])

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "block_size": self.block_size}


def train_val_split(tokens: Row, val_fraction: float = 0.1, block_size: int = 1) -> tuple[Row, Row]:
    """Split a text in two, without copying: training part first, validation part the last ``int(N * val_fraction)``.

    Raises:
        DataError: a part would be shorter than one window of `block_size` + 1 tokens.
    """
    _check_fraction(val_fraction)
    tokens = row_of(tokens)
    n_val = int(len(tokens) * val_fraction)
    n_train = len(tokens) - n_val
    if min(n_train, n_val) < block_size + 1:
        needed = min_tokens(block_size, val_fraction)
        parts = f"{n_train:,} for training and {n_val:,} for validation"
        wanted = f"a window of block size {block_size} takes {block_size + 1:,}: at least {needed:,} tokens are needed"
        raise DataError(f"{len(tokens):,} tokens split into {parts}, but {wanted}")
    return tokens[:n_train], tokens[n_train:]


def min_tokens(block_size: int, val_fraction: float = 0.1) -> int:
    """The fewest tokens whose two parts, as `train_val_split` makes them, hold one window each."""
    _check_fraction(val_fraction)
    if block_size >= 2**40 or min(val_fraction, 1 - val_fraction) < 2**-20:
        raise DataError(f"no text is long enough for a block size of {block_size} and a val_fraction of {val_fraction}")
    enough = int((block_size + 1) / min(val_fraction, 1 - val_fraction)) + 2
    # The shorter part never shrinks as n grows, so the exact rule, with its rounding, can be bisected.
    return bisect.bisect_left(
        range(enough), block_size + 1, key=lambda n: min(int(n * val_fraction), n - int(n * val_fraction))
    )


def _check_fraction(val_fraction: float) -> None:
    if not 0 < val_fraction < 1:
        raise DataError(f"val_fraction must lie between 0 and 1, got {val_fraction}")


def row_of(tokens: Any) -> Row:
    """Tokens as an array: of an array, a list of integers, or an ``Encoding`` of Hugging Face's tokenizers."""
    return tokens if isinstance(tokens, np.ndarray) else np.asarray(getattr(tokens, "ids", tokens))


def _windows(tokens: Row, batch_size: int, block_size: int, part: str) -> Row:
    """All windows ``(N - T, T + 1)`` as a view."""
    if batch_size < 1 or block_size < 1:
        raise DataError(f"batch_size and block_size must be at least 1, got {batch_size} and {block_size}")
    tokens = row_of(tokens)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise DataError(f"tokens must be a row of integers, got shape {tokens.shape} of {tokens.dtype}")
    if len(tokens) < block_size + 1:
        wanted = f"a window of block size {block_size} takes {block_size + 1:,}: use more text or a smaller block size"
        raise DataError(f"the {part} part has {len(tokens):,} tokens, {wanted}")
    return sliding_window_view(tokens, block_size + 1)


def _split(windows: Row) -> Batch:
    return windows[:, :-1].astype(np.int64, order="C"), windows[:, 1:].astype(np.int64, order="C")
