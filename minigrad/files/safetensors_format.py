"""The safetensors format, read and written by hand: https://github.com/huggingface/safetensors#format

    8 bytes   length N of the header, little-endian unsigned
    N bytes   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}, padded with spaces
    the rest  the tensors' bytes, little-endian, row-major, without gaps

Files come from anywhere, so nothing is believed before it is checked: every fault of a file, and only a fault of a file
or of an argument, is a `CheckpointError`. One pass over the file both reads and hashes it: what was checked is what is
returned, and no second copy of the weights is held.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import reprlib
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..autograd import TensorCore
from ..dtypes import bfloat16
from ..errors import LocatedError
from ..modes import Closing
from . import sha256sums

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]

DTYPES: dict[str, Any] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": bfloat16, "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
CODES = {np.dtype(dtype).str: code for code, dtype in DTYPES.items()}
OTHER_CODES = {"F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2", "F4", "C64"}

MAX_HEADER = 16 << 20  # bytes
# Lists and objects, and commas, in one JSON document: they bound the memory that a few megabytes of text can ask for
# (65,000 tensors fit).
MAX_CONTAINERS = 200_000
MAX_COMMAS = 600_000
MAX_DIMENSIONS = 32
MAX_BYTES = 2**63 - 1
_SHORT = reprlib.Repr()  # bounded in depth and length, whatever the value
_CHUNK = 4 << 20  # hashing follows reading and writing while the bytes are still in the cache


class CheckpointError(LocatedError, RuntimeError):
    """A checkpoint or weights file that cannot be written or trusted. A RuntimeError, too, as in PyTorch.

    Attributes:
        path: the file or folder at fault.
        previous: an older checkpoint that was read completely and is intact, or None.
    """

    def __init__(self, message: str, path: Path | None = None, previous: Path | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.previous = previous


@contextlib.contextmanager
def faults_of(path: Path, what: str = "") -> Iterator[None]:
    """What the system refuses within, or a ValueError, is a fault of this file or folder: a `CheckpointError` that
    names it, and says ``what``, such as " could not be written"."""
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        fault = "nested too deeply" if isinstance(error, RecursionError) else reason_of(error)
        raise CheckpointError(f"{path}{what}: {fault}", path) from (error if isinstance(error, OSError) else None)


def reason_of(error: OSError | ValueError) -> str:
    """What the system says, and of which file, without its number."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    filename = getattr(error, "filename", None)
    return f"{text} ({filename})" if filename else text


class Entry(NamedTuple):
    """One tensor of a header; `begin` and `end` count from the end of the header."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


class FileHeader(NamedTuple):
    tensors: dict[str, Entry]  # in the order of the bytes
    metadata: dict[str, str]


def show(value: object) -> str:
    """A value from a file, fit for a one-line message: escaped and cut."""
    text = _SHORT.repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


# ---- JSON ----------------------------------------------------------------------------------------------------------


class _Fault(str):
    """Why a number of the text is refused."""


def _refuse(key: str, value: Any) -> None:
    """Raise ValueError for a fault in a value; objects within have told theirs."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, list):
            _refuse(key, item)
        elif isinstance(item, _Fault):
            raise ValueError(f"{show(key)}: {item}" if key else item)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {show(key)} appears twice")
        _refuse(key, value)
        result[key] = value
    return result


def _number(text: str) -> int | _Fault:
    """An integer, of digits; a constant of JavaScript is refused, and what other readers refuse as a size."""
    if text in ("-0", "NaN", "Infinity", "-Infinity"):
        return _Fault(f"{text} is not {'an integer here' if text == '-0' else 'JSON'}")
    return int(text) if len(text) <= 1000 else _Fault(f"a number of {len(text)} digits")


def parse_json(raw: bytes, containers: int = MAX_CONTAINERS, commas: int = MAX_COMMAS) -> Any:
    """Strict JSON: UTF-8, no duplicate keys, no NaN, bounded size (lists and objects together, commas).

    Raises:
        ValueError: and nothing else, whatever the bytes; it names the key of a number that is refused.
    """
    if raw.count(b"[") + raw.count(b"{") > containers or raw.count(b",") > commas:
        raise ValueError(f"more than {containers:,} lists and objects, or {commas:,} commas")
    try:
        text = raw.decode("utf-8")
        document = json.loads(text, object_pairs_hook=_unique_pairs, parse_int=_number, parse_constant=_number)
        _refuse("", document)
        return document
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start:,}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None


# ---- the header ----------------------------------------------------------------------------------------------------


def parse_header(raw: bytes, data_size: int) -> FileHeader:
    """Check a header against every rule of the format.

    Args:
        raw: the JSON bytes, padding included.
        data_size: bytes that follow the header in the file.

    Raises:
        ValueError: saying which rule is broken.
    """
    if raw[:1] != b"{":
        raise ValueError("the header does not begin with '{'")
    document = parse_json(raw)
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("__metadata__ is not a map of strings to strings")
    if any(_has_surrogate(text) for pair in metadata.items() for text in pair):
        raise ValueError("__metadata__ is not Unicode text")
    entries = [(name, _entry(name, info)) for name, info in document.items()]
    entries.sort(key=lambda item: (item[1].begin, item[1].end))
    position = 0
    for name, entry in entries:
        if entry.begin != position:
            kind = "overlap" if entry.begin < position else "a gap"
            raise ValueError(f"tensor {show(name)} begins at byte {entry.begin}, not {position}: {kind} in the data")
        position = entry.end
    if position != data_size:
        raise ValueError(f"the tensors take {position:,} bytes, the file holds {data_size:,}")
    return FileHeader(dict(entries), metadata)


def _entry(name: str, info: Any) -> Entry:
    where = f"tensor {show(name)}"
    if _has_surrogate(name):
        raise ValueError(f"{where}: the name is not Unicode text")
    if not isinstance(info, dict) or info.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{where}: expected exactly dtype, shape and data_offsets, found {show(info)}")
    code, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        if isinstance(code, str) and code in OTHER_CODES:
            raise ValueError(f"{where}: dtype {code} is not supported: convert it to F32 or F16")
        raise ValueError(f"{where}: {show(code)} is not a dtype of the format")
    if not _is_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{where}: {show(shape)} is not a shape of at most {MAX_DIMENSIONS} dimensions")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{where}: {show(offsets)} is not [begin, end]")
    dtype = np.dtype(DTYPES[code])
    # NumPy computes strides of empty arrays too, so a zero does not excuse the other sizes from fitting.
    if math.prod(max(size, 1) for size in shape) * dtype.itemsize > MAX_BYTES:
        raise ValueError(f"{where}: shape {show(shape)} is too large")
    nbytes, span = math.prod(shape) * dtype.itemsize, offsets[1] - offsets[0]
    if nbytes != span:
        raise ValueError(f"{where}: shape {show(shape)} of {code} takes {nbytes:,} bytes, its offsets span {span:,}")
    return Entry(dtype, tuple(shape), offsets[0], offsets[1])


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _is_sizes(value: Any) -> bool:
    """A list of non-negative 64-bit integers; ``type`` because True is an int."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= MAX_BYTES for item in value)


# ---- writing -------------------------------------------------------------------------------------------------------


def encode(arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> list[bytes | memoryview]:
    """A safetensors file: the header, and the arrays' own memory, copied only where strides or byte order are others.

    Args:
        arrays: name to tensor, array or NumPy scalar of float16/32/64, bfloat16, int8..64, uint8..64 or bool; any
            strides and byte order.
        metadata: free text, stored under ``__metadata__``.

    Raises:
        CheckpointError: if something cannot be stored.
    """
    named = [(name, _storable(name, array)) for name, array in arrays.items()]
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise CheckpointError(f"metadata must map strings to strings, got {show(key)}: {show(value)}")
    named.sort(key=lambda item: (-item[1].itemsize, item[0]))
    header = encode_header({name: (array.dtype, array.shape) for name, array in named}, metadata or {})
    return [header, *(array.reshape(-1).view(np.uint8).data for _, array in named)]


def encode_header(tensors: Mapping[str, tuple[np.dtype[Any], Sequence[int]]], metadata: Mapping[str, str]) -> bytes:
    """What a file begins with whose tensors, of these dtypes and shapes, follow in this order.

    Raises:
        CheckpointError: if they cannot be stored.
    """
    document: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        document[name] = {"dtype": CODES[dtype.str], "shape": list(shape), "data_offsets": [begin, end]}
    try:
        raw = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
        if len(raw) > MAX_HEADER:
            raise ValueError(f"the header takes {len(raw):,} bytes, the limit is {MAX_HEADER:,}")
        raw += b" " * (-len(raw) % 8)  # so that tensors are aligned, if larger dtypes come first
        parse_header(raw, end)
    except ValueError as error:
        raise CheckpointError(f"these tensors cannot be stored: {error}") from None
    return len(raw).to_bytes(8, "little") + raw


def _storable(name: Any, array: Any) -> np.ndarray[Any, Any]:
    if not isinstance(name, str) or name == "__metadata__":
        raise CheckpointError(f"{show(name)} cannot be the name of a tensor")
    if not hasattr(array, "__array__"):
        raise CheckpointError(f"tensor {show(name)} is a {type(array).__name__}, neither a tensor nor a NumPy array")
    if isinstance(array, TensorCore):
        array = array.device.kernels.to_host(array.data)
    array = np.asarray(array)
    dtype = array.dtype.newbyteorder("<")
    if dtype.str not in CODES:
        raise CheckpointError(f"tensor {show(name)} has the unsupported dtype {array.dtype}: convert it to float32")
    return np.asarray(array, dtype=dtype, order="C")


# ---- reading -------------------------------------------------------------------------------------------------------


class _File(Closing):
    """A regular file opened for one pass; its faults are `CheckpointError`."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        # O_NONBLOCK: opening a named pipe in place of a file must not wait for ever.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            raise self.error("the file is missing") from None
        except (OSError, ValueError) as error:
            raise self.error(f"cannot be opened: {getattr(error, 'strerror', None) or error}") from error
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise self.error("is not a regular file")
            self.size = info.st_size
            if size is not None and size != self.size:
                raise self.error(f"has {self.size:,} bytes, the manifest says {size:,}")
            self._file = io.FileIO(fd, "rb")
        except BaseException:
            os.close(fd)
            raise
        self.digest = hashlib.sha256()

    def error(self, fault: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {fault}", self.path)

    def close(self) -> None:
        self._file.close()

    def read_into(self, view: memoryview) -> None:
        while len(view):
            try:
                count = self._file.readinto(view[:_CHUNK])
            except OSError as error:
                raise self.error(f"cannot be read: {error.strerror}") from error
            if not count:
                raise self.error("the file shrank while it was read")
            self.digest.update(view[:count])
            view = view[count:]

    def read(self, size: int) -> bytes:
        buffer = bytearray(size)
        self.read_into(memoryview(buffer))
        return bytes(buffer)

    def check(self, sha256: str | None) -> None:
        """Compare what was read, the whole file, with the manifest's sha256, or without one with ``SHA256SUMS``."""
        found = self.digest.hexdigest()
        with faults_of(self.path):
            if sha256 is None:
                sha256sums.check(self.path, found)
            elif sha256 != found:
                raise ValueError("its sha256 is not the manifest's: the content is damaged")


def read_bytes(path: Path, limit: int, size: int | None = None, sha256: str | None = None) -> bytes:
    """A whole small file, of the given size and checksum if these are given.

    Raises:
        CheckpointError: naming the file.
    """
    with _File(path, size) as file:
        if file.size > limit:
            raise file.error(f"has {file.size:,} bytes, the limit is {limit:,}")
        raw = file.read(file.size)
        file.check(sha256)
        return raw


def read_json(path: Path, limit: int) -> Any:
    """What a small JSON file says.

    Raises:
        CheckpointError: naming the file.
    """
    raw = read_bytes(path, limit)
    with faults_of(path):
        return parse_json(raw)


OTHERS = {b"PK\3\4": "a zip archive, as of torch.save or numpy.savez", b"\x80\2": "a pickle", b"\x80\4": "a pickle"}
"""What files of other formats begin with."""


def _read_header(file: _File) -> FileHeader:
    if file.size < 8:
        raise file.error(f"has {file.size} bytes, fewer than the 8 of a safetensors length")
    length = int.from_bytes(start := file.read(8), "little")
    if length > MAX_HEADER:
        if other := next((kind for magic, kind in OTHERS.items() if start.startswith(magic)), None):
            raise file.error(f"is {other}, and no file of safetensors: save it as one with the library that wrote it")
        limit = f"the limit is {MAX_HEADER:,}; no file that minigrad.save or safetensors wrote begins so"
        raise file.error(f"its header claims {length:,} bytes, {limit}")
    if length > file.size - 8:
        raise file.error(f"its header claims {length:,} bytes, {file.size - 8:,} follow")
    with faults_of(file.path):
        return parse_header(file.read(length), file.size - 8 - length)


def read_header(path: Path) -> FileHeader:
    """Names, dtypes, shapes and metadata of a file, without its data.

    Raises:
        CheckpointError: naming the file and the fault.
    """
    with _File(path) as file:
        return _read_header(file)


def read_arrays(path: Path, size: int | None = None, sha256: str | None = None) -> Arrays:
    """Read a safetensors file into fresh arrays of its own dtypes.

    Raises:
        CheckpointError: naming the file and the fault.
    """
    return dict(iter_arrays(path, size, sha256))


def iter_arrays(
    path: Path, size: int | None = None, sha256: str | None = None, metadata: dict[str, str] | None = None
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """`read_arrays`, one tensor at a time, for models too large for a second copy.

    The checksum covers the whole file, so it is compared after the last tensor. The file's ``metadata`` are added to
    what is passed.

    Raises:
        CheckpointError: naming the file and the fault.
    """
    with _File(path, size) as file:
        header = _read_header(file)
        if metadata is not None:
            metadata.update(header.metadata)
        for name, entry in header.tensors.items():
            try:
                array = np.empty(entry.shape, entry.dtype)
            except (MemoryError, ValueError) as error:
                raise file.error(f"tensor {show(name)} cannot be allocated: {error}") from None
            octets = array.reshape(-1).view(np.uint8)
            file.read_into(octets.data)
            if entry.dtype == np.bool_ and octets.size and octets.max() > 1:
                raise file.error(f"tensor {show(name)}: a bool is neither 0 nor 1")
            yield name, array
        file.check(sha256)
