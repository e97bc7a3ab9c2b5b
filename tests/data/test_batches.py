"""Batches: pure in the step, shifted by one, every window reachable, evaluation fixed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from refusals import raises

from minigrad.cpu_kernels import random
from minigrad.data import DataError, FixedBatches, RandomBatches, min_tokens, train_val_split

TOKENS = np.arange(1000) * 7 % 1009  # all different: a token tells its place


def test_targets_are_the_next_tokens():
    x, y = RandomBatches(TOKENS, 5, 8, seed=1).batch(3)
    assert x.shape == y.shape == (5, 8)
    assert x.dtype == y.dtype == np.int64 and x.flags.c_contiguous and y.flags.c_contiguous
    for row_x, row_y in zip(x, y):
        start = TOKENS.tolist().index(row_x[0])
        np.testing.assert_array_equal(row_x, TOKENS[start : start + 8])
        np.testing.assert_array_equal(row_y, TOKENS[start + 1 : start + 9])


def test_a_batch_depends_on_seed_and_step_only():
    batches = RandomBatches(TOKENS, 4, 8, seed=7)
    forward = [batches.batch(step) for step in range(6)]
    resumed = RandomBatches(TOKENS.astype(np.uint16), 4, 8, seed=7)
    for step in (5, 0, 3, 3):
        for left, right in zip(forward[step], resumed.batch(step)):
            np.testing.assert_array_equal(left, right)
    distinct = {x.tobytes() for x, _ in forward} | {RandomBatches(TOKENS, 4, 8, seed=8).batch(0)[0].tobytes()}
    assert len(distinct) == 7
    RandomBatches(TOKENS, 4, 8, seed=2**64 - 1).batch(2**40)


def test_windows_share_no_random_numbers_with_other_draws_of_their_seed():
    windows = len(TOKENS) - 8
    starts = RandomBatches(np.arange(len(TOKENS)), 20, 8, seed=7).batch(3)[0][:, 0]
    assert (starts != random.integers(0, windows, (20,), 7, 3)).any()


def test_every_window_is_reached_also_the_last():
    batches = RandomBatches(np.arange(12), 16, 4, seed=0)
    starts = np.concatenate([batches.batch(step)[0][:, 0] for step in range(100)])
    counts = np.bincount(starts, minlength=8)
    assert len(counts) == 8  # windows of 5 tokens in 12
    # 1600 draws, 200 expected of each: five standard deviations are 66.
    assert counts.min() > 200 - 66
    assert counts.max() < 200 + 66


def test_the_only_window():
    x, y = RandomBatches(np.arange(5), 2, 4, seed=0).batch(0)
    np.testing.assert_array_equal(x, [[0, 1, 2, 3]] * 2)
    np.testing.assert_array_equal(y, [[1, 2, 3, 4]] * 2)


def test_windows_of_shards_lie_within_one_and_all_are_reached():
    shards = [np.arange(5, dtype=np.uint16), np.array([90, 91]), np.arange(10, 17)]  # T = 3: 2, 0 and 4 windows
    x, y = RandomBatches(shards, batch_size=50, block_size=3, seed=2).batch(0)
    assert x.dtype == y.dtype == np.int64 and x.shape == y.shape == (50, 3)
    np.testing.assert_array_equal(y, x + 1)
    assert sorted(set(x[:, 0].tolist())) == [0, 1, 10, 11, 12, 13]
    parts = [RandomBatches(shards, 50, 3, 2, rank, 3).batch(0)[0] for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), x)
    one, row = (RandomBatches(tokens, 4, 3, 1).batch(5)[0] for tokens in ([np.arange(40)], np.arange(40)))
    np.testing.assert_array_equal(one, row)
    raises(DataError, "no shards", lambda: RandomBatches([], 1, 1, 0))
    longest = "has 3 tokens, a window of block size 3 takes 4"
    raises(DataError, longest, lambda: RandomBatches([np.arange(2), np.arange(3)], 1, 3, 0))


def test_the_given_tokens_are_not_aliased():
    tokens = np.arange(5)
    x, _ = next(iter(FixedBatches(tokens, 1, 4)))
    x[:] = 99
    np.testing.assert_array_equal(tokens, np.arange(5))


@given(st.integers(2, 200), st.integers(1, 7), st.integers(1, 9))
def test_fixed_batches_cover_the_tokens_once(n, batch_size, block_size):
    tokens = np.arange(n)
    if n < block_size + 1:
        raises(DataError, "validation part", lambda: FixedBatches(tokens, batch_size, block_size))
        return
    batches = FixedBatches(tokens, batch_size, block_size)
    found = list(batches)
    assert len(found) == len(batches)
    x = np.concatenate([x.reshape(-1) for x, _ in found])
    y = np.concatenate([y.reshape(-1) for _, y in found])
    np.testing.assert_array_equal(x, np.arange((n - 1) // block_size * block_size))
    np.testing.assert_array_equal(y, x + 1)
    assert all(x.shape == (batch_size, block_size) for x, _ in found[:-1])


@given(st.integers(20, 300), st.integers(1, 5), st.integers(1, 6))
def test_a_limited_evaluation_is_spread_evenly(n, batch_size, max_batches):
    batches = FixedBatches(np.arange(n), batch_size, 4, max_batches)
    found = [(x.copy(), y) for x, y in batches]
    assert len(found) == len(batches) <= max_batches
    starts = np.concatenate([x[:, 0] for x, _ in found])
    available = (n - 1) // 4
    assert len(starts) == min(available, batch_size * max_batches)
    assert (np.diff(starts) > 0).all()
    if len(starts) > 1:
        gaps = np.diff(starts) // 4
        assert gaps.max() - gaps.min() <= 1
    for left, right in zip(found, batches):
        np.testing.assert_array_equal(left[0], right[0])


@given(st.integers(1, 300), st.floats(0.01, 0.99))
def test_min_tokens_is_exactly_enough(block_size, val_fraction):
    n = min_tokens(block_size, val_fraction)
    train, val = train_val_split(np.arange(n), val_fraction, block_size)
    assert min(len(train), len(val)) >= block_size + 1
    np.testing.assert_array_equal(np.concatenate([train, val]), np.arange(n))
    raises(DataError, f"at least {n:,} tokens are needed", train_val_split, np.arange(n - 1), val_fraction, block_size)
