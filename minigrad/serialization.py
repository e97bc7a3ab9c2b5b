"""Checkpoints that survive a crash, a full disk and a damaged file.

    folder/
      step-00000200/                model.safetensors  optimizer.safetensors  state.json  manifest.json
      step-00000300/

A checkpoint is a folder that appears under its name only when it is complete. Its files are written and flushed in a
temporary sibling, the manifest (size and sha256 of each) last. Then the folder is flushed and renamed. Older ones are
deleted only after that rename is on the disk. So at any moment the old checkpoint or the new one loads. Nothing is
overwritten: saving a step again makes ``step-00000300.r1`` and then deletes ``step-00000300``.

Where several processes write, each has files of its own, ``model-rank-0-of-2.safetensors``, with a piece of each tensor
(``minigrad.distributed.save_sharded_checkpoint``). Loading joins them.

There is no pickle: tensors are safetensors, all else is JSON. Reading checks everything before it believes it.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import bad_type
from .files import durable, safetensors_format, sha256sums, shares
from .files.durable import StrPath
from .files.safetensors_format import Arrays, CheckpointError, FileHeader, faults_of, parse_json, read_arrays, show
from .files.shares import Records

# fmt: off
__all__ = [
    "Checkpoint", "CheckpointEntry", "CheckpointError", "export_safetensors", "list_checkpoints", "load_checkpoint",
    "load_safetensors", "safetensors_header", "save_checkpoint", "save_safetensors",
]
# fmt: on

FORMAT = "minigrad checkpoint"
VERSION = 1
MANIFEST = "manifest.json"
STATE = "state.json"
MAX_STATE = 16 << 20
TRASH = ".trash-"

_NAME = re.compile(r"step-([0-9]{8,18})(?:\.r([0-9]{1,9}))?")
_STEM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class CheckpointEntry(NamedTuple):
    """A checkpoint folder as listed, not yet verified. Entries sort from the oldest to the newest."""

    step: int
    revision: int
    path: Path


class Checkpoint(NamedTuple):
    """A verified checkpoint: ``tensors[file][name]`` are fresh arrays, `state` is what was saved."""

    tensors: dict[str, Arrays]
    state: dict[str, Any]
    path: Path
    step: int


# ---- weights alone -------------------------------------------------------------------------------------------------


def save_safetensors(
    path: StrPath, arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None, checksums: bool = False
) -> Path:
    """Write named arrays to one safetensors file, atomically and durably.

    Args:
        path: the file; its folder must exist.
        arrays: name to tensor or NumPy array of float16/32/64, bfloat16, an integer type or bool, for example
            ``model.state_dict()``; any strides.
        metadata: free text kept in the header.
        checksums: write the file's sha256 into ``SHA256SUMS`` beside it.

    Raises:
        CheckpointError: something cannot be stored, or the file could not be written (the old one is then intact).
    """
    if isinstance(path, Mapping):
        raise bad_type("save_safetensors(path, arrays): the path comes first")
    if not isinstance(arrays, Mapping):
        hint = "; pass its .state_dict()" if hasattr(arrays, "state_dict") else ""
        raise bad_type(f"save_safetensors: arrays is a {type(arrays).__name__}, expected a mapping from names{hint}")
    path = Path(path)
    with faults_of(path, " could not be written"):
        sha256sums.replace_file(path, safetensors_format.encode(arrays, metadata), checksums)
    return path


def load_safetensors(path: StrPath) -> Arrays:
    """Read a safetensors file into fresh arrays.

    Where ``SHA256SUMS`` beside it names the file, its content is checked.

    Raises:
        CheckpointError: naming the file and what is wrong with it; no other exception, whatever the file holds.
    """
    return read_arrays(Path(path))


def safetensors_header(path: StrPath) -> FileHeader:
    """Dtypes and shapes (``.tensors``) and ``.metadata`` of a safetensors file, without reading its data.

    Raises:
        CheckpointError: as `load_safetensors`.
    """
    return safetensors_format.read_header(Path(path))


# ---- saving a checkpoint -------------------------------------------------------------------------------------------


def save_checkpoint(
    folder: StrPath, tensors: Mapping[str, Mapping[str, Any]], state: Mapping[str, Any], keep: int | None = 2
) -> Path:
    """Save one checkpoint and delete those that are no longer wanted.

    Args:
        folder: holds all checkpoints of a run; created if missing.
        tensors: one safetensors file per key, e.g. ``{"model": {...}, "optimizer": {...}}``; name to NumPy array.
        state: everything else, as JSON values; ``state["step"]``, a non-negative int, names the checkpoint. Floats
            (NaN and infinities too) come back bit for bit; tuples come back as lists.
        keep: how many checkpoints of this step and earlier ones to keep, None for all. Those of later steps, left when
            a run was resumed from an older one, are never deleted.

    Returns:
        the checkpoint's folder.

    Raises:
        CheckpointError: the arguments cannot be stored, or writing failed. Earlier checkpoints are then intact.
    """
    step = checked_step(state, keep)
    for name in tensors:
        if not isinstance(name, str) or not _STEM.fullmatch(name) or shares.SHARE.fullmatch(name):
            raise CheckpointError(f"{show(name)} cannot name a file of tensors: use letters, digits, '_' and '-'")
    files = {f"{name}.safetensors": safetensors_format.encode(arrays) for name, arrays in tensors.items()}

    def write(temporary: Path) -> Records:
        return {name: durable.write_new_file(temporary / name, data) for name, data in files.items()}

    return write_checkpoint(temporary_folder(folder, step), step, encode_state(state), write, keep)


def checked_step(state: Mapping[str, Any], keep: int | None) -> int:
    """The step of a state. Raises CheckpointError for one that is none, and for a wrong ``keep``."""
    step = state.get("step")
    if type(step) is not int or not 0 <= step < 10**18:
        raise CheckpointError(f'state["step"] must be a non-negative int, got {show(step)}')
    if keep is not None and (type(keep) is not int or keep < 1):
        raise CheckpointError(f"keep must be at least 1, or None to keep all, got {show(keep)}")
    return step


def write_checkpoint(
    temporary: Path, step: int, state: bytes, write: Callable[[Path], Records], keep: int | None
) -> Path:
    """A checkpoint of the files that ``write(temporary)`` leaves in a `temporary_folder`, and of an encoded state.

    Returns and raises as `save_checkpoint`.
    """
    folder = temporary.parent
    with faults_of(folder, f": the checkpoint of step {step} could not be written"):
        durable.make_directories(folder)
        with durable.folder_lock(folder) as locked:
            if locked:
                durable.remove_orphans(folder, f"{durable.TEMPORARY}step-")
                durable.remove_orphans(folder, f"{TRASH}step-")
            same_step = [entry.revision for entry in _entries(folder) if entry.step == step]
            suffix = f".r{max(same_step) + 1}" if same_step else ""
            target = folder / f"step-{step:08d}{suffix}"
            try:
                os.mkdir(temporary)
                records = {**write(temporary), STATE: durable.write_new_file(temporary / STATE, [state])}
                files = {name: {"size": size, "sha256": sha256} for name, (size, sha256) in sorted(records.items())}
                manifest = {"format": FORMAT, "version": VERSION, "step": step, "files": files}
                raw = json.dumps({**manifest, "sha256": _self_hash(manifest)}, indent=1).encode()
                durable.write_new_file(temporary / MANIFEST, [raw])
                durable.fsync_directory(temporary)
                os.rename(temporary, target)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            durable.fsync_directory(folder)
            _prune(folder, step, target, keep)
    return target


def temporary_folder(folder: StrPath, step: int) -> Path:
    """A free name for the folder in which a checkpoint is written."""
    with faults_of(Path(folder), f": the checkpoint of step {step} could not be written"):
        return durable.temporary_sibling(Path(folder) / f"step-{step:08d}")


def _prune(folder: Path, step: int, newest: Path, keep: int | None) -> None:
    """Delete replaced revisions and old steps. The new checkpoint is safe by now, so a failure here is a warning."""
    try:
        older = [entry for entry in _entries(folder) if entry.step <= step and entry.path != newest]
        steps = sorted({entry.step for entry in older} - {step})
        kept = set(steps) if keep is None else set(steps[max(0, len(steps) - keep + 1) :])
        for entry in older:
            if entry.step not in kept:
                trash = folder / f"{TRASH}{entry.path.name}-{secrets.token_hex(4)}"
                os.rename(entry.path, trash)  # first out of the list: no half-deleted checkpoint is ever seen
                shutil.rmtree(trash, ignore_errors=True)
    except OSError as error:
        message = f"an old checkpoint in {folder} could not be deleted: {safetensors_format.reason_of(error)}"
        warnings.warn(message, RuntimeWarning, stacklevel=4)


def _self_hash(manifest: Mapping[str, Any]) -> str:
    """Of the manifest without this entry, so that damage to the manifest shows too."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def encode_state(state: Mapping[str, Any]) -> bytes:
    try:
        # Not escaped to ASCII: encoding then refuses lone surrogates, of which escapes may merge two into one
        # character.
        raw = json.dumps(_to_json(dict(state), "state"), indent=1, allow_nan=False, ensure_ascii=False).encode()
        decode_state(raw)  # what could not be read back is refused now, not at the resume
    except RecursionError:
        raise CheckpointError("state is nested too deeply, or holds itself") from None
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"state cannot be stored: {error}") from None
    if len(raw) > MAX_STATE:
        raise CheckpointError(f"state takes {len(raw):,} bytes, the limit is {MAX_STATE:,}: pass arrays as tensors")
    return raw


def _to_json(value: Any, where: str) -> Any:
    """Refuse what JSON would change in silence: int keys become strings, NaN is not JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == "__float__":
                wanted = f"keys must be strings, as str({show(key)}) is, and not '__float__'"
                raise CheckpointError(f"{where} has the key {show(key)}: {wanted}")
        return {key: _to_json(item, f"{where}[{show(key)}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": str(value)}
    if value is None or isinstance(value, str | int | float):
        return value
    raise CheckpointError(f"{where} is a {type(value).__name__}, which JSON cannot hold: pass arrays as tensors")


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"__float__"}:
            if value["__float__"] not in ("nan", "inf", "-inf"):
                raise ValueError(f"{show(value)} is not a float")
            return float(value["__float__"])
        return {key: _from_json(item) for key, item in value.items()}
    return [_from_json(item) for item in value] if isinstance(value, list) else value


def decode_state(raw: bytes) -> dict[str, Any]:
    state = _from_json(parse_json(raw))
    if not isinstance(state, dict):
        raise ValueError("the state is not a JSON object")
    return state


# ---- loading a checkpoint ------------------------------------------------------------------------------------------


def list_checkpoints(folder: StrPath) -> list[CheckpointEntry]:
    """The checkpoints in `folder`, oldest first; unverified. Empty if there is no such folder.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    with faults_of(Path(folder), " cannot be listed"), contextlib.suppress(FileNotFoundError):
        return _entries(Path(folder))
    return []


def _entries(folder: Path) -> list[CheckpointEntry]:
    named = [(_NAME.fullmatch(name), folder / name) for name in os.listdir(folder)]
    return sorted(CheckpointEntry(int(m[1]), int(m[2] or 0), path) for m, path in named if m and path.is_dir())


def load_checkpoint(folder: StrPath, step: int | None = None) -> Checkpoint:
    """Load the newest checkpoint of `folder`, or that of `step`, verified completely.

    Args:
        folder: a folder of checkpoints, or one checkpoint itself.
        step: None for the highest step.

    Raises:
        CheckpointError: there is none, or it is damaged; the message names the file and the fault. An older checkpoint
            is not loaded in silence: the newest intact one is named, and is ``error.previous``.
    """
    folder = Path(folder)
    if os.path.exists(folder / MANIFEST):  # which knows no error
        checkpoint = _load(folder)
        if step is not None and step != checkpoint.step:
            raise CheckpointError(f"{folder} holds step {checkpoint.step}, not step {step}", folder)
        return checkpoint
    entries = list_checkpoints(folder)
    if not entries:
        empty = "holds no checkpoint yet: a run saves them as folders such as step-00000123"
        raise CheckpointError(f"{folder} {empty if folder.is_dir() else 'is not a folder'}", folder)
    candidates = [entry for entry in entries if step is None or entry.step <= step]
    if step is not None and (not candidates or candidates[-1].step != step):
        steps = ", ".join(str(number) for number in sorted({entry.step for entry in entries}))
        raise CheckpointError(f"{folder} holds no checkpoint of step {step}; it holds {steps}", folder)
    newest = candidates.pop()
    try:
        return _load(newest.path, newest.step)
    except CheckpointError as error:
        previous = _newest_intact(candidates)
        offer = "no earlier one is intact" if previous is None else f"the last intact one before it is {previous}"
        raise CheckpointError(f"damaged checkpoint: {error}; {offer}", error.path, previous) from error


def _newest_intact(entries: list[CheckpointEntry]) -> Path | None:
    for entry in reversed(entries):
        with contextlib.suppress(CheckpointError):
            return _load(entry.path, entry.step).path
    return None


def _load(path: Path, expected_step: int | None = None) -> Checkpoint:
    step, records = _read_manifest(path)
    if expected_step is not None and step != expected_step:
        raise CheckpointError(f"{path} holds step {step}: it was renamed", path)
    state_path = path / STATE
    with faults_of(state_path):
        state = decode_state(safetensors_format.read_bytes(state_path, MAX_STATE, *records.pop(STATE)))
        if type(state.get("step")) is not int or state["step"] != step:
            raise ValueError(f"its step is {show(state.get('step'))}, the manifest's is {step}")
    tensors = {stem: shares.read(path, names, records) for stem, names in _stems(path, records).items()}
    return Checkpoint(tensors, state, path, step)


def _stems(path: Path, records: Records) -> dict[str, list[str]]:
    with faults_of(path / MANIFEST):
        return shares.by_stem(name for name in records if name != STATE)


def export_safetensors(folder: StrPath, path: StrPath, file: str = "model", checksums: bool = False) -> Path:
    """Write the tensors of a checkpoint to one file, also where each rank has saved its share of them.

    They are copied piece by piece, of which there is one in memory at a time. ``load_safetensors`` reads the file.

    Args:
        folder: a folder of checkpoints, of which the newest is taken, or one checkpoint itself.
        path: as ``save_safetensors``.
        file: which tensors of the checkpoint.
        checksums: as ``save_safetensors``.

    Raises:
        CheckpointError: the checkpoint is missing, damaged or torn, or has no such tensors; or ``path`` could not be
            written (the old file is then intact).
    """
    folder, path = Path(folder), Path(path)
    if not os.path.exists(folder / MANIFEST) and (entries := list_checkpoints(folder)):
        folder = entries[-1].path
    _, records = _read_manifest(folder)
    stems = _stems(folder, records)
    if file not in stems:
        raise CheckpointError(f"{folder} has no tensors called {show(file)}; it has {', '.join(stems)}", folder)
    with faults_of(path, " could not be written"):
        sha256sums.replace_file(path, shares.merged(folder, stems[file], records), checksums)
    return path


def _read_manifest(path: Path) -> tuple[int, dict[str, tuple[int, str]]]:
    manifest_path = path / MANIFEST
    manifest = safetensors_format.read_json(manifest_path, 1 << 20)
    with faults_of(manifest_path):
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise ValueError("is not the manifest of a minigrad checkpoint")
        if manifest.get("version") != VERSION or type(manifest["version"]) is not int:
            raise ValueError(f"has format version {show(manifest.get('version'))}, this release reads {VERSION}")
        sha256 = manifest.pop("sha256", None)
        if sha256 != _self_hash(manifest):
            raise ValueError("its own sha256 does not match: the manifest is damaged")
        if manifest.keys() != {"format", "version", "step", "files"}:
            raise ValueError(f"has unexpected keys {show(sorted(manifest))}")
        step, files = manifest["step"], manifest["files"]
        if type(step) is not int or not 0 <= step < 10**18:
            raise ValueError(f"{show(step)} is not a step")
        if not isinstance(files, dict) or STATE not in files:
            raise ValueError(f"lists no {STATE}")
        return step, {name: _record(name, info) for name, info in files.items()}


def _record(name: str, info: Any) -> tuple[int, str]:
    # A name goes into a path: nothing that could leave the folder.
    if name != STATE and not (name.endswith(".safetensors") and _STEM.fullmatch(name.removesuffix(".safetensors"))):
        raise ValueError(f"{show(name)} is not a file of a checkpoint")
    known = info if isinstance(info, dict) and info.keys() == {"size", "sha256"} else {}
    size, sha256 = known.get("size"), known.get("sha256")
    if type(size) is not int or size < 0 or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError(f"the entry of {show(name)} is not a size and a sha256")
    return size, sha256
