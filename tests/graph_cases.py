"""A leaf and operations for tests of the graph."""

import numpy as np

from minigrad import Function, Tensor, TensorId


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


class Recorder:
    """A hook that keeps the calls, and what each gradient was; ``fail_at`` raises at that call."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.calls: list[tuple[TensorId, Tensor, np.ndarray]] = []
        self.fail_at = fail_at

    def on_leaf_grad_ready(self, id: TensorId, grad: Tensor) -> None:
        if len(self.calls) == self.fail_at:
            raise KeyboardInterrupt("stop")
        self.calls.append((id, grad, grad.numpy().copy()))


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same_bits(xs: list[np.ndarray], ys: list[np.ndarray]) -> bool:
    return len(xs) == len(ys) and all(x.tobytes() == y.tobytes() for x, y in zip(xs, ys, strict=True))


def leaf(*shape: int, seed: int = 0, dtype=np.float64) -> Tensor:
    rng = np.random.default_rng(seed)
    return Tensor(np.asarray(rng.standard_normal(shape), dtype), requires_grad=True)


def nodes_of(y: Tensor) -> list[Function]:
    """The nodes of the graph that computed ``y``, newest first."""
    nodes = [y.node]
    for node in nodes:  # grows
        nodes += [x for x in node.edges if isinstance(x, Function) and x not in nodes]
    return nodes


def operations(y: Tensor) -> list[str]:
    """The names of the operations that computed ``y``, newest first."""
    return [type(node).__name__ for node in nodes_of(y)]
