"""Checkpoints: what is saved comes back, what is damaged is refused by name, what fails leaves the old one intact."""

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from harness import assert_same_bits
from refusals import raises

from minigrad import serialization
from minigrad.files import durable
from minigrad.serialization import CheckpointError, list_checkpoints, load_checkpoint, save_checkpoint


def tensors_of(step: int) -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(step)
    model = {"w": rng.normal(size=(3, 4)).astype(np.float32), "b": rng.normal(size=4)}
    return {"model": model, "optimizer": {"t": np.array(step), "mask": np.array([True, False])}}


def save(folder: Path, step: int, keep: int | None = 2, note: str = "") -> Path:
    return save_checkpoint(folder, tensors_of(step), {"step": step, "note": note}, keep)


def assert_is_step(checkpoint: serialization.Checkpoint, step: int) -> None:
    assert checkpoint.step == checkpoint.state["step"] == step
    expected = tensors_of(step)
    assert checkpoint.tensors.keys() == expected.keys()
    for file, arrays in expected.items():
        assert_same_bits(checkpoint.tensors[file], arrays)


def steps(folder: Path) -> list[int]:
    return [entry.step for entry in list_checkpoints(folder)]


# ---- round trips ---------------------------------------------------------------------------------------------------


def test_tensors_and_state_come_back(tmp_path):
    state = {
        "step": 12,
        "losses": [0.1, math.nan, math.inf, -math.inf, -0.0, 5e-324],
        "seed": 2**64 - 1,
        "betas": (0.9, 0.95),
        "config": {"name": "gpt", "bias": True, "none": None, "ünï\n": "\U0001f600"},
        "numpy": np.float32(0.1),
    }
    path = save_checkpoint(tmp_path / "a" / "b", tensors_of(12), state)
    assert path == tmp_path / "a" / "b" / "step-00000012"
    checkpoint = load_checkpoint(tmp_path / "a" / "b")
    assert_is_step(checkpoint, 12)
    assert repr(checkpoint.state["losses"]) == repr(state["losses"])
    assert checkpoint.state["seed"] == 2**64 - 1
    assert checkpoint.state["betas"] == [0.9, 0.95]
    assert checkpoint.state["config"] == state["config"]
    assert checkpoint.state["numpy"] == float(np.float32(0.1))
    assert checkpoint.path == path
    assert sorted(os.listdir(path)) == ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]


def test_a_checkpoint_loads_by_its_own_path_too(tmp_path):
    path = save(tmp_path, 3)
    copy = tmp_path / "best"
    shutil.copytree(path, copy)
    assert_is_step(load_checkpoint(path), 3)
    assert_is_step(load_checkpoint(str(copy), step=3), 3)
    raises(CheckpointError, "holds step 3, not step 4", lambda: load_checkpoint(copy, step=4))


def test_empty_tensors_and_no_tensors(tmp_path):
    save_checkpoint(tmp_path, {"optimizer": {}}, {"step": 0})
    assert load_checkpoint(tmp_path).tensors == {"optimizer": {}}
    save_checkpoint(tmp_path, {}, {"step": 1})
    assert load_checkpoint(tmp_path).tensors == {}


def test_a_state_that_json_would_change_is_refused(tmp_path):
    for state, words in [
        ({}, "step"),
        ({"step": -1}, "step"),
        ({"step": True}, "step"),
        ({"step": 1.0}, "step"),
        ({"step": 1, "a": {"b": [0, {1, 2}]}}, r"state\['a'\]\['b'\]\[1\] is a set"),
        ({"step": 1, "array": np.ones(2)}, "ndarray.*pass arrays as tensors"),
        ({"step": 1, "ids": {3: "x"}}, r"state\['ids'\] has the key 3"),
        ({"step": 1, "f": {"__float__": "nan"}}, "__float__"),
        ({"step": 1, "text": "\ud83d\ude00"}, "surrogates not allowed"),
        ({"step": 1, "big": 10**2000}, "digits"),
        ({"step": 1, "text": "x" * (17 << 20)}, "the limit is"),
    ]:
        raises(CheckpointError, words, lambda state=state: save_checkpoint(tmp_path, {}, state))
        assert not os.listdir(tmp_path)


def test_a_state_that_holds_itself_is_refused(tmp_path):
    state = {"step": 1}
    state["self"] = state
    raises(CheckpointError, "holds itself", lambda: save_checkpoint(tmp_path, {}, state))


@pytest.mark.parametrize("name", ["", "..", "a" * 101, "../up", "a/b", ".hidden", "a.b", "manifest.json\n", "ä", 3])
def test_file_names_are_plain(tmp_path, name):
    raises(CheckpointError, "cannot name a file", lambda: save_checkpoint(tmp_path, {name: {}}, {"step": 1}))


@pytest.mark.parametrize(("name", "words"), [("a" * 300, "File name too long"), ("a\0b", "embedded null")])
def test_names_that_no_folder_can_have(tmp_path, name, words):
    for use in (load_checkpoint, list_checkpoints, lambda folder: save_checkpoint(folder, {}, {"step": 1})):
        raises(CheckpointError, words, use, tmp_path / name)


# ---- which are kept ------------------------------------------------------------------------------------------------


def test_the_newest_are_kept(tmp_path):
    for step in (1, 5, 30, 4_000_000_000):
        save(tmp_path, step)
    assert steps(tmp_path) == [30, 4_000_000_000]
    assert_is_step(load_checkpoint(tmp_path), 4_000_000_000)
    assert_is_step(load_checkpoint(tmp_path, 30), 30)
    raises(CheckpointError, r"no checkpoint of step 5; it holds 30, 4000000000", lambda: load_checkpoint(tmp_path, 5))


def test_keep(tmp_path):
    for step in range(5):
        save(tmp_path, step, keep=None)
    for keep, left in ((9, [0, 1, 2, 3, 4, 5]), (3, [4, 5, 6]), (1, [7])):
        save(tmp_path, left[-1], keep=keep)
        assert steps(tmp_path) == left
    for keep in (0, -1, 1.5, True):
        raises(CheckpointError, "keep must be at least 1", save, tmp_path, 8, keep)


def test_saving_before_later_steps_deletes_neither_them_nor_itself(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step, keep=None)
    save(tmp_path, 15, keep=1)  # resumed from 10 because a later one went wrong
    assert steps(tmp_path) == [15, 20, 30]


def test_the_same_step_again_replaces(tmp_path):
    save(tmp_path, 7)
    before = []
    for note in ("first", "second", "third"):
        path = save(tmp_path, 8, note=note)
        found = load_checkpoint(tmp_path, 8)
        assert path not in before and found.path == path and found.state["note"] == note
        assert steps(tmp_path) == [7, 8] and not any(old.exists() for old in before)
        before.append(path)


def test_orphans_of_dead_writers_are_removed_and_foreign_files_left(tmp_path):
    save(tmp_path, 1)
    (tmp_path / ".tmp-step-00000002-abcd").mkdir()
    (tmp_path / ".tmp-step-00000002-abcd" / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".trash-step-00000000-abcd").mkdir()
    (tmp_path / "log.jsonl").write_text("")
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-00000009").write_text("a file")
    save(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == ["log.jsonl", "step-00000001", "step-00000002", "step-00000009", "step-3"]


def test_a_second_writer_waits(tmp_path, monkeypatch):
    save(tmp_path, 1)
    monkeypatch.setattr(durable.folder_lock.__wrapped__, "__defaults__", (0.1,))  # type: ignore[attr-defined]
    with durable.folder_lock(tmp_path) as locked:
        assert locked
        raises(CheckpointError, "another process has been writing here", lambda: save(tmp_path, 2))
    save(tmp_path, 2)
    assert steps(tmp_path) == [1, 2]


# ---- nothing to load -----------------------------------------------------------------------------------------------


def test_no_checkpoint(tmp_path):
    assert list_checkpoints(tmp_path / "none") == []
    raises(CheckpointError, "is not a folder", lambda: load_checkpoint(tmp_path / "none"))
    raises(CheckpointError, "holds no checkpoint", lambda: load_checkpoint(tmp_path))
    (tmp_path / "file").write_text("x")
    raises(CheckpointError, "cannot be listed: Not a directory", lambda: load_checkpoint(tmp_path / "file"))


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        raises(CheckpointError, str(folder), save, folder, 1)


# ---- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_every_flipped_bit_and_every_truncation_is_refused(tmp_path, step):
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    count = 0
    for file in sorted(newest.iterdir()):
        original = file.read_bytes()
        for position in range(0, len(original), step):
            flips = [original[position] ^ 1 << bit for bit in range(8)]
            flipped = [original[:position] + bytes([flip]) + original[position + 1 :] for flip in flips]
            for damaged in [*flipped, original[:position]]:
                file.write_bytes(damaged)
                raises(CheckpointError, file.name, load_checkpoint, newest)
                count += 1
        for damaged in (original + b"\0", b"\0" * len(original), original + original):
            file.write_bytes(damaged)
            raises(CheckpointError, file.name, load_checkpoint, newest)
        file.write_bytes(original)
    assert count > 5000 // step
    assert_is_step(load_checkpoint(newest), 2)


def test_a_damaged_newest_checkpoint_names_the_intact_one_before(tmp_path):
    old, middle, newest = (save(tmp_path, step, keep=None) for step in (1, 2, 3))
    (newest / "model.safetensors").unlink()
    (middle / "state.json").write_bytes(b"{}")
    caught = raises(CheckpointError, "", load_checkpoint, tmp_path)
    error = caught
    assert error.path == newest / "model.safetensors" and error.previous == old
    assert all(words in str(error) for words in (str(error.path), "the file is missing", str(old)))
    assert "\n" not in error.args[0]

    (old / "manifest.json").unlink()
    caught = raises(CheckpointError, "no earlier one is intact", load_checkpoint, tmp_path)
    assert caught.previous is None


def test_a_renamed_checkpoint_is_refused(tmp_path):
    save(tmp_path, 1).rename(tmp_path / "step-00000009")
    raises(CheckpointError, "holds step 1: it was renamed", lambda: load_checkpoint(tmp_path))


def forge(path: Path, **changes) -> None:
    """Rewrite a manifest with a valid checksum of its own, as an attacker would."""
    manifest = {**json.loads((path / "manifest.json").read_bytes()), **changes}
    del manifest["sha256"]
    manifest["sha256"] = serialization._self_hash(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def forge_state(path: Path, raw: bytes) -> None:
    """Other bytes for the state, which the manifest confirms."""
    (path / "state.json").write_bytes(raw)
    files = json.loads((path / "manifest.json").read_bytes())["files"]
    record = {"size": len(raw), "sha256": serialization.hashlib.sha256(raw).hexdigest()}
    forge(path, files={**files, "state.json": record})


RECORD = {"size": 0, "sha256": "0" * 64}


def test_a_forged_manifest_is_refused(tmp_path):
    for changes, words in [
        ({"version": 2}, "format version 2, this release reads 1"),
        ({"version": True}, "format version True"),
        ({"format": "other"}, "not the manifest"),
        ({"more": 1}, "unexpected keys"),
        ({"step": -1}, "not a step"),
        ({"step": "1"}, "not a step"),
        ({"files": []}, "lists no state.json"),
        ({"files": {}}, "lists no state.json"),
        ({"files": {"state.json": RECORD}}, "the manifest says 0"),
        ({"files": {"state.json": {}}}, "not a size and a sha256"),
        ({"files": {"state.json": {**RECORD, "size": -1}}}, "not a size and a sha256"),
        ({"files": {"state.json": {**RECORD, "sha256": "A" * 64}}}, "not a size and a sha256"),
        ({"files": {"state.json": RECORD, "../up.safetensors": RECORD}}, "not a file of a checkpoint"),
        ({"files": {"state.json": RECORD, "/etc/passwd": RECORD}}, "not a file of a checkpoint"),
        ({"files": {"state.json": RECORD, "x.pkl": RECORD}}, "not a file of a checkpoint"),
        ({"files": {"state.json": RECORD, f"{'a' * 300}.safetensors": RECORD}}, "not a file of a checkpoint"),
    ]:
        path = save(tmp_path, 1)
        forge(path, **changes)
        raises(CheckpointError, words, lambda path=path: load_checkpoint(path))


HOSTILE = [
    *[b"", b"{", b"[]", b"null", b"\xff", b'{"format":1,"format":2}', b"[" * 200_000],
    *[b'{"format":"minigrad checkpoint","version":1,"step":' + b"[" * 900 + b"]" * 900 + b"}", b"1" * 100_000],
    b" " * (2 << 20),
]


@pytest.mark.parametrize("raw", HOSTILE)
def test_a_hostile_manifest_or_state_is_refused(tmp_path, raw):
    path = save(tmp_path, 1)
    forge_state(path, raw)
    raises(CheckpointError, r"state\.json", lambda: load_checkpoint(path))
    (path / "manifest.json").write_bytes(raw)
    raises(CheckpointError, r"manifest\.json", lambda: load_checkpoint(path))


def test_a_state_of_another_step_or_with_a_false_float_is_refused(tmp_path):
    path = save(tmp_path, 1)
    for raw, words in [(b'{"step": 2}', "its step is 2"), (b'{"step":1,"a":{"__float__":"1"}}', "not a float")]:
        forge_state(path, raw)
        raises(CheckpointError, words, lambda: load_checkpoint(path))
