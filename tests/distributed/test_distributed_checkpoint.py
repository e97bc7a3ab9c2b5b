"""Checkpoints of several ranks: one copy, exact resume on every rank, other world sizes, failures known to all."""

import threading
from functools import partial

import numpy as np
import pytest
from data_parallel import Net, Record, assert_same_run, feed, make_trainer, record
from refusals import raises

import minigrad
from minigrad import Tensor, data, distributed as dist, nn, optim, serialization
from minigrad.distributed.train import checkpoint as checkpoint_file

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((2, 21, 5))


def train(comm: dist.Communicator, folder, resume: bool, kind: str) -> list[Record]:
    """Eleven steps, saved after four, or only those after them, resumed."""
    net = Net()
    trainer = make_trainer(kind, comm, 0.5, accum=2, schedule=optim.CosineAnnealing(1e-2, 1e-3, 2, 20))
    sampler = data.EpochSampler(len(X), 4, 3, rank=comm.rank, world_size=comm.world_size)
    batches = (batch for _ in iter(int, 1) for batch in sampler)
    if resume:
        checkpoint = dist.load_distributed_checkpoint(comm, folder)
        net.load_state_dict(checkpoint.tensors["model"])
        trainer.load_state_dict(net.named_parameters(), checkpoint.tensors["trainer"], checkpoint.state["trainer"])
        sampler.load_state_dict(checkpoint.state["sampler"])
    found = []
    while trainer.global_step < 11:
        chosen = next(batches)
        loss = net.loss(Tensor(X[chosen]), Tensor(Y[chosen])) if len(chosen) else None
        metrics = feed(trainer, net, loss, len(chosen))
        if metrics is None:
            if comm.world_size > 1:  # each has another part of the window
                raises(RuntimeError, "the window has 1 of 2 micro-batches", trainer.state_dict, net.named_parameters())
            continue
        found.append(record(trainer, net, metrics))
        if metrics.step == 4:
            arrays, meta = trainer.state_dict(net.named_parameters())
            state = {"step": 4, "trainer": meta, "sampler": sampler.state_dict()}
            dist.save_distributed_checkpoint(comm, folder, {"model": net.state_dict(), "trainer": arrays}, state)
    return found


@pytest.mark.parametrize(
    ("kind", "world_size"), [("distributed", 1), ("distributed", 2), ("distributed", 3), ("bucketed", 2), ("fused", 2)]
)
def test_a_resumed_run_is_the_uninterrupted_one_on_every_rank(tmp_path, kind, world_size):
    run, resumed = (partial(train, folder=tmp_path, resume=resume, kind=kind) for resume in (False, True))
    straight = dist.run_threads(world_size, run, timeout=20)
    for whole, found in zip(straight, dist.run_threads(world_size, resumed, timeout=20)):
        assert [step.bits() for step in whole[4:]] == [step.bits() for step in found]
    for size in (1, 2, 4):  # another world: the same batches, and sums in another order
        for found in dist.run_threads(size, resumed, timeout=20):
            assert_same_run(found, straight[0][4:], tolerance=1e-10)


def test_only_rank_0_needs_a_disk_and_gives_its_bits_to_all(tmp_path):
    special = {
        "a": np.array([[np.nan, -0.0], [np.inf, 1e-310]]),
        "b": np.arange(5, dtype=np.int16),
        "c": np.ones((0, 3)),
    }
    special["d"] = np.asarray(minigrad.tensor([1.0, 2.5], dtype=minigrad.bfloat16).data)

    def fn(comm: dist.Communicator):
        folder = tmp_path / ("here" if comm.rank == 0 else "nowhere")
        given = special if comm.rank == 0 else {}
        path = dist.save_distributed_checkpoint(comm, folder, {"x": given}, {"step": 3, "note": "é"})
        return path, dist.load_distributed_checkpoint(comm, folder)

    for path, checkpoint in dist.run_threads(3, fn, timeout=20):
        assert path == checkpoint.path and path.is_dir() and checkpoint.step == 3 and checkpoint.state["note"] == "é"
        assert checkpoint.tensors["x"].keys() == special.keys()
        for name, array in special.items():
            got = checkpoint.tensors["x"][name]
            assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not (tmp_path / "nowhere").exists()


def test_what_fails_on_rank_0_fails_everywhere(tmp_path):
    def save(comm: dist.Communicator) -> None:
        (tmp_path / "file").touch()
        dist.save_distributed_checkpoint(comm, tmp_path / "file", {}, {"step": 1})

    def load(comm: dist.Communicator) -> None:
        dist.load_distributed_checkpoint(comm, tmp_path / "empty")

    for fn in (save, load):

        def caught(comm: dist.Communicator, fn=fn) -> str:
            error = raises(serialization.CheckpointError, "", fn, comm)
            comm.barrier()  # the communicator is as good as before
            return str(error)

        messages = dist.run_threads(3, caught, timeout=20)
        assert all(message.startswith("rank 0 could not") for message in messages[1:])
        assert all(messages[0] in message for message in messages)


def test_a_job_that_was_started_again_takes_the_newest_whole_checkpoint(tmp_path, monkeypatch):
    for step in (1, 2):
        serialization.save_checkpoint(tmp_path, {"x": {"w": np.ones(step)}}, {"step": step})
    (tmp_path / "step-00000002/x.safetensors").write_bytes(b"damaged")
    load = partial(dist.load_distributed_checkpoint, dist.NoOpCommunicator(), tmp_path)
    raises(serialization.CheckpointError, "the last intact one before it is", load)
    monkeypatch.setenv("MINIGRAD_RESTART", "1")
    assert dist.restarts() == 1
    with pytest.warns(RuntimeWarning, match="step-00000001: going on from that one"):
        assert load().step == 1
    monkeypatch.setenv("MINIGRAD_RESTART", "often")
    raises(dist.RendezvousError, "'often' is no number", dist.restarts)


def test_random_numbers_go_on_and_new_ranks_get_their_own():
    # Threads share the default generator, so ranks are played one after the other.
    class Rank(dist.NoOpCommunicator):
        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    before = minigrad.default_generator.state_dict()
    try:
        minigrad.manual_seed(7)
        minigrad.rand(3)
        state = dist.random_state(dist.NoOpCommunicator())
        assert state == {"generators": [{"seed": 7, "offset": 1}]}
        state = {"generators": [{"seed": 7, "offset": 4}, {"seed": 9, "offset": 6}]}
        expected = [
            {"seed": 7, "offset": 4},
            {"seed": 9, "offset": 6},
            {"seed": 8, "offset": 6},
            {"seed": 10, "offset": 6},  # not 9, which is rank 1's
        ]
        for rank in range(4):
            dist.restore_random_state(Rank(rank), state)
            assert minigrad.default_generator.state_dict() == expected[rank]
        for bad in ({}, {"generators": []}, None):
            with pytest.raises(ValueError, match="expected what random_state returned"):
                dist.restore_random_state(dist.NoOpCommunicator(), bad)  # type: ignore[arg-type]
    finally:
        minigrad.default_generator.load_state_dict(before)


def test_a_checkpoint_is_written_beside_the_training(tmp_path, monkeypatch):
    """It has the values of when ``save`` was called, and the next call waits for it."""
    may_write = threading.Event()

    def slow(*arguments):
        assert may_write.wait(30)
        return serialization.save_checkpoint(*arguments)

    monkeypatch.setattr(checkpoint_file, "save_checkpoint", slow)
    model = nn.Linear(2, 2)
    saved, state = model.weight.detach().numpy().copy(), {"step": 1, "notes": ["first"]}
    with dist.AsyncCheckpointer() as checkpoints:
        assert checkpoints.wait() is None
        checkpoints.save(tmp_path, {"model": model.state_dict()}, state)
        model.weight.detach().fill_(7.0)
        state["notes"].append("later")
        assert not list(tmp_path.glob("step-*"))
        may_write.set()
        checkpoints.save(tmp_path, {"model": model.state_dict()}, {"step": 2})
        first = serialization.load_checkpoint(tmp_path, 1)
        np.testing.assert_array_equal(first.tensors["model"]["weight"], saved)
        assert first.state["notes"] == ["first"]
        assert checkpoints.wait() == serialization.load_checkpoint(tmp_path).path
    assert (serialization.load_checkpoint(tmp_path, 2).tensors["model"]["weight"] == 7.0).all()


def test_what_goes_wrong_in_the_thread_is_raised_by_the_next_call_on_all_ranks(tmp_path):
    (tmp_path / "file").touch()
    tensors = {"model": {"w": np.ones(2)}}

    def save(comm: dist.Communicator) -> list[str]:
        found = []
        checkpoints = dist.AsyncCheckpointer()
        for step, folder in enumerate(("file", "good", "good"), 1):
            try:
                checkpoints.save_distributed(comm, tmp_path / folder, tensors, {"step": step})
                found.append("")
            except serialization.CheckpointError as error:
                found.append(str(error))
        checkpoints.wait()
        return found

    for rank, (first, second, third) in enumerate(dist.run_threads(2, save, timeout=30)):
        assert first == third == "" and "file" in second
        assert second.startswith("rank 0 could not save: ") == bool(rank)
    assert serialization.load_checkpoint(tmp_path / "good").step == 3
    with pytest.raises(serialization.CheckpointError), dist.AsyncCheckpointer() as checkpoints:
        checkpoints.save(tmp_path / "file", tensors, {"step": 1})
