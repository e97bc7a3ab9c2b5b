"""Tokens on disk, 16 bits each, read through a memory map: the formats of nanoGPT and of llm.c.

    nanogpt   uint16 tokens, little-endian, nothing else           https://github.com/karpathy/nanoGPT
    llm.c     256 int32 (20240520, 1, number of tokens, 0, ...), then uint16 tokens; all little-endian
              https://github.com/karpathy/llm.c

A text of a billion tokens then costs no memory to open: batches read the pages that they touch.
"""

import os
import stat
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ..files import durable, sha256sums
from .batches import Row, row_of
from .errors import DataError

TokenFormat: TypeAlias = Literal["nanogpt", "llm.c"]

_TOKEN = np.dtype("<u2")
_HEADER_SIZE = 256  # int32 words
_MAGIC = 20240520
_VERSION = 1
_MAX_COUNT = 2**31 - 1  # of llm.c: its header counts in int32


def open_tokens(path: durable.StrPath, format: TokenFormat = "nanogpt") -> np.memmap[Any, Any]:
    """Map the tokens of a file into memory, read-only.

    Where ``SHA256SUMS`` beside it names the file, it is read once to compare the content.

    Args:
        path: of the file.
        format: ``"nanogpt"`` or ``"llm.c"``. It is never guessed: every llm.c file is a possible nanoGPT file.

    Returns:
        ``(N,)`` uint16, as `RandomBatches`, `FixedBatches` and `EpochBatches` take them.

    Raises:
        DataError: the file cannot be read, is empty or damaged, or breaks a rule of its format.
    """
    path = Path(path)
    offset = _header_bytes(format)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{path} is not a regular file")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if format == "llm.c":
                count = _read_count(path, file)
                if size != offset + count * _TOKEN.itemsize:
                    counted = f"its header counts {count:,} tokens, {offset + count * _TOKEN.itemsize:,} bytes in all"
                    raise DataError(f"{path}: {counted}, but the file has {size:,} bytes")
            if (size - offset) % _TOKEN.itemsize:
                raise DataError(f"{path} has {size:,} bytes, an odd number: it does not hold 16-bit tokens")
            if size == offset:
                raise DataError(f"{path} holds no tokens")
            if path.name in sha256sums.read_sums(path.parent):
                sha256sums.check(path, sha256sums.sha256_of(path))
            return np.memmap(file, dtype=_TOKEN, mode="r", offset=offset)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def write_tokens(
    path: durable.StrPath, tokens: Row | Iterable[Row], format: TokenFormat = "nanogpt", checksums: bool = False
) -> int:
    """Write tokens to a file, which appears under its name when it is complete and flushed to the disk.

    Args:
        path: of the file; one that exists is replaced.
        tokens: a row of integers in ``[0, 65536)``, or an iterable of rows, written as they come: a generator that
            tokenizes one document at a time holds one document in memory.
        format: ``"nanogpt"`` or ``"llm.c"``.
        checksums: write the file's sha256 into ``SHA256SUMS`` beside it.

    Returns:
        the number of tokens written.

    Raises:
        DataError: a row is not one of integers that fit 16 bits; there are no tokens, or too many for the header of
            llm.c (2**31 - 1); or ``SHA256SUMS`` is damaged, or cannot hold the file's name. Whatever is raised, also by
            the iterable, the old file stays as it was.
        OSError: the file cannot be written.
    """
    path = Path(path)
    header = _header_bytes(format)
    count = 0
    with ExitStack() as locks, durable.replacing(path) as temporary, open(temporary, "xb", buffering=0) as file:
        durable.write_all(file.fileno(), bytes(header))
        for row in [tokens] if isinstance(tokens, np.ndarray) else tokens:
            durable.write_all(file.fileno(), _as_uint16(row_of(row), count).tobytes())
            count += len(row)
        if not count:
            raise DataError(f"there are no tokens to write to {path}")
        if format == "llm.c":
            if count > _MAX_COUNT:
                raise DataError(f"{count:,} tokens are more than the header of llm.c can count ({_MAX_COUNT:,})")
            file.seek(0)
            durable.write_all(file.fileno(), np.array([_MAGIC, _VERSION, count], "<i4").tobytes())
        durable.fsync(file.fileno())
        sha256 = sha256sums.sha256_of(temporary) if checksums else ""
        try:
            locks.enter_context(sha256sums.renewing(path, checksums))[1].append(sha256)
        except ValueError as error:
            raise DataError(f"{path} is not replaced: {error}") from error
    return count


def _header_bytes(format: str) -> int:
    if format not in get_args(TokenFormat):
        raise DataError(f"{format!r} is not a format of token files: use 'nanogpt' or 'llm.c'")
    return 4 * _HEADER_SIZE if format == "llm.c" else 0


def _read_count(path: Path, file: BinaryIO) -> int:
    raw = file.read(4 * _HEADER_SIZE)
    if len(raw) < 4 * _HEADER_SIZE:
        raise DataError(f"{path} has {len(raw)} bytes, fewer than the {4 * _HEADER_SIZE} of llm.c's header")
    magic, version, count = np.frombuffer(raw, "<i4")[:3].tolist()
    if magic != _MAGIC:
        raise DataError(f"{path} begins with {magic}, not with llm.c's {_MAGIC}: it is another format")
    if version != _VERSION:
        raise DataError(f"{path} is of version {version}, only version {_VERSION} (16-bit tokens) is supported")
    if count < 0:
        raise DataError(f"{path}: its header counts {count:,} tokens")
    return int(count)


def _as_uint16(row: Row, before: int) -> npt.NDArray[np.uint16]:
    row = np.asarray(row)
    if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
        raise DataError(f"tokens must be rows of integers, got shape {row.shape} of {row.dtype}")
    if row.size and (row.min() < 0 or row.max() > 0xFFFF):
        place = int(((row < 0) | (row > 0xFFFF)).argmax())
        raise DataError(f"token {row[place]} at position {before + place:,} does not fit 16 bits: [0, 65536)")
    return row.astype(_TOKEN)
