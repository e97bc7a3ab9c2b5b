"""Batches that are made in a background thread while the model trains on the ones before.

loader     [ 0 ][ 1 ][ 2 ][   ][ 3 ][   ][ 4 ]      at most ``depth`` batches wait
training        [   0   ][   1   ][   2   ]
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..device import Device
from ..errors import bad_state, bad_type, check_int
from ..modes import Closing
from ..tensor import Tensor


class Prefetcher(Closing, Iterator[Any]):
    """Iterates over ``batches`` (any iterable), up to ``depth`` batches ahead of its caller, in a thread of its own.

    ::

        with Prefetcher(batches, device="cuda") as ahead:
            for x, y in ahead:
                ...

    With a ``device`` the arrays and tensors of a batch (also those in tuples, lists and dicts) arrive as tensors there.
    For a GPU the thread puts them into pinned memory. The copy is part of the caller's stream, which the caller does
    not wait for. Without one, batches come as they are.

    What the loader raises is raised by ``next`` in its turn, with the loader's own traceback. The thread ends with the
    last batch, with an error, and by ``close`` and the end of a ``with``. It ends, too, when nobody has the Prefetcher
    any more. Random numbers that the loader draws should come from generators of its own: it runs beside the caller.

    Raises ValueError for a ``depth`` that is no integer >= 1, TypeError for what cannot be iterated over.
    """

    def __init__(self, batches: Iterable[Any], depth: int = 2, device: str | Device | None = None) -> None:
        check_int("Prefetcher: depth", depth, 1)
        self._device = None if device is None else Device(device)
        if not hasattr(batches, "__iter__"):
            hint = "; give it (batches.batch(step) for step in range(n))" if hasattr(batches, "batch") else ""
            raise bad_type(f"Prefetcher: {type(batches).__name__} is not iterable{hint}")
        source = iter(batches)
        state = getattr(batches, "state_dict", None)
        self._state = None if state is None else state()
        self._line = _Line(depth)
        prepare = None if self._device is None else pinned if self._device.type == "cuda" else tensors
        arguments = (self._line, source, prepare, state)  # not self: who drops it shall end the thread
        self._thread = threading.Thread(target=_load, args=arguments, name="prefetch", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._line.stop)

    def __iter__(self) -> "Prefetcher":
        return self

    def __next__(self) -> Any:
        batch, state, error = self._line.get()
        if error is not None:
            raise error
        self._state = state
        return batch if self._device is None else to_device(batch, self._device)

    def state_dict(self) -> Any:
        """The ``state_dict`` of ``batches``, such as `EpochBatches`, from which a run goes on with the batch after the
        last one that this has given; the loader itself is further on. RuntimeError if ``batches`` has none."""
        if self._state is None:
            raise bad_state("the batches that this Prefetcher loads have no state_dict")
        return self._state

    def close(self) -> None:
        """End the thread and wait for it; it ends after the batch that it is loading. Batches that wait are dropped."""
        self._end()
        self._thread.join()


class _Line:
    """A bounded queue of (batch, state, error), which both sides may end."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._waiting: deque[tuple[Any, Any, BaseException | None]] = deque()
        self._changed = threading.Condition()
        self._stopped = False

    def put(self, item: tuple[Any, Any, BaseException | None]) -> bool:
        """Append as soon as there is room; False if nobody wants more."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._waiting) < self._depth)
            if not self._stopped:
                self._waiting.append(item)
                self._changed.notify_all()
            return not self._stopped

    def get(self) -> tuple[Any, Any, BaseException | None]:
        """The next; an error stays."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._waiting)
            if not self._waiting:
                return None, None, StopIteration()
            item = self._waiting[0]
            if item[2] is None:
                self._waiting.popleft()
                self._changed.notify_all()
            return item

    def stop(self) -> None:
        """Take no more, and give no more."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify_all()


def _load(line: _Line, source: Iterator[Any], prepare: Any, state: Callable[[], Any] | None) -> None:
    """What the thread does."""
    try:
        for batch in source:
            if not line.put((batch if prepare is None else prepare(batch), None if state is None else state(), None)):
                return
            del batch
    except BaseException as error:
        line.put((None, None, error))
    else:
        line.put((None, None, StopIteration()))


def to_device(batch: Any, device: Device) -> Any:
    """The batch with its tensors on a device; from pinned memory the copy is part of the stream."""
    return _each(batch, lambda x: x.to(device=device, non_blocking=x.is_pinned()) if isinstance(x, Tensor) else x)


def pinned(batch: Any) -> Any:
    """The batch with its arrays and the CPU's tensors as tensors in pinned memory."""
    return _each(tensors(batch), lambda x: x.pin_memory() if isinstance(x, Tensor) and x.device.type == "cpu" else x)


def tensors(batch: Any) -> Any:
    """The batch with its arrays as tensors."""
    return _each(batch, lambda x: Tensor(x) if isinstance(x, np.ndarray) else x)


def _each(batch: Any, change: Callable[[Any], Any]) -> Any:
    """``change`` of all that tuples, lists and dicts hold."""
    if isinstance(batch, tuple | list):
        return getattr(type(batch), "_make", type(batch))(_each(x, change) for x in batch)
    return {key: _each(x, change) for key, x in batch.items()} if isinstance(batch, Mapping) else change(batch)
