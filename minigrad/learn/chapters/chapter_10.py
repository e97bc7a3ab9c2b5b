"""Chapter 10: unequal devices. A fast and a slow machine train one model, and neither waits for the other."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def lockstep(times: Sequence[Sequence[float]]) -> tuple[float, list[float]]:
    """What steps cost in which all devices wait for each other: the seconds of all, and how long each device waited.

    ``times[step][device]``: how long a device computed in a step. All begin the next step together, when the last one
    has ended this step.
    """
    total = 0.0
    waited = [0.0] * len(times[0])
    for step in times:
        slowest = max(step)
        total += slowest
        for device, seconds in enumerate(step):
            waited[device] += slowest - seconds
    return total, waited


def shares(speeds: Sequence[float], batch: int) -> list[int]:
    """A batch of samples divided among devices in proportion to their speeds: whole numbers that add up to ``batch``.

    Each device gets its exact share, rounded down. What is left goes to those whose share was cut the most, one sample
    each; of two that were cut alike, to the first.
    """
    exact = [batch * speed / sum(speeds) for speed in speeds]
    found = [math.floor(share) for share in exact]
    by_loss = sorted(range(len(speeds)), key=lambda device: found[device] - exact[device])
    for device in by_loss[: batch - sum(found)]:
        found[device] += 1
    return found


def measured(speeds: Sequence[float], sizes: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Better estimates of the speeds (samples in a second), after a step in which each device did ``sizes`` samples.

    A new estimate is 0.7 times the old one plus 0.3 times what was measured. An old one of 0 means that nothing is
    known yet: then what was measured counts alone. A device that did nothing keeps its estimate.
    """
    found = []
    for old, size, time in zip(speeds, sizes, seconds):
        if size == 0:
            found.append(old)
        else:
            found.append(0.7 * old + 0.3 * size / time if old else size / time)
    return found


def local_average(weights: Sequence[Any], batches: Sequence[int]) -> Any:
    """One model from those of several devices: the mean of their weights, each counting as much as its batches."""
    total = np.zeros_like(weights[0])
    for mine, count in zip(weights, batches):
        total += mine * (count / sum(batches))
    return total


def column(seconds: Sequence[float], anchor: int) -> list[int]:
    """How many batches each device does between two averagings, so that all arrive at the same time, or nearly so.

    ``seconds``: what a batch takes on each device. The slowest device does ``anchor`` batches, and the others as many
    as they can in that time, to the nearest whole number, halves up, but at least 1.
    """
    slowest = max(seconds)
    return [max(1, math.floor(anchor * slowest / mine + 0.5)) for mine in seconds]


def next_anchor(anchor: int, computing: float, averaging: float, target: float) -> int:
    """How many batches the slowest device should do before the next averaging.

    ``computing`` and ``averaging`` are the seconds of the last round. If averaging took more than ``target`` times the
    computing, the anchor grows in the same proportion, rounded up. If it took less than half of that, it shrinks by 1,
    but not below 1. Otherwise it stays.
    """
    overhead = averaging / computing
    if overhead > target:
        return math.ceil(anchor * overhead / target)
    if overhead < target / 2:
        return max(1, anchor - 1)
    return anchor


def waiting(spans: Sequence[tuple[float, float]], end: float) -> float:
    """The seconds from 0 to ``end`` in which a device did nothing.

    ``spans`` are the (start, stop) of what it did, in any order. Some overlap: it can compute and communicate at once.
    One may go on after ``end``, or begin there: only what is before counts.
    """
    idle, busy_until = 0.0, 0.0
    for start, stop in sorted(spans):
        idle += max(0.0, min(start, end) - busy_until)
        busy_until = max(busy_until, stop)
    return idle + max(0.0, end - busy_until)
