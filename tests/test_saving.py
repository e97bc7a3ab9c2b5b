"""``minigrad.save`` and ``load``: what comes back, what is refused, files that lie."""

import hashlib
import os
import pickle
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from refusals import raises

import minigrad
from minigrad import nn, optim
from minigrad.data import DataError, open_tokens, write_tokens
from minigrad.files import sha256sums
from minigrad.serialization import CheckpointError, load_safetensors, save_safetensors


def test_a_training_comes_back(tmp_path):
    def start(seed):
        minigrad.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).bfloat16()
        return model, optim.AdamW(model.named_parameters(), lr=0.1)

    def step(model, optimizer):
        optimizer.step(model(minigrad.ones(2, 3, dtype=minigrad.bfloat16)).square().sum().backward())

    model, optimizer = start(0)
    step(model, optimizer)
    schedule = optim.lr_scheduler.StepLR(optimizer, 3)
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    saved = minigrad.load(minigrad.save({**states, "step": 1}, tmp_path / "run.pt"), map_location="cpu")
    assert saved["step"] == 1 and list(saved) == [*states, "step"] and saved["schedule"] == states["schedule"]
    other, resumed = start(1)
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    for pair in ((model, optimizer), (other, resumed)):
        step(*pair)
    for p, q in zip(model.parameters(), other.parameters()):
        assert p.tolist() == q.tolist() and p.dtype == q.dtype


PLAIN = {"none": None, "on": True, "n": 2**40, "x": float("nan"), "text": "é", "list": [1, [], {}], "": {"a.b": []}}


def test_plain_values_arrays_and_other_safetensors(tmp_path):
    file = tmp_path / "a"
    x = np.arange(6)[::2]
    minigrad.save([PLAIN, x, (minigrad.ones(()), 1.5)], file)
    plain, array, (one, number) = minigrad.load(file)
    assert repr(plain) == repr(PLAIN) and isinstance(array, np.ndarray) and array.tolist() == [0, 2, 4]
    assert isinstance(one, minigrad.Tensor) and one.item() == 1 and number == 1.5
    save_safetensors(file, {"w": x})
    assert minigrad.load(file)["w"].tolist() == [0, 2, 4]
    minigrad.save({"a": {"b": x}, "a.b": 2 * x, "l": [x], "l[0]": 3 * x}, file)
    found = minigrad.load(file)
    assert found["a"]["b"].tolist() == found["l"][0].tolist() == [0, 2, 4]
    assert found["a.b"].tolist() == [0, 4, 8] and found["l[0]"].tolist() == [0, 6, 12]
    minigrad.save(minigrad.ones(2), file)
    assert minigrad.load(file).tolist() == [1, 1] and list(load_safetensors(file)) == [""]


@pytest.mark.parametrize(
    ("obj", "error", "message"),
    [
        ({"model": nn.Tanh()}, TypeError, "pass its .state_dict.., model"),
        ({1: 2}, CheckpointError, "keys must be strings"),
        ({"f": len}, CheckpointError, "a builtin_function_or_method, which JSON cannot hold"),
        ({"a": {"__tensor__": "x"}}, CheckpointError, "a has a key of __tensor__, __array__"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_nothing_is_written(tmp_path, obj, error, message):
    raises(error, message, minigrad.save, obj, tmp_path / "file")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "tree", ["", "[]", '{"value": {"__tensor__": "b"}}', '{"value": {"__array__": ["a"]}}', "{" * 9999]
)
def test_a_file_that_lies_is_one_kind_of_error(tmp_path, tree):
    save_safetensors(tmp_path / "file", {"a": np.ones(2)}, {"minigrad.save": tree})
    raises(CheckpointError, "file", minigrad.load, tmp_path / "file")
    (tmp_path / "file").write_bytes(b"PK\x03\x04" + bytes(100))
    raises(RuntimeError, "file: .*safetensors", minigrad.load, tmp_path / "file")  # as PyTorch's
    assert minigrad.load(minigrad.save({}, tmp_path / "file")) == {}


def test_sums_are_written_by_an_option_and_checked_wherever_they_are(tmp_path):
    weights, sums = tmp_path / "a b.safetensors", tmp_path / "SHA256SUMS"
    save_safetensors(weights, {"w": np.ones(3)}, checksums=True)
    write_tokens(tmp_path / "t.bin", np.arange(9), checksums=True)
    write_tokens(tmp_path / "u.bin", np.arange(9), "llm.c", checksums=True)
    if sha256sum := shutil.which("sha256sum"):
        subprocess.run([sha256sum, "-c", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)
    lines = [line.split(maxsplit=1) for line in sums.read_text().splitlines()]
    sums.write_text("".join(f"{sha256.upper()} *./{name}\r\n" for sha256, name in lines))  # as others write it
    assert load_safetensors(weights)["w"].sum() == 3 and open_tokens(tmp_path / "u.bin", "llm.c").sum() == 36
    loads = [(CheckpointError, weights, load_safetensors), (CheckpointError, weights, minigrad.load)]
    loads.append((DataError, tmp_path / "t.bin", open_tokens))
    for error, path, load in loads:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        raises(error, rf"{path}.*sha256 is not the one in SHA256SUMS", load, path)
        content[-1] ^= 1
        path.write_bytes(content)
        load(path)
    save_safetensors(weights, {"w": np.zeros(3)})  # without the option its line goes
    write_tokens(tmp_path / "t.bin", np.arange(4), checksums=True)  # with it, there is another one
    after = sums.read_text().splitlines()
    assert [line.split(maxsplit=1)[1] for line in after] == ["*./u.bin", "t.bin"]  # others stay as they were
    assert load_safetensors(weights)["w"].sum() == 0 and len(open_tokens(tmp_path / "t.bin")) == 4
    for bad, words in [
        (b"abc  x\n", "line 1 is not a sha256"),
        (b"\n" + 2 * (b"0" * 64 + b"  x\n"), "line 3 names a file again"),
        (b"\xff", "SHA256SUMS cannot be read"),
        (b" " * (1 + (16 << 20)), "SHA256SUMS has more than"),
    ]:
        sums.write_bytes(bad)
        raises(CheckpointError, words, load_safetensors, weights)
        raises(CheckpointError, words, save_safetensors, weights, {})
        raises(DataError, words, open_tokens, tmp_path / "t.bin")
        raises(DataError, words, write_tokens, tmp_path / "t.bin", np.arange(4))
    assert len(np.fromfile(tmp_path / "t.bin", np.uint16)) == 4  # it is the old one
    sums.write_text(f"# of mine\r\n\n{'0' * 64}  x\n")
    save_safetensors(weights, {"w": np.ones(1)}, checksums=True)
    assert sums.read_text().splitlines()[:2] == ["# of mine", "0" * 64 + "  x"]
    for name in ("a\nb", "a\r", "\udcff"):
        raises(CheckpointError, "SHA256SUMS cannot name", save_safetensors, tmp_path / name, {}, None, True)
        raises(DataError, "SHA256SUMS cannot name", write_tokens, tmp_path / name, np.arange(4), "nanogpt", True)
        assert not (tmp_path / name).exists() and load_safetensors(weights)["w"].sum() == 1
    for make in (os.mkfifo, lambda path: path.symlink_to("nowhere"), os.mkdir):
        sums.unlink()
        make(sums)
        raises(CheckpointError, "SHA256SUMS is not a regular file", load_safetensors, weights)
        raises(CheckpointError, "SHA256SUMS is not a regular file", save_safetensors, weights, {})
    sums.rmdir()
    sums.write_text("")
    save_safetensors(weights, {})
    assert not sums.exists()


@pytest.mark.parametrize("save", [save_safetensors, write_tokens])
def test_two_writers_of_a_file_leave_the_sum_of_its_content(tmp_path, save):
    path, both = tmp_path / "t.bin", threading.Barrier(2)

    def write(value: int) -> None:
        for _ in range(20):
            both.wait(30)
            save(path, {"w": np.full(3, value)} if save is save_safetensors else np.full(9, value), checksums=True)
            both.wait(30)
            sha256sums.check(path, hashlib.sha256(path.read_bytes()).hexdigest())

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(write, range(2))] == [None, None]


def test_files_of_other_formats_are_named(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones(3))
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a": 1}))
    raises(CheckpointError, "is a zip archive, as of torch.save", minigrad.load, tmp_path / "a.npz")
    raises(CheckpointError, "is a pickle, and no file of safetensors", minigrad.load, tmp_path / "a.pkl")
