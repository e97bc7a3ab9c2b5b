"""Batches by epochs: every window once, an order per epoch, exact resume."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import raises

from minigrad.data import DataError, EpochBatches, EpochSampler


@given(st.integers(2, 200), st.integers(1, 7), st.integers(1, 9), st.booleans())
def test_batches_are_the_windows_that_the_sampler_chooses(n, batch_size, block_size, drop_last):
    windows, sizes = (n - 1) // block_size, (np.arange(n, dtype=np.uint16), batch_size, block_size, 3, drop_last)
    if windows < (batch_size if drop_last else 1):
        raises(DataError, "training part|drop_last", lambda: EpochBatches(*sizes))
        return
    batches, sampler = EpochBatches(*sizes), EpochSampler(windows, batch_size, 3, drop_last)
    assert len(batches) == len(sampler)
    for epoch in range(2):
        assert (batches.epoch, batches.position) == (epoch, 0)
        for (x, y), chosen in zip(batches, sampler, strict=True):
            assert x.dtype == y.dtype == np.int64 and x.flags.c_contiguous and y.flags.c_contiguous
            np.testing.assert_array_equal(x, chosen[:, None] * block_size + np.arange(block_size))
            np.testing.assert_array_equal(y, x + 1)


def test_the_order_depends_on_seed_and_epoch_only():
    def orders(seed):
        sampler = EpochSampler(100, 4, seed)
        return [np.concatenate(list(sampler)).tolist() for _ in range(3)]

    assert orders(7) == orders(7) and len({str(order) for order in orders(7) + orders(8)[:1]}) == 4


def test_after_the_last_batch_of_an_epoch_the_next_epoch_follows():
    batches = EpochBatches(np.arange(21), 2, 5, seed=0)
    assert len(list(batches)) == 2
    assert (batches.epoch, batches.position) == (1, 0)
    assert [epoch for epoch in range(batches.epoch, 3) for _ in batches] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "the state is of seed 4, here it is 3"),
        ({"samples": 9}, "samples 9"),
        ({"block_size": 6}, "block_size 6"),
        ({"drop_last": 0}, "drop_last 0"),
        ({"position": 4}, r"position 4 is not in \[0, 4\)"),
        ({"position": True}, "position True"),
        ({"epoch": -1}, "-1 is not the number of an epoch"),
        ({"epoch": "1"}, "'1' is not the number"),
        ({"more": 1}, "not the state of an EpochBatches"),
    ],
)
def test_a_foreign_state_is_refused(change, message):
    batches = EpochBatches(np.arange(41), 2, 5, seed=3)
    before = batches.state_dict()
    raises(DataError, message, lambda: batches.load_state_dict({**before, **change}))
    raises(DataError, "not the state", lambda: batches.load_state_dict({"epoch": 0, "position": 0}))
    assert batches.state_dict() == before
