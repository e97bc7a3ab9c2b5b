"""Run a chapter's solved notebook. ``python tests/learn/pages.py 2`` fills in what the code of its text prints.

A block of ``text`` right below a block of ``python`` is what that code prints; ``# -> value`` is compared.
"""

import contextlib
import io
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import code_blocks

from minigrad.learn import course


def filled(chapter: course.Chapter) -> str:
    """The text with what its code prints."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    sources = ["".join(c["source"]) for c in chapter.notebook(chapter.solution)["cells"] if c["cell_type"] == "code"]
    with contextlib.redirect_stdout(io.StringIO()):
        printed = {source: code_blocks.run(source, f"{chapter.page.name}, notebook", namespace) for source in sources}

    def block(match: re.Match[str]) -> str:
        shown, said = match["output"], printed[match["code"].strip("\n")]
        return match[0] if shown is None else match[0].replace(f"text\n{shown}```", f"text\n{said}```")

    pattern = r"^```python\n(?P<code>.*?)^```\n(\n```text\n(?P<output>.*?)```\n)?"
    return re.sub(pattern, block, chapter.text, flags=re.MULTILINE | re.DOTALL)


if __name__ == "__main__":
    asked = course.chapters()[int(sys.argv[1])]
    if sys.argv[2:] == ["--check"]:
        assert filled(asked) == asked.text, f"python tests/learn/pages.py {asked.number}"
    else:
        asked.page.write_text(filled(asked), encoding="utf-8")
