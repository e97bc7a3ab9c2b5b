"""The checks of chapter 10."""

from typing import Any

import numpy as np

from ..exercise import require, same


def exercise_1(my: Any) -> None:
    cases = [([[1.0, 2.0]], 2.0, [1.0, 0.0]), ([[1.0, 3.0], [3.5, 1.0]], 6.5, [2.0, 2.5]),
             ([[1.0, 1.0, 4.0], [1.0, 5.0, 1.0]], 9.0, [7.0, 3.0, 4.0])]  # fmt: skip
    for times, total, waited in cases:
        what, got = f"lockstep({times})", my.lockstep(times)
        require(isinstance(got, tuple) and len(got) == 2, f"{what}\nexpected the seconds and a list, got {got!r}")
        same(f"{what}: the seconds", float(got[0]), total)
        same(f"{what}: the waiting", np.array(got[1]), np.array(waited))


def exercise_2(my: Any) -> None:
    cases = [([1.0, 1.0], 4, [2, 2]), ([3.0, 1.0], 8, [6, 2]), ([1.0, 1.0], 3, [2, 1]), ([1.0, 1.0, 1.0], 8, [3, 3, 2]),
             ([2.0, 1.0], 10, [7, 3]), ([10.0, 1.0, 1.0], 5, [4, 1, 0]), ([1.4, 1.4, 7.2], 10, [2, 1, 7])]  # fmt: skip
    for speeds, batch, want in cases:
        what, got = f"shares({speeds}, {batch})", list(my.shares(speeds, batch))
        require(sum(got) == batch, f"{what}\nexpected {want}\ngot      {got}\nthey add up to {sum(got)}, not {batch}")
        same(what, np.array(got), np.array(want))


def exercise_3(my: Any) -> None:
    true, speeds = [5.0, 2.0, 1.0], [0.0, 0.0, 0.0]
    for step in range(30):
        true = [5.0, 2.0, 1.0] if step < 15 else [1.0, 2.0, 5.0]
        sizes = my.shares(speeds if step else [1.0] * 3, 80)
        speeds = my.measured(speeds, sizes, [n / v for n, v in zip(sizes, true)])
    what = "devices with speeds 5, 2, 1 that become 1, 2, 5 after 15 steps; after 15 more, the estimates"
    same(what, np.array(speeds), np.array(true), tolerance=0.02)


def exercise_4(my: Any) -> None:
    for batches in ([1, 1], [3, 1], [8, 2, 2]):
        weights = [np.array([1.0, 2.0]) * 10.0**k for k in range(len(batches))]
        kept = [w.copy() for w in weights]
        want = np.average(kept, 0, batches)
        what = f"weights {[w.tolist() for w in kept]}, after {batches} batches"
        same(what, my.local_average(weights, batches), want)
        require(all(map(np.array_equal, weights, kept)), f"{what}\nthe weights of a device were changed")
