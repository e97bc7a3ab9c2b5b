"""Batches of samples: ``TensorDataset`` and ``DataLoader``, PyTorch's, made of `EpochSampler` and `Prefetcher`."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..creation import stack
from ..cuda import is_available
from ..errors import bad_type, bad_value, check_int
from ..random import Source, default_generator
from ..tensor import Tensor
from .batches import EpochSampler, InOrder
from .prefetch import Prefetcher, pinned, tensors


class Dataset:
    """Base of datasets, for those who like one: what has ``len`` and ``dataset[i]`` is one without it, too."""


class TensorDataset(Dataset):
    """Samples that are rows of arrays or tensors of one length: ``dataset[i]`` is a tuple of the rows, by a number, a
    slice or an array of numbers."""

    def __init__(self, *arrays: Any) -> None:
        if found := [type(array).__name__ for array in arrays if not hasattr(array, "shape")]:
            raise bad_type(f"TensorDataset takes arrays or tensors, not a {found[0]}: pass numpy.asarray(...) of it")
        shapes = [tuple(array.shape) for array in arrays]
        if () in shapes or len({shape[0] for shape in shapes}) != 1:
            raise bad_value(f"TensorDataset of arrays of the shapes {shapes}; expected as many rows (dim 0) in each")
        self.tensors: tuple[Any, ...] = arrays

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(array[index] for array in self.tensors)


class DataLoader:
    """Batches of a dataset, as tensors; iterating again yields the next epoch, in another order with ``shuffle``.

    ::

        for x, y in DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True):
            ...

    The order of an epoch is a function of its number and of one draw of ``generator``. ``state_dict`` resumes with the
    batch after the last one, in the order of the state unless a ``generator`` was passed. A loop that ends early
    begins the next epoch when it runs again.

    Args:
        dataset: a TensorDataset, an array or a tensor, anything with ``len`` and ``dataset[i]``, or an iterable.
        num_workers: threads that make batches ahead; 0: each batch is made when it is asked for.
        collate_fn: makes a batch of a list of samples. Without it, numbers, arrays and tensors are stacked, also those
            in tuples, lists and dicts, and all else stays a list.
        pin_memory: where there is a GPU, batches lie in memory from which it copies in its stream:
            ``x.to("cuda", non_blocking=True)``.
        drop_last: leave out the last batch of an epoch, if it is not full.

    Raises TypeError for what is no dataset, ValueError and DataError for what is out of range.
    """

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = False, num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None, pin_memory: bool = False, drop_last: bool = False,
        generator: Source = None,
    ) -> None:  # fmt: skip
        self.dataset: Any = dataset
        self.batch_size: int = check_int("batch_size", batch_size, 1)
        self.num_workers: int = check_int("num_workers", num_workers, 0)
        self.collate_fn: Callable[[list[Any]], Any] | None = collate_fn
        self.pin_memory: bool = pin_memory and is_available()
        self.drop_last: bool = drop_last
        self.sampler: EpochSampler | None = None
        self._resumed = False
        self._takes_seed: bool = shuffle and generator is None
        if isinstance(dataset, Mapping):
            raise bad_type(f"DataLoader of a {type(dataset).__name__}: pass {' or '.join(map(repr, dataset))} of it")
        if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
            if not len(dataset):
                raise bad_value(f"DataLoader of an empty {type(dataset).__name__}: expected at least one sample")
            seed, draws = (generator or default_generator).next() if shuffle else (0, 0)
            seed = (seed + draws * 0x9E37_79B9_7F4A_7C15) % 2**64
            self.sampler = (EpochSampler if shuffle else InOrder)(len(dataset), batch_size, seed, drop_last)
        elif shuffle or not isinstance(dataset, Iterable):
            lacks = "so it has no order to change" if shuffle else "and is not iterable"
            raise bad_type(f"DataLoader: a {type(dataset).__name__} has no len() and no [i], {lacks}")

    def __len__(self) -> int:
        """Batches in an epoch. TypeError for an iterable, which does not tell."""
        if self.sampler is None:
            raise bad_type(f"len() of a DataLoader over a {type(self.dataset).__name__}, which has none")
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        if (sampler := self.sampler) is None:
            batches = map(self._collated, self._parts())
            yield from Prefetcher(batches, 2 * self.num_workers) if self.num_workers else batches
            return
        if sampler.position and not self._resumed:
            sampler.epoch, sampler.position = sampler.epoch + 1, 0
        self._resumed = False
        epoch, positions = sampler.epoch, range(sampler.position, len(sampler))

        def made(positions: range) -> Iterator[Any]:
            return (self._batch(sampler.batch(epoch, position)) for position in positions)

        count = self.num_workers
        makers: list[Iterator[Any]] = [Prefetcher(made(positions[k::count])) for k in range(count)]
        for position, maker in zip(positions, itertools.cycle(makers or [made(positions)])):
            batch = next(maker)
            ends = position + 1 == len(sampler)
            sampler.epoch, sampler.position = (epoch + 1, 0) if ends else (epoch, position + 1)
            yield batch

    def _parts(self) -> Iterator[list[Any]]:
        samples = iter(self.dataset)
        if not (first := [*itertools.islice(samples, 1)]):
            once = "what can be iterated once only, as a generator, is empty in its second epoch"
            raise bad_value(f"DataLoader: the {type(self.dataset).__name__} yielded nothing; {once}")
        samples = itertools.chain(first, samples)
        while part := list(itertools.islice(samples, self.batch_size)):
            if len(part) == self.batch_size or not self.drop_last:
                yield part

    def _batch(self, chosen: Any) -> Any:
        # Not a subclass: it may have a [i] of its own, for one number.
        if self.collate_fn is None and type(self.dataset) in (TensorDataset, Tensor, np.ndarray, np.memmap):
            return self._placed(self.dataset[chosen])
        return self._collated([self.dataset[i] for i in chosen.tolist()])

    def _collated(self, samples: list[Any]) -> Any:
        return self._placed((self.collate_fn or collate)(samples))

    def _placed(self, batch: Any) -> Any:
        return pinned(batch) if self.pin_memory else batch if self.collate_fn else tensors(batch)

    @property
    def state_dict(self) -> Callable[[], dict[str, Any]]:
        """``state_dict()`` is where the iteration stands, as JSON values. AttributeError for an iterable."""
        return self._resumable().state_dict

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where ``state_dict`` was called; DataError if it does not fit. Without a ``generator`` of its own, the
        loader goes on with the order of the state."""
        sampler = self._resumable()
        if self._takes_seed and isinstance(state, Mapping) and type(state.get("seed")) is int:
            sampler = EpochSampler(sampler.n, sampler.batch_size, state["seed"], sampler.drop_last)
        sampler.load_state_dict(state)
        self.sampler, self._resumed = sampler, True

    def _resumable(self) -> EpochSampler:
        if self.sampler is None:
            raise AttributeError(f"a DataLoader over a {type(self.dataset).__name__} cannot be resumed")
        return self.sampler


def collate(samples: Sequence[Any]) -> Any:
    """One batch of samples that are alike: numbers, arrays and tensors stacked, also in tuples, lists and dicts."""
    first = samples[0]
    if isinstance(first, Tensor | np.ndarray) and len(found := dict.fromkeys(np.shape(x) for x in samples)) > 1:
        raise bad_value(f"a batch of samples of the shapes {[*found]}; pad them to one shape, or pass collate_fn")
    if isinstance(first, Tensor):
        return stack(list(samples))
    if isinstance(first, str | bytes):  # NumPy's are also of its numbers' class
        return list(samples)
    if isinstance(first, np.ndarray | np.generic | int | float):
        return Tensor(np.stack(samples) if isinstance(first, np.ndarray | np.generic) else list(samples))
    if isinstance(first, Mapping):
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple | list):
        return getattr(type(first), "_make", type(first))(collate(part) for part in zip(*samples, strict=True))
    return list(samples)
