"""``SHA256SUMS``: what the files of a folder must hold, one line each, as ``sha256sum`` writes and checks it.

    5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03  model.safetensors

The list is optional: a file that it does not name is read without a check. Before a file is replaced its line is
struck out, so a crash leaves no line that belongs to another content.
"""

import contextlib
import hashlib
import mmap
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from . import durable

SUMS = "SHA256SUMS"
MAX_SUMS = 16 << 20  # bytes
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")
_UNFIT = re.compile("[\r\n\ud800-\udfff]")  # of names


def read_sums(folder: Path) -> dict[str, str]:
    """What the folder's list says, by name of file; empty without a list.

    Raises:
        ValueError: naming the list, and the line that is none.
    """
    return {name: line[:64].lower() for name, line in _lines(folder / SUMS).items() if name[0] != "\n"}


def _lines(path: Path) -> dict[str, str]:
    """The list's lines by name of file; comments by names that no file in a list has."""
    try:
        if os.path.lexists(path) and not path.is_file():
            raise ValueError(f"{path} is not a regular file")
        if path.exists() and path.stat().st_size > MAX_SUMS:
            raise ValueError(f"{path} has more than {MAX_SUMS:,} bytes")
        lines = path.read_text("utf-8").split("\n") if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate((line.rstrip("\r") for line in lines), 1):
        match = _LINE.fullmatch(line)
        name = match[2] if match else f"\n{number}"
        if name in found or not (match or not line.strip() or line.startswith("#")):
            fault = "names a file again" if match else "is not a sha256, two spaces and the name of a file"
            raise ValueError(f"{path}: line {number} {fault}")
        if line.strip():
            found[name] = line
    return found


def check(path: Path, sha256: str) -> None:
    """Raise ValueError if the list beside a file names it with another sha256 than this one, its content's."""
    if sha256 != read_sums(path.parent).get(path.name, sha256):
        raise ValueError(f"its sha256 is not the one in {SUMS} beside it: the content is damaged")


@contextlib.contextmanager
def renewing(path: Path, checksums: bool) -> Iterator[tuple[bool, list[str]]]:
    """Around the replacement of a file, under its folder's lock: its line in the list goes before, other lines stay.

    The block gets whether there is such a lock, and a list. The sha256 that it appends to that is the file's new line.

    Raises:
        OSError, ValueError: the list cannot be read or written, or cannot hold the file's name.
    """
    sums: list[str] = []
    if checksums and _UNFIT.search(path.name):
        raise ValueError(f"{SUMS} cannot name {path.name!r}: it has a line break, or is not of Unicode")
    with durable.folder_lock(path.parent) as locked:
        lines = _lines(path.parent / SUMS)
        if lines.pop(path.name, "") or (not lines and os.path.lexists(path.parent / SUMS)):
            _write(path.parent / SUMS, lines.values(), locked)
        yield locked, sums
        if checksums:
            _write(path.parent / SUMS, [*lines.values(), f"{sums[0]}  {path.name}"], locked)


def _write(path: Path, lines: Collection[str], locked: bool) -> None:
    if lines:
        durable.replace_locked(path, ["".join(f"{line}\n" for line in lines).encode()], locked)
    else:
        os.unlink(path)


def replace_file(path: Path, chunks: Iterable[memoryview | bytes], checksums: bool) -> None:
    """Replace a file's content atomically and durably, and its line in the list: by a new one, or none any more."""
    with renewing(path, checksums) as (locked, sums):
        sums.append(durable.replace_locked(path, chunks, locked)[1])


def sha256_of(path: Path) -> str:
    """The sha256 of a file of any size but 0."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return hashlib.sha256(content).hexdigest()
