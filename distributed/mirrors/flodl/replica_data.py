"""The samples of a ``DdpBuilder`` run: how a batch is made of them, and the thread that does it ahead."""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad import Device, Tensor, as_tensor
from minigrad.data import EpochSampler
from minigrad.data.prefetch import pinned, to_device
from minigrad.random import Generator, drawing_from

from ...comm.call_thread import CallThread, QueuedCall
from .workload import Batch


def fetcher(dataset: Any) -> tuple[int, Callable[[np.ndarray], Any]]:
    """Number of samples, and what gives the batch of some sample numbers.

    ``dataset`` is an array or tensor, or a tuple of such of the same length: a batch is then a tensor, or a tuple of
    tensors. Or it is an object with ``len()`` whose ``dataset[indices]`` is the batch, for indices (batch_size,) int64.
    """
    if isinstance(dataset, np.ndarray | Tensor):
        return len(dataset), lambda indices: as_tensor(dataset[indices])
    if isinstance(dataset, tuple):
        lengths = {len(array) for array in dataset}
        if len(lengths) != 1:
            raise ValueError(f"dataset: a tuple of arrays of the lengths {sorted(lengths)}, expected equal ones")
        return lengths.pop(), lambda indices: tuple(as_tensor(array[indices]) for array in dataset)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(f"dataset is a {type(dataset).__name__}, expected arrays or an object with len() and [indices]")
    return len(dataset), lambda indices: dataset[indices]


class ReplicaLoader:
    """Makes the batches of one replica: up to ``depth`` of those that it will get next, in a thread of its own; with a
    depth of 0 each when it is wanted, in the replica's thread.

    The thread draws random numbers, for each batch, from a generator that ``seed``, epoch and batch decide. Tensors of
    a batch go to the replica's device, to a GPU from pinned memory and as part of the stream.
    """

    def __init__(
        self, order: EpochSampler, fetch: Callable[[np.ndarray], Any], device: Device, depth: int, seed: int
    ) -> None:
        self.depth: int = depth
        # A sampler of its own: it keeps the order of one epoch, and replicas need not all be in the same.
        self._order, self._fetch, self._device, self._seed = copy.copy(order), fetch, device, seed
        self._jobs: dict[Batch, QueuedCall] = {}
        self._thread = CallThread("replica-loader") if depth else None

    def get(self, task: Batch, upcoming: Sequence[Batch]) -> Any:
        """The batch; meanwhile the thread begins with ``upcoming``. Raises what the dataset raises, where it did."""
        if self._thread is None:
            return to_device(self._fetch(self._order.batch(task.epoch, task.index)), self._device)
        wanted = [task, *upcoming[: self.depth]]
        self._jobs = {batch: job for batch, job in self._jobs.items() if batch in wanted}
        for batch in wanted:
            if batch not in self._jobs:
                self._jobs[batch] = self._thread.submit(functools.partial(self._load, batch))
        return to_device(self._jobs.pop(task).result(), self._device)

    def close(self) -> None:
        """End the thread, after the batch that it is at."""
        for job in self._jobs.values():
            job.cancel()
        if self._thread is not None:
            self._thread.stop()

    def _load(self, batch: Batch) -> Any:
        words = np.random.SeedSequence(self._seed, spawn_key=(batch.epoch, batch.index)).generate_state(1, np.uint64)
        with drawing_from(Generator(int(words[0]))):
            made = self._fetch(self._order.batch(batch.epoch, batch.index))
        return pinned(made) if self._device.type == "cuda" else made
