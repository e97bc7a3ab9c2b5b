"""Turn text into shards of 16-bit tokens, which train_gpt2.py reads through memory maps.

    python examples/token_shards.py --data notes.txt docs/ --out tokens      any UTF-8 text
    python examples/token_shards.py --out tokens --tokenizer FOLDER          Python's own documentation, in its tokens
    python examples/train_gpt2.py --data tokens                              trains on them

train_gpt2.py does this itself if it gets text. By hand it is done once for many runs, and for more text than fits into
memory: each file is read by itself, and the token that ends a text follows it. The last part of the text
(--val-fraction) becomes a shard for validation. A shard is a file in llm.c's format: a header of 1024 bytes with the
number of tokens, which is checked against the file's size, then the tokens. shards.json lists them; it is written last.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loading  # noqa: F401  # first
import numpy as np
import numpy.typing as npt
from command_line import BAR, Parser, UsageError, how_to_run, run_cli
from text_tokenizers import ShardTokenizer, choose_tokenizer, end_of_text, in_words, plain_tokens, tokenizer_of
from tqdm.auto import tqdm

from minigrad.data import DataError, load_corpus, open_tokens, write_tokens
from minigrad.data.corpus import text_files
from minigrad.files import durable

INDEX = "shards.json"
SHARD_TOKENS = 100_000_000
VAL_FRACTION = 0.05
PIECE = 1 << 20  # characters that are tokenized at once
TOKENIZER_HELP = "bytes, a tokenizer.json, or a folder with one (extra bpe)"
# A text cut here has the tokens of both parts: GPT-2's words never span it. SentencePiece's get a space at each cut.
CUT = re.compile(r"(?<=\S)\n")


def main() -> int:
    """Parse the flags, write the shards."""
    parser = Parser(__doc__)
    parser.add_argument("--data", nargs="+", default=None, metavar="PATH", help="text files, folders, or: shakespeare")
    parser.add_argument("--out", default="tokens", metavar="FOLDER", help="new folder (default tokens)")
    parser.add_argument("--tokenizer", default="bytes", metavar="NAME", help=f"{TOKENIZER_HELP} (default bytes)")
    parser.add_argument("--val-fraction", type=float, default=VAL_FRACTION, help=f"default {VAL_FRACTION}")
    parser.add_argument("--shard-tokens", type=int, default=SHARD_TOKENS, help=f"of a file (default {SHARD_TOKENS:,})")
    parser.add_argument("--checksums", action="store_true", help="write SHA256SUMS, which training then checks")
    args = parser.parse()
    folder = Path(args.out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--out {folder} exists and is not an empty folder (nothing is overwritten)")
    shards = make_shards(args.data, folder, args.tokenizer, args.val_fraction, args.shard_tokens, args.checksums)
    print(f"{shards.in_words()}; in {folder}\nnext: {how_to_run('train_gpt2.py', '--data', folder)}")
    return 0


@dataclass(frozen=True)
class Shards:
    """A text as tokens on disk. ``sha256`` is that of all tokens of the training part, then of the validation part."""

    folder: Path
    name: str
    tokenizer: ShardTokenizer
    train: list[npt.NDArray[np.uint16]]
    val: npt.NDArray[np.uint16]
    sha256: str

    def in_words(self) -> str:
        """What there is."""
        train, count = sum(len(shard) for shard in self.train), len(self.train)
        shards = "1 shard" if count == 1 else f"{count} shards"
        kind = in_words(self.tokenizer)
        return f"{self.name}: {kind}, {train:,} in {shards} to train on, {len(self.val):,} for validation"


def is_shards(data: list[str] | None) -> bool:
    """Whether what was given is a folder of shards and not text."""
    return data is not None and len(data) == 1 and (Path(data[0]) / INDEX).is_file()


def open_shards(folder: Path) -> Shards:
    """The shards of a folder, mapped into memory.

    Raises DataError for an index that is damaged, and for files that do not hold as many tokens as it says.
    """
    try:
        index = json.loads((folder / INDEX).read_text("utf-8"))
        tokenizer = tokenizer_of(index["tokenizer"])
        name, sha256 = str(index["name"]), str(index["sha256"])
        listed = {part: [(str(s["file"]), int(s["tokens"])) for s in index[part]] for part in ("train", "val")}
        [_] = listed["val"]
    except FileNotFoundError:
        raise DataError(f"{folder} holds no {INDEX}: it is no folder of shards") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder / INDEX} is damaged ({error}); make the shards again") from error
    opened: dict[str, list[npt.NDArray[np.uint16]]] = {}
    for part, files in listed.items():
        opened[part] = [open_tokens(folder / file, format="llm.c") for file, _ in files]
        for (file, count), tokens in zip(files, opened[part]):
            if len(tokens) != count:
                raise DataError(f"{folder / file} holds {len(tokens):,} tokens, {INDEX} says {count:,}")
    return Shards(folder, name, tokenizer, opened["train"], opened["val"][0], sha256)


def make_shards(
    data: list[str] | None,
    folder: Path,
    tokenizer: Any,
    val_fraction: float = VAL_FRACTION,
    shard_tokens: int = SHARD_TOKENS,
    checksums: bool = False,
) -> Shards:
    """Tokenize texts into ``folder``; ``data`` as on the command line, None for Python's documentation.

    ``tokenizer`` is what ``choose_tokenizer`` takes, such as a ``Tokenizer`` of Hugging Face's tokenizers;
    ``checksums`` is what ``write_tokens`` takes.

    Raises DataError for texts that cannot be read, and if a part has no tokens.
    """
    if not 0 < val_fraction < 1:
        raise UsageError(f"--val-fraction is {val_fraction}, expected a number between 0 and 1")
    if shard_tokens < 1:
        raise UsageError(f"--shard-tokens is {shard_tokens}, expected at least 1")
    tokenizer = choose_tokenizer(tokenizer)
    name, texts = find_texts(data)
    folder.mkdir(parents=True, exist_ok=True)
    sha256 = hashlib.sha256()
    index: dict[str, Any] = {"name": name, "tokenizer": tokenizer.to_dict()}
    size = sum(text.size for text in texts)
    with tqdm(
        total=size, bar_format=BAR, smoothing=0, dynamic_ncols=True, unit="B", unit_scale=True, disable=None
    ) as bar:
        for part, pieces in (("train", parts(texts, 0, 1 - val_fraction)), ("val", parts(texts, 1 - val_fraction, 1))):
            rows = _Rows(tokenized(pieces, tokenizer, bar.update), sha256.update)
            index[part] = []
            while rows.more() or not index[part]:
                path = folder / f"{part}-{len(index[part]):05d}.bin"
                # Validation windows are spread over the whole part, so it is one file.
                taken = rows.take(shard_tokens if part == "train" else size * 4)
                count = write_tokens(path, taken, "llm.c", checksums)
                index[part].append({"file": path.name, "tokens": count})
    index["sha256"] = sha256.hexdigest()
    durable.replace_file(folder / INDEX, [json.dumps(index).encode()])
    return open_shards(folder)


@dataclass(frozen=True)
class Text:
    """A text that is read when it is its turn; ``size`` weighs it against the others."""

    size: int
    read: Callable[[], str]


def find_texts(data: list[str] | None) -> tuple[str, list[Text]]:
    """The name of the whole, and its texts, one for each file."""
    if data is None or data == ["shakespeare"]:
        corpus = load_corpus("pydoc" if data is None else "shakespeare")
        return corpus.name, [Text(len(corpus.text), lambda: corpus.text)]
    sizes, name = text_files(data, text_size)
    texts = [Text(size, lambda path=path: load_corpus([path]).text) for path, size in sizes.items() if size]  # type: ignore[misc]
    if not texts:
        raise DataError(f"{name}: all files are empty")
    return name, texts


def text_size(path: Path) -> int:
    """The bytes of a file, which is read to see that it is text; DataError if it cannot be, or is none."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}") from None
    if size:
        load_corpus([path])
    return size


def parts(texts: list[Text], begin: float, end: float) -> Iterator[tuple[str, bool]]:
    """The texts from fraction ``begin`` to ``end`` of the whole, and whether each is there to its own end.

    The one in which a fraction falls is cut at the end of a line.
    """
    total, before = sum(text.size for text in texts), 0
    for text in texts:
        first, last = ((fraction * total - before) / text.size for fraction in (begin, end))
        before += text.size
        if first < 1 and last > 0:
            whole = text.read()
            start, stop = _line_end(whole, first), _line_end(whole, last)
            if start < stop:
                yield whole[start:stop], stop == len(whole)


def _line_end(text: str, fraction: float) -> int:
    """Where the line ends in which a fraction of the text falls; within the line, if that is the last one."""
    if not 0 < fraction < 1:
        return 0 if fraction <= 0 else len(text)
    place = int(fraction * len(text))
    end = text.find("\n", place) + 1
    return end if 0 < end < len(text) else place


def tokenized(
    texts: Iterator[tuple[str, bool]], tokenizer: ShardTokenizer, done: Callable[[int], object]
) -> Iterator[npt.NDArray[np.int64]]:
    """The tokens of the texts, a piece at a time, and the end of each."""
    last = end_of_text(tokenizer)
    for text, ends in texts:
        start = 0
        while start < len(text):
            cut = CUT.search(text, start + PIECE)
            end = cut.start() if cut else len(text)
            yield plain_tokens(tokenizer, text[start:end])
            done(end - start)
            start = end
        if ends and last is not None:
            yield np.array([last])


class _Rows:
    """Rows of tokens, taken in lots."""

    def __init__(self, rows: Iterator[npt.NDArray[np.int64]], digest: Callable[[bytes], object]) -> None:
        self._rows, self._digest = rows, digest
        self._rest = np.zeros(0, np.int64)

    def more(self) -> bool:
        """Whether there are tokens left."""
        while not len(self._rest):
            row = next(self._rows, None)
            if row is None:
                return False
            self._rest = row
        return True

    def take(self, count: int) -> Iterator[npt.NDArray[np.int64]]:
        """Rows of up to ``count`` tokens in all."""
        while count and self.more():
            row, self._rest = self._rest[:count], self._rest[count:]
            count -= len(row)
            self._digest(row.astype("<u2").tobytes())
            yield row


if __name__ == "__main__":
    run_cli(main)
