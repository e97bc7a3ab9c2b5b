"""Corpora: the built-in one, files and folders, and the download with everything that can go wrong with it."""

import hashlib
import json
import os
import platform
import sys
import threading
import time
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from processes import python
from refusals import raises

from minigrad.data import CharTokenizer, DataError, corpus, load_corpus

# ---- the default ---------------------------------------------------------------------------------------------------


def test_the_default_needs_nothing_and_is_english():
    result = load_corpus()
    assert len(result.text) > 200_000
    assert result.text.count(" the ") > 1_000
    assert CharTokenizer.from_text(result.text).vocab_size < 300
    assert result.name == f"pydoc (Python {platform.python_version()})"
    assert result.metadata["python"] == platform.python_version()
    assert result.metadata["characters"] == len(result.text)
    assert result.metadata["sha256"] == hashlib.sha256(result.text.encode()).hexdigest()
    json.dumps(result.metadata)


def test_the_default_is_the_same_text_in_each_process():
    command = "from minigrad.data.corpus import load_corpus; print(load_corpus().metadata['sha256'])"
    other = python("-c", command, env={"PYTHONHASHSEED": "12345"}, check=True)
    assert other.stdout.strip() == load_corpus().metadata["sha256"]


def test_the_validation_part_of_the_default_is_not_in_the_training_part():
    text = load_corpus().text
    cut = len(text) * 9 // 10
    paragraphs = [paragraph for paragraph in text[cut:].split("\n\n")[1:] if len(paragraph) > 80]
    assert len(paragraphs) > 50
    assert not [paragraph for paragraph in paragraphs if paragraph in text[:cut]]


def test_a_python_without_its_manual_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    raises(DataError, r"lacks pydoc_data\.topics.*--data FILE", lambda: load_corpus())


# ---- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name, text in {"c.txt": "3\n", "a.txt": "1", "b/x.md": "2", ".hidden": "no", ".git/config": "no"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_folder_is_its_files_sorted_without_hidden_ones(tree):
    result = load_corpus(tree)
    assert result.text == "1\n3\n\n2"
    assert result.metadata["files"] == [str(tree / name) for name in ("a.txt", "c.txt", "b/x.md")]
    assert load_corpus(str(tree)) == result


def test_several_paths_in_the_given_order_each_file_once(tree):
    assert load_corpus([tree / "c.txt", tree / ".hidden", tree]).text == "3\n\nno\n1\n2"
    assert load_corpus([tree / "a.txt", tree / "a.txt"]).text == "1"


def test_line_ends_and_byte_order_mark(tmp_path):
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    assert load_corpus(tmp_path / "dos.txt").text == "a\nb\nc\n"


def test_what_is_not_text_is_named_with_the_offset(tree):
    for raw, byte, offset in [
        *[(b"abc\xff\n", "0xff", "3"), (b"\xef\xbb\xbfab\xe4c", "0xe4", "5"), (b"caf\xc3", "0xc3", "3")],
        *[(b"a" * 2000 + b"\0", "0x00", "2,000"), (b"\xed\xa0\x80", "0xed", "0")],
    ]:
        (tree / "b" / "bad.bin").write_bytes(raw)
        caught = raises(DataError, "", load_corpus, tree / "b" / "bad.bin")
        assert caught.args[0] == f"{tree / 'b' / 'bad.bin'} is not UTF-8 text: byte {byte} at offset {offset}"
        corpus = load_corpus(tree)
        assert corpus.name == f"{tree} (1 file left out: not text)" and "bad.bin" not in str(corpus.metadata)
    (tree / "b" / "x.md").unlink()
    raises(DataError, "b holds no file of UTF-8 text .1 of other kinds", load_corpus, tree / "b")


def test_paths_that_cannot_be_read(tmp_path, monkeypatch):
    raises(DataError, "none does not exist", lambda: load_corpus(tmp_path / "none"))
    raises(DataError, "built-in corpora are", lambda: load_corpus("shakespear"))
    raises(DataError, "holds no files", lambda: load_corpus(tmp_path))
    (tmp_path / "loop").symlink_to("loop")
    raises(DataError, "loop cannot be read: Too many levels", lambda: load_corpus(tmp_path / "loop"))
    raises(DataError, r"'a\\x00b' cannot be read: embedded null", lambda: load_corpus("a\0b"))
    raises(DataError, "at least one file", lambda: load_corpus([]))
    raises(DataError, "cannot be read: File name too long", lambda: load_corpus(tmp_path / ("a" * 300)))
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(50 << 30)
    tracemalloc.start()
    raises(DataError, r"more than 1,073,741,824 bytes of text \(.*sparse", lambda: load_corpus(tmp_path / "sparse"))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    os.mkfifo(tmp_path / "pipe")
    raises(DataError, "not a regular file", lambda: load_corpus(tmp_path / "pipe"))
    (tmp_path / "large").write_bytes(b"a" * 100)
    monkeypatch.setattr(corpus, "MAX_BYTES", 99)
    raises(DataError, r"more than 99 bytes of text \(reached in .*large", lambda: load_corpus(tmp_path / "large"))


def test_a_short_corpus_is_refused_with_the_figures(tmp_path):
    (tmp_path / "short.txt").write_text("a" * 99)
    with pytest.raises(DataError, match=r"short\.txt has 99 characters, at least 1,300 are needed"):
        load_corpus(tmp_path / "short.txt", min_characters=1300)
    (tmp_path / "short.txt").write_text("")
    raises(DataError, "has 0 characters, at least 1 are needed", lambda: load_corpus(tmp_path / "short.txt"))


# ---- the download --------------------------------------------------------------------------------------------------

PLAY = b"First Citizen:\nBefore we proceed any further, hear me speak.\n" * 100


class Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close() then waits for the answers under way
    answer = PLAY
    status = 200
    announced: int | None = None
    pause = 0.0
    requests = 0


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        self.send_response(self.server.status)
        announced = self.server.announced
        self.send_header("Content-Length", str(len(self.server.answer) if announced is None else announced))
        self.end_headers()
        try:
            for start in range(0, len(self.server.answer), 1000):
                self.wfile.write(self.server.answer[start : start + 1000])
                self.wfile.flush()
                time.sleep(self.server.pause)
        except OSError:
            pass  # the client has hung up

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("MINIGRAD_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setattr(corpus, "SHAKESPEARE_URL", f"http://127.0.0.1:{server.server_port}/input.txt")
        monkeypatch.setattr(corpus, "SHAKESPEARE_BYTES", len(PLAY))
        monkeypatch.setattr(corpus, "SHAKESPEARE_SHA256", hashlib.sha256(PLAY).hexdigest())
        yield server
        server.shutdown()
        thread.join()


def test_shakespeare_is_downloaded_once(server, tmp_path):
    first = load_corpus("shakespeare")
    assert first.text == PLAY.decode()
    assert first.name == "tiny Shakespeare"
    assert load_corpus("shakespeare") == first
    assert server.requests == 1
    assert os.listdir(tmp_path / "cache") == ["tinyshakespeare.txt"]


def test_a_damaged_cache_is_downloaded_again(server, tmp_path):
    load_corpus("shakespeare")
    (tmp_path / "cache" / "tinyshakespeare.txt").write_bytes(PLAY[:-1])
    assert load_corpus("shakespeare").text == PLAY.decode()
    assert server.requests == 2


BAD_DOWNLOADS = [
    ({"answer": PLAY[:-1] + b"!"}, "wrong sha256 and is refused"),
    ({"answer": b""}, r"\(0 bytes\) has the wrong sha256"),
    ({"answer": PLAY + b"x"}, "has more than 6,100 bytes and is refused"),
    ({"answer": PLAY * 100}, "has more than 6,100 bytes and is refused"),
    ({"status": 404}, "could not be downloaded .*Not Found"),
    ({"status": 500}, "could not be downloaded"),
    ({"answer": PLAY[:100], "announced": len(PLAY)}, r"could not be downloaded|wrong sha256"),
    ({"pause": 0.2}, "not complete after 0.5 s|timed out"),
    ({"answer": b"1", "announced": 10, "pause": 0.8}, "timed out"),  # silent
    ({"answer": b"", "announced": 1, "pause": 0.0}, r"could not be downloaded|wrong sha256"),
]


@pytest.mark.parametrize(("change", "words"), BAD_DOWNLOADS)
def test_a_bad_download_is_refused_with_the_way_out(server, tmp_path, monkeypatch, change, words):
    monkeypatch.setattr(corpus, "DOWNLOAD_SECONDS", 0.5)
    for name, value in change.items():
        setattr(server, name, value)
    caught = raises(DataError, words, load_corpus, "shakespeare")
    assert "use the default corpus (leave --data out) or your own text (--data FILE)" in str(caught)
    assert "\n" not in caught.args[0]
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_no_obstacle(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIGRAD_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="could not be kept"):
        assert load_corpus("shakespeare").text == PLAY.decode()


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.delenv("MINIGRAD_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert corpus._cache_directory() == tmp_path / "minigrad"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert corpus._cache_directory() == tmp_path / ".cache" / "minigrad"
