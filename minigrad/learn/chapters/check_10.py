"""The checks of chapter 10."""

from typing import Any

import numpy as np

from ..exercise import require, same


def exercise_1(my: Any) -> None:
    cases = [([[1.0, 2.0]], 2.0, [1.0, 0.0]), ([[1.0, 3.0], [2.0, 1.0]], 5.0, [2.0, 1.0]),
             ([[1.0, 1.0, 4.0], [1.0, 5.0, 1.0]], 9.0, [7.0, 3.0, 4.0])]  # fmt: skip
    for times, total, waited in cases:
        what, got = f"lockstep({times})", my.lockstep(times)
        require(isinstance(got, tuple) and len(got) == 2, f"{what}\nexpected the seconds and a list, got {got!r}")
        sums = np.sum(times, 0)
        mistakes = {"the largest sum of a device: but the slowest changes, and each step waits for its own": sums.max(),
                    "the sum of all work": sums.sum()}  # fmt: skip
        same(f"{what}: the seconds", float(got[0]), total, mistakes)
        same(f"{what}: the waiting", np.array(got[1]), np.array(waited), {"the working, not the waiting": sums})


def exercise_2(my: Any) -> None:
    cases = [([1.0, 1.0], 4, [2, 2]), ([3.0, 1.0], 8, [6, 2]), ([1.0, 1.0], 3, [2, 1]), ([1.0, 1.0, 1.0], 8, [3, 3, 2]),
             ([2.0, 1.0], 10, [7, 3]), ([10.0, 1.0, 1.0], 5, [4, 1, 0]), ([1.4, 1.4, 7.2], 10, [2, 1, 7])]  # fmt: skip
    for speeds, batch, want in cases:
        what, got = f"shares({speeds}, {batch})", list(my.shares(speeds, batch))
        require(sum(got) == batch, f"{what}\nexpected {want}\ngot      {got}\nthey add up to {sum(got)}, not {batch}")
        same(what, np.array(got), np.array(want), {"the same for all": np.array([batch / len(speeds)] * len(speeds))})


def exercise_3(my: Any) -> None:
    cases = [
        ([0.0, 0.0], [8, 8], [2.0, 4.0], [4.0, 2.0]), ([4.0], [8], [4.0], [3.4]),
        ([4.0, 2.0], [8, 0], [2.0, 0.0], [4.0, 2.0]),
    ]  # fmt: skip
    for speeds, sizes, seconds, want in cases:
        what = f"measured({speeds}, {sizes}, {seconds})"
        now = np.array([n / t if n else 0.0 for n, t in zip(sizes, seconds)])
        mistakes = {
            "what was measured, without the old estimate: one hiccup and all shares jump": now,
            "0.7 of an estimate that did not exist": 0.3 * now + 0.7 * np.array(speeds),
            "the seconds of a sample, not the samples of a second": 1 / np.where(now > 0, now, 1.0),
        }
        same(what, np.array(my.measured(speeds, sizes, seconds)), np.array(want), mistakes)
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
        mistakes = {"each device counting the same": np.mean(kept, 0), "a sum, not a mean": want * sum(batches)}
        same(what, my.local_average(weights, batches), want, mistakes)
        require(all(map(np.array_equal, weights, kept)), f"{what}\nthe weights of a device were changed")


def exercise_5(my: Any) -> None:
    cases = [([1.0, 1.0], 3, [3, 3]), ([1.0, 2.0], 3, [6, 3]), ([1.0, 4.0, 2.0], 1, [4, 1, 2]), ([2.0, 3.0], 1, [2, 1]),
             ([2.0, 5.0], 1, [3, 1]), ([9.0, 10.0], 1, [1, 1]), ([1.0, 2.5], 2, [5, 2])]  # fmt: skip
    for seconds, anchor, want in cases:
        mistakes = {
            "the slow device doing more": np.rint(anchor * np.array(seconds) / min(seconds)),
            "anchor batches of the fastest, not of the slowest": np.rint(anchor * min(seconds) / np.array(seconds)),
        }
        same(f"column({seconds}, {anchor})", np.array(my.column(seconds, anchor)), np.array(want), mistakes)


def exercise_6(my: Any) -> None:
    cases = [((4, 8.0, 1.0, 0.125), 4), ((4, 8.0, 2.0, 0.125), 8), ((4, 8.0, 1.1, 0.125), 5), ((4, 8.0, 0.4, 0.125), 3),
             ((1, 8.0, 0.1, 0.125), 1), ((4, 8.0, 0.5, 0.125), 4)]  # fmt: skip
    for given, want in cases:
        got = my.next_anchor(*given)
        what = "anchor {}, computing {}, averaging {}, target {}".format(*given)
        what += f": averaging took {given[2] / given[1]:g} of the computing"
        require(got == want, f"{what}\nexpected {want}, got {got}")


def exercise_7(my: Any) -> None:
    cases = [([(0.0, 4.0)], 4.0, 0.0), ([(1.0, 2.0)], 4.0, 3.0), ([(2.0, 3.0), (0.0, 1.0)], 3.0, 1.0),
             ([(0.0, 3.0), (2.0, 4.0)], 5.0, 1.0), ([(0.0, 9.0), (1.0, 2.0), (3.0, 4.0)], 10.0, 1.0),
             ([], 2.0, 2.0)]  # fmt: skip
    for spans, end, want in cases:
        mistakes = {
            "end minus all that was done: what overlaps is counted twice": end - sum(b - a for a, b in spans),
            "without the time after the last": want - end + max([b for _, b in spans], default=0.0),
            "without the time before the first": want - min([a for a, _ in spans], default=0.0),
        }
        got = float(my.waiting(list(spans), end))
        same(f"waiting({spans}, {end})", got, want, mistakes)
