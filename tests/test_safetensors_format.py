"""The safetensors reader and writer: exact round trips, agreement with the reference library, and hostile files."""

import json
import os
import time

import numpy as np
import pytest
from harness import assert_same_bits
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from refusals import raises

import minigrad as mg
from minigrad.files.safetensors_format import MAX_HEADER, encode
from minigrad.serialization import CheckpointError, load_safetensors, safetensors_header, save_safetensors

DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
dtypes = st.sampled_from(DTYPES).map(np.dtype)
texts = st.text(max_size=5)
names = st.text(max_size=8).filter(lambda name: name != "__metadata__")
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, shapes))


def file_bytes(header, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return tmp_path_factory.mktemp("round-trip")


@given(st.dictionaries(names, arrays, max_size=4), st.dictionaries(texts, texts, max_size=2))
def test_round_trip_is_bitwise_and_agrees_with_the_reference(folder, tensors, metadata):
    reference = pytest.importorskip("safetensors.numpy", reason="the reference implementation is not installed")
    raw = b"".join(bytes(piece) for piece in encode(tensors, metadata))
    assert_same_bits(reference.load(raw), tensors)
    path = folder / "file.safetensors"
    path.write_bytes(raw)
    assert_same_bits(load_safetensors(path), tensors)
    assert safetensors_header(path).metadata == metadata
    reference.save_file(tensors, path, metadata or None)  # version 0.8.0 writes a broken header for ({}, {})
    assert_same_bits(load_safetensors(path), tensors)


def test_strides_byte_order_and_scalars(tmp_path):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    tensors = {"t": base.T, "step": base[::-2, 1::2], "big": base.astype(">f4"), "scalar": np.float64(0.1)}
    save_safetensors(tmp_path / "w", tensors)
    loaded = load_safetensors(tmp_path / "w")
    assert_same_bits(loaded, {name: np.asarray(x).astype(x.dtype.newbyteorder("=")) for name, x in tensors.items()})
    assert all(x.flags.c_contiguous and x.flags.writeable for x in loaded.values())


def test_bfloat16_is_the_reference_s_bytes(tmp_path):
    torch_files = pytest.importorskip("safetensors.torch", reason="the reference implementation is not installed")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: safetensors reads bfloat16 with it alone")
    x = mg.randn(3, 4).to("bfloat16")
    save_safetensors(tmp_path / "w", {"x": x, "turned": x.T})
    theirs = torch_files.load_file(tmp_path / "w")
    assert theirs["x"].dtype == torch.bfloat16
    np.testing.assert_array_equal(theirs["turned"].float().numpy(), x.T.float().numpy())
    torch_files.save_file(theirs, tmp_path / "theirs")
    for path in (tmp_path / "w", tmp_path / "theirs"):
        loaded = load_safetensors(path)
        assert loaded["x"].dtype == mg.bfloat16
        np.testing.assert_array_equal(mg.from_numpy(loaded["x"]).float().numpy(), x.float().numpy())


def test_data_are_aligned(tmp_path):
    tensors = {"a": np.ones(3, np.int8), "b": np.ones(3, np.float64), "c": np.ones(1, np.float16)}
    path = save_safetensors(tmp_path / "w", tensors)
    header = safetensors_header(path)
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0
    assert all(item.begin % item.dtype.itemsize == 0 for item in header.tensors.values())


def test_what_cannot_be_stored_is_refused_and_the_old_file_kept(tmp_path):
    path = save_safetensors(tmp_path / "w", {"a": np.ones(2, np.float32)})
    refused = [
        ({"a": np.array(["text"])}, "unsupported dtype <U4"),
        ({"a": np.array([{}])}, "unsupported dtype object"),
        ({"a": np.ones(1, np.complex64)}, "complex64"),
        ({"a": np.zeros(1, "V2")}, "unsupported dtype"),
        ({"a": [1.0]}, "is a list, neither a tensor nor a NumPy array"),
        ({1: np.ones(1)}, "cannot be the name"),
        ({"__metadata__": np.ones(1)}, "cannot be the name"),
        ({"\ud800": np.ones(1)}, "cannot be stored"),
    ]
    for tensors, words in refused:
        raises(CheckpointError, words, lambda tensors=tensors: save_safetensors(path, tensors))
    raises(CheckpointError, "metadata", lambda: save_safetensors(path, {}, {"step": 3}))
    assert_same_bits(load_safetensors(path), {"a": np.ones(2, np.float32)})
    assert os.listdir(tmp_path) == ["w"]
    raises(CheckpointError, "No such file", lambda: save_safetensors(tmp_path / "none" / "w", {}))


EIGHT = b"\0" * 8
HOSTILE: list[tuple[str, bytes, str]] = [
    ("empty", b"", "fewer than the 8"),
    ("length only", EIGHT[:7], "fewer than the 8"),
    ("huge length", b"\xff" * 8 + b"{}", "the limit is"),
    ("length over the limit", (MAX_HEADER + 1).to_bytes(8, "little") + b"{}", "the limit is"),
    ("length beyond the file", (100).to_bytes(8, "little") + b"{}", "2 follow"),
    ("no header", EIGHT, "does not begin"),
    ("leading space", file_bytes(b" {}"), "does not begin"),
    ("a list", file_bytes(b"[]"), "does not begin"),
    ("not JSON", file_bytes(b"{nope"), "line 1"),
    ("not UTF-8", file_bytes(b'{"\xff": 1}'), "not UTF-8 at byte 2"),
    ("NaN", file_bytes(b'{"a": NaN}'), "not JSON"),
    ("two documents", file_bytes(b"{}{}"), "Extra data"),
    ("duplicate name", file_bytes(b'{"a":1,"a":2}'), "appears twice"),
    ("duplicate field", file_bytes(b'{"a":{"dtype":"F32","dtype":"F32"}}'), "appears twice"),
    ("missing field", file_bytes({"a": {"dtype": "F32", "shape": [2]}}, EIGHT), "expected exactly"),
    ("additional field", file_bytes({"a": {**entry(), "x": 1}}, EIGHT), "expected exactly"),
    ("entry is null", file_bytes({"a": None}), "expected exactly"),
    ("unknown dtype", file_bytes({"a": entry("F33")}, EIGHT), "not a dtype"),
    ("dtype is a list", file_bytes({"a": entry(["F32"])}, EIGHT), "not a dtype"),
    ("float8", file_bytes({"a": entry("F8_E4M3", (8,))}, EIGHT), "F8_E4M3 is not supported: convert"),
    ("negative size", file_bytes({"a": entry(shape=(-2,))}, EIGHT), "not a shape"),
    ("float size", file_bytes({"a": entry(shape=(2.0,))}, EIGHT), "not a shape"),
    ("bool size", file_bytes({"a": entry("F64", shape=(True,))}, EIGHT), "not a shape"),
    ("size beyond 64 bits", file_bytes({"a": entry(shape=(2**64,))}, EIGHT), "not a shape"),
    ("number of 5000 digits", file_bytes(b'{"a":' + b"1" * 5000 + b"}"), "5000 digits"),
    ("too many dimensions", file_bytes({"a": entry(shape=(1,) * 33, offsets=(0, 4))}, EIGHT[:4]), "32 dimensions"),
    ("product wraps around", file_bytes({"a": entry(shape=(2**33, 2**31))}, EIGHT), "too large"),
    ("wraps around to zero", file_bytes({"a": entry(shape=(0, 2**62, 2**62), offsets=(0, 0))}), "too large"),
    ("three offsets", file_bytes({"a": entry(offsets=(0, 8, 8))}, EIGHT), "[begin, end]"),
    ("offsets reversed", file_bytes({"a": entry(offsets=(8, 0))}, EIGHT), "[begin, end]"),
    ("negative offset", file_bytes({"a": entry(offsets=(-8, 0))}, EIGHT), "[begin, end]"),
    ("shape against offsets", file_bytes({"a": entry(shape=(3,))}, EIGHT), "takes 12 bytes"),
    ("beyond the end", file_bytes({"a": entry()}, EIGHT[:7]), "the file holds 7"),
    ("bytes left over", file_bytes({"a": entry()}, EIGHT + b"x"), "the file holds 9"),
    ("gap", file_bytes({"a": entry(offsets=(4, 12))}, EIGHT + EIGHT[:4]), "a gap"),
    ("overlap", file_bytes({"a": entry(), "b": entry(offsets=(4, 12))}, EIGHT * 2), "overlap"),
    ("metadata not strings", file_bytes({"__metadata__": {"a": 1}}), "__metadata__"),
    ("metadata is a list", file_bytes({"__metadata__": []}), "__metadata__"),
    ("lone surrogate", file_bytes(b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), "not Unicode"),
    ("surrogate in metadata", file_bytes(b'{"__metadata__":{"a":"\\udfff"}}'), "__metadata__ is not Unicode"),
    ("minus zero", file_bytes(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[-0,0]}}'), "-0 is not an integer"),
    ("bool of 2", file_bytes({"a": entry("BOOL", (1,), (0, 1))}, b"\2"), "neither 0 nor 1"),
    ("deep nesting", file_bytes(b'{"a":' * 100_000), "nested too deeply"),
    ("deep shape", file_bytes({"a": {"dtype": "F32", "data_offsets": [0, 0], "shape": [[[[[]]]]]}}), "not a shape"),
]


@pytest.mark.parametrize(("raw", "words"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_a_hostile_file_is_refused_by_name(tmp_path, raw, words):
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(raw)
    for read in (load_safetensors, safetensors_header):
        if read is safetensors_header and words == "neither 0 nor 1":
            continue
        caught = raises(CheckpointError, "", read, path)
        message = str(caught)
        assert message.startswith(str(path)) and words in message and len(message) < 500
        _, user = message.splitlines()  # one line of words, and the user's
        assert user.startswith("  at ") and caught.path == path


def test_what_is_not_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    raises(CheckpointError, "not a regular file", lambda: load_safetensors(tmp_path / "pipe"))
    raises(CheckpointError, "not a regular file", lambda: load_safetensors(tmp_path))
    raises(CheckpointError, "missing", lambda: load_safetensors(tmp_path / "none"))
    raises(CheckpointError, "cannot be opened", lambda: load_safetensors("a\0b"))


@pytest.mark.parametrize(
    "pattern",
    [b"[[],", b'{"":', b"[" * 4, b"1,", b'"",', b"9" * 4, b" " * 4, b'"a":1,', b'"a":{"dtype":"F32","shape":[0]},'],
)
def test_the_largest_headers_are_refused_in_a_second(tmp_path, pattern):
    body = b'{"x":[' + pattern * ((MAX_HEADER - 6) // len(pattern))
    path = tmp_path / "large.safetensors"
    path.write_bytes(file_bytes(body))
    start = time.process_time()
    raises(CheckpointError, "", load_safetensors, path)
    assert time.process_time() - start < 2.0  # 0.1 to 0.5 s here


def test_many_tensors_load(tmp_path):
    tensors = {f"layer.{i}": np.full(1, i, np.float32) for i in range(20_000)}
    save_safetensors(tmp_path / "w", tensors)
    assert_same_bits(load_safetensors(tmp_path / "w"), tensors)
