"""Many tensors in one launch: the table of addresses that the optimizers' kernels share, cut into chunks.

A chunk is a stretch of one tensor, of at most ``CHUNK`` elements and cut at multiples of it; a block works on it. The
table of addresses and the list of chunks are made once and stay on the device. With a step travel the gradients'
addresses and the scalars, in one copy that the host does not wait for (``Upload``).

``updater`` makes the kernel of an optimizer whose elements are independent of each other. It moves four elements at a
time where all arrays of a tensor are aligned to that. Elsewhere it moves single ones, which neighbouring threads have
side by side.

Half weights have float32 masters: one launch reads the gradient, updates master and states, and writes the weight, the
master rounded to it. The bits are those of a cast of the gradient, the float32 step, and a cast of the master. Source:
Micikevicius et al., "Mixed precision training" (2018).

The arithmetic is plain IEEE: products are rounded before they are added to anything (``product``), as on the CPU. So an
element's bits depend neither on the path nor on the chunk nor on the device.

The multi-tensor launch by pointer table is NVIDIA Apex's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad.plain_kernels.optimizers import ParamTable

from ..platform import memory, recording
from ..platform.toolbox import THREADS, Array, Kernel, cuda, from_host, kernel, libdevice
from ..platform.upload import Upload
from ..pointwise.conversion import element_conversions
from ..ptx import ptx
from ..ptx.fours import fours
from ..rowwise.rows import ceil_div

CHUNK = 4096  # elements: 16 for each thread, and a million of them are enough blocks for a card
ROW_LENGTH = 9  # numbers in a row of scalars, as the kernels get it
REALS = (np.float32, np.float64)
HALVES = ("bfloat16", "float16")

Scalars = tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any]


POINTERS: dict[Any, Any] = {np.float32: ptx.pointer_float32, np.float64: ptx.pointer_float64}
"""From an address."""
PRODUCTS: dict[Any, Any] = {np.float32: libdevice.fmul_rn, np.float64: libdevice.dmul_rn}
"""That no sum absorbs."""


def row_of(scalars: Any, tensor: Any) -> Scalars:
    """The row of scalars of a tensor."""
    i = tensor * ROW_LENGTH
    return (
        scalars[i], scalars[i + 1], scalars[i + 2], scalars[i + 3], scalars[i + 4],
        scalars[i + 5], scalars[i + 6], scalars[i + 7], scalars[i + 8],
    )  # fmt: skip


def chunk_of(chunks: Any, sizes: Any, length: Any) -> Any:
    """A block's tensor, its chunk's first element there, and the chunk's number of elements."""
    tensor = chunks[2 * cuda.blockIdx.x]
    first = np.int64(chunks[2 * cuda.blockIdx.x + 1]) * length
    return tensor, first, np.int32(min(np.int64(length), sizes[tensor] - first))


def updater(name: str, word: str, states: int, update: Callable[..., Any], registers: int, writes: int = 2) -> Kernel:
    """The kernel of one optimizer, for gradients of dtype ``word``; where that is a half dtype, it writes weights too.

    ``update(row, p, g, s, t)``: new (p, s, t) of one element, where s and t are its states; ``states`` is how
    many it has, 0 to 2. The others have any value and go nowhere. Only the first ``writes`` states are written.
    """
    half = word in HALVES
    real = np.float32 if half else np.dtype(word).type
    pointer = POINTERS[real]
    pointer_half = ptx.pointer_uint16 if half else pointer
    itemsize, half_size = np.dtype(real).itemsize, 2 if half else np.dtype(real).itemsize
    columns, ends, written = 1 + states + half, 4 * half_size - 1 & 15, min(states, writes)
    widen, narrow = element_conversions(word)
    load, _, store = fours(itemsize)
    load_half, _, store_half = fours(half_size)

    @kernel(
        f"int64* x3, int32*, {real.__name__}*, int32", registers=registers, name=f"{name}_{word}", vector_loads=True
    )
    def step(addresses, sizes, grads, chunks, scalars, length):
        """``addresses`` (tensors, columns): p, its states, its half weights; ``chunks`` (chunks, 2): the tensor, and
        which of its chunks."""
        tensor, first, n = chunk_of(chunks, sizes, length)
        row = row_of(scalars, tensor)
        p_address = addresses[tensor * columns] + first * itemsize
        g_address = grads[tensor] + first * half_size
        s_address = addresses[tensor * columns + min(states, 1)] + first * itemsize
        t_address = addresses[tensor * columns + (states if states > 1 else 0)] + first * itemsize
        w_address = g_address
        if half:
            w_address = addresses[tensor * columns + states + 1] + first * half_size
        p, s, t = pointer(p_address), pointer(s_address), pointer(t_address)
        g, w = pointer_half(g_address), pointer_half(w_address)
        i = cuda.threadIdx.x
        if ((p_address | s_address | t_address) & 15) | ((g_address | w_address) & ends) == 0:
            i = cuda.threadIdx.x * 4
            while i + 4 <= n:
                a, b, c, d = load(p, i), load(s, i), load(t, i), load_half(g, i)
                p0, s0, t0 = update(row, a[0], widen(d[0]), b[0], c[0])
                p1, s1, t1 = update(row, a[1], widen(d[1]), b[1], c[1])
                p2, s2, t2 = update(row, a[2], widen(d[2]), b[2], c[2])
                p3, s3, t3 = update(row, a[3], widen(d[3]), b[3], c[3])
                store(p, i, (p0, p1, p2, p3))
                if written > 0:
                    store(s, i, (s0, s1, s2, s3))
                if written > 1:
                    store(t, i, (t0, t1, t2, t3))
                if half:
                    store_half(w, i, (narrow(p0), narrow(p1), narrow(p2), narrow(p3)))
                i += cuda.blockDim.x * 4
            i = n - n % 4 + cuda.threadIdx.x
        while i < n:
            p_one, s_one, t_one = update(row, p[i], widen(g[i]), s[i], t[i])
            p[i] = p_one
            if written > 0:
                s[i] = s_one
            if written > 1:
                t[i] = t_one
            if half:
                w[i] = narrow(p_one)
            i += cuda.blockDim.x

    return step


class Cut:
    """Tensors of these sizes cut into chunks of ``length`` elements, on a device.

    ``chunks`` int32 (count, 2): the tensor, and which of its chunks; ``device_sizes`` int64 (tensors,); ``starts``
    int64 (tensors + 1,): the tensors' first chunks.
    """

    def __init__(self, sizes: Sequence[int], length: int, device: int) -> None:
        self.sizes: list[int] = list(sizes)
        self.length: int = length
        count = (np.array(self.sizes, np.int64) + (length - 1)) // length
        starts = np.append(0, count.cumsum())
        tensor = np.repeat(np.arange(count.size), count)
        chunks = np.stack([tensor, np.arange(tensor.size) - starts[tensor]], axis=1)
        self.count: int = len(chunks)
        self.longest: int = min(max(self.sizes, default=0), length)
        self.chunks: Array = from_host(chunks.astype(np.int32), device)
        self._device_sizes: Array = from_host(np.array(self.sizes, np.int64), device)
        self.starts: Array = from_host(starts, device)

    @property
    def device_sizes(self) -> Array:
        """The sizes; of a graph that may leave out an update, those of the present launch."""
        graph = recording.current()
        return self._device_sizes if graph is None else graph.allowed_sizes(self._device_sizes)

    def threads(self, width: int) -> int:
        """The threads of a block, if each takes ``width`` elements at a time."""
        return block_of(ceil_div(self.longest, width))


def block_of(threads: int) -> int:
    """The size of a block of at least so many threads, up to ``THREADS``."""
    return min(THREADS, 32 * max(1, ceil_div(threads, 32)))


class Table(ParamTable):
    """Addresses and chunks of the arrays that one launch updates; build it once, use it for many steps.

    ``params`` and each of ``states`` are sequences of equally many arrays of one device and dtype, float32 or float64.
    All are C-contiguous and writable, and of equal sizes at equal positions. The table keeps them alive. With
    ``weights``, float16 or bfloat16, ``params`` are their float32 masters, and gradients have the weights' dtype.

    Raises ValueError or TypeError, naming the position, for an array that cannot be updated through its address.
    """

    def __init__(self, params: Any, *states: Any, weights: Any = None) -> None:
        super().__init__(params, *states, weights=weights)
        self.device: int = params[0].device if params else memory.current_device()
        self.grad_dtype: np.dtype[Any] = self.dtype
        columns: list[Any] = [*self.arrays]
        if self.weights is not None:
            columns.append(self.weights)
            self.grad_dtype = np.dtype(weights[0].dtype if weights else np.float16)
            self._check_updated(self.weights, self.grad_dtype)
        for column in columns:
            self._check_devices(column)
        self.states: int = len(states)
        addresses = np.array([[array.pointer for array in column] for column in columns], np.int64)
        with recording.outside() as graph:
            self.cut: Cut = Cut([p.size for p in params], CHUNK, self.device)
            self.addresses: Array = from_host(np.ascontiguousarray(addresses.T), self.device)
        self._upload: Upload | None = None
        if graph is not None:
            graph.keep.append(self)

    def check(self, grads: Any, scalars: np.ndarray, columns: int) -> None:
        """As of ``ParamTable``. ValueError, too, for a gradient of another device."""
        super().check(grads, scalars, columns)
        self._check_devices(grads)

    def _check_devices(self, arrays: Sequence[Array]) -> None:
        for i, array in enumerate(arrays):
            if array.device != self.device:
                raise ValueError(f"array {i} is on cuda:{array.device}, the table on cuda:{self.device}")

    def send(self, grads: Sequence[Array], scalars: np.ndarray, *more: np.ndarray) -> list[Array]:
        """The gradients' addresses, the scalars in the table's dtype with ``ROW_LENGTH`` columns, and ``more``: on the
        device from the next launch on."""
        rows = recording.mapped(scalars, self._rows)
        parts = (np.array([g.pointer for g in grads], np.int64), rows, *more)
        if self._upload is None:
            with recording.outside():
                self._upload = Upload(sum(part.nbytes + 7 for part in parts), self.device)
        return self._upload.send(*parts)

    def _rows(self, scalars: np.ndarray) -> np.ndarray:
        rows = np.zeros((len(scalars), ROW_LENGTH), self.dtype)
        rows[:, : scalars.shape[1]] = scalars
        return rows

    def launch(self, step: Kernel, grads: Sequence[Array], scalars: np.ndarray) -> None:
        """Start a kernel of ``updater`` for the states that the table has."""
        cut, graph = self.cut, recording.current()
        if graph is not None:
            graph.keep.append(self)
        if cut.count:
            addresses, rows = self.send(grads, scalars)
            arguments = self.addresses, cut.device_sizes, addresses, cut.chunks, rows, cut.length
            step.launch(cut.count, *arguments, threads=cut.threads(4))
