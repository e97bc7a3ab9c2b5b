"""Hooks for finished leaves."""

import weakref

import numpy as np
from graph_cases import Recorder, leaf
from refusals import raises

import minigrad as mg
from minigrad import Tensor, nn


def test_each_leaf_is_reported_once_with_its_final_gradient() -> None:
    a, b, c = leaf(3), leaf(3, seed=1), leaf(3, seed=2)
    y = a * b + a * c + a + b[0]
    hook = Recorder()
    grads = (y * a).sum().backward(hook=hook)
    assert sorted(id for id, _, _ in hook.calls) == sorted([a.id, b.id, c.id])
    assert all(isinstance(id, mg.TensorId) for id, _, _ in hook.calls)
    for id, grad, seen in hook.calls:
        assert grads[id] is grad
        np.testing.assert_array_equal(grad.numpy(), seen)
    assert grads.keys() == [id for id, _, _ in hook.calls]


def test_leaves_used_late_are_reported_early() -> None:
    layers = [nn.Linear(4, 4) for _ in range(5)]
    x = mg.ones(2, 4)
    for layer in layers:
        x = layer(x).tanh()

    class Progress(Recorder):
        """Also: how many Tanh nodes had been freed at each call, so that the calls do not all come at the end."""

        def on_leaf_grad_ready(self, id: mg.TensorId, grad: Tensor) -> None:
            super().on_leaf_grad_ready(id, grad)
            done.append(sum(r() is None for r in activations))

    hook, done = Progress(), []
    loss = x.sum()
    nodes = mg.engine.reachable(loss.node)[0]
    activations = [weakref.ref(node.saved[0]) for node in nodes if type(node).__name__ == "Tanh"]
    del nodes, x
    loss.backward(hook=hook)
    ids = [id for id, _, _ in hook.calls]
    want = [{p.id for p in layer.parameters()} for layer in reversed(layers)]
    assert [set(ids[i : i + 2]) for i in range(0, 10, 2)] == want
    assert done == sorted(done) and done[1] <= 2 and done[-1] >= 4


def test_a_leaf_used_early_and_late_is_reported_after_its_last_use() -> None:
    tied, middle = leaf(3), leaf(3, seed=1)
    x = tied * 2
    hook = Recorder()
    ((x * middle) * tied).sum().backward(hook=hook)
    assert [id for id, _, _ in hook.calls] == [middle.id, tied.id]
    hook = Recorder()
    leaf().backward(hook=hook)  # a leaf as root
    assert len(hook.calls) == 1


def test_an_exception_in_a_hook_propagates_and_breaks_nothing() -> None:
    layers = [nn.Linear(3, 3) for _ in range(3)]
    x = mg.ones(1, 3)
    for layer in layers:
        x = layer(x).tanh()
    loss = x.sum()
    for fail_at in range(6):
        raises(KeyboardInterrupt, "", lambda fail_at=fail_at: loss.backward(hook=Recorder(fail_at), retain_graph=True))
    hook = Recorder()
    again = loss.backward(hook=hook)
    assert len(hook.calls) == len(again) == 6
    assert mg.is_grad_enabled()
