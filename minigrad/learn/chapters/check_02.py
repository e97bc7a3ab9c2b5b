"""The checks of chapter 2."""

from functools import partial
from typing import Any

import numpy as np

from ..exercise import check_backward, refuses, require, same


def exercise_2(my: Any) -> None:
    asked = []

    class Watched(my.Number):  # type: ignore[misc]
        def parents(self) -> Any:
            asked.append(self)
            visits = (
                "each number is the sum of the one before and itself, 30 in a row: parents() was called 100,000 times"
            )
            require(len(asked) < 100_000, f"{visits}\nwhat was found before is visited again")
            return super().parents()

    def made(value: int, *parents: Any) -> Any:
        return Watched(value, *[(parent, 1.0) for parent in parents])

    def values(end: Any) -> list[int]:
        return [vertex.value for vertex in my.newest_first(end)]

    y = made(1, x := made(0))
    same("2 was made from 1, and 1 from 0: newest_first of 2", values(z := made(2, y)), [2, 1, 0])
    same("the same, and 3 made from 0 and 2: newest_first of 3", values(made(3, x, z)), [3, 2, 1, 0])
    p, q = made(5), made(1)
    what = "5 was made, then 1, then 9 from 1, then 3 from 5 and 9 (newest by `number`): newest_first of 3"
    same(what, values(made(3, p, made(9, q))), [3, 9, 1, 5])
    tower = chain = x
    for value in range(1, 30):
        tower = made(value, tower, tower)
    same("30 numbers in a row: how many come out", len(values(tower)), 30)
    for value in range(20_000):
        chain = made(value, chain)
    try:
        values(chain)
    except RecursionError:
        require(False, "a chain of 20,000 vertices is longer than Python's stack: no function may call itself here")


A = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
B = np.array([[2.0, -1.0, 0.5], [3.0, 7.0, -2.0]])
S = np.array([[1.0, 2.0], [3.0, 5.0]])
R = np.array([[2.0, -1.0], [4.0, 3.0]])


def exercise_4(my: Any) -> None:
    same("Mul().forward, element by element", my.Mul().forward(S, R), S * R)
    check_backward(f"Mul of x = {S.tolist()}, y = {R.tolist()}", my.Mul, [S, R])
    same(f"Tanh of {B.tolist()}", my.Tanh().forward(B), np.tanh(B))
    check_backward(f"Tanh of {B.tolist()}", my.Tanh, [B])


def exercise_5(my: Any) -> None:
    for axis, keepdims in ((0, False), (1, False), (1, True), (None, False), (None, True)):
        what = f"x = {S.tolist()}, Sum(axis={axis}, keepdims={keepdims})"
        want = np.asarray(S.sum(axis=axis, keepdims=keepdims))
        same(f"{what}, forward", my.Sum(axis, keepdims).forward(S), want)
        check_backward(what, partial(my.Sum, axis, keepdims), [S])
    for axis in (1, -1):
        check_backward(f"x of shape (2, 2, 2), axis {axis}", partial(my.Sum, axis, False), [np.stack([S, R])])
    check_backward("x of shape (2, 3), axis 1", partial(my.Sum, 1, False), [A])


def exercise_6(my: Any) -> None:
    same("MatMul().forward", my.MatMul().forward(S, R), S @ R)
    check_backward(f"x = {S.tolist()}, y = {R.tolist()}", my.MatMul, [S, R])
    check_backward("x of shape (2, 3), y of shape (3, 2)", my.MatMul, [A, B.T])
    stack = np.stack([S, R]), np.stack([R, 2 * S])
    check_backward("a stack of two matrices: shapes (2, 2, 2) and (2, 2, 2)", my.MatMul, stack)


def exercise_7(my: Any) -> None:
    x, grads, one = my.Tensor(np.zeros(2), True), my.GradStore(), np.array([1.0, 2.0])
    grads.add(x, one)
    same("grads.add(x, [1, 2]): grads[x]", grads[x], np.array([1.0, 2.0]))
    first = grads[x]
    grads.add(x, np.array([10.0, 10.0]))
    same("add [1, 2], then [10, 10]: grads[x]", grads[x], np.array([11.0, 12.0]))
    same("add(x, a), then add(x, b): the caller's array a, [1, 2], stays as it is", one, np.array([1.0, 2.0]))
    require(grads[x] is first, "the second add made a new array; it should add to the first in place")
    single = my.Tensor(np.zeros(()), True)
    for _ in range(2):
        grads.add(single, np.float64(2.0))
    same(
        "add(x, np.float64(2)), twice, for x of shape (): grads[x] (np.array makes an array)",
        grads[single],
        np.array(4.0),
    )
    for shape in ((3, 2), (2, 1), (3,), ()):
        what = f"a gradient of shape {shape} for a tensor of shape (2,)"
        refuses(what, ValueError, grads.add, my.Tensor(np.zeros(2), True), np.zeros(shape))


def exercise_8(my: Any) -> None:
    x, two = my.Tensor(np.array(3.0), True), np.array(2.0)
    loss = x + x
    require(loss not in my.backward(loss), "loss = x + x\nthe result holds the loss: only leaves belong into it")
    same("x = 3, loss = x + x: the gradient of x", my.backward(loss)[x], two)
    y = x.tanh()
    same("x = 3, y = tanh x, loss = y + y: the gradient of x", my.backward(y + y)[x], 2 - 2 * np.tanh([3.0])[0] ** 2)
    x, row, fixed = my.Tensor(np.zeros((3, 2)), True), my.Tensor(np.zeros(2), True), my.Tensor(np.zeros(2))
    grads = my.backward((x + row + fixed).sum())
    what = "x of shape (3, 2), row of shape (2,), loss = sum(x + row): the gradient of row"
    same(what, grads[row], np.array([3.0, 3.0]))
    require(fixed not in grads, "the result holds a tensor that needs no gradient")
    what = "loss = 5 x, where 5 needs no gradient: the gradient of x"
    same(what, my.backward(my.Tensor(np.array(5.0)) * (x := my.Tensor(np.array(1.0), True)))[x], np.array(5.0))
    long = x = my.Tensor(np.array(1.0), True)
    for _ in range(5_000):
        long = long + fixed.sum()
    same("0 added to x 5,000 times: the gradient of x", my.backward(long)[x], np.array(1.0))
    for end in (row + row, row.reshape(2, 1).sum(0)):
        refuses(f"backward of a tensor of shape {end.shape}", ValueError, my.backward, end)
