"""What the first cell of a chapter's notebook uses: the learner's earlier chapters, and checks within the notebook."""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .course import SIMULATED, chapters
from .folder import Folder
from .judge import SECONDS, checked, lay_out, simulate_numba


def begin(number: int, names: dict[str, Any]) -> Callable[..., None]:
    """Make the earlier chapters importable; returns ``check("2.1", hint=False)``, which checks what ``names`` holds."""
    if number in SIMULATED:
        os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
        simulate_numba()
    chapter = chapters()[number]
    earlier = Folder(Path.cwd()).earlier(chapter)
    folder = tempfile.mkdtemp(prefix="minigrad-learn-")
    lay_out(Path(folder), chapter, earlier)
    sys.path.insert(0, folder)
    cells = Path(sys._getframe(1).f_code.co_filename).parent  # where IPython says that the code of cells is
    tries: Counter[str] = Counter()

    def check(exercise: str, hint: bool = False) -> None:
        (item,) = [item for item in chapter.exercises if item.number == exercise]
        answer = checked(item, SimpleNamespace(**names), cells / "0" / "cell", SECONDS)
        print(answer.printed, end="")
        print(" ".join([exercise, answer.state, *answer.message.splitlines()[:1]]))
        tries[exercise] += answer.state == "wrong" or (hint and answer.state == "missing")
        hints = item.hints[: max(1, tries[exercise])] if hint and answer.state != "passed" else []
        print(*(f"  {line}" for line in [*answer.message.splitlines()[1:], *hints]), sep="\n")

    print(f"chapter {number}. When all checks pass, save this notebook and run: minigrad learn check {number}")
    print(f'check("{number}.1", hint=True) gives a hint, and one more at each further try.')
    return check
