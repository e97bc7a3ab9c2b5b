"""Which block is sent when, beside backward, and that neither order nor delays change a bit."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from block_trainer_nets import CONFIG, Net, Plain, batch, parts, train

from minigrad import Tensor, nn
from minigrad.distributed import (
    BlockDistributedTrainer,
    BlockLayout,
    Communicator,
    DistributedTrainer,
    FaultPlan,
    ThreadCommunicator,
    all_reduce_hook,
    run_threads,
)
from minigrad.models import GPT2, GPT2Config, Llama, LlamaConfig


def test_must_order_is_reversed_and_a_block_is_sent_when_its_backward_ends():
    def body(comm: ThreadCommunicator) -> list[str]:
        net, events = Net(), []

        def hook(communicator: Communicator, bucket: Tensor) -> Any:
            events.append("sent")
            return all_reduce_hook(communicator, bucket)

        trainer = BlockDistributedTrainer(net, comm, CONFIG, hook=hook)
        assert trainer.layout.names == ["block 2", "block 1", "block 0", "unused", "head", "norm", "embedding"]
        for i, block in enumerate(net.blocks):
            block.told = partial(events.append, f"backward of block {i} ended")
        trainer.train_batch(*batch(0, parts((6, 6), comm.rank)))
        assert trainer.num_buckets == 7
        return events

    for events in run_threads(2, body, timeout=20):
        assert events == [
            *("sent", "backward of block 2 ended", "sent", "backward of block 1 ended"),
            *("sent", "backward of block 0 ended", "sent", "sent", "sent", "sent"),
        ]


def test_must_order_layouts_of_the_models():
    gpt = GPT2(GPT2Config(vocab_size=7, block_size=4, n_layer=2, n_head=1, n_embd=4, tied=False))
    assert BlockLayout.of(gpt).names == ["block 1", "block 0", "lm_head", "ln_f", "embedding"]
    llama = Llama(LlamaConfig(7, 4, 3, 1, 1, 4, 8))
    assert BlockLayout.of(llama).names[:3] == ["block 2", "block 1", "block 0"]
    every = [p for model in (gpt, llama) for _, named in BlockLayout.of(model).groups for _, p in named]
    assert sorted(p.id for p in every) == sorted(p.id for model in (gpt, llama) for p in model.parameters())
    with pytest.raises(ValueError, match="Linear has 0 ModuleLists"):
        BlockLayout.of(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="blocks is 'x'; GPT2 has the ModuleLists h"):
        BlockLayout.of(gpt, "x")


def test_must_order_bucketed_is_unbucketed_bit_for_bit():
    def body(comm: ThreadCommunicator) -> Any:
        net, other = Plain(dtype=np.float32), Plain(dtype=np.float32)
        block = BlockDistributedTrainer(net, comm, CONFIG)
        plain = DistributedTrainer(CONFIG, comm)
        for step in range(3):
            x, y = batch(step, parts((7, 5), comm.rank), np.float32)
            made = block.train_batch(x, y)
            loss = other.loss(Tensor(x), Tensor(y))
            assert made == plain.step(other.named_parameters(), loss.backward(), loss.item(), len(x))
        return [p.data.tobytes() for p in net.parameters()] == [p.data.tobytes() for p in other.parameters()]

    assert run_threads(2, body, timeout=20) == [True, True]


def test_should_overlap_delays_change_no_bit():
    def body(comm: ThreadCommunicator) -> Any:
        metrics, held = train(comm, Net(comm.rank, np.float32), (5, 7))
        return metrics, {k: a.tobytes() for k, a in held.items()}

    want = run_threads(2, body, timeout=20)
    for seed in range(2):
        plan = FaultPlan.random(seed, 2, calls=60, count=30, kinds=["delay"], max_delay=0.003)
        assert run_threads(2, body, timeout=20, fault=plan) == want


def test_should_overlap_communication_that_runs_beside_backward_is_measured():
    def body(comm: ThreadCommunicator) -> tuple[float, float]:
        net = Net()
        trainer = BlockDistributedTrainer(net, comm, CONFIG)
        trainer.train_batch(*batch(0))
        comm.barrier()
        busy, waited = comm.stats.busy_s, comm.stats.waited_s
        if comm.rank == 0:  # 0.3 s of backward after block 2 was sent
            for block in net.blocks:
                block.told = partial(time.sleep, 0.1)
        else:  # which the other rank sends 0.15 s late
            time.sleep(0.15)
        trainer.train_batch(*batch(1))
        return comm.stats.busy_s - busy, comm.stats.waited_s - waited

    busy, waited = run_threads(2, body, timeout=20)[0]
    assert busy > 0.1 and waited < 0.5 * busy


def test_should_determinism_the_same_seed_is_the_same_run():
    results = [run_threads(2, lambda comm: train(comm, Net(4), (7, 5)), timeout=20) for _ in range(2)]
    bits = [[{k: a.tobytes() for k, a in held.items()} for _, held in result] for result in results]
    assert bits[0] == bits[1] and bits[0][0] == bits[0][1]
