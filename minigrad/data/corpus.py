"""Where the training text comes from: a corpus that every Python brings along, your own files, or a classic download.

The default is Python's reference manual, which lies in the standard library as the text behind ``help()``: about
380,000 characters of edited English, there on every machine, nothing downloaded.
"""

import contextlib
import hashlib
import importlib
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar

from ..files import durable
from .errors import DataError, NotTextError

T = TypeVar("T")
Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_BYTES = 1_115_394
DOWNLOAD_SECONDS = 60.0  # in all; a silent server is given up after half of it

MAX_BYTES = 1 << 30  # of text: the corpus, its tokens (8 bytes each) and Python's own copy live in memory
_REPEATED_PARAGRAPH = 60  # characters; the manual quotes itself in paragraphs, and repeats short headings by nature


@dataclass(frozen=True)
class Corpus:
    """A text and where it came from.

    Attributes:
        text: the whole text; line ends are ``\\n``.
        name: for people, e.g. ``pydoc (Python 3.12.4)``.
        metadata: ``source``, ``characters``, ``sha256`` of the text in UTF-8 (compare it when a run resumes), and
            ``python`` or ``files`` or ``url``; JSON values.
    """

    text: str
    name: str
    metadata: dict[str, str | int | list[str]] = field(default_factory=dict)


def load_corpus(source: Source = "pydoc", min_characters: int = 1) -> Corpus:
    """Load a text to train on.

    Args:
        source: ``"pydoc"``, ``"shakespeare"`` (1.1 MB, downloaded once), or paths of UTF-8 files and folders. A folder
            stands for all text files below it in sorted order; hidden ones (``.name``) are skipped and links to folders
            are not followed. Several files are joined by a line end, a file named twice counts once. A file called
            ``pydoc`` is written ``./pydoc``.
        min_characters: the least that is of use; see `batches.min_tokens`.

    Raises:
        DataError: there is no such text, it is not UTF-8, it is too short or too long, or the download failed.
    """
    if source == "pydoc":
        text, name, origin = _pydoc()
    elif source == "shakespeare":
        text, name, origin = _shakespeare()
    else:
        text, name, origin = _files([source] if isinstance(source, str | os.PathLike) else list(source))
    if len(text) < max(1, min_characters):
        needed = f"at least {max(1, min_characters):,} are needed: give more text, or use a smaller block size"
        raise DataError(f"the corpus {name} has {len(text):,} characters, {needed}")
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return Corpus(text, name, {**origin, "characters": len(text), "sha256": sha256})


# ---- Python's manual -----------------------------------------------------------------------------------------------


def _pydoc() -> tuple[str, str, dict[str, str | int | list[str]]]:
    version = platform.python_version()
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except (ImportError, AttributeError):
        remedy = "the default corpus: give your own text with --data FILE, or --data shakespeare"
        raise DataError(f"this build of Python ({version}) lacks pydoc_data.topics, {remedy}") from None
    # Topics quote each other (the page on compound statements holds that on `while`). Repeats are left out, so that the
    # validation part, the end, is text that the training part does not contain.
    seen: set[str] = set()
    kept = []
    for key in sorted(topics):
        for paragraph in topics[key].replace("\r\n", "\n").strip().split("\n\n"):
            words = " ".join(paragraph.split())
            if words and (len(words) < _REPEATED_PARAGRAPH or words not in seen):
                kept.append(paragraph.strip("\n"))
            seen.add(words)
    return "\n\n".join(kept) + "\n", f"pydoc (Python {version})", {"source": "pydoc", "python": version}


# ---- files ---------------------------------------------------------------------------------------------------------


def _files(paths: list[str | os.PathLike[str]]) -> tuple[str, str, dict[str, str | int | list[str]]]:
    size = 0

    def text(path: Path) -> str:
        nonlocal size
        raw = _read(path, MAX_BYTES - size)
        found = _decode(path, raw)
        size += len(raw)
        return found

    texts, name = text_files(paths, text)
    return "\n".join(texts.values()), name, {"source": "files", "files": [*map(str, texts)]}


def text_files(paths: Sequence[str | os.PathLike[str]], read: Callable[[Path], T]) -> tuple[dict[Path, T], str]:
    """What ``read`` returns of each file that ``load_corpus(paths)`` reads, in its order; and the name of the whole.

    Raises:
        DataError: there are no paths, or a folder holds no text.
        NotTextError: ``read`` raised it of a file that was named. Those of folders are left out, and the name says so.
    """
    if not paths:
        raise DataError("no data: give at least one file or folder, or leave --data out for the default corpus")
    unique: dict[str, Path] = {}
    for given in map(Path, paths):
        for path in _expand(given):
            try:
                unique.setdefault(os.path.realpath(path), path)  # of a link to itself, too: reading will say it
            except ValueError as error:  # no name of a file: it holds a zero, or half of a character
                raise DataError(f"{str(path)!r} cannot be read: {error}") from None
    texts: dict[Path, T] = {}
    for path in unique.values():
        try:
            texts[path] = read(path)
        except NotTextError:
            if path in map(Path, paths):
                raise
    left_out = len(unique) - len(texts)
    if not texts:
        raise DataError(f"{short_name(paths)} holds no file of UTF-8 text ({left_out} of other kinds)")
    note = f" ({left_out} file{'s' * (left_out > 1)} left out: not text)" if left_out else ""
    return texts, short_name(paths) + note


def short_name(paths: Sequence[str | os.PathLike[str]]) -> str:
    """The first three paths, and how many more there are."""
    shown = ", ".join(str(path) for path in map(Path, paths[:3]))
    return shown + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def _expand(path: Path) -> list[Path]:
    if not os.path.isdir(path):  # which knows no error: reading will say it
        return [path]
    found: list[Path] = []
    for folder, folders, files in os.walk(path, onerror=_fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(folder, name) for name in sorted(files) if not name.startswith(".")]
    if not found:
        raise DataError(f"the folder {path} holds no files (hidden ones are skipped)")
    return found


def _fail(error: OSError) -> None:
    raise DataError(f"the folder {error.filename} cannot be read: {error.strerror}")


def _read(path: Path, limit: int) -> bytes:
    try:
        if os.path.exists(path) and not path.is_file():
            raise DataError(f"{path} is not a regular file")
        with open(path, "rb") as file:
            large = os.fstat(file.fileno()).st_size > limit  # of a sparse file nothing need be read
            raw = b"" if large else file.read(limit + 1)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist (the built-in corpora are 'pydoc' and 'shakespeare')") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if large or len(raw) > limit:
        raise DataError(f"more than {MAX_BYTES:,} bytes of text (reached in {path}): the corpus is held in memory")
    return raw


def _decode(path: Path, raw: bytes) -> str:
    mark = 3 if raw.startswith(b"\xef\xbb\xbf") else 0  # a byte order mark is not text
    try:
        text = raw[mark:].decode("utf-8")
        bad = raw.find(b"\x00")
    except UnicodeDecodeError as error:
        bad = error.start + mark
    if bad >= 0:
        raise NotTextError(f"{path} is not UTF-8 text: byte 0x{raw[bad]:02x} at offset {bad:,}")
    return text.replace("\r\n", "\n").replace("\r", "\n")


# ---- tiny Shakespeare ----------------------------------------------------------------------------------------------


def _shakespeare() -> tuple[str, str, dict[str, str | int | list[str]]]:
    path = _cache_directory() / "tinyshakespeare.txt"
    raw = b""
    with contextlib.suppress(OSError):
        raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != SHAKESPEARE_SHA256:
        raw = _download(SHAKESPEARE_URL, SHAKESPEARE_BYTES, SHAKESPEARE_SHA256)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            durable.replace_file(path, [raw])
        except OSError as error:
            warnings.warn(f"{path} could not be kept ({error.strerror}): it is downloaded again", stacklevel=3)
    return raw.decode("ascii"), "tiny Shakespeare", {"source": "shakespeare", "url": SHAKESPEARE_URL}


def _cache_directory() -> Path:
    above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("MINIGRAD_CACHE_DIR") or os.path.join(above, "minigrad"))


def _download(url: str, size: int, sha256: str) -> bytes:
    import http.client
    import urllib.error
    import urllib.request  # together a tenth of the time that importing minigrad takes

    remedy = "use the default corpus (leave --data out) or your own text (--data FILE)"
    deadline = time.monotonic() + DOWNLOAD_SECONDS
    raw = bytearray()
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_SECONDS / 2) as response:
            while len(raw) <= size and (chunk := response.read1(1 << 16)):
                raw += chunk
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not complete after {DOWNLOAD_SECONDS:g} s")
    except (OSError, http.client.HTTPException) as error:  # URLError and time-outs are OSErrors
        reason = " ".join(str(getattr(error, "reason", None) or error).split()) or type(error).__name__
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the response, with an open socket
        raise DataError(f"{url} could not be downloaded ({reason}): {remedy}") from error
    if len(raw) != size or hashlib.sha256(raw).hexdigest() != sha256:
        fault = f"has more than {size:,} bytes" if len(raw) > size else f"({len(raw):,} bytes) has the wrong sha256"
        raise DataError(f"what {url} sent {fault} and is refused: {remedy}")
    return bytes(raw)
