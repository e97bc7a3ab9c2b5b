"""The checks of chapter 1."""

from typing import Any

import numpy as np

from ..exercise import refuses, require, same


def counting(my: Any, *shape: int) -> tuple[Any, Any]:
    """A view of 0, 1, 2, ... row by row, and the same as an array."""
    x = np.arange(int(np.prod(shape))).reshape(shape)
    return my.View(list(range(x.size)), shape, tuple(stride // x.itemsize for stride in x.strides)), x


def sees(what: str, my: Any, view: Any, got: Any, want: Any) -> None:
    """Compare what a view shows, and require that it shares the memory."""
    require(isinstance(got, my.View), f"{what}\nexpected a View\ngot      {got!r}")
    same(f"{what}: its shape", got.shape, want.shape)
    ways = [s * (n - 1) for n, s in zip(got.shape, got.strides)]
    lowest, highest = got.start + sum(w for w in ways if w < 0), got.start + sum(w for w in ways if w > 0)
    outside = f"{what}\nstart {got.start} and strides {got.strides} lead outside of the memory: they move with the axes"
    require(lowest >= 0 and highest < len(got.memory), outside)
    same(what, got.tolist(), want.tolist())
    require(got.memory is view.memory, f"{what}\nthe elements were copied; a view shares the memory")


def exercise_3(my: Any) -> None:
    view, x = counting(my, 2, 3)
    what = "transposed(view, (1, 0)) of [[0, 1, 2], [3, 4, 5]] (shape and strides move together)"
    sees(what, my, view, my.transposed(view, (1, 0)), x.T)
    view, x = counting(my, 2, 3, 4)
    got = my.transposed(view, (1, 2, 0))
    sees("transposed(view, (1, 2, 0)) of shape (2, 3, 4)", my, view, got, x.transpose(1, 2, 0))
    later, x = my.View(list(range(7)), (2, 3), (3, 1), 1), np.arange(1, 7).reshape(2, 3)
    what = "transposed(view, (1, 0)) of a view with start 1, which stays"
    sees(what, my, later, my.transposed(later, (1, 0)), x.T)


def exercise_4(my: Any) -> None:
    row, x = counting(my, 5)
    for first, step in ((1, 1), (1, 2), (0, 2), (4, -1), (3, -2)):
        what = f"sliced(view, 0, {first}, {step}) of [0, 1, 2, 3, 4]"
        got, want = my.sliced(row, 0, first, step), x[first::step]
        note = "lengths are rounded up" if step > 0 else "place 0 counts, too"
        same(f"{what}: its shape ({note})", got.shape, want.shape)
        sees(what, my, row, got, want)
    later = my.View(row.memory, (2,), (2,), 1)
    what = "a view [1, 3] with start 1 and stride 2, sliced(view, 0, 1, 1): the start counts, too"
    sees(what, my, row, my.sliced(later, 0, 1, 1), np.array([3]))
    view, x = counting(my, 3, 4)
    sees("sliced(view, 1, 3, -2) of shape (3, 4)", my, view, my.sliced(view, 1, 3, -2), x[:, 3::-2])
    sees("sliced(view, 0, 0, 2) of shape (3, 4)", my, view, my.sliced(view, 0, 0, 2), x[::2])


def exercise_6(my: Any) -> None:
    row, x = counting(my, 3)
    got = my.broadcast(row, (2, 3))
    same("broadcast(view, (2, 3)) of [0, 1, 2]: its strides (a repeated axis has stride 0)", got.strides, (0, 1))
    sees("broadcast(view, (2, 3)) of [0, 1, 2]", my, row, got, np.broadcast_to(x, (2, 3)))
    column, _ = counting(my, 3, 1)
    got = my.broadcast(column, (3, 2))
    same("broadcast(view, (3, 2)) of [[0], [1], [2]]: its strides (a repeated axis has stride 0)", got.strides, (1, 0))
    later = my.View(row.memory, (1,), (1,), 2)
    sees("broadcast(view, (2,)) of [2]: start 2, which stays", my, row, my.broadcast(later, (2,)), np.array([2, 2]))
    for shape in ((2,), (3, 2), (1,)):
        refuses(f"broadcast(view, {shape}) of [0, 1, 2]", ValueError, my.broadcast, row, shape)
