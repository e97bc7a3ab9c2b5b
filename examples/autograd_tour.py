"""A tour of minigrad: from an array of numbers to a trained line, in nine stops.

    python examples/autograd_tour.py       the whole tour, a few seconds
    python examples/autograd_tour.py 3 4   stops 3 and 4 alone

Read this file beside what it prints. A stop prints its docstring, then its lines of code, expressions with their
values, and statements, each of which has been checked: what is marked "true" was computed, not written.
"""

from __future__ import annotations

import ast
import inspect
import math
import sys
import textwrap
from types import CodeType
from typing import Any

import loading  # noqa: F401  # first
import numpy as np
from command_line import BAR, Parser, UsageError, run_cli
from estimate import announced_mlp
from tqdm import tqdm

import minigrad
from minigrad import Tensor, nn
from minigrad.nn import functional as F
from minigrad.optim import AdamW


def tensors() -> None:
    """A tensor is an array of numbers, with the names and the rules of PyTorch."""
    x = minigrad.tensor([[1.0, 2.0], [3.0, 4.0]])
    show(f"{x = }", f"{x.shape = }", f"{x.dtype = }")
    show(f"{x * 10 = }", f"{x @ x = }", f"{x.sum(0) = }")
    row = x[1]
    row[0] = 30.0
    show(f"{x = }")
    claim("a row of x is a view: writing into the row changed x", x[1, 0].item() == 30)


def graph() -> None:
    """Where a tensor requires grad, each operation leaves a node behind, which knows the nodes of its inputs."""
    a = minigrad.tensor(2.0, requires_grad=True)
    b = minigrad.tensor(3.0, requires_grad=True)
    y = a * b + a.exp()
    show(f"{y = }", tree(y.node))
    product, power = y.node.edges
    claim("both branches of the tree end at one and the same a", product.edges[0] is a and power.edges[0] is a)


def tree(node: Any) -> str:
    """A node of the graph, and below it those that it came from, down to the tensors that nothing computed."""
    if isinstance(node, Tensor):
        return f"{node}"
    below = [tree(edge) for edge in node.edges if edge is not None]
    return "\n".join([type(node).__name__, *("    " + line for part in below for line in part.splitlines())])


def gradients() -> None:
    """backward follows the graph from y back to its leaves, and returns how much y changes with each of them."""
    a = minigrad.tensor(2.0, requires_grad=True)
    b = minigrad.tensor(3.0, requires_grad=True)
    y = a * b + a.exp()
    grads = y.backward()
    show(f"{grads = }", f"{grads[a] = }", f"{grads[b] = }")
    claim("by the rules of calculus, dy/da is b + e^a", close(grads[a], b.item() + math.exp(a.item())))
    claim("and dy/db is a", close(grads[b], a.item()))
    claim("the gradients are in what backward returned, not on the tensors", not hasattr(a, "grad"))
    again = (a * b + a.exp()).backward()
    claim("so there is nothing to zero: a second backward does not add to the first", close(grads[a], again[a].item()))


def broadcasting() -> None:
    """A row is added to every row of a matrix. What was used four times has four gradients, and they are summed."""
    matrix = minigrad.zeros(4, 3, requires_grad=True)
    row = minigrad.tensor([1.0, 2.0, 3.0], requires_grad=True)
    scale = minigrad.arange(12.0).reshape(4, 3)
    grads = ((matrix + row) * scale).sum().backward()
    show(f"{(matrix + row).shape = }", f"{grads[matrix] = }", f"{grads[row] = }")
    claim("the gradient has the shape of the row, not that of the sum", grads[row].shape == row.shape)
    claim("it is the sum of the rows of the matrix's gradient", close(grads[row], grads[matrix].numpy().sum(0)))


def no_grad() -> None:
    """Inside of no_grad nothing is recorded. That is how a model is used, and how its weights are changed."""
    w = minigrad.tensor([1.0, 2.0], requires_grad=True)
    recorded = w * 3
    with minigrad.no_grad():
        unrecorded = w * 3
    show(f"{recorded = }", f"{unrecorded = }")
    claim("the numbers are the same", close(recorded, unrecorded.numpy()))
    claim("but only one of them leads back to w", recorded.node is not None and unrecorded.node is None)


def in_place() -> None:
    """The derivative of y * y needs y as it was. If y is overwritten before backward comes, backward must notice."""
    x = minigrad.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3
    loss = (y * y).sum()
    with minigrad.no_grad():
        y += 1
    try:
        loss.backward()
        message = ""
    except RuntimeError as error:
        message = f"RuntimeError: {error}"
    show(message)
    claim("backward refuses, and does not return a wrong gradient", bool(message))


class Cube(minigrad.Function):
    """y = x^3;  dx = 3 x^2 dy."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        """The values, and what backward will need."""
        self.saved = (x,)
        return x**3

    def backward(self, dy: np.ndarray) -> np.ndarray:
        """The gradient of x from that of y."""
        return 3 * self.saved[0] ** 2 * dy


class Careless(Cube):
    """y = x^3, with a mistake in its derivative."""

    def backward(self, dy: np.ndarray) -> np.ndarray:
        """The exponent was forgotten."""
        return 3 * self.saved[0] * dy


def own_operation() -> None:
    """An operation is a class: a formula and its derivative, on plain NumPy arrays. Is the derivative right? gradcheck
    moves each input a little and looks how the output moves."""
    x = minigrad.tensor([1.0, 2.0, 3.0], dtype=minigrad.float64, requires_grad=True)
    show(f"{Cube.__doc__ = }", f"{Cube.apply(x) = }", f"{Cube.apply(x).sum().backward()[x] = }")
    show(f"{minigrad.gradcheck(Cube.apply, [x]) = }")
    claim("the derivative is that of x * x * x", close(Cube.apply(x).sum().backward()[x], gradient(x, x * x * x)))
    try:
        minigrad.gradcheck(Careless.apply, [x])
        message = ""
    except minigrad.GradcheckError as error:
        message = f"GradcheckError: {error}"
    show(message)
    claim("a wrong derivative is found out", bool(message))


def gradient(x: Tensor, y: Tensor) -> np.ndarray:
    """That of the sum of y with respect to x."""
    return y.sum().backward()[x].numpy()


def line_by_hand() -> None:
    """Learning: compute a loss, ask for its gradients, take a small step against them, and again. Here, for a line
    through points that were strewn about another line."""
    x, y = points()
    w = minigrad.zeros(1, requires_grad=True)
    b = minigrad.zeros(1, requires_grad=True)
    losses = []
    for _ in tqdm(range(300), bar_format=BAR, smoothing=0, disable=None):
        loss = ((w * x + b - y) ** 2).mean()
        losses.append(loss.item())
        grads = loss.backward()
        with minigrad.no_grad():
            for p in (w, b):
                p -= 0.1 * grads[p]
    show(f"{losses[0] = :.4f}", f"{losses[-1] = :.4f}", f"{w = }", f"{b = }")
    slope, height = np.polyfit(x.numpy()[:, 0], y.numpy()[:, 0], 1)
    show(f"{slope = :.4f}", f"{height = :.4f}")
    claim("w and b are the line of least squares that NumPy finds", close(w, slope, 1e-3) and close(b, height, 1e-3))


def line_with_adamw() -> None:
    """The same with a module that holds w and b, and an optimizer that takes the steps. A transformer is trained by
    these lines too; only the model is larger."""
    x, y = points()
    model = nn.Linear(1, 1)
    optimizer = AdamW(model.parameters(), lr=0.05, weight_decay=0.0)
    for _ in tqdm(range(300), bar_format=BAR, smoothing=0, disable=None):
        loss = F.mse_loss(model(x), y)
        optimizer.step(loss.backward())
    show(f"{model = }", f"{model.weight.detach() = }", f"{model.bias.detach() = }")
    slope, height = np.polyfit(x.numpy()[:, 0], y.numpy()[:, 0], 1)
    claim("it found the same line", close(model.weight, slope, 1e-3) and close(model.bias, height, 1e-3))


def points() -> tuple[Tensor, Tensor]:
    """x and y (50, 1): y = 2 x - 1, and some noise."""
    generator = minigrad.Generator(0)
    x = minigrad.rand(50, 1, generator=generator) * 4 - 2
    return x, 2 * x - 1 + 0.3 * minigrad.randn(50, 1, generator=generator)


# ---------------------------------------------------------------------- how the tour is shown

STOPS = [tensors, graph, gradients, broadcasting, no_grad, in_place, own_operation, line_by_hand, line_with_adamw]
claims: list[bool] = []
shown: dict[CodeType, int] = {}  # of each stop the last line that was printed


def code(frame: Any) -> None:
    """Print the lines of a stop between what was shown last and what is shown now."""
    lines, first = inspect.getsourcelines(frame.f_code)
    (stop,) = ast.parse(textwrap.dedent("".join(lines))).body
    assert isinstance(stop, ast.FunctionDef)
    for statement in stop.body[1:]:  # without the docstring
        begin, end = statement.lineno, statement.end_lineno or 0
        told = lines[begin - 1].lstrip().startswith(("show(", "claim("))
        if not told and shown.get(frame.f_code, 0) < end < frame.f_lineno - first + 1:
            print(textwrap.indent(textwrap.dedent("".join(lines[begin - 1 : end])), "    > "), end="")
    shown[frame.f_code] = frame.f_lineno - first + 1


def show(*texts: str) -> None:
    """Print the code, and what it computed; ``f"{x = }"`` is Python's way to write an expression with its value."""
    code(sys._getframe(1))
    for text in texts:
        first, *others = text.splitlines() or [""]
        indent = " " * (first.find(" = ") + 3 if " = " in first else 0)  # rows of a matrix below each other
        print("\n    ".join([f"    {first}", *(indent + line for line in others)]))


def claim(statement: str, truth: bool) -> None:
    """Print the code, and a statement with whether it is true."""
    code(sys._getframe(1))
    claims.append(truth)
    print(f"    {'true' if truth else 'FALSE'}: {statement}")


def close(tensor: Tensor, expected: Any, tolerance: float = 1e-6) -> bool:
    """Whether all numbers are those expected, but for the tolerance times their size."""
    return bool(np.allclose(tensor.detach().numpy(), expected, rtol=tolerance, atol=tolerance))


def main() -> int:
    """Visit the stops that were asked for, or all."""
    parser = Parser(__doc__)
    parser.add_argument("stops", nargs="*", type=int, metavar="stop", help=f"1 to {len(STOPS)} (default: all)")
    chosen = parser.parse().stops or range(1, len(STOPS) + 1)
    for number in chosen:
        if not 1 <= number <= len(STOPS):
            raise UsageError(f"there is no stop {number}: they are 1 to {len(STOPS)}")
    print(announced_mlp(lambda: ((1, 1), 50, 50), {}, 600).partition("; ")[2])  # of stops 8 and 9, the largest
    minigrad.manual_seed(0)
    claims.clear()
    shown.clear()
    for number in chosen:
        stop = STOPS[number - 1]
        text = textwrap.fill(" ".join((stop.__doc__ or "").split()), 100)
        print(f"\n{number}. {stop.__name__.replace('_', ' ')}\n{text}\n")
        stop()
    false = claims.count(False)
    print(f"\nstops: {len(chosen)}, statements checked: {len(claims)}, {f'FALSE: {false}' if false else 'all true'}")
    return 1 if false else 0


if __name__ == "__main__":
    run_cli(main)
