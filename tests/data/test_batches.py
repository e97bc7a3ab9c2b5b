"""Batches: by step or by epoch, every window reached, ranks' parts, evaluation fixed, exact resume."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, strategies as st
from refusals import raises

import minigrad
from minigrad.cpu_kernels import random
from minigrad.data import (
    DataError,
    DataLoader,
    EpochBatches,
    EpochSampler,
    FixedBatches,
    Prefetcher,
    RandomBatches,
    TensorDataset,
    min_tokens,
    shard,
    train_val_split,
)

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


@given(st.integers(0, 100), st.integers(1, 9))
def test_parts_are_disjoint_complete_and_even(n, world_size):
    parts = [list(range(n))[shard(n, rank, world_size)] for rank in range(world_size)]
    assert list(itertools.chain(*parts)) == list(range(n))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5), st.booleans(), st.integers(0, 2**64 - 1))
def test_any_number_of_ranks_sees_the_same_batches(n, batch_size, world_size, drop_last, seed):
    if drop_last and n < batch_size:
        raises(DataError, "do not fill one batch", lambda: EpochSampler(n, batch_size, seed, drop_last))
        return
    alone = EpochSampler(n, batch_size, seed, drop_last)
    ranks = [EpochSampler(n, batch_size, seed, drop_last, rank, world_size) for rank in range(world_size)]
    for _ in range(2):
        batches, parts = list(alone), [list(sampler) for sampler in ranks]
        assert {len(steps) for steps in parts} == {len(batches)} == {len(alone)}
        for step, batch in enumerate(batches):
            np.testing.assert_array_equal(np.concatenate([steps[step] for steps in parts]), batch)
        seen = np.concatenate(batches).tolist()
        assert len(set(seen)) == len(seen) == (n // batch_size * batch_size if drop_last else n)


@given(st.integers(0, 20), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_resume_on_another_world_size_goes_on_with_the_same_batches(steps, before, after, drop_last):
    def endless(sampler):
        while True:
            yield from sampler

    def together(samplers):
        return (np.concatenate(parts) for parts in zip(*map(endless, samplers)))

    def world(size):
        return [EpochSampler(23, 4, 5, drop_last, rank=rank, world_size=size) for rank in range(size)]

    straight = together(world(1))
    old, new = world(before), world(after)
    run = together(old)
    for _ in range(steps):
        np.testing.assert_array_equal(next(run), next(straight))
    states = [json.dumps(sampler.state_dict()) for sampler in old]
    assert len(set(states)) == 1
    for sampler in new:
        sampler.load_state_dict(json.loads(states[0]))
        assert json.dumps(sampler.state_dict()) == states[0]
    for expected, found in itertools.islice(zip(straight, together(new)), 12):
        np.testing.assert_array_equal(found, expected)


def test_token_batches_are_parted_alike():
    tokens = np.arange(101)
    for make in (
        lambda **place: list(EpochBatches(tokens, 3, 10, 7, **place)),
        lambda **place: [RandomBatches(tokens, 5, 10, 7, **place).batch(step) for step in range(4)],
    ):
        whole, parts = make(), [make(rank=rank, world_size=4) for rank in range(4)]
        for step, (x, y) in enumerate(whole):
            np.testing.assert_array_equal(np.concatenate([batches[step][0] for batches in parts]), x)
            np.testing.assert_array_equal(np.concatenate([batches[step][1] for batches in parts]), y)


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


# DataLoader -----------------------------------------------------------------------------------------------------------


class Squares:
    """A dataset of numbers."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return {"n": i, "square": (np.float32(i * i), f"{i}^2")}


X, Y = np.arange(20, dtype=np.float32).reshape(10, 2), np.arange(10)


def numbers(loader):
    """The samples' numbers, by batch."""
    return [batch["n"].tolist() if isinstance(batch, dict) else batch[1].tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("dataset", [TensorDataset(X, Y), TensorDataset(minigrad.tensor(X), Y), Squares()])
def test_a_loader_gives_every_sample_once_an_epoch_and_resumes(dataset, workers):
    def loader(seed=0, **options):
        options = {"shuffle": True, "num_workers": workers, **options}
        return DataLoader(dataset, 4, generator=minigrad.Generator(seed), **options)

    one = loader()
    epochs = [numbers(one) for _ in range(2)]
    assert len(one) == 3 and all(
        [len(b) for b in e] == [4, 4, 2] and sorted(i for b in e for i in b) == [*range(10)] for e in epochs
    )
    assert epochs[0] != epochs[1] and epochs == [numbers(again := loader()), numbers(again)] != [numbers(loader(1))] * 2
    assert numbers(loader(drop_last=True)) == epochs[0][:2]
    assert numbers(loader(shuffle=False)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    half = loader()
    for _ in range(3):  # peeks at the first batch of three epochs
        next(iter(half))
    batches, other = iter(half), loader()
    next(batches)
    other.load_state_dict(half.state_dict())
    assert numbers(other) == numbers(batches)
    other.load_state_dict(half.state_dict())
    assert numbers(half) == numbers(other) and half.state_dict() == other.state_dict()
    raises(DataError, "here it is 4", loader().load_state_dict, {**half.state_dict(), "batch_size": 5})


class Negated(TensorDataset):
    """Samples in a way of its own, which takes a number only."""

    def __getitem__(self, i):
        return self.tensors[0][i] * (-1 if int(i) % 2 else 1), int(i)


def test_a_loader_without_a_generator_takes_the_order_of_a_state():
    one, other = (DataLoader(Negated(X), 4, shuffle=True) for _ in range(2))
    next(left := iter(one))
    other.load_state_dict(one.state_dict())
    assert numbers(other) + numbers(other) == numbers(left) + numbers(one)
    raises(DataError, "seed None, here", other.load_state_dict, DataLoader(X, 4).state_dict())


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_batch_is(workers):
    (batch, *_) = DataLoader(Squares(), 3, num_workers=workers)
    assert batch["n"].dtype == minigrad.int64 and batch["square"][0].tolist() == [0, 1, 4]
    assert batch["square"][1] == ["0^2", "1^2", "2^2"] and batch["square"][0].dtype == minigrad.float32
    read = [b.tolist() for b in DataLoader((i / 2 for i in range(5)), 2, num_workers=workers)]
    assert read == [[0, 0.5], [1, 1.5], [2]]
    assert len([*DataLoader(iter(range(5)), 2, drop_last=True, num_workers=workers)]) == 2
    assert next(iter(DataLoader([{"text": np.str_("a")}, {"text": np.str_("b")}], 2)))["text"] == ["a", "b"]
    assert [*DataLoader([(1, 2), (3, 4)], 2, collate_fn=lambda samples: samples)] == [[(1, 2), (3, 4)]]
    assert next(iter(DataLoader(X, 5, num_workers=workers, pin_memory=True))).shape == (5, 2)
    for wrong in ([X[0], X[0, :1]], [minigrad.tensor(X[0]), minigrad.tensor(X[0, :1])], [(X[0], 1), (X[0, :1], 2)]):
        shapes = r"of the shapes \[\(2,\), \(1,\)\]; pad them to one shape, or pass collate_fn"
        raises(ValueError, shapes, lambda wrong=wrong: next(iter(DataLoader(wrong, 2, num_workers=workers))))
    raises(ValueError, r"shapes \[\(3, 2\), \(4,\)\]; .* as many rows", TensorDataset, np.ones((3, 2)), np.ones(4))
    raises(ValueError, r"shapes \[\(\)\]", TensorDataset, np.ones(()))
    x, y = next(iter(Prefetcher(DataLoader(TensorDataset(X, Y), 2), device="cpu")))
    assert x.tolist() == [[0, 1], [2, 3]] and y.tolist() == [0, 1] and TensorDataset(X, Y)[3][1] == 3
