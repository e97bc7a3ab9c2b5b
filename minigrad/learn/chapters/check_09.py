"""The checks of chapter 9."""

import math
from typing import Any

import numpy as np

from ..exercise import Array, require, same
from ..ranks import World, run


def arrays(size: int, length: int) -> list[Array]:
    """An array for each rank: 1, 2, ...; 10, 20, ...; 100, 200, ..."""
    return [np.arange(1.0, length + 1) * 10.0**number for number in range(size)]


def each(what: str, got: list[Any], want: list[Any]) -> None:
    """Compare what each rank returned."""
    for number, (mine, wanted) in enumerate(zip(got, want)):
        same(f"{what}: rank {number}", mine, wanted)


def exercise_1(my: Any) -> None:
    for size, root in ((1, 0), (2, 0), (2, 1), (3, 0), (8, 0), (8, 5)):
        world, given = World(size), arrays(size, 2)
        what = f"{size} ranks, broadcast from rank {root} (a last round may be too small for all to send)"
        each(what, run(what, world, my.broadcast, given, [root] * size), [given[root]] * size)
        took, rounds = max(rank.now for rank in world.ranks), math.ceil(math.log2(size))
        require(took <= rounds, f"{what}\nit took {took:g} rounds, {rounds} are enough: who has it should help")


def traffic(what: str, world: World, most: int, why: str = "one part in each step, and not the whole array") -> None:
    """No rank sends more than its share, and to none but its neighbour on the right."""
    for rank in world.ranks:
        require(rank.sent <= most, f"{what}\nrank {rank.number} sent {rank.sent} bytes, {most} are enough: {why}")
        right = (rank.number + 1) % rank.size
        for to in world.reached[rank.number] - {right}:
            require(False, f"{what}\nrank {rank.number} sent to rank {to}; in the ring it sends to rank {right} only")


def exercise_2(my: Any) -> None:
    for size, length in ((1, 2), (2, 2), (3, 3), (3, 7), (4, 8)):
        world, given = World(size), arrays(size, length)
        what = f"{size} ranks, arrays of {length} numbers, rank 0 has 1, 2, ..., rank 1 has 10, 20, ...: reduce_scatter"
        kept = [array.copy() for array in given]
        got = run(what, world, my.reduce_scatter, given)
        traffic(what, world, 8 * (length - length // size))
        each(what, got, np.array_split(np.sum(kept, 0), size))
        require(all(map(np.array_equal, given, kept)), f"{what}\nthe array that was given was changed; add to a copy")


def exercise_3(my: Any) -> None:
    for size in (1, 2, 3, 4):
        world, parts = World(size), [part[: 1 + k % 2] for k, part in enumerate(arrays(size, 2))]
        what = f"{size} ranks, rank 0 has [1], rank 1 has [10, 20], rank 2 has [100], ...: all_gather"
        each(what, run(what, world, my.all_gather, parts), [np.concatenate(parts)] * size)
        traffic(what, world, 16 * (size - 1))


def exercise_4(my: Any) -> None:
    for samples in ([1, 1], [3, 1], [5, 2, 1]):
        size = len(samples)
        gradients = arrays(size, 2)
        want = np.average(gradients, 0, samples)
        what = f"{size} ranks with {samples} samples and the gradients {[g.tolist() for g in gradients]}"
        kept = [gradient.copy() for gradient in gradients]
        each(what, run(what, World(size), my.average, gradients, samples), [want] * size)
        same(f"{what}: the gradients that were given, afterwards", np.array(gradients), np.array(kept))


def exercise_7(my: Any) -> None:
    for size, length in ((2, 2), (3, 7)):
        world, gradients = World(size), arrays(size, length)
        weights, rate = np.arange(length) / 1.0, 0.5
        mean, state = np.mean(gradients, 0), np.full(length, 2.0)
        parts = [part.copy() for part in np.array_split(state, size)]
        state = 0.9 * state + mean
        what = f"{size} ranks, {length} weights 0, 1, ..., momentum 2, gradients 1, 2, ... and 10, 20, ..., rate 0.5"
        given = [weights.copy() for _ in range(size)]
        got = run(what, world, my.sharded_step, given, gradients, parts, [rate] * size)
        kept = all(np.array_equal(mine, weights) for mine in given)
        require(kept, f"{what}\nthe weights that were given were changed; return new ones")
        each(f"{what}: new weights", got, [weights - rate * state] * size)
        each(f"{what}: momentum", parts, np.array_split(state, size))
        why = "each part of the gradients once round the ring, and each part of the weights; an all_reduce is more"
        traffic(what, world, 16 * (length - length // size), why)


def exercise_8(my: Any) -> None:
    for fine in ([False, False], [True, True], [True, False], [False, False, True]):
        what = f"agree, ranks that are fine: {fine}; all of them have to take part in each collective"
        got = list(map(bool, run(what, World(len(fine)), my.agree, fine)))
        require(len(set(got)) == 1, f"{what}\nthe ranks disagree: {got}; some would do the step, some not")
        same(f"{what}: what each says", got, [all(fine)] * len(fine))
