"""When a graph and what it saved are freed."""

import gc
import weakref

from graph_cases import leaf

from minigrad import Function


def test_saved_arrays_are_released_as_backward_goes() -> None:
    x = leaf(10)
    alive: list[int] = []

    class Probe(Function):
        """The identity, that counts the arrays still saved when its backward runs."""

        def forward(self, x):
            return x * 1

        def backward(self, dy):
            alive.append(sum(r() is not None for r in saved))
            return dy

    y, saved = x, []
    for _ in range(6):
        y = Probe.apply(y).exp()
        saved.append(weakref.ref(y.node.saved[0]))
    loss = y.sum()
    del y
    loss.backward()
    assert alive == [5, 4, 3, 2, 1, 0]
    assert loss.node is not None


def test_the_graph_is_freed_with_its_root_and_without_the_collector() -> None:
    x = leaf(3)
    gc.collect()
    gc.disable()
    try:
        y = x.exp()
        node, array = weakref.ref(y), weakref.ref(y.node.saved[0])
        loss = (y * y).sum()
        del y
        assert node() is None and array() is not None
        del loss
        assert array() is None
    finally:
        gc.enable()
