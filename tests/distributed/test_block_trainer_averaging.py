"""Ranks that average their gradients, block by block, step as one process with the whole batch, and stay equal."""

import time
from functools import partial

import block_trainer_nets as nets
import numpy as np
import pytest
from data_parallel import state_bits
from in_threads import in_threads
from refusals import raises

from minigrad import Tensor, device, models, nn, optim
from minigrad import distributed as dist


@in_threads(3, timeout=20)
def test_must_weight_identity_after_every_step_and_when_broken(comm: dist.ThreadCommunicator):
    net = nets.Net(dtype=np.float32)
    nets.train(comm, net, (5, 4, 3))  # verifies after each step
    trainer = dist.BlockDistributedTrainer(net, comm)
    if comm.rank == 2:
        net.blocks[1].weight.data[0, 0] += 1e-3
    error = raises(dist.ReplicaMismatchError, "blocks.1.weight", trainer.verify_replicas)
    assert error.ranks == (2,)
    net.blocks[1].weight.data[0, 0] = 0
    net.blocks[0].statistic.mean.data[0] = comm.rank
    raises(dist.ReplicaMismatchError, "blocks.0.statistic.mean", trainer.verify_replicas)


def test_must_mean_semantics_means_of_1_and_5_with_3_and_1_samples_give_2():
    def body(comm: dist.ThreadCommunicator):
        net = nets.One()
        optimizer = optim.SGD([p for p in net.parameters() if p.requires_grad], lr=1.0)
        trainer = dist.BlockDistributedTrainer(net, comm, dist.TrainingConfig(max_grad_norm=None), optimizer=optimizer)
        trainer.train_batch(np.ones(3) if comm.rank == 0 else np.full(1, 5.0))
        return net.blocks[0].weight.item(), net.frozen.numpy().tolist()

    assert dist.run_threads(2, body, timeout=20) == [(-2.0, [1.0, 1.0])] * 2


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("sizes", [(12,), (6, 6), (10, 2), (0, 11, 1)], ids=str)
def test_must_mean_semantics_ranks_are_one_process_on_the_whole_batch(sizes, tied):
    want = nets.alone(nets.Net(tied=tied))
    body = lambda comm: nets.train(comm, nets.Net(comm.rank, tied=tied), sizes)  # noqa: E731
    for got in dist.run_threads(len(sizes), body, timeout=20):
        nets.assert_like_one_process(got, want)
        assert got[1]["blocks.0.statistic.seen"] == 4
        assert np.abs(got[1]["blocks.2.statistic.mean"]).max() > 0.01


def test_must_all_parameters_are_reduced_exactly_once_also_frozen_and_missing_ones():
    def net(seed: int = 0) -> nets.Net:
        made = nets.Net(seed, tied=True)
        for p in (made.blocks[1].weight, made.norm.weight):
            p.requires_grad_(False)
        return made

    want, start = nets.alone(net()), nets.contents(net())

    def body(comm: dist.ThreadCommunicator):
        sent: list[int] = []
        return nets.train(comm, net(comm.rank), (7, 5), hook=nets.noting(sent)), sent

    for got, sent in dist.run_threads(2, body, timeout=20):
        nets.assert_like_one_process(got, want)
        # blocks 2, 1 (its weight is frozen) and 0, what follows them (norm is frozen), the tied embedding: each once
        assert sent == [nets.C * nets.C + 1, 1, nets.C * nets.C + 1, 2, 5 * nets.C] * 4
        for name in ("blocks.1.weight", "norm.weight", "unused.weight"):
            assert np.array_equal(got[1][name], start[name])


@pytest.mark.long
def test_must_large_gradients_of_134_mb_are_reduced():
    n = 134_217_750 // 4 + 1  # entrenar's own 350M example; its server refuses the message

    def body(comm: dist.ThreadCommunicator):
        p = Tensor(np.zeros(n, np.float32), requires_grad=True)
        manager = dist.GradientBucketManager([p], comm, groups=[[p]])
        manager.mark_grad_ready(p.id, Tensor(np.full(n, 1.0 + comm.rank, np.float32)))
        flat = manager.wait_and_unflatten()[p].data
        return float(flat[0]), float(flat[-1]), bool((flat == 1.5).all())

    assert dist.run_threads(2, body, timeout=60) == [(1.5, 1.5, True)] * 2


@pytest.mark.parametrize("communicator", [dist.NoOpCommunicator, lambda: dist.ThreadCommunicator.group(1)[0]])
@pytest.mark.parametrize("accum", [1, 3])
def test_must_world_1_is_simple_trainer_bit_for_bit(communicator, accum):
    net, other = nets.Net(dtype=np.float32), nets.Net(dtype=np.float32)
    config = dist.TrainingConfig(0.02, max_grad_norm=0.5, grad_accum_steps=accum)
    block, simple = dist.BlockDistributedTrainer(net, communicator(), config), dist.SimpleTrainer(config)
    for step in range(3 * accum):
        x, y = nets.batch(step, slice(0, 11), np.float32)  # 11: times 11 and divided by it is another number
        loss = other.loss(Tensor(x), Tensor(y))
        assert block.train_batch(x, y) == simple.step(other.named_parameters(), loss.backward(), loss.item())
    got, want = state_bits(block, net), state_bits(simple, other)
    assert got == (*want[:2], {**got[2], **want[2]}) and block.communicator.stats.operations == 0
    assert nets.held(net) == nets.held(other)


def test_must_accumulation_is_one_batch_one_reduction_and_a_clip_after_it():
    want = nets.alone(nets.Plain())
    assert all(m.grad_norm > 0.5 for m in want[0]), "the clip must act"

    def body(comm: dist.ThreadCommunicator):
        sent: list[int] = []
        return nets.train(comm, nets.Plain(comm.rank), (7, 5), accum=3, hook=nets.noting(sent)), len(sent)

    for got, sent in dist.run_threads(2, body, timeout=20):
        nets.assert_like_one_process(got, want)
        assert sent == 4 * 7  # 4 windows of 3 micro-batches, 7 buckets


def test_must_accumulation_window_ends_with_the_data():
    def body(comm: dist.ThreadCommunicator):
        net, config = nets.Net(comm.rank), dist.TrainingConfig(0.02, max_grad_norm=0.5, grad_accum_steps=5)
        trainer = dist.BlockDistributedTrainer(net, comm, config)
        if comm.rank == 0:
            assert trainer.train_batch(*nets.batch(0)) is None  # the other rank has nothing left
        metrics = trainer.finish_window()
        trainer.verify_replicas()
        assert trainer.finish_window() is None
        return [metrics], nets.contents(net)

    want = nets.alone(nets.Net(), steps=1)
    for got in dist.run_threads(2, body, timeout=20):
        nets.assert_like_one_process(got, want)


def test_buffers_are_averaged_by_the_samples_of_the_whole_window():
    def body(comm: dist.ThreadCommunicator):
        net = nets.One()
        net.register_buffer("value", Tensor(np.zeros(2, np.float32)))
        net.register_buffer("count", Tensor(np.zeros((), np.int64)))
        net.register_buffer("scratch", Tensor(np.zeros(1)), persistent=False)

        def loss(x: Tensor) -> Tensor:
            net.value.fill_(1.0 + comm.rank)
            net.count.fill_(5 - comm.rank)
            net.scratch.fill_(comm.rank)
            return (net.blocks[0].weight * x).mean()

        trainer = dist.BlockDistributedTrainer(net, comm, dist.TrainingConfig(grad_accum_steps=2), loss_fn=loss)
        for count in (6, 1) if comm.rank == 0 else (2, 3):
            trainer.train_batch(np.ones(count))
        trainer.verify_replicas()
        return net.value.numpy().tolist(), net.count.item(), net.scratch.item()

    mean = float(np.float32((7 * 1.0 + 5 * 2.0) / 12))
    assert dist.run_threads(2, body, timeout=20) == [([mean] * 2, 5, 0.0), ([mean] * 2, 5, 1.0)]


def test_must_no_cpu_staging_of_gradients(monkeypatch):
    # What a step brings to the host goes through to_host, on every device: records of some bytes, never a gradient.
    sizes: list[int] = []

    def body(comm: dist.ThreadCommunicator) -> None:
        net = nn.Module()
        net.blocks = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)])
        trainer = dist.BlockDistributedTrainer(net, comm, nets.CONFIG, loss_fn=lambda x: (net.blocks[0](x) ** 2).mean())
        trainer.train_batch(np.ones((2, 64), np.float32))  # the first one compares the weights' hashes
        comm.barrier()
        if comm.rank == 0:
            original = device.CPU.kernels.to_host
            monkeypatch.setattr(device.CPU.kernels, "to_host", lambda a: (sizes.append(a.nbytes), original(a))[1])
        comm.barrier()
        trainer.train_batch(np.ones((2, 64), np.float32))

    dist.run_threads(2, body, timeout=20)
    assert sizes and max(sizes) < 64 * 64 * 4


# ---------------------------------------------------------------------- which block is sent when


def test_must_order_is_reversed_and_a_block_is_sent_when_its_backward_ends():
    def body(comm: dist.ThreadCommunicator) -> list[str]:
        net, events = nets.Net(), []

        def hook(communicator: dist.Communicator, bucket: Tensor):
            events.append("sent")
            return dist.all_reduce_hook(communicator, bucket)

        trainer = dist.BlockDistributedTrainer(net, comm, nets.CONFIG, hook=hook)
        assert trainer.layout.names == ["block 2", "block 1", "block 0", "unused", "head", "norm", "embedding"]
        for i, block in enumerate(net.blocks):
            block.told = partial(events.append, f"backward of block {i} ended")
        trainer.train_batch(*nets.batch(0, nets.parts((6, 6), comm.rank)))
        assert trainer.num_buckets == 7
        return events

    for events in dist.run_threads(2, body, timeout=20):
        assert events == [
            *("sent", "backward of block 2 ended", "sent", "backward of block 1 ended"),
            *("sent", "backward of block 0 ended", "sent", "sent", "sent", "sent"),
        ]


def test_must_order_layouts_of_the_models():
    gpt = models.GPT2(models.GPT2Config(vocab_size=7, block_size=4, n_layer=2, n_head=1, n_embd=4, tied=False))
    assert dist.BlockLayout.of(gpt).names == ["block 1", "block 0", "lm_head", "ln_f", "embedding"]
    llama = models.Llama(models.LlamaConfig(7, 4, 3, 1, 1, 4, 8))
    assert dist.BlockLayout.of(llama).names[:3] == ["block 2", "block 1", "block 0"]
    every = [p for model in (gpt, llama) for _, named in dist.BlockLayout.of(model).groups for _, p in named]
    assert sorted(p.id for p in every) == sorted(p.id for model in (gpt, llama) for p in model.parameters())
    raises(ValueError, "Linear has 0 ModuleLists", lambda: dist.BlockLayout.of(nn.Linear(2, 2)))
    raises(ValueError, "blocks is 'x'; GPT2 has the ModuleLists h", dist.BlockLayout.of, gpt, "x")


def test_should_overlap_communication_that_runs_beside_backward_is_measured():
    def body(comm: dist.ThreadCommunicator) -> tuple[float, float]:
        net = nets.Net()
        trainer = dist.BlockDistributedTrainer(net, comm, nets.CONFIG)
        trainer.train_batch(*nets.batch(0))
        comm.barrier()
        busy, waited = comm.stats.busy_s, comm.stats.waited_s
        if comm.rank == 0:  # 0.3 s of backward after block 2 was sent
            for block in net.blocks:
                block.told = partial(time.sleep, 0.1)
        else:  # which the other rank sends 0.15 s late
            time.sleep(0.15)
        trainer.train_batch(*nets.batch(1))
        return comm.stats.busy_s - busy, comm.stats.waited_s - waited

    busy, waited = dist.run_threads(2, body, timeout=20)[0]
    assert busy > 0.1 and waited < 0.5 * busy
