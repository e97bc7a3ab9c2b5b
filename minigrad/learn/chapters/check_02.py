"""The checks of chapter 2."""

from functools import partial
from typing import Any

import numpy as np

from ..exercise import check_backward, refuses, require, same


def exercise_1(my: Any) -> None:
    x, y = my.Number(3.0), my.Number(5.0)
    z = x * y
    same("the value of z = x * y for x = 3, y = 5", z.value, 15.0)
    require([p for p, _ in z.inputs] == [x, y], "z = x * y\nz.inputs needs one pair for each of x and y, in this order")
    slopes = np.array([slope for _, slope in z.inputs])
    mistake = {"the two exchanged: if x grows by 1, z grows by y": np.array([3.0, 5.0])}
    same("the derivatives of z = x * y by x and by y, for x = 3, y = 5", slopes, np.array([5.0, 3.0]), mistake)


class Vertex:
    """A vertex of a drawn graph, which counts how often it is asked for its parents."""

    asked = 0

    def __init__(self, number: int, *parents: "Vertex") -> None:
        self.number, self.above = number, list(parents)

    def __repr__(self) -> str:
        return f"v{self.number}"

    def parents(self) -> list["Vertex"]:
        """The parents."""
        Vertex.asked += 1
        require(Vertex.asked <= 100_000, "each vertex has the one before it as both parents, 30 in a row\n"
                "parents() was called 100,000 times: what was found before is visited again")  # fmt: skip
        return self.above


def exercise_2(my: Any) -> None:
    Vertex.asked = 0
    x = Vertex(0)
    y = Vertex(1, x)
    z = Vertex(2, y)
    mistakes = {
        "the oldest first": [x, y, z],
        "without the parents of the parents": [z, y],
        "without the end itself": [y, x],
    }
    same("v2 was made from v1, and v1 from v0: newest_first(v2)", my.newest_first(z), [z, y, x], mistakes)
    w = Vertex(3, x, z)
    same("v3 = v0 and v2, v2 = v1, v1 = v0: newest_first(v3)", my.newest_first(w), [w, z, y, x])
    tower = Vertex(0)
    for number in range(1, 30):
        tower = Vertex(number, tower, tower)
    same("30 vertices in a row: how many come out", len(my.newest_first(tower)), 30)
    chain = Vertex(0)
    for number in range(1, 20_000):
        chain = Vertex(number, chain)
    try:
        my.newest_first(chain)
    except RecursionError:
        require(False, "a chain of 20,000 vertices is longer than Python's stack: no function may call itself here")


def exercise_3(my: Any) -> None:
    x = my.Number(7.0)
    u = my.Number(14.0, (x, 2.0))
    v = my.Number(42.0, (u, 3.0))
    same("dx/dx, for x alone", my.derivatives(x)[x], 1.0, {"wrong: the derivative of the end by itself is 1": 7.0})
    mistakes = {
        "one factor alone: the chain rule multiplies": 2.0,
        "what comes if x passes on before its own derivative was complete": 0.0,
    }
    same("u = 2 x and v = 3 u: dv/dx", my.derivatives(v)[x], 6.0, mistakes)
    z = x + x
    same("z = x + x: dz/dx", my.derivatives(z)[x], 2.0, {"a term that was overwritten where it is to be added": 1.0})
    w = my.Number(1.0, (v, 1.0), (u, 5.0))
    mistakes = {"u passed on before its own derivative was complete": 10.0}
    same("u = 2 x, v = 3 u, w = v + 5 u: dw/dx", my.derivatives(w)[x], 16.0, mistakes)


A = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
B = np.array([[2.0, -1.0, 0.5], [3.0, 7.0, -2.0]])
S = np.array([[1.0, 2.0], [3.0, 5.0]])
R = np.array([[2.0, -1.0], [4.0, 3.0]])


def exercise_4(my: Any) -> None:
    same("Mul().forward, element by element", my.Mul().forward(S, R), S * R, {"the matrix product": S @ R})
    what = f"Mul of x = {S.tolist()}, y = {R.tolist()}"
    check_backward(what, my.Mul, [S, R], lambda dz: {"x dz: the two exchanged": S * dz, "y, without the factor dz": R})


def exercise_5(my: Any) -> None:
    def spread(dz: Any) -> dict[str, Any]:
        return {"dz spread along the wrong axis": np.broadcast_to(dz, S.shape)}

    for axis, keepdims in ((0, False), (1, False), (1, True), (None, False)):
        what = f"x = {S.tolist()}, Sum(axis={axis}, keepdims={keepdims})"
        want = np.asarray(S.sum(axis=axis, keepdims=keepdims))
        mistakes = {"the mean": S.mean(axis=axis), "the sum over all elements": np.asarray(S.sum())}
        same(f"{what}, forward", my.Sum(axis, keepdims).forward(S), want, mistakes)
        check_backward(what, partial(my.Sum, axis, keepdims), [S], spread)
    check_backward("x of shape (2, 3), axis 1", partial(my.Sum, 1, False), [A])


def exercise_6(my: Any) -> None:
    same("MatMul().forward", my.MatMul().forward(S, R), S @ R, {"the product of elements": S * R})

    def mistakes(dz: Any) -> dict[str, Any]:
        sides = {"a product with dz on the wrong side": dz @ S.T, "a product with y on the wrong side": R.T @ dz}
        return {"dz y, without ᵀ": dz @ R, "x dz, without ᵀ": S @ dz, **sides}

    check_backward(f"x = {S.tolist()}, y = {R.tolist()}", my.MatMul, [S, R], mistakes)
    check_backward("x of shape (2, 3), y of shape (3, 2)", my.MatMul, [A, B.T])
    stack = np.stack([S, R]), np.stack([R, 2 * S])
    check_backward("a stack of two matrices: shapes (2, 2, 2) and (2, 2, 2)", my.MatMul, stack)


def exercise_7(my: Any) -> None:
    x, grads, one = my.Tensor(np.zeros(2), True), my.GradStore(), np.array([1.0, 2.0])
    grads.add(x, one)
    same("grads.add(x, [1, 2]): grads[x]", grads[x], np.array([1.0, 2.0]))
    first = grads[x]
    grads.add(x, np.array([10.0, 10.0]))
    want = np.array([11.0, 12.0])
    same("add [1, 2], then [10, 10]: grads[x]", grads[x], want, {"only the last one": np.array([10.0, 10.0])})
    same(
        "add(x, a), then add(x, b): the array a of the caller, [1, 2], stays as it is",
        one,
        np.array([1.0, 2.0]),
        {"changed: the store shares its memory with the caller": want},
    )
    require(grads[x] is first, "the second add made a new array; it should add to the first in place")
    y, wide = my.Tensor(np.zeros(2), True), np.zeros((3, 2))
    refuses("a gradient of shape (3, 2) for a tensor of shape (2,)", ValueError, grads.add, y, wide)


def exercise_8(my: Any) -> None:
    class Total(my.Op):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            self.shape = x.shape
            return np.asarray(x.sum())

        def backward(self, dz: Any) -> Any:
            return np.broadcast_to(dz, self.shape)

    def of(*numbers: float) -> Any:
        return my.Tensor(np.array(numbers), True)

    x = my.Tensor(np.array(3.0), True)
    two = np.array(2.0)
    mistakes = {"wrong: the gradient of the loss by itself is 1, not the loss": np.array(12.0)}
    loss = x + x
    require(loss not in my.backward(loss), "loss = x + x\nthe result holds the loss: only leaves belong into it")
    same("x = 3, loss = x + x: the gradient of x", my.backward(loss)[x], two, mistakes)
    x = of(1.0, 2.0)
    y = x.tanh()
    grads = my.backward(Total()(y + y))
    same("loss = sum(y + y), y = tanh x, x = [1, 2]", grads[x], 2 - 2 * np.tanh([1.0, 2.0]) ** 2)
    require(y not in grads, "y = tanh x, loss = sum(y + y)\nthe result holds y: only leaves belong into it")
    x, row = my.Tensor(np.zeros((3, 2)), True), of(0.0, 0.0)
    got = my.backward(Total()(x + row))[row]
    same("x of shape (3, 2), row of shape (2,), loss = sum(x + row): the gradient of row", got, np.array([3.0, 3.0]))
    x, fixed = of(1.0), my.Tensor(np.array([1.0]))
    require(fixed not in my.backward(Total()(x + fixed)), "the result holds a tensor that needs no gradient")
    long = x
    for _ in range(5_000):
        long = long + fixed
    same("1 added to x 5,000 times: the gradient of x", my.backward(Total()(long))[x], np.array([1.0]))
    refuses("backward of a tensor of shape (1,)", ValueError, my.backward, x + x)
