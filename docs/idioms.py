"""What becomes of what people type who know PyTorch: golden/idioms.txt, and the tables of docs/from_pytorch.md.

``python docs/idioms.py --write`` makes the tables anew; without it, the exit code says whether they are up to date.
Some idioms save files: into the current folder.
"""

import contextlib
import io
import linecache
import re
import sys
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

from minigrad import hints

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests/golden/idioms.txt"
PAGE = ROOT / "docs/from_pytorch.md"
START = "<!-- The tables are made by docs/idioms.py. -->\n"
BARE = re.compile(r"unexpected keyword|required positional|takes \d+ pos|has no |No module named|import name")


class Idiom(NamedTuple):
    """A line of the list, and what becomes of it: None if it works, or what the error says."""

    subject: str
    code: str
    answer: str | None


def read(path: Path) -> dict[str, list[str]]:
    """The lines of a list by section."""
    sections: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            lines = sections[line[3:]] = []
        elif line and not line.startswith("#"):
            lines.append(line)
    return sections


def here(code: str) -> str:
    """The same of minigrad, with the name ``torch`` for it; "; " are new lines."""
    code = re.sub(r"\bimport torch$", "import minigrad as torch", code.replace("; ", "\n"), flags=re.MULTILINE)
    return re.sub(r"\b(import|from) torch\b", r"\1 minigrad", code)


def answer(preamble: str, code: str) -> str | None:
    """None if it works; else what the error says. AssertionError for an error that helps nobody."""
    names: dict[str, object] = {"__name__": "typed"}
    exec(here(preamble), names)
    linecache.cache["<typed>"] = len(code), None, here(code).splitlines(keepends=True), "<typed>"
    try:
        exec(compile(here(code), "<typed>", "exec"), names)
    except Exception as error:
        message = str(error).partition("\n")[0]
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = message.partition("; ")[2] if BARE.search(message) else message
        said = said if last.filename.startswith(str(ROOT)) and said else hints.explained(error)
        if not said:
            raise AssertionError(f"{code}\n  {type(error).__name__}: {message}") from error
        return said
    return None


def idioms() -> list[Idiom]:
    """All of them; what they print is dropped."""
    sections = read(LIST)
    preamble = "\n".join(sections.pop("Preamble"))
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return [Idiom(name, code, answer(preamble, code)) for name, lines in sections.items() for code in lines]


def tables(found: list[Idiom]) -> str:
    """The page below its mark."""
    works = sum(idiom.answer is None for idiom in found)
    lines = [f"Of {len(found)} idioms {works} work as they are; the others end in a sentence that says what to use."]
    for subject in dict.fromkeys(idiom.subject for idiom in found):
        lines += ["", f"## {subject}", "", "| Typed | |", "|---|---|"]
        for idiom in found:
            if idiom.subject == subject:
                cells = idiom.code, "works" if idiom.answer is None else idiom.answer
                lines.append("| `{}` | {} |".format(*(cell.replace("|", "\\|") for cell in cells)))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    new = page.partition(START)[0] + START + "\n" + tables(idioms())
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(new, encoding="utf-8")
    elif new != page:
        sys.exit("docs/from_pytorch.md is out of date: run python docs/idioms.py --write")
