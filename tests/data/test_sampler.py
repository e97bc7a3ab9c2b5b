"""EpochSampler: the ranks' parts are disjoint and complete, equally many steps for all, any world size on resume."""

import itertools
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from refusals import raises

from minigrad.data import DataError, EpochBatches, EpochSampler, RandomBatches, shard


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
