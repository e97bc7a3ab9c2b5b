"""Prefetcher: the loader's order, its errors and its end, however far it is ahead."""

import gc
import threading
import time
import traceback
from typing import Any, NamedTuple

import numpy as np
import pytest
from refusals import raises

from minigrad import Tensor, device
from minigrad.data import EpochBatches, Prefetcher, RandomBatches, prefetch

WAIT = 10.0


def ended(thread: threading.Thread) -> bool:
    thread.join(WAIT)
    return not thread.is_alive()


class Counting:
    """0, 1, 2, ... of which it counts how many were asked for."""

    def __init__(self, n: int | None = None) -> None:
        self.n, self.made = n, 0
        self.changed = threading.Condition()

    def __iter__(self):
        while self.n is None or self.made < self.n:
            with self.changed:
                self.made += 1
                self.changed.notify_all()
            yield self.made - 1

    def wait_for(self, made: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.made >= made, WAIT)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_order_is_the_loaders_and_the_thread_ends(depth: int) -> None:
    ahead = Prefetcher(Counting(20), depth)
    assert list(ahead) == list(range(20))
    assert list(ahead) == [] and ended(ahead._thread)


def test_it_is_ahead_by_depth_batches_and_no_more() -> None:
    source = Counting()
    with Prefetcher(source, depth=3) as ahead:
        source.wait_for(4)  # three wait, and one has no room
        time.sleep(0.05)
        assert source.made == 4
        assert next(ahead) == 0
        source.wait_for(5)
        time.sleep(0.05)
        assert source.made == 5
    assert ended(ahead._thread)


def test_an_error_of_the_loader_comes_in_its_turn_with_its_traceback() -> None:
    def broken_loader():
        yield 0
        raise OSError("the disk is gone")

    ahead = Prefetcher(broken_loader())
    assert next(ahead) == 0
    for _ in range(2):  # and again, not a silent end
        caught = raises(OSError, "the disk is gone", next, ahead)
        assert "broken_loader" in "".join(traceback.format_exception(caught))
    assert ended(ahead._thread)


@pytest.mark.parametrize("way", ["close", "dropped", "exception"])
def test_no_thread_is_left_behind(way: str) -> None:
    ahead = Prefetcher(Counting())
    thread = ahead._thread
    assert next(ahead) == 0
    if way == "close":
        ahead.close()
        ahead.close()
        assert list(ahead) == []
    elif way == "exception":
        with pytest.raises(ZeroDivisionError), ahead:
            raise ZeroDivisionError
    else:
        del ahead
        gc.collect()
    assert ended(thread)


def test_its_state_is_that_of_the_batch_it_gave_last() -> None:
    def make() -> EpochBatches:
        return EpochBatches(np.arange(101), batch_size=2, block_size=5, seed=1)

    wanted = [x.tobytes() for x, _ in make()]
    ahead = Prefetcher(make(), depth=4)
    assert ahead.state_dict() == make().state_dict()
    begun = [next(ahead)[0].tobytes() for _ in range(3)]
    resumed = make()
    resumed.load_state_dict(ahead.state_dict())
    ahead.close()
    assert resumed.position == 3
    assert begun + [x.tobytes() for x, _ in resumed] == wanted
    raises(RuntimeError, "have no state_dict", lambda: Prefetcher(Counting(1)).state_dict())


class Pair(NamedTuple):
    x: Any
    y: Any


def test_with_a_device_arrays_arrive_as_tensors() -> None:
    array = np.arange(3.0)
    batches = [array, (array, Tensor(array)), Pair(array, "name"), {"x": [array, 3]}]
    first, second, third, fourth = Prefetcher(batches, device="cpu")
    for got in (first, *second, third.x, fourth["x"][0]):
        assert isinstance(got, Tensor) and got.tolist() == [0.0, 1.0, 2.0]
    assert isinstance(third, Pair) and third.y == "name" and fourth["x"][1] == 3
    assert prefetch.to_device("name", device.Device("cpu")) == "name"


def test_what_is_refused_at_once() -> None:
    for depth in (0, True, 1.5):
        raises(ValueError, "depth is .*, expected an integer >= 1", lambda depth=depth: Prefetcher([], depth))
    by_step = r"RandomBatches is not iterable; give it \(batches.batch\(step\) for"
    raises(TypeError, by_step, lambda: Prefetcher(RandomBatches(np.arange(100), 2, 4, seed=1)))  # type: ignore[arg-type]
    raises(TypeError, "not iterable", lambda: Prefetcher(3))  # type: ignore[arg-type]
