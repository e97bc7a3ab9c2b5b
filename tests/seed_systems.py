"""The tables of docs/seed_systems.md: ``python tests/seed_systems.py`` writes them from golden/seed_rows.txt.

There, ``# SYSTEM: PART`` begins a table, and each other line is a row of it:

    NAME THERE | NAMES HERE | FILE::TEST,TEST* FILE | WHAT DIFFERS, AND WHY

Names here are of ``minigrad.distributed``, or of ``minigrad``. Files are those of tests/; ``TEST*`` stands for all
tests that begin so, FILE for all of its tests.
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/seed_systems.md"


class Row(NamedTuple):
    """What a seed system has, and where it is here."""

    part: str
    there: str
    here: list[str]
    tests: dict[str, list[str]]
    difference: str


def read_rows() -> list[Row]:
    """All rows, in order."""
    rows, part = [], ""
    for line in (ROOT / "tests/golden/seed_rows.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            part = line.removeprefix("# ")
        elif line:
            there, here, tests, difference = (cell.strip() for cell in line.split("|"))
            files = dict(entry.partition("::")[::2] for entry in tests.split())
            named = {file: names.split(",") if names else [] for file, names in files.items()}
            rows.append(Row(part, there, here.split(", ") if here else [], named, difference))
    return rows


def cells(number: int, row: Row) -> str:
    """A row of a table."""
    here = ", ".join(f"`{name}`" for name in row.here) or "-"
    tests = [f"`{file}`" + ": " * bool(names) + ", ".join(f"`{t}`" for t in names) for file, names in row.tests.items()]
    return f"| {number} | {row.there} | {here} | {'; '.join(tests)} | {row.difference} |\n"


def with_tables(page: str) -> str:
    """The page with today's tables: each follows a line ``<!-- SYSTEM: PART -->``."""
    rows = list(enumerate(read_rows(), 1))
    for part in dict.fromkeys(row.part for _, row in rows):
        table = "| | There | Here | Tests | What differs, and why |\n|---|---|---|---|---|\n"
        table += "".join(cells(number, row) for number, row in rows if row.part == part)
        before, line, after = page.partition(f"<!-- {part} -->\n")
        if not line:
            raise ValueError(f"docs/seed_systems.md has no line <!-- {part} -->")
        page = before + line + table + re.sub(r"\A(\|.*\n)*", "", after)
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
