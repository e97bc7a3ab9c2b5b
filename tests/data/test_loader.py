"""Batches by epochs: every window once, an order per epoch, exact resume."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import raises

from minigrad.data import DataError, EpochBatches


def starts(batches):
    return [x[:, 0].tolist() for x, _ in batches]


@given(st.integers(2, 200), st.integers(1, 7), st.integers(1, 9), st.booleans())
def test_every_window_once_per_epoch(n, batch_size, block_size, drop_last):
    windows = (n - 1) // block_size
    if windows < (batch_size if drop_last else 1):
        with pytest.raises(DataError, match="training part|drop_last"):
            EpochBatches(np.arange(n), batch_size, block_size, 3, drop_last)
        return
    batches = EpochBatches(np.arange(n, dtype=np.uint16), batch_size, block_size, 3, drop_last)
    for epoch in range(2):
        assert (batches.epoch, batches.position) == (epoch, 0)
        found = list(batches)
        assert len(found) == len(batches) == (windows // batch_size if drop_last else -(-windows // batch_size))
        seen = sorted(itertools.chain.from_iterable(x[:, 0].tolist() for x, _ in found))
        assert len(set(seen)) == len(seen) == (windows // batch_size * batch_size if drop_last else windows)
        assert set(seen) <= set(range(0, windows * block_size, block_size))
        for x, y in found:
            assert x.dtype == y.dtype == np.int64
            assert x.flags.c_contiguous and y.flags.c_contiguous
            np.testing.assert_array_equal(x, x[:, :1] + np.arange(block_size))
            np.testing.assert_array_equal(y, x + 1)
        assert all(len(x) == batch_size for x, _ in found[: len(found) - (not drop_last)])


def test_the_order_depends_on_seed_and_epoch_only():
    tokens = np.arange(400)
    batches = EpochBatches(tokens, 4, 4, seed=7)
    orders = [starts(batches) for _ in range(3)]
    again = EpochBatches(tokens, 4, 4, seed=7)
    assert [starts(again) for _ in range(3)] == orders
    distinct = {str(order) for order in orders} | {str(starts(EpochBatches(tokens, 4, 4, seed=8)))}
    assert len(distinct) == 4


def test_after_the_last_batch_of_an_epoch_the_next_epoch_follows():
    batches = EpochBatches(np.arange(21), 2, 5, seed=0)
    assert len(starts(batches)) == 2
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
        ({"more": 1}, "not the state of an EpochSampler"),
    ],
)
def test_a_foreign_state_is_refused(change, message):
    batches = EpochBatches(np.arange(41), 2, 5, seed=3)
    before = batches.state_dict()
    raises(DataError, message, lambda: batches.load_state_dict({**before, **change}))
    raises(DataError, "not the state", lambda: batches.load_state_dict({"epoch": 0, "position": 0}))
    assert batches.state_dict() == before
