"""Backward in several threads at once."""

import numpy as np
from graph_cases import leaf
from in_threads import good, outcomes

import minigrad as mg


def test_backward_in_several_threads_at_once() -> None:
    shared = leaf(20, 20)  # a weight that all graphs have in common

    def grads_of(seed: int) -> np.ndarray:
        x = mg.tensor(np.random.default_rng(seed).standard_normal((8, 20)))
        y = x
        for _ in range(4):
            y = (y @ shared).tanh() + y
        grad: np.ndarray = (y * y).mean().backward()[shared].numpy()
        return grad

    alone = [grads_of(i) for i in range(6)]
    found = outcomes(range(6), lambda i: [grads_of(i) for _ in range(10)])
    for want, grads in zip(alone, good([*found.values()]), strict=True):
        for grad in grads:
            np.testing.assert_array_equal(grad, want)


def test_one_retained_graph_in_several_threads() -> None:
    x = leaf(50)
    loss = (x.exp() * x).sum() + (x + x).sum()
    want = loss.backward(retain_graph=True)[x].numpy()
    found = outcomes(range(4), lambda _: [loss.backward(retain_graph=True)[x].numpy() for _ in range(30)])
    for grads in good([*found.values()]):
        assert all(np.array_equal(grad, want) for grad in grads)
