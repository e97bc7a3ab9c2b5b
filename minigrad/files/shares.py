"""Tensors in files of several ranks, of which each has a piece of every tensor.

    model-rank-0-of-2.safetensors    w: elements 0 to 4    b: elements 0 and 1    metadata: {"w": "[3, 3]", "b": "[3]"}
    model-rank-1-of-2.safetensors    w: elements 5 to 8    b: element 2           metadata: {"w": "[3, 3]", "b": "[3]"}

The pieces of all ranks, in order of rank, are a tensor's elements, row-major, and the metadata say its shape. A rank
may lack a piece. A file without a rank in its name holds whole tensors.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from . import safetensors_format
from .safetensors_format import Arrays, Entry, faults_of, iter_arrays, parse_json, read_arrays, show

Records: TypeAlias = Mapping[str, tuple[int, str]]  # by name of file: its size and sha256

SUFFIX = ".safetensors"
SHARE = re.compile(r"(.+)-rank-([0-9]{1,6})-of-([0-9]{1,6})")


def name_of(stem: str, rank: int, ranks: int) -> str:
    """The file of a rank's pieces."""
    return f"{stem}-rank-{rank}-of-{ranks}{SUFFIX}"


def by_stem(names: Iterable[str]) -> dict[str, list[str]]:
    """The files that belong together, in order of rank, by what they are called. ValueError if one is missing."""
    found: dict[str, dict[tuple[int, int], str]] = {}
    for name in names:
        share = SHARE.fullmatch(name.removesuffix(SUFFIX))
        stem, place = (share[1], (int(share[3]), int(share[2]))) if share else (name.removesuffix(SUFFIX), (0, 0))
        found.setdefault(stem, {})[place] = name
    for stem, files in found.items():
        ranks = max(files)[0]
        if sorted(files) != [(ranks, rank) for rank in range(max(ranks, 1))]:
            listed = ", ".join(sorted(files.values()))
            raise ValueError(f"the shares of {show(stem)} are not those of ranks 0 to {ranks - 1}: {listed}")
    return {stem: [files[place] for place in sorted(files)] for stem, files in found.items()}


def _is_share(name: str) -> bool:
    return SHARE.fullmatch(name.removesuffix(SUFFIX)) is not None


def read(folder: Path, names: list[str], records: Records) -> Arrays:
    """The whole tensors of files that belong together. CheckpointError, naming a file, for damage."""
    if not _is_share(names[0]):
        return read_arrays(folder / names[0], *records[names[0]])
    shapes: dict[str, str] = {}
    parts = [dict(iter_arrays(folder / name, *records[name], shapes)) for name in names]
    whole = {}
    with faults_of(folder / names[0]):
        for name in {name: None for part in parts for name in part}:
            pieces = [part.pop(name) for part in parts if name in part]
            whole[name] = np.concatenate(pieces).reshape(_shape(name, pieces, shapes.get(name, "")))
    return whole


def _shape(name: str, pieces: list[Any], text: str) -> tuple[int, ...]:
    """The shape of a tensor with these pieces: arrays, or what a header says of them."""
    shape = parse_json(text.encode())
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError(f"{show(text)} is not the shape of tensor {show(name)}")
    flat = all(len(piece.shape) == 1 for piece in pieces) and len({piece.dtype for piece in pieces}) == 1
    if not flat or sum(piece.shape[0] for piece in pieces) != math.prod(shape):
        raise ValueError(f"the pieces of tensor {show(name)} do not make an array of shape {show(shape)}")
    return tuple(shape)


def merged(folder: Path, names: list[str], records: Records) -> Iterator[bytes]:
    """One file of the whole tensors, a piece at a time. Before that, CheckpointError, naming a file, for damage."""
    shapes: dict[str, str] = {}
    found: dict[str, list[tuple[Path, int, Entry]]] = {}  # by tensor: the file, where its data begin, and the piece
    for name in names:
        for _ in iter_arrays(folder / name, *records[name], shapes):
            pass  # it is checked
        tensors = safetensors_format.read_header(folder / name).tensors
        begin = records[name][0] - max((entry.end for entry in tensors.values()), default=0)
        for key, entry in tensors.items():
            found.setdefault(key, []).append((folder / name, begin, entry))
    whole, sharded = {}, _is_share(names[0])
    with faults_of(folder / names[0]):
        for key, places in sorted(found.items(), key=lambda item: -item[1][0][2].dtype.itemsize):
            entries = [entry for _, _, entry in places]
            shape = _shape(key, entries, shapes.get(key, "")) if sharded else entries[0].shape
            whole[key] = entries[0].dtype, shape
    yield safetensors_format.encode_header(whole, {})
    for path, begin, entry in (place for key in whole for place in found[key]):
        with faults_of(path), open(path, "rb") as file:
            file.seek(begin + entry.begin)
            yield file.read(entry.end - entry.begin)
