"""ModuleDict: names, order, what it refuses."""

from __future__ import annotations

import pytest

import minigrad as mg
from minigrad import nn
from minigrad.nn import ModuleDict


def test_a_dictionary_of_modules() -> None:
    m = ModuleDict({"a": nn.Linear(2, 3), "b": nn.ReLU()})
    m["c"] = nn.Linear(3, 1, bias=False)
    assert list(m) == list(m.keys()) == ["a", "b", "c"] and len(m) == 3 and "b" in m and "d" not in m
    assert [n for n, _ in m.named_parameters()] == ["a.weight", "a.bias", "c.weight"]
    assert list(m.items())[2] == ("c", m["c"]) and list(m.values()) == list(m.children())
    m["a"] = nn.Tanh()  # keeps its place
    assert list(m) == ["a", "b", "c"] and isinstance(m["a"], nn.Tanh)
    x = mg.ones(1, 3)
    for name in ("c", "a"):
        x = m[name](x)
    assert x.shape == (1, 1)
    assert isinstance(m.pop("b"), nn.ReLU) and list(m) == ["a", "c"]
    del m["a"]
    m.update([("d", nn.ReLU())])
    assert list(m) == ["c", "d"]
    m.clear()
    assert len(m) == 0 and repr(m) == "ModuleDict()"


def test_what_a_dictionary_refuses() -> None:
    m = ModuleDict()
    with pytest.raises(TypeError, match="ModuleDict holds Modules, not int"):
        m["a"] = 3  # type: ignore[assignment]  # the error is the test
    for key in ("a.b", "", "training", "keys", "forward"):
        with pytest.raises(KeyError, match="is no key; expected a name without dots that is no attribute"):
            m[key] = nn.ReLU()
    for use in (lambda: m["no"], lambda: m.pop("no"), lambda: m.__delitem__("no")):
        with pytest.raises(KeyError):
            use()
