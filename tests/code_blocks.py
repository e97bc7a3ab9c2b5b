"""Run the Python of a Markdown code block and compare its ``# -> value`` comments with what the lines gave."""

import ast
import contextlib
import io
import re
import sys
import tokenize
from typing import Any, NamedTuple

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```\s*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: the line of its first line of code, its info string and its source."""

    line: int
    info: str
    source: str


def blocks(path) -> list[Block]:
    """All fenced code blocks of a Markdown file."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        indent = len(match["indent"])
        body = "".join(line[indent:] or "\n" for line in match["body"].splitlines(keepends=True))
        found.append(Block(text.count("\n", 0, match.start("body")) + 1, match["info"].strip(), body))
    return found


def python_blocks(path) -> list[Block]:
    """The blocks marked ``python`` (those marked ``python no-run`` are fragments)."""
    return [block for block in blocks(path) if block.info.split() == ["python"]]


def expected_values(source: str) -> dict[int, str]:
    """``{line: text}`` of the comments ``# -> text``."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT and token.string.startswith("# -> ")]
    return {token.start[0]: token.string[5:].strip() for token in comments}


def run(source: str, filename: str = "<block>", namespace: dict[str, Any] | None = None) -> str:
    """Execute a block, in a fresh namespace if none is given; returns what it printed.

    Raises AssertionError where a ``# -> value`` comment is not true.
    """
    namespace = {"__name__": "__main__"} if namespace is None else namespace
    everything = ""
    expected = expected_values(source)
    for node in ast.parse(source, filename).body:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            if isinstance(node, ast.Expr):
                value = eval(compile(ast.Expression(node.value), filename, "eval"), namespace)
            else:
                exec(compile(ast.Module([node], []), filename, "exec"), namespace)
                value = namespace.get(ast.unparse(node.targets[0])) if isinstance(node, ast.Assign) else None
        printed = output.getvalue()
        print(printed, end="")
        everything += printed
        wanted = [expected.pop(line) for line in range(node.lineno, (node.end_lineno or 0) + 1) if line in expected]
        if wanted:
            shown = printed if printed else repr(value)
            got = " ".join(shown.split())
            if got != " ".join(" ".join(wanted).split()):
                raise AssertionError(f"{filename}, line {node.lineno}: the comment says {wanted[0]!r}, it gave {got!r}")
    if expected:
        raise AssertionError(f"{filename}: comments on lines that give nothing: {expected}")
    return everything


if __name__ == "__main__":
    run(sys.stdin.read(), sys.argv[1])
