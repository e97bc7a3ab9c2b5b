"""Batches by epochs: every window once, an order per epoch, exact resume."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import raises

import minigrad
from minigrad.data import DataError, DataLoader, EpochBatches, EpochSampler, Prefetcher, TensorDataset


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
    x, y = next(iter(Prefetcher(DataLoader(TensorDataset(X, Y), 2), device="cpu")))
    assert x.tolist() == [[0, 1], [2, 3]] and y.tolist() == [0, 1] and TensorDataset(X, Y)[3][1] == 3
