"""``SHA256SUMS``: what the files of a folder must hold, one line each, as ``sha256sum`` writes and checks it.

    5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03  model.safetensors

The list is optional: a file that it does not name is read without a check. Before a file is replaced its line is
struck out, so a crash leaves no line that belongs to another content.
"""

import hashlib
import mmap
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from . import durable

SUMS = "SHA256SUMS"
MAX_SUMS = 16 << 20  # bytes
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")


def read_sums(folder: Path) -> dict[str, str]:
    """What the folder's list says, by name of file; empty without a list.

    Raises:
        ValueError: naming the list, and the line that is none.
    """
    path = folder / SUMS
    try:
        if path.is_file() and path.stat().st_size > MAX_SUMS:
            raise ValueError(f"{path} has more than {MAX_SUMS:,} bytes")
        lines = path.read_text("utf-8").split("\n") if path.is_file() else []
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line.rstrip("\r"))
        if match is not None and match[2] not in found:
            found[match[2]] = match[1].lower()
        elif line.strip():
            fault = "names a file again" if match else "is not a sha256, two spaces and the name of a file"
            raise ValueError(f"{path}: line {number} {fault}")
    return found


def check(path: Path, sha256: str) -> None:
    """Raise ValueError if the list beside a file names it with another sha256 than this one, its content's."""
    if sha256 != read_sums(path.parent).get(path.name, sha256):
        raise ValueError(f"its sha256 is not the one in {SUMS} beside it: the content is damaged")


def note(folder: Path, sums: Mapping[str, str | None]) -> None:
    """Put these files' sums into the folder's list, and strike out those that are None; other lines stay.

    Raises:
        OSError, ValueError: the list cannot be read or written.
    """
    if not any(sums.values()) and not (folder / SUMS).exists():
        return
    with durable.folder_lock(folder):
        lines = [f"{sum}  {name}\n" for name, sum in {**read_sums(folder), **sums}.items() if sum is not None]
        if lines:
            with durable.replacing(folder / SUMS) as temporary:
                durable.write_new_file(temporary, ["".join(lines).encode()])
        else:
            os.unlink(folder / SUMS)


def replace_file(path: Path, chunks: Iterable[memoryview | bytes], checksums: bool) -> None:
    """`durable.replace_file`, and the file's line in the list: a new one, or none any more."""
    note(path.parent, {path.name: None})
    _, sha256 = durable.replace_file(path, chunks)
    if checksums:
        note(path.parent, {path.name: sha256})


def sha256_of(path: Path) -> str:
    """The sha256 of a file of any size but 0."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return hashlib.sha256(content).hexdigest()
