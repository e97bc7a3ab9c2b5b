"""A leaf and operations for tests of the graph."""

import numpy as np

from minigrad import Function, Tensor


class Cube(Function):
    """y = x^3;  dx = 3 x^2 dy."""

    def forward(self, x):
        self.saved = (x,)
        return x * x * x

    def backward(self, dy):
        (x,) = self.saved
        return 3 * x * x * dy


class Passes(Function):
    """y = a + b with both gradients the array dy itself."""

    def forward(self, a, b):
        return a + b

    def backward(self, dy):
        return dy, dy


def leaf(*shape: int, seed: int = 0, dtype=np.float64) -> Tensor:
    rng = np.random.default_rng(seed)
    return Tensor(np.asarray(rng.standard_normal(shape), dtype), requires_grad=True)


def operations(y: Tensor) -> list[str]:
    """The names of the operations that computed ``y``, newest first."""
    nodes = [y.node]
    for node in nodes:
        nodes += [x for x in node.edges if isinstance(x, Function) and x not in nodes]
    return [type(node).__name__ for node in nodes]
