"""DdpBuilder: checkpoints between epochs, and resumed runs that are the uninterrupted one to the bit."""

import logging

import numpy as np
import pytest
from builder_runs import Net, arrays, builder, is_replica, loss_of
from harness import assert_same_bits
from refusals import raises

import minigrad
from minigrad import Tensor, data, nn, optim, serialization
from minigrad.distributed import AverageBackend
from minigrad.distributed.mirrors.flodl.trained_state import TrainedState
from minigrad.nn import functional as F


@pytest.mark.parametrize("backend", AverageBackend)
def test_resume_is_the_uninterrupted_run_to_the_bit(backend, tmp_path):
    options = {"policy": "sync", "backend": backend, "num_epochs": 4, "max_grad_norm": 0.5}
    options["scheduler"] = lambda world: optim.CosineAnnealing(0.05, 0.0, 3, 25)

    def checkpoint_fn(epoch: int, state: TrainedState) -> None:
        assert epoch == state.epoch
        state.save(tmp_path / "run", keep=None)

    whole = builder(**options, checkpoint_every=1, checkpoint_fn=checkpoint_fn).run().join()
    plain = builder(**options).run().join()  # checkpoints change nothing
    assert_same_bits(arrays(whole), arrays(plain))
    for epochs in (1, 3):
        saved = TrainedState.load(tmp_path / "run", step=12 * epochs)
        assert saved.epoch == epochs
        resumed = builder(**options, resume=saved, model_factory=lambda: Net(seed=9)).run().join()
        assert_same_bits(arrays(resumed), arrays(whole))
        for (a, meta), (b, want) in zip(resumed.replicas, whole.replicas):
            assert_same_bits(a, b)
            assert meta["optimizer"] == want["optimizer"]
    half = builder(**{**options, "num_epochs": 2}).run().join()  # what join gives is a checkpoint as well
    assert_same_bits(arrays(builder(**options, resume=half).run().join()), arrays(whole))


@pytest.mark.parametrize("replicas", [1, 3])
def test_resume_continues_the_random_numbers(replicas, tmp_path):
    """Dropout's masks are each replica's own, the same in every run, and go on where they were."""
    masks: dict[int, list[bytes]] = {}

    def train_fn(model, batch) -> Tensor:
        kept = F.dropout(Tensor(np.ones(64, np.float32)), 0.5)
        rank = 0 if replicas == 1 else next(rank for rank in range(replicas) if is_replica(rank))
        masks.setdefault(rank, []).append(kept.data.tobytes())
        return loss_of(model, batch) * (1 + kept.mean())

    def run(epochs: int, **options) -> TrainedState:
        minigrad.manual_seed(3)
        masks.clear()
        return builder(policy="sync", replicas=replicas, num_epochs=epochs, train_fn=train_fn, **options).run().join()

    whole = run(4)
    steps = len(masks[0])
    drawn = [mask for own in masks.values() for mask in own]
    assert sorted(masks) == list(range(replicas)) and len(set(drawn)) == len(drawn) == replicas * steps
    assert_same_bits(arrays(run(4)), arrays(whole))
    run(2).save(tmp_path)
    assert_same_bits(arrays(run(4, resume=TrainedState.load(tmp_path))), arrays(whole))


def test_resume_checks_what_it_is_given(tmp_path):
    state = builder(policy="sync").run().join()
    words = "the state has optimizers of 2 replicas, for 3: the numbers must be equal"
    raises(ValueError, words, lambda: builder(replicas=3, resume=state).run())
    raises(data.DataError, "the state is of seed 42, here it is 7", lambda: builder(seed=7, resume=state).run())
    other = builder(model_factory=lambda: nn.Linear(5, 2), resume=state)
    raises(ValueError, r"does not fit the module:\n  missing: weight\n(.*\n)*  unexpected: mean", other.run)
    serialization.save_checkpoint(tmp_path, {"params": state.params}, {"step": 3})
    raises(serialization.CheckpointError, "is no checkpoint of replicas", lambda: TrainedState.load(tmp_path))
    state.save(tmp_path / "whole")
    files, meta, *_ = serialization.load_checkpoint(tmp_path / "whole")
    del files["replica-1"]
    serialization.save_checkpoint(tmp_path / "part", files, meta)
    raises(serialization.CheckpointError, "is no checkpoint of replicas", lambda: TrainedState.load(tmp_path / "part"))


@pytest.mark.parametrize("policy", ["cadence", "async"])
def test_checkpoint_between_epochs_has_exactly_these_epochs(policy):
    saved = []

    def note(epoch: int, state: TrainedState) -> None:
        saved.append((epoch, state.epoch, state.batches, len(state.replicas)))

    builder(policy=policy, num_epochs=5, checkpoint_every=2, checkpoint_fn=note).run().join()
    assert saved == [(2, 2, 24, 2), (4, 4, 48, 2)]


def test_checkpoint_fn_that_raises_is_logged(caplog):
    def checkpoint_fn(epoch: int, state: TrainedState) -> None:
        raise OSError("no space left")

    with caplog.at_level(logging.ERROR, "minigrad.distributed"):
        state = builder(checkpoint_every=1, checkpoint_fn=checkpoint_fn).run().join()
    assert state.epoch == 2
    assert caplog.text.count("checkpoint_fn failed after epoch") == 2 and "no space left" in caplog.text
