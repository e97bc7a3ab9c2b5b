"""Modules: parameters, buffers, state, modes, hooks and the summary."""

import copy
import gc
import weakref

import numpy as np
import pytest
from refusals import raises

import minigrad as mg
from minigrad import Tensor, nn
from minigrad.nn import Module, Parameter, Sequential


class Tied(Module):
    """Two names for one weight, and one below a child."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.again = self.embed.weight


class Buffers(Module):
    """A persistent buffer, a transient one, and one that is not there yet."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(mg.ones(2))
        self.register_buffer("mean", mg.zeros(2))
        self.register_buffer("mask", mg.ones(2), persistent=False)
        self.register_buffer("later", None)
        self.register_buffer("count", mg.tensor([0]))


def names(pairs) -> list[str]:
    return [name for name, _ in pairs]


def found_below(module: Module, prefix: str = "") -> list[tuple[str, int]]:
    """Names and ids of all parameters below a module, by its attributes; shared ones each time."""
    own = [(prefix + name, value.id) for name, value in vars(module).items() if isinstance(value, Parameter)]
    children = [(name, value) for name, value in vars(module).items() if isinstance(value, Module)]
    return own + [entry for name, child in children for entry in found_below(child, f"{prefix}{name}.")]


# ---------------------------------------------------------------------- parameters and attributes


def test_a_parameter_is_a_leaf_that_requires_grad_and_shares_memory() -> None:
    x = mg.ones(2)
    p = Parameter(x)
    assert isinstance(p, Tensor) and p.requires_grad and p.is_leaf and np.shares_memory(p.data, x.data) and p.id != x.id
    assert not Parameter(x, requires_grad=False).requires_grad and Parameter([1.0, 2.0]).tolist() == [1, 2]
    raises(RuntimeError, "int64", lambda: Parameter([1, 2]))
    assert type(p * 2) is Tensor and Parameter(p * 2).is_leaf


def test_attributes_find_their_table() -> None:
    m = Module()
    m.p, m.child, m.plain, m.tensor = Parameter(mg.ones(1)), nn.ReLU(), 5, mg.ones(1)
    assert names(m.named_parameters()) == ["p"] and names(m.named_children()) == ["child"]
    assert list(m.named_buffers()) == [] and m.plain == 5 and isinstance(m.tensor, Tensor)
    del m.plain, m.child
    assert list(m.children()) == []
    for name in ("plain", "never"):
        raises(AttributeError, f"Module has no attribute '{name}'", getattr, m, name)
        raises(AttributeError, name, delattr, m, name)
    assert not hasattr(m, "child") and getattr(m, "child", 3) == 3


def test_a_module_without_forward() -> None:
    raises(NotImplementedError, "Module has no forward", lambda: Module()(1))


# ---------------------------------------------------------------------- buffers


def test_buffers() -> None:
    m = Buffers()
    assert names(m.named_buffers()) == ["mean", "mask", "count"] and names(m.named_parameters()) == ["weight"]
    assert list(m.state_dict()) == ["weight", "mean", "count"] and m.later is None
    m.mean = mg.ones(2)  # stays a buffer
    m.later = mg.ones(3)
    assert names(m.named_buffers()) == ["mean", "mask", "later", "count"]
    assert m.state_dict()["later"].tolist() == [1] * 3
    m.later = None
    assert m.later is None and "later" not in m.state_dict()
    del m.mask
    m.register_buffer("mask", mg.zeros(1))
    assert "mask" in m.state_dict()


@pytest.mark.parametrize("name", ["", "a.b", "weight", "mean", "forward", "training"])
def test_buffer_names_that_do_not_work(name: str) -> None:
    raises(ValueError, "register_buffer", lambda: Buffers().register_buffer(name, mg.ones(1)))


# ---------------------------------------------------------------------- the tree


def test_names_are_dotted_in_order_of_definition() -> None:
    m = Sequential(nn.Linear(2, 3), Sequential(nn.ReLU(), nn.Linear(3, 1, bias=False)))
    assert names(m.named_parameters()) == ["0.weight", "0.bias", "1.1.weight"]
    for _ in range(2):  # what was listed before does not matter
        assert names(m.named_parameters("a.b")) == ["a.b.0.weight", "a.b.0.bias", "a.b.1.1.weight"]
    assert names(m.named_modules()) == ["", "0", "1", "1.0", "1.1"] and len(list(m.modules())) == 5
    assert m.num_parameters() == 6 + 3 + 3
    seen: list[Module] = []
    assert m.apply(seen.append) is m and seen == list(m.modules())
    assert [p.id for p in m.parameters()] == [p.id for _, p in m.named_parameters()]


def test_shared_weights_and_modules_are_listed_once() -> None:
    m = Tied()
    assert names(m.named_parameters()) == ["again"] and m.num_parameters() == 15
    assert list(m.state_dict()) == ["again"]
    shared = nn.Linear(2, 2)
    twice = Sequential(shared, nn.ReLU(), shared)
    assert names(twice.named_modules()) == ["", "0", "1"] and twice.num_parameters() == 6
    ring = Module()
    ring.child = nn.ReLU()
    ring.child.parent = ring
    assert len(list(ring.modules())) == 2


def test_deep_nesting() -> None:
    m: Module = nn.Linear(1, 1)
    nn.Linear(1, 1).double()(mg.ones(1, 1, dtype="float64"))  # compiled now: that takes a deep stack too
    for _ in range(300):
        m = Sequential(m)
    [(weight, _), _] = m.named_parameters()
    assert weight == "0." * 300 + "weight" and len(list(m.modules())) == 301
    m.eval().to("float64")
    assert not any(module.training for module in m.modules())
    m.load_state_dict({name: np.ones(t.shape) for name, t in m.state_dict().items()})
    assert m(mg.ones(1, 1, dtype="float64")).item() == 2
    assert repr(m).count("Sequential") == 300


# ---------------------------------------------------------------------- modes and conversion


def test_train_and_eval_reach_everything() -> None:
    m = Sequential(nn.Dropout(0.5), Sequential(nn.Dropout(0.5)))
    assert m.training and m.eval() is m and not any(x.training for x in m.modules())
    assert m(mg.ones(50)).tolist() == [1] * 50
    assert m.train() is m and all(x.training for x in m.modules()) and 0 in m(mg.ones(50)).tolist()


def test_freezing() -> None:
    m = Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    m[0].requires_grad_(False)
    grads = m(mg.ones(1, 2)).sum().backward()
    assert len(grads) == 2 and m[0].weight not in grads
    m.requires_grad_()
    assert len(m(mg.ones(1, 2)).sum().backward()) == 4


def test_conversion_keeps_ids_ties_and_integers() -> None:
    m = Sequential(Tied(), Buffers())
    ids, buffers = [p.id for p in m.parameters()], [b.id for b in m.buffers()]
    versions = [p.version for p in m.parameters()]
    for convert, dtype in ((lambda: m.to(mg.float64), "float64"), (m.float, "float32"), (m.double, "float64")):
        assert convert() is m
        assert [p.id for p in m.parameters()] == ids and [b.id for b in m.buffers()] == buffers
        assert all(p.dtype == dtype and p.requires_grad and p.is_leaf for p in m.parameters())
        assert m[1].mean.dtype == dtype and m[1].count.dtype == np.int64
        assert m[0].head.weight is m[0].embed.weight
    assert all(p.version > v for p, v in zip(m.parameters(), versions, strict=True))
    assert m.to("cpu") is m


def test_conversion_to_integers_is_refused_and_changes_nothing() -> None:
    m = nn.Linear(2, 2)
    raises(TypeError, r"Linear\.to: .*int64", lambda: m.to("int64"))
    raises(TypeError, "unsupported dtype", lambda: m.to("banana"))
    assert m.weight.dtype == m.bias.dtype == np.float32


# ---------------------------------------------------------------------- state


def test_state_goes_round() -> None:
    a, b = (Sequential(nn.Linear(3, 4), nn.LayerNorm(4), Buffers()) for _ in range(2))
    a[2].mean = mg.tensor([5.0, 6.0])
    ids = [p.id for p in b.parameters()]
    b.load_state_dict(a.state_dict())
    assert [p.id for p in b.parameters()] == ids
    for name, value in a.state_dict().items():
        np.testing.assert_array_equal(b.state_dict()[name].numpy(), value.numpy())
    state = a.state_dict()
    assert not any(t.requires_grad for t in state.values())
    assert np.shares_memory(state["0.weight"].data, a[0].weight.data)
    assert not np.shares_memory(b[0].weight.data, a[0].weight.data)


def test_arrays_and_other_floating_dtypes_are_accepted() -> None:
    m = nn.Linear(2, 2)
    m.load_state_dict({"weight": np.full((2, 2), 3.0), "bias": mg.ones(2, dtype="float16")})
    assert m.weight.dtype == np.float32 and m.weight.tolist() == [[3, 3], [3, 3]] and m.bias.tolist() == [1, 1]


def test_every_mismatch_is_reported_and_nothing_is_copied() -> None:
    m = Sequential(nn.Linear(2, 3), Buffers(), Tied())
    before = {name: t.numpy().copy() for name, t in m.state_dict().items()}
    state = {name: np.full(t.shape, 9.0) for name, t in m.state_dict().items()}
    del state["0.bias"]
    state["0.weight"] = np.zeros((3, 3))
    state["1.count"] = np.zeros(1)
    state["1.weight"] = np.zeros(2, np.int64)
    state["1.mask"] = np.ones(2)  # a buffer that is not saved
    state["extra"] = np.ones(1)
    state["2.embed.weight"] = np.full((5, 3), 8.0)  # another value for the tied weight
    caught = raises(ValueError, "Sequential: the state does not fit the module", m.load_state_dict, state)
    assert sorted(str(caught).splitlines()[1:-1]) == [
        "  dtype: 1.count is float64 in the state, int64 in the module",
        "  dtype: 1.weight is int64 in the state, float32 in the module",
        "  missing: 0.bias",
        "  shape: 0.weight is (3, 3) in the state, (3, 2) in the module",
        "  shared: 2.again and 2.embed.weight are one parameter but have different values",
        "  unexpected: 1.mask",
        "  unexpected: extra",
    ]
    for name, t in m.state_dict().items():
        np.testing.assert_array_equal(t.numpy(), before[name])


def test_not_strict_ignores_names_but_not_shapes() -> None:
    m = nn.Linear(2, 2)
    bias = m.bias.tolist()
    missing, unexpected = m.load_state_dict({"weight": np.ones((2, 2)), "extra": np.ones(1)}, strict=False)
    assert (missing, unexpected) == (["bias"], ["extra"])
    assert m.load_state_dict({"weight": m.weight, "bias": m.bias}).missing_keys == []
    tied = Tied().load_state_dict({"again": np.ones((5, 3))}, strict=False)
    assert (tied.missing_keys, tied.unexpected_keys) == ([], [])  # under another name of its own
    assert m.weight.tolist() == [[1, 1], [1, 1]] and m.bias.tolist() == bias
    raises(ValueError, "shape: weight", lambda: m.load_state_dict({"weight": np.ones((2, 3))}, strict=False))


@pytest.mark.parametrize("name", ["again", "embed.weight", "head.weight"])
def test_a_shared_parameter_may_come_under_any_name(name: str) -> None:
    m = Tied()
    m.load_state_dict({name: np.full((5, 3), 7.0)})
    assert (m.embed.weight.detach().numpy() == 7).all() and m.head.weight is m.embed.weight
    m.load_state_dict({n: np.full((5, 3), 8.0) for n in ("again", "embed.weight", "head.weight")})
    assert (m.again.detach().numpy() == 8).all()


def test_loading_bumps_versions() -> None:
    m = nn.Linear(2, 2)
    loss = m(m(mg.ones(1, 2))).sum()
    m.load_state_dict(m.state_dict())
    raises(RuntimeError, "changed in place", lambda: loss.backward())


# ---------------------------------------------------------------------- repr


def test_repr() -> None:
    m = Sequential(nn.Linear(2, 3), Sequential(nn.GELU("tanh"), nn.Dropout(0.1)), nn.LayerNorm(3), nn.Embedding(4, 2))
    assert repr(m) == (
        "Sequential(\n"
        "  (0): Linear(in_features=2, out_features=3, bias=True)\n"
        "  (1): Sequential(\n"
        "    (0): GELU(approximate='tanh')\n"
        "    (1): Dropout(p=0.1)\n"
        "  )\n"
        "  (2): LayerNorm((3,), eps=1e-05)\n"
        "  (3): Embedding(4, 2)\n"
        ")"
    )
    assert repr(nn.ReLU()) == "ReLU()"


def test_deepcopy_copies_weights_and_keeps_shared_ones_shared() -> None:
    model = nn.Module()
    model.first, model.second = nn.Linear(3, 3), nn.Linear(3, 3)
    model.second.weight = model.first.weight
    twin = copy.deepcopy(model)
    weight = twin.first.weight
    assert twin.first.weight is twin.second.weight
    assert type(weight) is nn.Parameter and weight.requires_grad and weight.id != model.first.weight.id
    with mg.no_grad():
        weight.fill_(7.0)
    assert not (model.first.weight == 7.0).any()
    raises(RuntimeError, "use .detach", lambda: copy.deepcopy(model.first.weight * 2))


def test_only_a_parameter_or_none_takes_the_place_of_a_parameter():
    layer = nn.Linear(4, 2)
    layer.weight = weight = Parameter(mg.zeros(2, 4))
    assert list(layer.state_dict()) == ["weight", "bias"]  # in its place
    for wrong in (mg.ones(2, 4), np.ones((2, 4)), nn.Linear(1, 1)):
        with pytest.raises(TypeError, match=f"cannot assign {type(wrong).__name__} as parameter 'weight' of Linear"):
            layer.weight = wrong
    assert layer.weight is weight
    layer.bias = None
    assert layer.bias is None and [name for name, _ in layer.named_parameters()] == ["weight"]
    with pytest.raises(TypeError, match="as parameter 'bias'"):  # it is still one
        layer.bias = mg.ones(2)
    layer.bias = nn.Parameter(mg.ones(2))
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_dir_and_misspelt_names() -> None:
    model = Sequential(nn.Linear(2, 3))
    model.register_buffer("scale", mg.ones(1))
    assert {"weight", "bias", "forward"} <= set(dir(model[0])) and {"0", "scale"} <= set(dir(model))
    for owner, wrong, right in ((model[0], "wieght", "weight"), (model, "scales", "scale"), (nn, "Liner", "Linear")):
        raises(AttributeError, f"no attribute '{wrong}'; did you mean '{right}'\\?$", getattr, owner, wrong)
    for owner in (model, mg, nn, mg.optim, mg.optim.SGD(model.parameters())):
        raises(AttributeError, "has no attribute 'qqq'$", getattr, owner, "qqq")


def test_tables_and_attributes_hold_the_same_whatever_is_done() -> None:
    m = Module()
    m.a, m.b, m.plain = Parameter(mg.ones(1)), nn.Linear(1, 1), 3
    m.register_buffer("c", mg.ones(1))
    m.register_buffer("d", None)
    m.seq, m.params = Sequential(nn.ReLU(), Buffers(), Tied()), nn.ParameterList([mg.ones(1), mg.ones(2)])
    m.by_name = nn.ModuleDict({"x": nn.ReLU(), "y": nn.Tanh(), "z": nn.GELU()})
    m.values = nn.ParameterDict({"u": mg.ones(1), "v": mg.ones(2), "w": mg.ones(3)})

    def replace() -> None:
        m.a, m.b, m.c, m.d, m.plain = None, Parameter(mg.ones(2)), nn.Tanh(), mg.ones(2), Parameter(mg.ones(1))

    def restore() -> None:
        m.a = Parameter(mg.ones(1))
        del m.b, m.c, m.d, m.plain
        m.b, m.plain = nn.ReLU(), 4
        m.register_buffer("c", mg.zeros(1))

    def lists() -> None:
        m.seq.append(nn.ReLU()).insert(1, nn.Tanh())
        m.seq[0], m.params[0] = nn.GELU(), mg.zeros(1)
        m.params.append(mg.ones(3))

    def dictionaries() -> None:
        m.by_name["x"], m.values["u"] = nn.Linear(1, 1), mg.zeros(1)
        del m.by_name["y"], m.values["v"]
        m.by_name.pop("z"), m.values.pop("w")
        m.by_name.update({"t": nn.ReLU()})
        m.values.update({"t": mg.ones(1)})

    def clear() -> None:
        m.by_name.clear()
        m.values.clear()

    changes = [replace, restore, lists, dictionaries, m.double, lambda: m.load_state_dict(m.state_dict()), clear]
    for change in [lambda: None, *changes]:
        change()
        for module in [*m.modules(), *copy.deepcopy(m).modules()]:
            own = vars(module)
            listed = [(n, v) for kind in ("_parameters", "_buffers", "_modules") for n, v in own[kind].items()]
            assert len(dict(listed)) == len(listed)
            assert all(own[name] is value and getattr(module, name) is value for name, value in listed)
            unlisted = [value for name, value in own.items() if name not in dict(listed)]
            assert not any(isinstance(value, Module | Parameter) for value in unlisted)
            first = {number: name for name, number in reversed(found_below(module))}
            assert {p.id: name for name, p in module.named_parameters()} == first


def test_initialising_a_module_again_removes_its_parameters() -> None:
    m = nn.Linear(2, 2)
    Module.__init__(m)
    assert names(m.named_parameters()) == []


def test_what_was_removed_and_modules_that_are_gone_are_not_kept_in_memory() -> None:
    m, other = Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2)
    weights = [weakref.ref(p) for p in (*m.parameters(), *other.parameters())]
    gc.disable()
    try:
        m[0] = nn.ReLU()
        assert [weight() is None for weight in weights] == [True, True, False, False, False, False]
        list(m.parameters())
        del m, other
        assert [weight() for weight in weights] == [None] * 6
    finally:
        gc.enable()


def test_hooks_see_inputs_and_outputs_in_order() -> None:
    seen = []
    m = nn.Sequential(nn.ReLU(), nn.Tanh())
    for name, module in m.named_modules():
        module.register_forward_pre_hook(lambda module, args, name=name: seen.append((name, "before", len(args))))
        module.register_forward_hook(lambda module, args, y, name=name: seen.append((name, "after", y.shape)))
    m(mg.ones(2))
    order = " before, 0 before, 0 after, 1 before, 1 after,  after"
    assert ", ".join(f"{name} {when}" for name, when, _ in seen) == order
    assert seen[0][2] == 1 and seen[-1][2] == (2,)


def test_hooks_may_replace_inputs_and_outputs() -> None:
    m = nn.ReLU()
    m.register_forward_pre_hook(lambda module, args: args[0] * 2)
    m.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    m.register_forward_hook(lambda module, args, y: y * 10 + args[0])
    m.register_forward_hook(lambda module, args, y: None)
    assert m(mg.tensor([3.0, -3.0])).tolist() == [77, -5]


def test_handles_take_hooks_back() -> None:
    m, calls = nn.ReLU(), []
    handle = m.register_forward_hook(lambda *_: calls.append(1))
    with m.register_forward_pre_hook(lambda *_: calls.append(2)):
        m(mg.ones(1))
    assert calls == [2, 1]
    m(mg.ones(1))
    assert calls == [2, 1, 1]
    handle.remove()
    handle.remove()
    m(mg.ones(1))
    assert calls == [2, 1, 1]


def test_a_hook_may_remove_itself() -> None:
    m, calls = nn.ReLU(), []

    def once(*_) -> None:
        calls.append(1)
        handle.remove()

    handle = m.register_forward_hook(once)
    m.register_forward_hook(lambda *_: calls.append(2))
    m(mg.ones(1))
    m(mg.ones(1))
    assert calls == [1, 2, 2]


def test_hooks_are_not_state() -> None:
    m = nn.Linear(2, 2)
    m.register_forward_hook(lambda *_: None)
    assert list(m.state_dict()) == ["weight", "bias"]
    assert copy.deepcopy(m)(mg.ones(1, 2)).shape == (1, 2)


def test_summary() -> None:
    m = nn.Sequential(nn.Linear(3, 400, dtype="float64"), nn.BatchNorm1d(400))
    m[0].bias.requires_grad_(False)
    assert m.summary() == (
        "name                   shape     dtype      parameters    memory\n"
        "----------------------------------------------------------------\n"
        "0.weight               (400, 3)  float64         1,200   9.4 KiB\n"
        "0.bias                 (400,)    float64  400 (frozen)   3.1 KiB\n"
        "1.weight               (400,)    float32           400   1.6 KiB\n"
        "1.bias                 (400,)    float32           400   1.6 KiB\n"
        "1.running_mean         (400,)    float32        buffer   1.6 KiB\n"
        "1.running_var          (400,)    float32        buffer   1.6 KiB\n"
        "1.num_batches_tracked  ()        int64          buffer       8 B\n"
        "----------------------------------------------------------------\n"
        "total of Sequential                              2,400  18.8 KiB"
    )


def test_shared_weights_count_once_and_nothing_is_0() -> None:
    m = nn.Module()
    m.a, m.b = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    m.b.weight = m.a.weight
    assert len(m.summary().splitlines()) == 5 and m.summary().endswith("15    60 B")
    assert nn.ReLU().summary().endswith("0     0 B")
    assert repr(m.summary()) == m.summary() and m.summary()._repr_html_().startswith("<pre>name  ")
    big = nn.Module()
    big.p = nn.Parameter(mg.zeros(1).expand(1024, 1024, 1024))
    assert big.summary().endswith("1,073,741,824  4.0 GiB")
