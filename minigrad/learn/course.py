"""The chapters as files: the solved one, the learner's with holes, one with a known mistake, and the notebook."""

import ast
import functools
import importlib
import importlib.util
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .exercise import Exercise, read

FOLDER = Path(__file__).with_name("chapters")
SIMULATED = (6, 7, 8)  # chapters whose kernels run in the simulator
AFTER = re.compile(r"^##|^(?:.+\n)*.*:\n\n```python|^```python", re.MULTILINE)  # before it stands the exercise's cell
GIVEN = "  # given"  # behind a line of a solution that the learner need not write
MARK = re.compile(r"^##+ Exercise (\d+\.\d+)\b", re.MULTILINE)  # a heading of the text: an exercise begins
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
Definition = ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Chapter:
    """A chapter: its number and the file of its text."""

    number: int
    page: Path

    @property
    def module(self) -> str:
        """The name of the learner's module."""
        return f"chapter_{self.number:02}"

    @property
    def title(self) -> str:
        """The first heading of the text, without its number."""
        return self.text.partition("\n")[0].partition(": ")[2]

    @functools.cached_property
    def text(self) -> str:
        """The text, in Markdown."""
        return self.page.read_text(encoding="utf-8")

    @functools.cached_property
    def exercises(self) -> list[Exercise]:
        """The exercises, in order."""
        checks = importlib.import_module(f"{__package__}.chapters.check_{self.number:02}")
        return read((FOLDER / f"{self.number:02}_exercises.txt").read_text(encoding="utf-8"), checks)

    @functools.cached_property
    def solution(self) -> str:
        """The solved file as in a learner's folder: it imports the chapters before it by their plain names."""
        return self._marked.replace(GIVEN, "")

    @functools.cached_property
    def _marked(self) -> str:
        """The solved file, with the marks of lines that the learner's file has, too."""
        return re.sub(r"(?m)^from \.chapter_", "from chapter_", (FOLDER / f"{self.module}.py").read_text("utf-8"))

    def stubs(self) -> str:
        """The learner's file: of what an exercise asks for, the docstring and the given lines are left."""
        lines = self._marked.splitlines()
        holes = [(item, name) for item in self.exercises for name in item.names]
        for body, number in sorted(((self._body(name), item.number) for item, name in holes), reverse=True):
            own = [k for k in range(body[0] - 1, body[1]) if not lines[k].endswith(GIVEN)]
            indent = re.sub(r"\S.*", "", lines[own[0]])
            hole = [f'{indent}raise NotImplementedError("exercise {number}")  # your code here']
            lines[own[0] : own[-1] + 1] = hole
        return "\n".join(lines).replace(GIVEN, "") + "\n"

    def solution_of(self, item: Exercise) -> str:
        """The lines of the solution that an exercise asks for."""
        lines = self.solution.splitlines(keepends=True)
        found = [find(ast.parse(self.solution), name) for name in item.names]
        return "\n".join("".join(lines[node.lineno - 1 : node.end_lineno]) for node in found)

    def mistaken(self, item: Exercise, old: str, new: str) -> str:
        """The solved file with one edit within an exercise. ValueError unless the old text stands there once."""
        lines = self.solution.splitlines(keepends=True)
        spans = [self._body(name) for name in item.names]
        found = [span for span in spans for _ in range("".join(lines[span[0] - 1 : span[1]]).count(old))]
        if len(found) != 1:
            raise ValueError(f"{old!r} stands {len(found)} times in the solution of exercise {item.number}, not once")
        first, last = found[0]
        body = "".join(lines[first - 1 : last]).replace(old, new)
        return "".join(lines[: first - 1]) + body + "".join(lines[last:])

    def _body(self, name: str) -> tuple[int, int]:
        """The first and the last line of a definition, without its docstring."""
        node = find(ast.parse(self.solution), name)
        if ast.get_docstring(node) is None or len(node.body) < 2:
            raise ValueError(f"{name} of chapter {self.number} needs a docstring and a body")
        return node.body[1].lineno, int(node.end_lineno or 0)

    # The notebook -----------------------------------------------------------------------------------------------------

    def notebook(self, source: str) -> dict[str, Any]:
        """The chapter as a Jupyter notebook, with the definitions of ``source``: the stubs, or the solved file."""
        cells = [cell("code", BEGIN.format(number=self.number))]
        parts = statements(source)
        places = {item.number: max(index_of(parts, name) for name in item.names) for item in self.exercises}
        done = min(places.values())
        cells += [cell("code", "".join(parts[:done]), file=True)] if done else []
        marks = list(MARK.finditer(self.text))
        ends = [AFTER.search(self.text, mark.end()) for mark in marks]
        start = 0
        for mark, end in zip(marks, ends):
            stop = end.start() if end else len(self.text)
            cells += self._prose(self.text[start:stop])
            start = stop
            last = max(done, places[mark[1]] + 1)
            if last > done:
                cells.append(cell("code", "".join(parts[done:last]), file=True))
            cells.append(cell("code", f'check("{mark[1]}")'))
            done = last
        if parts[done:]:
            cells.append(cell("code", "".join(parts[done:]), file=True))
        cells += self._prose(self.text[start:])
        for number, made in enumerate(cells):
            made["id"] = f"cell-{number}"
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}

    def _prose(self, text: str) -> Iterator[dict[str, Any]]:
        """Cells of a piece of the text, its blocks of code by themselves. Links lead to the installed files."""
        for number, piece in enumerate(BLOCK.split(text)):
            linked = re.sub(r"\]\((?![a-z]+:|#)([^)#]+)", lambda link: f"]({self._target(link[1])}", piece)
            if piece.strip():
                yield cell("code", piece) if number % 2 else cell("markdown", linked)

    def _target(self, link: str) -> str:
        """The file of a relative link, as a URL: in a checkout, or where a wheel puts the same file."""
        path = (FOLDER / link).resolve()
        package = FOLDER.parents[1]
        inside = package.parent in path.parents and not path.exists()
        return (package / path.relative_to(package.parent) if inside else path).as_uri()


BEGIN = """\
# Run this first. It brings your earlier chapters (or ours, where yours are not solved) and the checks.
from minigrad.learn.notebook import begin

check = begin({number}, globals())"""


def cell(kind: str, source: str, file: bool = False) -> dict[str, Any]:
    """A cell of a notebook; ``file`` says that it belongs to the learner's file."""
    made: dict[str, Any] = {"cell_type": kind, "metadata": {"minigrad": "file"} if file else {}}
    made["source"] = source.strip("\n").splitlines(keepends=True)
    return {**made, "execution_count": None, "outputs": []} if kind == "code" else made


def file_of_notebook(text: str) -> str:
    """The learner's file, from the cells of a saved notebook. ValueError if it is none."""
    cells = json.loads(text)["cells"]
    return "\n\n\n".join("".join(made["source"]) for made in cells if "minigrad" in made["metadata"]) + "\n"


def statements(source: str) -> list[str]:
    """A file cut at its top-level definitions, each with the lines above it."""
    lines = source.splitlines(keepends=True)
    nodes = [node for node in ast.parse(source).body if isinstance(node, Definition)]
    ends = [int(node.end_lineno or 0) for node in nodes]
    return ["".join(lines[a:b]) for a, b in zip([0, *ends], [*ends, len(lines)]) if a < b]


def index_of(parts: Sequence[str], name: str) -> int:
    """The part that defines a name."""
    top = name.partition(".")[0]
    return next(i for i, part in enumerate(parts) if re.search(rf"^(def|class) {top}\b", part, re.MULTILINE))


def find(tree: ast.AST, name: str) -> Definition:
    """The function, class or method of a dotted name, or the assignment of a constant."""
    node: Any = tree
    for word in name.split("."):
        node = next(n for n in node.body if word in (getattr(n, "name", ""), *targets(n)))
    return node


def targets(node: ast.AST) -> list[str]:
    """The names that an assignment gives."""
    return [
        part.id for target in getattr(node, "targets", []) for part in ast.walk(target) if isinstance(part, ast.Name)
    ]


def library_lines(reference: str) -> tuple[str, int, str]:
    """The file, the first line and the text of ``"minigrad.engine:backward"``; CUDA's modules are not imported."""
    module, _, name = reference.partition("  # ")[0].partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    node = find(ast.parse(source), name)
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    return spec.origin, first, "\n".join(source.splitlines()[first - 1 : node.end_lineno]) + "\n"


@functools.cache
def chapters() -> dict[int, Chapter]:
    """All chapters by number."""
    pages = sorted(FOLDER.glob("[0-9][0-9]_*.md"))
    return {int(page.name[:2]): Chapter(int(page.name[:2]), page) for page in pages}
