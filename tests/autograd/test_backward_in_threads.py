"""Backward in several threads at once."""

from __future__ import annotations

import threading

import numpy as np
from graph_cases import leaf

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
    results: dict[tuple[int, int], np.ndarray] = {}
    barrier = threading.Barrier(6)

    def work(i: int) -> None:
        barrier.wait()
        for repeat in range(10):
            results[i, repeat] = grads_of(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 60
    for (i, _), grad in results.items():
        np.testing.assert_array_equal(grad, alone[i])


def test_one_retained_graph_in_several_threads() -> None:
    x = leaf(50)
    loss = (x.exp() * x).sum() + (x + x).sum()
    want = loss.backward(retain_graph=True)[x].numpy()
    found = []

    def work() -> None:
        for _ in range(30):
            found.append(loss.backward(retain_graph=True)[x].numpy())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 120
    assert all(np.array_equal(grad, want) for grad in found)
