"""The functions of ``ptx.py`` in Python, for the simulator."""

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ..platform import memory
from ..simulator import simulated_memory, simulator
from ..simulator.simulated_memory import WARP, Pointer, SharedArray, SimulationError
from ..simulator.tensor_core_sums import add_products


def loader(n: int, constant: bool = False) -> Callable[[Any, Any], tuple[Any, ...]]:
    """``load`` of n elements."""

    def load(p: Any, i: Any) -> tuple[Any, ...]:
        _check_alignment(p, i, n)
        return tuple([p[i + k] for k in range(n)])

    return load


def storer(n: int) -> Callable[[Any, Any, tuple[Any, ...]], None]:
    """``store`` of n elements."""

    def store(p: Any, i: Any, values: tuple[Any, ...]) -> None:
        if len(values) != n:
            raise SimulationError(f"store{n} got {len(values)} values")
        _check_alignment(p, i, n)
        for k, value in enumerate(values):
            p[i + k] = value

    return store


def _check_alignment(p: Any, i: Any, n: int) -> None:
    if isinstance(p, Pointer):
        p.place(i, n)
        address, width = p.address(i), n * p.view.itemsize
    elif isinstance(p, SharedArray):
        address, width = p.start + int(i) * p.values.itemsize, n * p.values.itemsize
    else:
        raise SimulationError(f"a vector access needs a pointer or a shared array, not {type(p).__name__}")
    if width > 16 or address % width:
        raise SimulationError(f"a vector access of {width} bytes at element {i}, address {address:#x}: not aligned")


def pointer(word: str) -> Callable[[Any], Pointer]:
    """An address as a pointer to elements of this dtype."""
    return lambda address: simulated_memory.pointer(memory.simulated_bytes(int(address)), int(address), word)


def float16_to_float(bits: Any) -> np.float32:
    """uint16 bits of a float16 as float32."""
    return np.float32(np.uint16(bits).view(np.float16))


def float_to_float16(x: Any) -> np.uint16:
    """The uint16 bits of float32 ``x`` rounded to float16."""
    return np.float16(np.float32(x)).view(np.uint16)


def exp2_approx(x: Any) -> np.float32:
    """2^x."""
    return np.exp2(np.float32(x))


def atomic(word: str) -> Callable[[Any, Any, Any], Any]:
    """p[i] = max (min) of p[i] and x; what p[i] was."""
    choose = {"max": max, "min": min}[word]

    def run(p: Any, i: Any, x: Any) -> Any:
        return p.update(i, lambda before: choose(before, x))

    return run


# Tensor cores ---------------------------------------------------------------------------------------------------------

Registers = tuple[np.uint32, ...]


def shared_address(array: Any, i: Any) -> np.int32:
    """The address of an element of a 1-D shared array."""
    return simulator.shared_address(array, i)


def _matrix_rows(reason: str, address: Any) -> tuple[list[tuple[SharedArray, int]], int]:
    """Where the rows of 16 bytes are whose addresses the 32 lanes bring, and this lane's number."""
    rows = simulator.together(reason, address, lambda lanes: [simulator.shared_at(lanes[row]) for row in range(WARP)])
    simulator.note("shared load", int(address), 16)
    return rows, simulator.block().current.lane


def ldmatrix(address: Any) -> Registers:
    """Four matrices; register m of lane l is word l % 4 of the row whose address lane 8 m + l // 4 brings."""
    rows, lane = _matrix_rows("ldmatrix", address)
    return tuple([array.read_word(offset + lane % 4 * 4) for array, offset in rows[lane // 4 :: 8]])


def ldmatrix_transposed(address: Any) -> Registers:
    """Four matrices; register m of lane l is column l // 4 of rows 2 (l % 4) and 2 (l % 4) + 1 of the m-th."""
    rows, lane = _matrix_rows("ldmatrix_transposed", address)
    word, shift = lane // 8 * 4, lane // 4 % 2 * 16  # where a row has the column
    words = []
    for first in range(2 * (lane % 4), WARP, 8):
        low, high = (int(array.read_word(offset + word)) >> shift & 0xFFFF for array, offset in rows[first : first + 2])
        words.append(np.uint32(high << 16 | low))
    return tuple(words)


def cp_async(address: Any, p: Any, i: Any, nbytes: Any) -> None:
    """Begin to copy ``nbytes`` bytes from p[i] on to shared memory, and zeros after them up to 16."""
    n = int(nbytes)
    data = np.zeros(16, np.uint8)
    if not isinstance(p, Pointer) or not 0 <= n <= 16 or n % p.view.itemsize:
        raise SimulationError(f"cp_async of {n} bytes from {type(p).__name__}: expected a pointer and 0 to 16 bytes")
    source = p.address(i if n else 0)
    if source % 16:
        raise SimulationError(f"cp_async from address {source:#x}: expected a multiple of 16")
    if n:
        first, count = p.place(i, n // p.view.itemsize), n // p.view.itemsize
        data[:n] = p.view[first : first + count].view(np.uint8)
        simulator.note("global load", source, n)
    simulator.note("shared store", int(address), len(data))
    simulator.begin_copy(address, data)


def cp_async_commit() -> None:
    """The copies that this thread began since its last commit become a group."""
    simulator.block().current.copies.append([])


def waiter(groups: int) -> Callable[[], None]:
    """Wait for all groups but the last ``groups``."""
    return functools.partial(simulator.wait_for_copies, groups)


_ROW, _PAIR = np.arange(32) // 4, np.arange(32) % 4


def _matrices(fragments: np.ndarray, depth: int, dtype: Any) -> np.ndarray:
    """The matrix (8 rows, depth) of each pair of registers, of the (32, n) registers of an operand, as float64."""
    per_word = depth // 8
    if per_word == 1:  # of a float32 the lower 13 bits are not used
        fragments = fragments & np.uint32(0xFFFFE000)
    values = fragments.view(dtype).astype(np.float64).reshape(32, -1, per_word)
    found = np.empty((values.shape[1], 8, 4, per_word))
    found[:, _ROW, _PAIR] = values.swapaxes(0, 1)
    return found.reshape(-1, 8, depth // 2)


def mma(word: str) -> Callable[[Any, Any, Any], tuple[np.float32, ...]]:
    """d = a b + c for a (16, depth), b (depth, 8), c and d (16, 8) that lie in the registers of a warp."""
    name, depth = f"mma_{word}", 8 if word == "tf32" else 16
    dtype = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "tf32": np.float32}[word]

    def product(lanes: dict[int, Any]) -> np.ndarray:
        a = _matrices(np.array([lanes[lane][0] for lane in range(32)], np.uint32), depth, dtype)
        b = _matrices(np.array([lanes[lane][1] for lane in range(32)], np.uint32), depth, dtype)
        places = _ROW[:, None] + [0, 0, 8, 8], 2 * _PAIR[:, None] + [0, 1, 0, 1]
        c = np.empty((16, 8), np.float32)
        c[places] = [lanes[lane][2] for lane in range(32)]
        rows = np.concatenate([np.concatenate([a[0], a[2]], 1), np.concatenate([a[1], a[3]], 1)])
        return add_products(c, rows, np.concatenate([b[0], b[1]], 1))[places]

    def multiply(a: Any, b: Any, c: Any) -> tuple[np.float32, ...]:
        if (len(a), len(b), len(c)) != (4, 2, 4):
            raise SimulationError(f"{name} of {len(a)}, {len(b)} and {len(c)} registers; expected 4, 2 and 4")
        return tuple(simulator.together(name, (a, b, c), product)[simulator.block().current.lane])

    return multiply


def packer(word: str) -> Callable[[Any, Any], np.uint32]:
    """Two float32 rounded to this dtype, in a register."""
    dtype = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[word]
    return lambda low, high: np.array([low, high], np.float32).astype(dtype).view(np.uint32)[0]


def round_tf32(x: Any) -> np.uint32:
    """The bits of float32 ``x`` rounded to 10 bits of mantissa, halves away from 0."""
    bits = np.float32(x).view(np.uint32)
    if not np.isfinite(np.float32(x)):
        return bits
    return (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
