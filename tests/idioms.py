"""What becomes of what people type who know PyTorch: golden/idioms.txt, and docs/from_pytorch.md, made of it.

``python tests/idioms.py`` writes the page, in a folder of its own for what the idioms save.
"""

import os
import re
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from minigrad import hints

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests/golden/idioms.txt"
PAGE = ROOT / "docs/from_pytorch.md"
START, END = "<!-- made by tests/idioms.py -->\n", "<!-- end -->\n"
BARE = re.compile(
    r"unexpected keyword|required positional|takes \d+ pos|object has no attr|No module named|import name"
)


class Idiom(NamedTuple):
    """A line of the list, and the sections above."""

    subject: str
    code: str


def read() -> tuple[str, list[Idiom]]:
    """The preamble, and the idioms."""
    sections: dict[str, list[str]] = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            lines = sections[line[3:]] = []
        elif line and not line.startswith("#"):
            lines.append(line)
    preamble = "\n".join(sections.pop("Preamble"))
    return preamble, [Idiom(subject, code) for subject, lines in sections.items() for code in lines]


def here(code: str) -> str:
    """The same of minigrad, with the name ``torch`` for it; "; " are new lines."""
    code = re.sub(r"\bimport torch$", "import minigrad as torch", code.replace("; ", "\n"), flags=re.MULTILINE)
    return re.sub(r"\b(import|from) torch\b", r"\1 minigrad", code)


def answer(preamble: str, code: str) -> str | None:
    """None if it works; else what the error says. Raises AssertionError for an error that helps nobody."""
    names: dict[str, object] = {"__name__": "typed"}
    exec(here(preamble), names)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(here(code), "<typed>", "exec"), names)
    except Exception as error:
        message = str(error).partition("\n  at ")[0]
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = message.partition("; ")[2] if BARE.search(message) else message
        if below := hints.explained(error):
            message = f"{message}; {below}"
        elif not (last.filename.startswith(str(ROOT)) and said):
            raise AssertionError(f"{code}\n  {type(error).__name__}: {message}") from error
        return f"{type(error).__name__}: {message}"
    return None


def answers() -> Iterator[tuple[Idiom, str | None]]:
    """All idioms, with what becomes of them. Writes into the current folder."""
    preamble, idioms = read()
    return ((idiom, answer(preamble, idiom.code)) for idiom in idioms)


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())
    preamble, idioms = read()
    counts = {"works": 0, "says": 0, "bare": 0}
    for idiom in idioms:
        try:
            said = answer(preamble, idiom.code)
            counts["works" if said is None else "says"] += 1
            if said:
                print("SAYS", idiom.code, "\n     ", said)
        except AssertionError as e:
            counts["bare"] += 1
            print("BARE", e)
    print(counts, len(idioms))
