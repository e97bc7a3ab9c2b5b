"""The functions of ``hopper_ptx.py`` for the simulator, written from NVIDIA's "PTX ISA", version 9.0.

The sections are named where they are followed. Nothing here knows the kernels: the table of the swizzle places the
bytes of a box, and ``wgmma`` finds its operands from the bits of the descriptors alone. So an address, a stride or a
swizzle that a GPU would not take gives a wrong product or an error here as well.

What has no defined result on a GPU is an error:

* a copy arrives as late as it may, when a thread waits for its barrier; until then its bytes are poison that nothing
  may read;
* a box that is copied over what a ``wgmma`` may still read;
* sums that are read, or written by anything else, before they were waited for;
* a barrier that no phase will end any more, with what is missing; more arrivals than a phase counts.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..platform import memory
from ..platform.tensor_map import SWIZZLED_ROW, TensorMap
from ..simulator import simulator
from ..simulator.simulated_memory import SharedArray, SimulationError
from ..simulator.simulator import Condition
from ..simulator.tensor_core_sums import add_products

# Barriers: section 9.7.13.15, "mbarrier" ------------------------------------------------------------------------------


class Barrier:
    """The state of an mbarrier object (9.7.13.15.2): its phase, pending arrivals, expected arrivals, tx-count."""

    def __init__(self, address: int, count: int) -> None:
        block = simulator.block()
        self.address: int = address
        self.count: int = count
        self.pending: int = count
        self.nbytes: int = 0  # that are expected
        self.phase: int = 0
        self.copies: list[tuple[SharedArray, int, np.ndarray]] = []  # on their way
        self.made_by: int = block.current.number
        self.epoch: int = block.epoch
        self.fenced: bool = False

    def arrive(self) -> None:
        """One arrival; the phase may end."""
        if not self.pending:
            arrives = f"thread {simulator.block().current.number} arrives at phase {self.phase}"
            raise SimulationError(f"mbarrier {self.address:#x}: {arrives}, which has had its {self.count} arrivals")
        self.pending -= 1

    def ended(self, parity: int) -> bool:
        """Whether the phase of this parity has ended; this is when copies arrive."""
        arriving = sum(data.nbytes for _, _, data in self.copies)
        if self.phase & 1 == parity and not self.pending and arriving == self.nbytes:
            for array, offset, data in self.copies:
                array.end_copy(offset, data, bulk=True)
            self.copies.clear()
            self.phase, self.pending, self.nbytes = self.phase + 1, self.count, 0
        return self.phase & 1 != parity

    def missing(self) -> str:
        """What the phase waits for."""
        arriving = sum(data.nbytes for _, _, data in self.copies)
        lacks = f"{self.pending} of {self.count} arrivals and {self.nbytes - arriving} of {self.nbytes} bytes"
        return f"mbarrier {self.address:#x} in phase {self.phase}, which lacks {lacks}"


def _barriers() -> dict[int, Barrier]:
    block = simulator.block()
    found = block.state.get("mbarriers")
    if found is None:
        found = block.state["mbarriers"] = {}
        block.at_end.append(_nothing_on_its_way)
    return found


def _nothing_on_its_way() -> None:
    for barrier in simulator.block().state["mbarriers"].values():
        if barrier.copies:
            raise SimulationError(f"the block ended before the copies to mbarrier {barrier.address:#x} arrived")


def _barrier(address: Any) -> Barrier:
    barrier = _barriers().get(int(address))
    if barrier is None:
        raise SimulationError(f"there is no mbarrier at shared address {int(address):#x}")
    block = simulator.block()
    if barrier.made_by != block.current.number and barrier.epoch == block.epoch:
        uses = f"thread {block.current.number} uses the mbarrier {int(address):#x}"
        raise SimulationError(f"race: {uses} that thread {barrier.made_by} made, without a barrier between")
    return barrier


def mbarrier_init(address: Any, count: Any) -> None:
    """A barrier of ``count`` arrivals."""
    simulator.shared_at(address, 8)
    _barriers()[int(address)] = Barrier(int(address), int(count))


def mbarrier_expect(address: Any, nbytes: Any) -> None:
    """Arrive, after adding to the bytes that the phase waits for."""
    barrier = _barrier(address)
    barrier.nbytes += int(nbytes)
    barrier.arrive()


def mbarrier_arrive(address: Any) -> None:
    """Arrive."""
    _barrier(address).arrive()


def mbarrier_wait(address: Any, parity: Any) -> None:
    """Until the phase of this parity has ended."""
    barrier, odd = _barrier(address), int(parity)
    if odd not in (0, 1):
        raise SimulationError(f"mbarrier_wait for parity {odd}; expected 0 or 1")
    simulator.block().wait_until(Condition(lambda: barrier.ended(odd), barrier.missing))


def fence_async() -> None:
    """The barriers that this thread made are visible to TMA (section 8.5.1, "async proxy")."""
    for barrier in _barriers().values():
        barrier.fenced |= barrier.made_by == simulator.block().current.number


# TMA: sections 5.5.3, "Tiled Mode", and 5.5.6, "Swizzling Modes" ------------------------------------------------------

# The 16-byte pieces of 8 rows of 128 bytes, in the order in which they lie there: the table of the 128-byte swizzle.
SWIZZLE_128 = ("01234567", "10325476", "23016745", "32107654", "45670123", "54761032", "67452301", "76543210")
_PLACES = np.array([[int(piece) for piece in row] for row in SWIZZLE_128])


def box_of(source: TensorMap, x: int, y: int, z: int) -> np.ndarray:
    """The elements (z, y, x) of the box that begins there, as uint16; zeros outside the array."""
    problem = source.problem()
    if problem:
        raise SimulationError(f"a tensor map of {problem}")
    inside, starts = [], []
    for first, size, length in zip((x, y, z), source.sizes, source.box, strict=True):
        low, high = max(first, 0), min(first + length, size)
        inside.append(slice(low - first, max(low, high) - first))
        starts.append(low)
    box = np.zeros(source.box[::-1], np.uint16)
    part = box[inside[2], inside[1], inside[0]]
    if part.size:
        steps = (2, *source.steps)
        first = source.pointer + sum(start * step for start, step in zip(starts, steps, strict=True))
        last = first + sum((n - 1) * step for n, step in zip(part.shape[::-1], steps, strict=True)) + 2
        raw = memory.simulated_bytes(first)
        offset = first - raw.ctypes.data
        if last > raw.ctypes.data + raw.nbytes:
            raise SimulationError(f"TMA reads address {last - 2:#x}, outside the memory of {source}")
        part[:] = np.ndarray(part.shape, np.uint16, raw.data, offset, steps[::-1])
    return box


def swizzled(box: np.ndarray) -> np.ndarray:
    """The box's bytes as they lie in shared memory."""
    rows = box.reshape(-1, box.shape[-1])
    if rows.shape[1] * 2 != SWIZZLED_ROW:
        raise SimulationError(f"a box of rows of {rows.shape[1] * 2} bytes; the swizzle is of {SWIZZLED_ROW}")
    pieces = rows.view(np.uint8).reshape(len(rows), 8, 16)
    order = _PLACES[np.arange(len(rows)) % 8]
    return np.take_along_axis(pieces, order[:, :, None], 1).reshape(-1)


def tma_load(address: Any, source: Any, x: Any, y: Any, z: Any, barrier: Any) -> None:
    """Begin to copy a box to shared memory."""
    if not isinstance(source, TensorMap):
        raise SimulationError(f"TMA copies from a tensor map, not from {type(source).__name__}")
    target = _barrier(barrier)
    if not target.fenced:
        raise SimulationError(f"TMA uses mbarrier {target.address:#x}, which no fence_async has made visible to it")
    data = swizzled(box_of(source, int(x), int(y), int(z)))
    array, offset = simulator.shared_at(address, 1024)
    for warp, reading in _readers().items():
        for other, first, last in reading.ranges():
            if other is array and first < offset + len(data) and offset < last:
                where = f"shared address {int(address):#x}"
                raise SimulationError(f"TMA copies to {where}, where a wgmma of warp {warp} may still read")
    array.begin_copy(offset, len(data), bulk=True)
    target.copies.append((array, offset, data))


# wgmma: section 9.7.15 ------------------------------------------------------------------------------------------------


class Reading:
    """What a warp's wgmma instructions may still read, in groups; the last is not committed yet."""

    def __init__(self) -> None:
        self.groups: list[list[tuple[SharedArray, int, int]]] = [[]]
        self.sums: list[list[Any]] = [[]]

    def ranges(self) -> list[tuple[SharedArray, int, int]]:
        """Array, first byte, the one after the last."""
        return [found for group in self.groups for found in group]

    def commit(self, _: Any) -> None:
        """What was begun since the last time is a group (9.7.15.6.2)."""
        self.groups.append([])
        self.sums.append([])

    def end(self, groups: int) -> None:
        """All but the last ``groups`` groups have ended (9.7.15.6.3)."""
        ended = max(0, len(self.groups) - 1 - groups)
        for sums in (s for group in self.sums[:ended] for s in group):
            sums.done = True
        del self.groups[:ended], self.sums[:ended]


def _readers() -> dict[int, Reading]:
    return simulator.block().state.setdefault("wgmma", {})


def _reading() -> Reading:
    return _readers().setdefault(simulator.block().current.warp.number, Reading())


class Sums:
    """A thread's registers of a warpgroup's sums (64, columns), which it may not read yet."""

    def __init__(self, matrix: np.ndarray, written: bool) -> None:
        self.matrix: np.ndarray = matrix
        self.done: bool = False
        self.unfenced: int | None = _fences(0) if written else None  # fences that the thread had executed then

    def __getitem__(self, i: int) -> Any:
        raise SimulationError("the sums of a wgmma are read before wgmma_wait0 has returned them")


def _fences(more: int) -> int:
    block = simulator.block()
    counts: dict[int, int] = block.state.setdefault("wgmma_fences", {})
    number = block.current.number
    counts[number] = counts.get(number, 0) + more
    return counts[number]


@functools.cache
def zeros(columns: int) -> Callable[[], Sums]:
    """The function () -> sums."""
    return lambda: Sums(np.zeros((64, columns), np.float32), True)


def wgmma_fence() -> None:
    """What was written to registers before is there for the next wgmma (9.7.15.6.1)."""
    _fences(1)


# Bits 63-62 of a descriptor (table of 9.7.15.5.1.2.2): how many 16-byte pieces of a row the swizzle permutes.
_WIDTHS = {0: 1, 1: 8, 2: 4, 3: 2}
_FIELDS = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62


def operand_addresses(descriptor: int, count: int, kind: str) -> np.ndarray:
    """The addresses in shared memory of elements (count, 16) that a matrix descriptor describes, ``kind`` as in wgmma.

    Fields: 9.7.15.5.1.2.2, "Matrix Descriptor Format". Strides: the canonical layouts of 9.7.15.5.1.2.1.3, where T = 8
    half floats are 16 bytes. Swizzle<B, 4, 3> adds, without carry, the B bits from bit 7 of an address to those from
    bit 4.
    """
    if descriptor & ~_FIELDS:
        raise SimulationError(f"a wgmma descriptor {descriptor:#x} with bits that have no meaning")
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    width = _WIDTHS[descriptor >> 62]
    if descriptor >> 49 & 7:
        raise SimulationError("a wgmma descriptor with a base offset; patterns begin at multiples of 1024 here")
    mn, k = np.arange(count)[:, None], np.arange(16)[None, :]
    if kind == "k" and width == 1:
        offset = mn % 8 * 16 + mn // 8 * stride + k % 8 * 2 + k // 8 * leading
    elif kind == "k":
        offset = mn % 8 * 16 * width + mn // 8 * stride + k * 2
    elif width == 1:
        offset = mn % 8 * 2 + mn // 8 * stride + k % 8 * 16 + k // 8 * leading
    else:
        across = 8 * width
        offset = mn % across * 2 + mn // across * leading + k % 8 * 16 * width + k // 8 * stride
    address = start + offset
    return np.asarray(address ^ (address >> 7 & (width - 1)) << 4)


def _operand(descriptor: int, count: int, kind: str, dtype: str) -> tuple[np.ndarray, tuple[SharedArray, int, int]]:
    """The operand in float64, and the bytes that it was read from."""
    addresses = operand_addresses(descriptor, count, kind)
    array, offset = simulator.shared_at(int(addresses.min()))
    offsets = addresses - array.start
    bits = array.gather(offsets)
    values = (bits.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else bits.view(np.float16)
    return values.astype(np.float64), (array, offset, int(offsets.max()) + 2)


@functools.cache
def wgmma(dtype: str, columns: int, kinds: str) -> Callable[[Any, Any, Any], Sums]:
    """The function (sums, a, b) -> sums of a shape."""

    def multiply(brought: dict[int, Any]) -> tuple[np.ndarray, list[tuple[SharedArray, int, int]]]:
        sums, a, b = brought[0]
        if any((other[1], other[2]) != (a, b) for other in brought.values()):
            raise SimulationError("wgmma: the threads of a warpgroup bring different descriptors")
        if any(other[0].matrix is not sums.matrix and other[0].unfenced is None for other in brought.values()):
            raise SimulationError("wgmma: the threads of a warpgroup bring the sums of different products")
        left, left_bytes = _operand(a, 64, kinds[0], dtype)
        right, right_bytes = _operand(b, columns, kinds[1], dtype)
        return add_products(sums.matrix, left, right), [left_bytes, right_bytes]

    def run(sums: Any, a: Any, b: Any) -> Sums:
        if not isinstance(sums, Sums) or sums.matrix.shape[1] != columns:
            raise SimulationError(f"wgmma adds to sums of zeros({columns}), or of a wgmma of {columns} columns")
        if sums.unfenced is not None and sums.unfenced == _fences(0):
            raise SimulationError("wgmma: its sums were written without a wgmma_fence after that")
        brings, name = (sums, int(a), int(b)), f"wgmma {columns}{kinds}"
        matrix, ranges = simulator.together(name, brings, multiply, simulator.WHOLE_GROUP)
        found = Sums(matrix, False)
        reading = _reading()
        reading.groups[-1] += [r for r in ranges if r not in reading.groups[-1]]
        reading.sums[-1].append(found)
        return found

    return run


def wgmma_commit() -> None:
    """What was begun since the last one is a group."""
    simulator.together("wgmma_commit", None, _reading().commit)


def wgmma_wait1() -> None:
    """Until all groups but the last have ended."""
    simulator.together("wgmma_wait", None, lambda _: _reading().end(1))


def wgmma_wait0(sums: Any) -> tuple[np.float32, ...]:
    """The sums, once all groups have ended.

    Figure 149 of 9.7.15.5.1.1.1, accumulator D of m64nNk16: register i of lane l of warp w of the warpgroup is of row
    16 w + l // 4 + 8 (i // 2 % 2) and of column 8 (i // 4) + 2 (l % 4) + i % 2.
    """
    simulator.together("wgmma_wait", None, lambda _: _reading().end(0))
    if not sums.done and sums.unfenced is None:
        raise SimulationError("wgmma_wait0 of sums whose group was never committed")
    number = simulator.block().current.number % simulator.WARPGROUP
    i = np.arange(sums.matrix.shape[1] // 2)
    rows = number // 32 * 16 + number % 32 // 4 + i // 2 % 2 * 8
    return tuple(sums.matrix[rows, i // 4 * 8 + number % 4 * 2 + i % 2])


@functools.cache
def store_columns(pitch: int) -> Callable[[Any, Any, Any, Any], None]:
    """The function (array, i, sums, part)."""

    def run(array: Any, i: Any, sums: Any, part: Any) -> None:
        first = 16 * int(part)
        for n in range(8):
            place = int(i) + n // 2 * 8 + n % 2 * 8 * pitch
            array[place], array[place + 1] = sums[first + 2 * n], sums[first + 2 * n + 1]

    return run
