"""Run the code of a chapter's text and notebook in order. ``python tests/learn/pages.py 2`` fills in what it prints.

A block of ``text`` right below a block of ``python`` is what that code prints; ``# -> value`` is compared.
"""

import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import code_blocks

from minigrad.learn import course, judge


def filled(chapter: course.Chapter) -> str:
    """The text with what its code prints."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        judge.lay_out(Path(folder), chapter, {})
        (Path(folder) / f"{chapter.module}.py").write_text(chapter.solution, encoding="utf-8")
        sys.path.insert(0, folder)
        code_blocks.run(f"from {chapter.module} import *", namespace=namespace)

        def block(match: re.Match[str]) -> str:
            printed = code_blocks.run(match["code"], chapter.page.name, namespace)
            shown = match["output"]
            return match[0] if shown is None else match[0].replace(f"text\n{shown}```", f"text\n{printed}```")

        pattern = r"^```python\n(?P<code>.*?)^```\n(\n```text\n(?P<output>.*?)```\n)?"
        return re.sub(pattern, block, chapter.text, flags=re.MULTILINE | re.DOTALL)


def run_notebook(chapter: course.Chapter) -> None:
    """Run the cells of the solved notebook in order: every check in it passes."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for made in chapter.notebook(chapter.solution)["cells"]:
        if made["cell_type"] == "code":
            source = "".join(made["source"])
            with contextlib.redirect_stdout(io.StringIO()):
                printed = code_blocks.run(source, f"{chapter.page.name}, notebook", namespace)
            assert not source.startswith("check(") or printed.split() == [source[7:-2], "passed"], printed


if __name__ == "__main__":
    asked = course.chapters()[int(sys.argv[1])]
    if sys.argv[2:] == ["--check"]:
        assert filled(asked) == asked.text, f"python tests/learn/pages.py {asked.number}"
        run_notebook(asked)
    else:
        asked.page.write_text(filled(asked), encoding="utf-8")
