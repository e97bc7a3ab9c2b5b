"""Many tensors in one launch: the table of addresses that the optimizers' kernels share, cut into runs and tasks.

A run is a stretch of one tensor, of at most ``RUN`` elements and cut at multiples of it. So a sum over a run does not
depend on what else the table holds. A task is a few neighbouring runs, about ``RUN`` elements; each thread gets
equally many tasks, so that all have about as much to do. An optimizer's task kernel is

    def step(task, tasks, starts, runs, addresses, like, scalars):
        for r in range(starts[task], starts[task + 1]):
            update(run_of(addresses, runs, r, PARAM, like), run_of(addresses, runs, r, GRAD, like), ...)

The multi-tensor launch by pointer table is NVIDIA Apex's.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numba
import numpy as np
from numba import types
from numba.np.numpy_support import carray

from ...plain_kernels import optimizers as plain
from .jit import emits, inline
from .threads import TaskKernel, get_num_threads

RUN = 16384  # elements: the four arrays of AdamW's run fill a quarter of a 1 MiB L2 cache

PARAM, GRAD, STATE = 0, 1, 2
"""Columns of ``Table.addresses``; the states' columns begin at STATE."""


_word_at, _HEAD = ctypes.c_int64.from_address, object.__basicsize__


def addresses_of(arrays: Iterable[np.ndarray]) -> list[int]:
    """The addresses of the arrays' memory, the first word of NumPy's ``PyArrayObject``. The caller keeps them alive."""
    return [_word_at(id(array) + _HEAD).value for array in arrays]


def exact(fn: Callable[..., None]) -> Any:
    """Compile an update in plain IEEE arithmetic, for the reason given in ``adamw.py``."""
    return numba.njit(nogil=True, error_model="numpy", fastmath=False)(fn)  # unsaid, it would be the caller's fast one


@emits(lambda address, like: types.CPointer(getattr(like, "dtype", like))(address, like))
def pointer_at(context: Any, builder: Any, signature: Any, address: Any, like: Any) -> Any:
    """In a kernel: ``address`` as a pointer to elements of the dtype of ``like``, an array, a number or a class."""
    return builder.inttoptr(address, context.get_value_type(signature.return_type))


@inline
def elements_at(address: int, n: int, like: np.ndarray) -> np.ndarray:
    """In a kernel: the ``n`` elements from ``address`` on, as an array of the dtype of ``like``."""
    return carray(pointer_at(address, like), (n,))


@inline
def run_of(addresses: np.ndarray, runs: np.ndarray, r: int, column: int, like: np.ndarray) -> np.ndarray:
    """In a kernel: the elements of run ``r`` of the tensor in that column, as an array of the dtype of ``like``."""
    return elements_at(addresses[runs[r, 0], column] + runs[r, 1] * like.itemsize, runs[r, 2], like)


@emits(lambda total, x: total(total, x))
def with_bits(context: Any, builder: Any, signature: Any, total: Any, x: Any) -> Any:
    """In a kernel: an integer, exclusive or the bits of a number of the same width: Numba would widen both."""
    return builder.xor(total, builder.bitcast(x, total.type))


class Table(plain.ParamTable):
    """Addresses and runs of the arrays that one launch updates; build it once, use it for many steps.

    ``params`` and each of ``states`` are sequences of equally many arrays, of equal sizes at equal positions. All
    arrays are of one dtype, float32 or float64, C-contiguous and writable. The table keeps them alive.
    """

    __slots__ = ("addresses", "like", "read", "runs", "tasks")

    def __init__(
        self, params: Sequence[np.ndarray], *states: Sequence[np.ndarray], weights: Sequence[np.ndarray] | None = None
    ) -> None:
        super().__init__(params, *states, weights=weights)
        self.like: np.ndarray = np.empty(0, self.dtype)
        self.runs: np.ndarray
        self.tasks: np.ndarray
        self.runs, self.tasks = _cut(np.array([p.size for p in params], np.int64))
        self.addresses: np.ndarray = np.empty((len(params), STATE + len(states)), np.int64)
        for column, arrays in zip((PARAM, *range(STATE, STATE + len(states))), self.arrays, strict=True):
            self.addresses[:, column] = addresses_of(arrays)
        self.read: np.ndarray = np.zeros((len(self.runs), 2), f"u{self.dtype.itemsize}")
        """Of each run a checksum of what updates have read of parameter and states, and how many there were."""

    def bind(
        self, grads: Sequence[np.ndarray], scalars: np.ndarray, columns: int
    ) -> tuple[Sequence[np.ndarray], np.ndarray]:
        """Enter the gradients' addresses; returns these gradients, which the caller keeps alive, and the scalars,
        contiguous. Arguments and errors as ``checked``.
        """
        grads = self.checked(grads, scalars, columns)
        self.addresses[:, GRAD] = addresses_of(grads)
        return grads, np.ascontiguousarray(scalars)

    def launch(self, kernel: TaskKernel, *arguments: np.ndarray) -> None:
        """Run an optimizer's kernel over all tasks; see the module's docstring."""
        kernel.launch(self.dtype, self.tasks.size - 1, self.tasks, self.runs, self.addresses, self.like, *arguments)


def _cut(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64 (runs, 3): tensor, first element, elements; and int64 (tasks + 1,): where each task's runs begin."""
    count = (sizes + (RUN - 1)) // RUN
    tensor = np.repeat(np.arange(sizes.size), count)
    first = (np.arange(tensor.size) - np.repeat(count.cumsum() - count, count)) * RUN
    runs = np.stack([tensor, first, np.minimum(sizes[tensor] - first, RUN)], axis=1)
    ends, total = runs[:, 2].cumsum(), int(sizes.sum())
    wanted = -(-total // RUN)
    if wanted > 1:  # each thread gets as many tasks, which are about equally large
        wanted = -(-wanted // get_num_threads()) * get_num_threads()
    tasks = np.searchsorted(ends - runs[:, 2] / 2, np.linspace(0, total, wanted + 1))
    tasks[-1] = len(runs)
    return runs, tasks
