"""Which tests ``pytest`` runs when nothing is chosen: all but those marked ``long``.

``@pytest.mark.long`` leaves a test out, ``@pytest.mark.long(but=2)`` all but its first two cases. In a file that is
marked as a whole, ``@pytest.mark.short`` takes a test in. The mark is for what
takes a second of a core or more (processes, long trainings, other compilers), where a short test asks the same of the
code, at least roughly. ``tests/test_short_set.py`` holds what must not be left out.
"""

import itertools
from collections import Counter

import pytest

WHOLE = pytest.StashKey[list[pytest.Item]]()  # all tests that were found, for tests/test_short_set.py
LAST_WORDS = """
This was the short set: every operation, trainer and example, without the tests that are marked `long`.
`pytest --all` runs all tests. So does the name of a file or folder, -k or -m, for what they choose."""


def pairs(first, second):
    """All pairs, for ``parametrize``; the short set has as few as bring each of both."""
    few, places = min(len(first), len(second)), itertools.product(enumerate(first), enumerate(second))
    return [pytest.param(x, y, marks=[pytest.mark.long] * ((i - j) % few > 0)) for (i, x), (j, y) in places]


def by_name(config: pytest.Config) -> bool:
    """Whether the command line chooses tests: by files, -k or -m, or those that failed."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return bool(not whole or config.option.keyword or config.option.markexpr or config.getoption("lf", default=False))


def is_short(config: pytest.Config) -> bool:
    return bool(config.option.short or not (config.option.all_tests or by_name(config)))


def short(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items of the short set, in their order."""
    seen: Counter[str] = Counter()
    found = []
    for item in items:
        mark = None if item.get_closest_marker("short") else item.get_closest_marker("long")
        name = item.nodeid.partition("[")[0]
        if mark is None or seen[name] < mark.kwargs.get("but", 0):
            found.append(item)
        seen[name] += 1
    return found
