"""Token files: both formats byte for byte, batches from the map, faults named, the old file kept."""

import os

import numpy as np
import pytest
from refusals import raises

from minigrad.data import DataError, EpochBatches, FixedBatches, RandomBatches, open_tokens, write_tokens

TOKENS = np.arange(1000) * 61 % 65521


def test_the_bytes_of_both_formats(tmp_path):
    tokens = np.array([0, 1, 258, 65535])
    assert write_tokens(tmp_path / "a.bin", tokens) == 4
    assert (tmp_path / "a.bin").read_bytes() == b"\0\0\1\0\2\1\xff\xff"
    assert write_tokens(tmp_path / "b.bin", tokens, format="llm.c") == 4
    raw = (tmp_path / "b.bin").read_bytes()
    assert raw[:12] == (20240520).to_bytes(4, "little") + b"\1\0\0\0" + b"\4\0\0\0"
    assert raw[12:1024] == bytes(1012)
    assert raw[1024:] == b"\0\0\1\0\2\1\xff\xff"


FORMATS = pytest.mark.parametrize("format", ["nanogpt", "llm.c"])


@FORMATS
def test_round_trip_in_one_piece_or_many(tmp_path, format):
    path = tmp_path / "tokens.bin"
    whole = TOKENS.astype(np.int32)
    for given in (whole, np.repeat(whole, 2)[::2], [whole[:300], [], whole[300:301], whole[301:]], iter([whole])):
        assert write_tokens(path, given, format) == 1000
        found = open_tokens(path, format)
        assert found.dtype == np.uint16 and not found.flags.writeable
        np.testing.assert_array_equal(found, TOKENS)
    assert os.listdir(tmp_path) == ["tokens.bin"]


@pytest.mark.parametrize("format", ["nanogpt", "llm.c"])
def test_batches_of_a_map_are_those_of_the_array(tmp_path, format):
    write_tokens(tmp_path / "t.bin", TOKENS, format)
    found = open_tokens(tmp_path / "t.bin", format)
    pairs = [(RandomBatches(t, 3, 8, 1).batch(5), next(iter(FixedBatches(t, 3, 8)))) for t in (found, TOKENS)]
    np.testing.assert_array_equal(pairs[0], pairs[1])
    epochs = [next(iter(EpochBatches(t, 3, 8, 1))) for t in (found, TOKENS)]
    np.testing.assert_array_equal(epochs[0], epochs[1])
    assert type(epochs[0][0]) is np.ndarray


def failing():
    yield TOKENS
    raise RuntimeError("the source failed")


FAILED_WRITES = [
    (np.array([1, 65536]), DataError, "token 65536 at position 1 does not fit"),
    ([TOKENS, np.array([3, -1])], DataError, r"token -1 at position 1,001"),
    (np.array([1.0]), DataError, r"shape \(1,\) of float64"), (np.ones((2, 2), int), DataError, r"shape \(2, 2\)"),
    (np.array([True]), DataError, "bool"), ([], DataError, "no tokens"),
    (failing(), RuntimeError, "the source failed"),
]  # fmt: skip


@pytest.mark.parametrize(("tokens", "error", "message"), FAILED_WRITES)
@pytest.mark.parametrize("format", ["nanogpt", "llm.c"])
def test_after_a_failed_write_the_old_file_is_there(tmp_path, tokens, error, message, format):
    path = tmp_path / "t.bin"
    write_tokens(path, np.array([7]), format)
    if hasattr(tokens, "send"):
        tokens = failing()
    raises(error, message, lambda: write_tokens(path, tokens, format))
    assert open_tokens(path, format).tolist() == [7]
    assert os.listdir(tmp_path) == ["t.bin"]


def header(*words, tokens=b""):
    return np.array([*words, *[0] * (256 - len(words))], "<i4").tobytes() + tokens


def test_a_faulty_file_is_refused(tmp_path):
    for format, raw, message in [
        ("nanogpt", b"", "holds no tokens"),
        ("nanogpt", b"abc", "has 3 bytes, an odd number"),
        ("llm.c", b"", "has 0 bytes, fewer than the 1024"),
        ("llm.c", bytes(1023), "has 1023 bytes"),
        ("llm.c", bytes(1026), "begins with 0, not with llm.c's 20240520"),
        ("llm.c", header(20240801, 7, 1, tokens=b"abcd"), "begins with 20240801"),
        ("llm.c", header(20240520, 2, 1, tokens=b"ab"), "version 2, only version 1"),
        ("llm.c", header(20240520, 1, 0), "holds no tokens"),
        ("llm.c", header(20240520, 1, -1), "counts -1 tokens"),
        ("llm.c", header(20240520, 1, 2, tokens=b"ab"), "counts 2 tokens, 1,028 bytes in all, but the file has 1,026"),
        ("llm.c", header(20240520, 1, 1, tokens=b"abc"), "but the file has 1,027"),
    ]:
        path = tmp_path / "t.bin"
        path.write_bytes(raw)
        raises(DataError, message, lambda format=format, path=path: open_tokens(path, format))


def test_what_is_no_file(tmp_path):
    raises(DataError, "does not exist", lambda: open_tokens(tmp_path / "missing.bin"))
    raises(DataError, "not a regular file", lambda: open_tokens(tmp_path))
    raises(DataError, "'gpt' is not a format of token files", lambda: open_tokens(tmp_path / "t.bin", "gpt"))
    raises(DataError, "'gpt' is not a format", lambda: write_tokens(tmp_path / "t.bin", TOKENS, "gpt"))
    raises(OSError, "", lambda: write_tokens(tmp_path / "no" / "t.bin", TOKENS))
