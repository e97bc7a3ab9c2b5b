"""What the first cell of a chapter's notebook uses: the learner's earlier chapters, and checks within the notebook."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .course import SIMULATED, chapters
from .folder import Folder
from .judge import checked, lay_out


def begin(number: int, names: dict[str, Any]) -> Callable[[str], None]:
    """Make the earlier chapters importable; returns ``check("2.1")``, which checks what ``names`` holds."""
    if number in SIMULATED:
        os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
    chapter = chapters()[number]
    earlier = Folder(Path.cwd()).earlier(chapter)
    folder = tempfile.mkdtemp(prefix="minigrad-learn-")
    lay_out(Path(folder), chapter, earlier)
    sys.path.insert(0, folder)
    cells = Path(sys._getframe(1).f_code.co_filename).parent  # where IPython says that the code of cells is

    def check(exercise: str) -> None:
        (item,) = [item for item in chapter.exercises if item.number == exercise]
        answer = checked(item, SimpleNamespace(**names), cells / "0" / "cell", 0.0)
        print(answer.printed, end="")
        print(" ".join([exercise, answer.state, *answer.message.splitlines()[:1]]))
        print(*(f"  {line}" for line in answer.message.splitlines()[1:]), sep="\n")

    print(f"chapter {number}. When all checks pass, save this notebook and run: minigrad learn check {number}")
    return check
