"""Ranks that average their gradients step as one process with the whole batch, and stay equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from block_trainer_nets import CONFIG, C, Net, One, Plain, alone, assert_like_one_process, batch, contents, train
from data_parallel import state_bits
from in_threads import in_threads

from minigrad import Tensor, nn
from minigrad.device import CPU
from minigrad.distributed import (
    BlockDistributedTrainer,
    Communicator,
    GradientBucketManager,
    NoOpCommunicator,
    ReplicaMismatchError,
    SimpleTrainer,
    ThreadCommunicator,
    TrainingConfig,
    all_reduce_hook,
    run_threads,
    shard_batches,
)
from minigrad.optim import SGD


@in_threads(3, timeout=20)
def test_must_weight_identity_after_every_step_and_when_broken(comm: ThreadCommunicator):
    net = Net(dtype=np.float32)
    train(comm, net, (5, 4, 3))  # verifies after each step
    trainer = BlockDistributedTrainer(net, comm)
    if comm.rank == 2:
        net.blocks[1].weight.data[0, 0] += 1e-3
    with pytest.raises(ReplicaMismatchError, match="blocks.1.weight") as error:
        trainer.verify_replicas()
    assert error.value.ranks == (2,)
    net.blocks[1].weight.data[0, 0] = 0
    net.blocks[0].statistic.mean.data[0] = comm.rank
    with pytest.raises(ReplicaMismatchError, match="blocks.0.statistic.mean"):
        trainer.verify_replicas()


def test_must_mean_semantics_means_of_1_and_5_with_3_and_1_samples_give_2():
    def body(comm: ThreadCommunicator) -> Any:
        net = One()
        optimizer = SGD([p for p in net.parameters() if p.requires_grad], lr=1.0)
        trainer = BlockDistributedTrainer(net, comm, TrainingConfig(max_grad_norm=None), optimizer=optimizer)
        trainer.train_batch(np.ones(3) if comm.rank == 0 else np.full(1, 5.0))
        return net.blocks[0].weight.item(), net.frozen.numpy().tolist()

    assert run_threads(2, body, timeout=20) == [(-2.0, [1.0, 1.0])] * 2


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("sizes", [(12,), (6, 6), (10, 2), (0, 11, 1)], ids=str)
def test_must_mean_semantics_ranks_are_one_process_on_the_whole_batch(sizes, tied):
    want = alone(Net(tied=tied))
    results = run_threads(len(sizes), lambda comm: train(comm, Net(comm.rank, tied=tied), sizes), timeout=20)
    for got in results:
        assert_like_one_process(got, want)
        assert got[1]["blocks.0.statistic.seen"] == 4
        assert np.abs(got[1]["blocks.2.statistic.mean"]).max() > 0.01


def test_must_all_parameters_are_reduced_exactly_once_also_frozen_and_missing_ones():
    def net(seed: int = 0) -> Net:
        made = Net(seed, tied=True)
        for p in (made.blocks[1].weight, made.norm.weight):
            p.requires_grad_(False)
        return made

    want, start = alone(net()), contents(net())

    def body(comm: ThreadCommunicator) -> Any:
        sent: list[int] = []

        def hook(communicator: Communicator, bucket: Tensor) -> Any:
            sent.append(bucket.numel())
            return all_reduce_hook(communicator, bucket)

        made = net(comm.rank)
        return train(comm, made, (7, 5), hook=hook), sent

    for got, sent in run_threads(2, body, timeout=20):
        assert_like_one_process(got, want)
        # blocks 2, 1 (its weight is frozen) and 0, what follows them (norm is frozen), the tied embedding: each once
        assert sent == [C * C + 1, 1, C * C + 1, 2, 5 * C] * 4
        for name in ("blocks.1.weight", "norm.weight", "unused.weight"):
            assert np.array_equal(got[1][name], start[name])

    def part(comm: ThreadCommunicator) -> Any:
        """The last block is used on rank 1 alone: rank 0 counts as zeros."""
        made, used = Net(), comm.rank == 1
        trainer = BlockDistributedTrainer(made, comm, TrainingConfig(max_grad_norm=None), optimizer=SGD(
            made.named_parameters(), lr=1.0))  # fmt: skip
        last = made.blocks[2]
        trainer._loss_fn = lambda x: ((x @ last.weight).sum() * used + made.norm.weight.sum()) / len(x)
        before = last.weight.data.copy()
        trainer.train_batch(np.ones((4, C)))
        return before - last.weight.data

    for moved in run_threads(2, part, timeout=20):
        np.testing.assert_allclose(moved, 0.5, atol=1e-14)


def test_must_uneven_shards_of_3_batches_on_2_ranks_complete_and_save(tmp_path):
    def body(comm: ThreadCommunicator) -> Any:
        net = Net(comm.rank)
        trainer = BlockDistributedTrainer(net, comm, CONFIG)
        mine = shard_batches(3, comm.rank, 2)
        for i in range(2):
            cut = [batch(mine[i], slice(0, 4))] if i < len(mine) else []
            assert trainer.train_batch(*sum(cut, ())) is not None
            trainer.verify_replicas()
        return trainer.global_step, trainer.save_checkpoint(tmp_path / "run")

    assert [step for step, _ in run_threads(2, body, timeout=20)] == [2, 2]
    assert (tmp_path / "run/step-00000002/manifest.json").exists()


def test_must_large_gradients_of_134_mb_are_reduced():
    n = 134_217_750 // 4 + 1  # entrenar's own 350M example; its server refuses the message

    def body(comm: ThreadCommunicator) -> Any:
        p = Tensor(np.zeros(n, np.float32), requires_grad=True)
        manager = GradientBucketManager([p], comm, groups=[[p]])
        manager.mark_grad_ready(p.id, Tensor(np.full(n, 1.0 + comm.rank, np.float32)))
        flat = manager.wait_and_unflatten()[p].data
        return float(flat[0]), float(flat[-1]), bool((flat == 1.5).all())

    assert run_threads(2, body, timeout=60) == [(1.5, 1.5, True)] * 2


@pytest.mark.parametrize("communicator", [NoOpCommunicator, lambda: ThreadCommunicator.group(1)[0]])
@pytest.mark.parametrize("accum", [1, 3])
def test_must_world_1_is_simple_trainer_bit_for_bit(communicator, accum):
    net, other = Net(dtype=np.float32), Net(dtype=np.float32)
    config = TrainingConfig(0.02, max_grad_norm=0.5, grad_accum_steps=accum)
    block, simple = BlockDistributedTrainer(net, communicator(), config), SimpleTrainer(config)
    for step in range(3 * accum):
        x, y = batch(step, slice(0, 11), np.float32)  # 11: times 11 and divided by it is another number
        loss = other.loss(Tensor(x), Tensor(y))
        assert block.train_batch(x, y) == simple.step(other.named_parameters(), loss.backward(), loss.item())
    assert state_bits(block, net) == state_bits(simple, other) and block.communicator.stats.operations == 0
    assert {k: a.tobytes() for k, a in contents(net).items()} == {k: a.tobytes() for k, a in contents(other).items()}


def test_must_accumulation_is_one_batch_one_reduction_and_a_clip_after_it():
    want = alone(Plain())
    assert all(m.grad_norm > 0.5 for m in want[0]), "the clip must act"

    def body(comm: ThreadCommunicator) -> Any:
        sent = []

        def hook(communicator: Communicator, bucket: Tensor) -> Any:
            sent.append(bucket.numel())
            return all_reduce_hook(communicator, bucket)

        return train(comm, Plain(comm.rank), (7, 5), accum=3, hook=hook), len(sent)

    for got, sent in run_threads(2, body, timeout=20):
        assert_like_one_process(got, want)
        assert sent == 4 * 7  # 4 windows of 3 micro-batches, 7 buckets


def test_must_accumulation_window_ends_with_the_data():
    def body(comm: ThreadCommunicator) -> Any:
        net = Net(comm.rank)
        trainer = BlockDistributedTrainer(net, comm, TrainingConfig(0.02, max_grad_norm=0.5, grad_accum_steps=5))
        if comm.rank == 0:
            assert trainer.train_batch(*batch(0)) is None  # the other rank has nothing left
        metrics = trainer.finish_window()
        trainer.verify_replicas()
        assert trainer.finish_window() is None
        return [metrics], contents(net)

    want = alone(Net(), steps=1)
    for got in run_threads(2, body, timeout=20):
        assert_like_one_process(got, want)


def test_buffers_are_averaged_by_the_samples_of_the_whole_window():
    def body(comm: ThreadCommunicator) -> Any:
        net = One()
        net.register_buffer("value", Tensor(np.zeros(2, np.float32)))
        net.register_buffer("count", Tensor(np.zeros((), np.int64)))
        net.register_buffer("scratch", Tensor(np.zeros(1)), persistent=False)

        def loss(x: Tensor) -> Tensor:
            net.value.fill_(1.0 + comm.rank)
            net.count.fill_(5 - comm.rank)
            net.scratch.fill_(comm.rank)
            return (net.blocks[0].weight * x).mean()

        trainer = BlockDistributedTrainer(net, comm, TrainingConfig(grad_accum_steps=2), loss_fn=loss)
        for count in (6, 1) if comm.rank == 0 else (2, 3):
            trainer.train_batch(np.ones(count))
        trainer.verify_replicas()
        return net.value.numpy().tolist(), net.count.item(), net.scratch.item()

    mean = float(np.float32((7 * 1.0 + 5 * 2.0) / 12))
    assert run_threads(2, body, timeout=20) == [([mean] * 2, 5, 0.0), ([mean] * 2, 5, 1.0)]


def test_must_no_cpu_staging_of_gradients(monkeypatch):
    # What a step brings to the host goes through to_host, on every device: records of some bytes, never a gradient.
    sizes: list[int] = []

    def body(comm: ThreadCommunicator) -> None:
        net = nn.Module()
        net.blocks = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)])
        trainer = BlockDistributedTrainer(net, comm, CONFIG, loss_fn=lambda x: (net.blocks[0](x) ** 2).mean())
        trainer.train_batch(np.ones((2, 64), np.float32))  # the first one compares the weights' hashes
        comm.barrier()
        if comm.rank == 0:
            original = CPU.kernels.to_host
            monkeypatch.setattr(CPU.kernels, "to_host", lambda a: (sizes.append(a.nbytes), original(a))[1])
        comm.barrier()
        trainer.train_batch(np.ones((2, 64), np.float32))

    run_threads(2, body, timeout=20)
    assert sizes and max(sizes) < 64 * 64 * 4
