"""The house stays small: its measures are within their budgets, and docs/reading.md is true."""

from __future__ import annotations

import math
from pathlib import Path

import house
import pytest


@pytest.mark.long
@pytest.mark.parametrize("name", house.MEASURES)
def test_a_measure_is_within_its_limit(name):
    today, (goal, limit, reason) = house.MEASURES[name](), house.BUDGETS[name]
    assert today <= limit, f"{name}: {today}, and the limit is {limit} ({reason}); `python tests/house.py` says more"
    # What was gained is kept: a limit above the goal follows the measure down.
    assert limit <= max(goal, math.ceil(1.01 * today)), f"{name}: {today} now, lower the limit of {limit}"


def test_every_budget_has_a_measure_and_a_reason():
    assert house.BUDGETS.keys() == house.MEASURES.keys()
    assert all(budget.reason for budget in house.BUDGETS.values())


def test_the_page_of_the_core_is_true():
    page = house.text(house.READING)
    core = house.core()
    assert len(core) == len(set(core)) == len(house.ROW.findall(page)) > 15
    assert [path for path in core if not path.is_file()] == []
    assert house.SUM.search(page)
    assert house.counted(page) == page, "python tests/house.py --count"


def test_lines_of_code_are_those_that_hold_code():
    source = '"""A module."""\n\n# why\nx = """a\nb"""  # two lines\n\n\ndef f():\n    """What."""\n    return (\n1)\n'
    assert house.code_lines(source) == 2 + 1 + 2
    page = "| 1 | [`a`](../tests/code_blocks.py) | 7 | A. |\n| | 5 files | 1 | B. |\n"
    lines = house.code_lines((house.ROOT / "tests/code_blocks.py").read_text(encoding="utf-8"))
    assert house.counted(page) == page.replace("7", str(lines)).replace("5 files | 1", f"1 files | {lines}")


def test_circles_and_floors_of_a_drawn_graph(monkeypatch, tmp_path):
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert house.circles(graph) == [["b", "c"]]
    assert house.circles({**graph, "c": {"d"}}) == []
    monkeypatch.setattr(house, "rooms", lambda folder: graph)
    assert house.floors("any") == 4  # a, then b and c, then d


def test_imports_of_every_kind_are_seen():
    source = (
        "import a\nfrom . import b\nfrom ..c import d\nif TYPE_CHECKING:\n    from .e import f\n"
        "def g():\n    import h\n    importlib.import_module('i.j')\n"
    )
    found = house.imports(source, Path("minigrad/sub/x.py"), ())
    here = "minigrad.sub"
    assert [(item.module, item.name) for item in found] == [
        ("a", ""), (here, "b"), ("minigrad.c", "d"), (f"{here}.e", "f"), ("h", ""), ("i.j", ""),
    ]  # fmt: skip
    assert [item.lazy for item in found] == [False] * 4 + [True] * 2
    assert [item.typing for item in found] == [False] * 3 + [True] + [False] * 2
