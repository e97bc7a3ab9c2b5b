"""Chapter 9: data parallel. Many machines train one model: collectives made of send and recv, and a step on top."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def broadcast(rank: Any, array: Any, root: int) -> Any:
    """Every rank returns the array of rank ``root``. In each round all who have it send it, each to one who has not.

    So ranks that are there double from round to round, and 8 ranks need 3 rounds.
    """
    place = (rank.number - root) % rank.size
    distance = 1
    while distance < rank.size:
        if place < distance and place + distance < rank.size:
            rank.send((rank.number + distance) % rank.size, array)
        elif distance <= place < 2 * distance:
            array = rank.recv((rank.number - distance) % rank.size)
        distance *= 2
    return array  # given


def all_reduce(rank: Any, array: Any) -> Any:
    """Every rank returns the sum of all ranks' arrays, once the two below are written."""
    return all_gather(rank, reduce_scatter(rank, array))


def reduce_scatter(rank: Any, array: Any) -> Any:
    """Rank r returns part r of the sum of all ranks' arrays; ``np.array_split(array, rank.size)`` are the parts.

    In a ring: in each of size - 1 steps every rank sends one part to the rank on its right, number + 1, and adds what
    comes from its left to its own. The array that was given stays as it is.
    """
    size, me = rank.size, rank.number  # given
    parts = [part.copy() for part in np.array_split(array, size)]
    for step in range(size - 1):
        rank.send((me + 1) % size, parts[(me - step - 1) % size])
        parts[(me - step - 2) % size] += rank.recv((me - 1) % size)
    return parts[me]


def all_gather(rank: Any, part: Any) -> Any:
    """Every rank returns the parts of all ranks, one after the other, in the order of the ranks. In the same ring."""
    size, me = rank.size, rank.number  # given
    parts = [part] * size
    for step in range(size - 1):
        rank.send((me + 1) % size, parts[(me - step) % size])
        parts[(me - step - 1) % size] = rank.recv((me - 1) % size)
    return np.concatenate(parts)


def average(rank: Any, gradient: Any, samples: int) -> Any:
    """The gradient of the mean loss over the samples of all ranks.

    ``gradient`` (1-D) is that of the mean over this rank's own ``samples``. Ranks may have different numbers of them.
    """
    total = all_reduce(rank, np.append(gradient * samples, float(samples)))
    return total[:-1] / total[-1]


def buckets(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """The numbers of the parameters, 0, 1, ..., in groups that are sent together, in the order in which they are sent.

    ``sizes`` are the parameters' bytes. Backward finishes their gradients from the last to the first. A group takes the
    next one as long as it has at most ``limit`` bytes; one that is larger is a group of its own.
    """
    found: list[list[int]] = []  # given
    room = 0
    for number in reversed(range(len(sizes))):
        if not found or sizes[number] > room:
            found.append([])
            room = limit
        found[-1].append(number)
        room -= sizes[number]
    return found  # given


def overlap(ready: Sequence[float], lasts: Sequence[float]) -> list[tuple[float, float]]:
    """When the communication of each bucket begins and ends. There is one at a time, in the order given.

    ``ready``: when backward has finished a bucket's gradients. ``lasts``: how long its communication takes.
    """
    found = []  # given
    free = 0.0
    for begin, seconds in zip(ready, lasts):
        start = max(begin, free)
        free = start + seconds
        found.append((start, free))
    return found  # given


def sharded_step(rank: Any, weights: Any, gradient: Any, momentum: Any, rate: float) -> Any:
    """The new weights, on every rank: one step with momentum, of the mean of the ranks' gradients, all counted alike.

    momentum = 0.9 momentum + gradient; weights = weights - rate momentum. Each rank keeps the momentum of its own part
    only (``np.array_split``, part ``rank.number``), and updates it in place. It moves that part of the weights, and
    gets the others from their ranks.
    """
    mine = reduce_scatter(rank, gradient) / rank.size
    momentum *= 0.9
    momentum += mine
    return all_gather(rank, np.array_split(weights, rank.size)[rank.number] - rate * momentum)


def agree(rank: Any, fine: bool) -> bool:
    """Whether *all* ranks are fine; every rank returns the same, so all do the step or all leave it out."""
    troubles = all_reduce(rank, np.array([0.0 if fine else 1.0]))
    return bool(troubles[0] == 0)
