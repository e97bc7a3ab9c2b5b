"""Hooks around forward: order, what they may change, how they are taken back."""

import copy

import minigrad as mg
from minigrad import nn


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
