"""The checks of chapter 10."""

from typing import Any

import numpy as np

from ..exercise import require, same


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
