"""ModuleList, Sequential, ModuleDict: names, order, what they refuse."""

from refusals import raises

import minigrad as mg
from minigrad import nn


def test_a_dictionary_of_modules() -> None:
    m = mg.nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.ReLU()})
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
    m = mg.nn.ModuleDict()
    raises(TypeError, "ModuleDict holds Modules, not int", m.__setitem__, "a", 3)
    for key in ("a.b", "", "training", "keys", "forward"):
        raises(KeyError, "is no key; expected a name without dots that is no attribute", m.__setitem__, key, nn.ReLU())
    for use in (lambda: m["no"], lambda: m.pop("no"), lambda: m.__delitem__("no")):
        raises(KeyError, "", use)


def names(m: nn.Module) -> list[str]:
    return [name for name, _ in m.named_children()]


def test_a_list_grows_and_changes() -> None:
    m = nn.ModuleList([nn.ReLU()])
    assert m.extend([nn.Tanh(), nn.GELU()]) is m
    m.insert(1, nn.SiLU())
    m[-1] = nn.Sigmoid()
    assert [type(child).__name__ for child in m] == ["ReLU", "SiLU", "Tanh", "Sigmoid"] and names(m) == list("0123")
    part = m[1:3]
    assert type(part) is nn.ModuleList and names(part) == ["0", "1"] and part[0] is m[1] and part[1] is m[2]
    assert nn.Sequential()(part) is part
    for wrong in (lambda: m.append(3), lambda: m.insert(0, 3), lambda: m.extend([3]), lambda: m.__setitem__(0, 3)):  # type: ignore[arg-type, list-item, call-overload, unused-ignore]  # the error is the test
        raises(TypeError, "ModuleList holds Modules, not int", wrong)
    for use in (lambda: m[4], lambda: m.__setitem__(4, nn.ReLU())):
        raises(IndexError, "", use)
    assert len(m) == 4


def test_a_sequence_with_names() -> None:
    m = nn.Sequential({"body": nn.Linear(2, 3), "act": nn.ReLU()})
    m.append(nn.Linear(3, 1))
    assert names(m) == ["body", "act", "2"] and next(iter(m.state_dict())) == "body.weight"
    x = mg.ones(4, 2)
    assert m(x).tolist() == m[2](m[1](m[0](x))).tolist()
    last = m[1:]  # a part keeps its names
    assert type(last) is nn.Sequential and names(last) == ["act", "2"] and last(mg.ones(4, 3)).shape == (4, 1)
    plain = nn.Sequential(nn.Tanh(), nn.ReLU())
    plain.insert(1, nn.GELU())
    assert names(plain) == list("012") and [type(child).__name__ for child in plain] == ["Tanh", "GELU", "ReLU"]
    for name in ("a.b", "", "training", "forward"):
        raises(KeyError, "is no name: expected one without dots, no attribute", nn.Sequential, {name: nn.ReLU()})
    raises(TypeError, "Sequential holds Modules, not int", lambda: nn.Sequential({"a": 3}))
    raises(TypeError, "Sequential holds Modules, not dict", lambda: nn.Sequential(nn.ReLU(), {"a": nn.ReLU()}))


def test_a_list_and_a_dictionary_of_parameters() -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.many = nn.ParameterList([mg.ones(2), nn.Parameter(mg.zeros(3))])
            self.named = nn.ParameterDict({"gain": mg.ones(1), "bias": mg.zeros(1)})

    m = Scales()
    assert list(m.state_dict()) == ["many.0", "many.1", "named.gain", "named.bias"]
    m.many.append(mg.full((4,), 2.0)).extend([mg.ones(5)])
    m.many[1] = mg.ones(6)
    assert [p.shape for p in m.many] == [(2,), (6,), (4,), (5,)] and len(m.many) == 4
    assert m.many[-1].requires_grad and type(m.many[0]) is nn.Parameter
    grads = (m.many[0].sum() * m.named["gain"]).sum().backward()
    assert grads[m.many[0]].tolist() == [1, 1] and grads[m.named["gain"]].tolist() == [2]
    del m.named["bias"]
    m.named.update({"shift": mg.ones(2)})
    assert list(m.named) == list(m.named.keys()) == ["gain", "shift"] and "bias" not in m.named and len(m.named) == 2
    assert m.named.pop("shift").shape == (2,) and [p.shape for p in m.named.values()] == [(1,)]
    m.named.clear()
    assert not m.named.items() and [n for n, _ in m.named_parameters()] == [f"many.{i}" for i in range(4)]
    for wrong in (lambda: m.many.append(3), lambda: m.many.__setitem__(0, [1.0]), lambda: nn.ParameterDict({"a": 1})):  # type: ignore[arg-type, dict-item, call-overload, unused-ignore]  # the error is the test
        raises(TypeError, "holds Parameters, not (int|list); make it an nn.Parameter", wrong)
    for key in ("a.b", "", "values", "training"):
        raises(KeyError, "is no key; expected a name without dots", m.named.__setitem__, key, mg.ones(1))
