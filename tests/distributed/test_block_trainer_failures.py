"""Gradients that are not finite, ranks that disagree and ranks that are lost are errors on every rank."""

import math

import numpy as np
import pytest
from block_trainer_nets import CONFIG, C, Net, One, Spoil, batch, held, parts, train
from data_parallel import state_bits
from in_threads import in_threads
from refusals import raises

from minigrad import Tensor, nn
from minigrad import distributed as dist
from minigrad.distributed.train.blocks import non_finite


@pytest.mark.parametrize("accum", [1, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("rank", "name", "group"),
    [(1, "blocks.1.weight", "block 1"), (0, "embedding.weight", "embedding"), (2, "blocks.2.gain", "block 2")],
)
@in_threads(3, timeout=20)
def test_must_non_finite_gradients_halt_every_rank_naming_rank_block_and_step(comm, rank, name, group, value, accum):
    net = Net()
    config = dist.TrainingConfig(0.02, max_grad_norm=None, grad_accum_steps=accum)
    trainer = dist.BlockDistributedTrainer(net, comm, config)
    p, spoiled = dict(net.named_parameters())[name], False

    def loss(x: Tensor, y: Tensor) -> Tensor:
        out = net.loss(x, y)
        return out + Spoil.apply(p, value=value) if spoiled and comm.rank == rank else out

    trainer._loss_fn = loss
    for step in range(3):
        x, y = batch(step, parts((4, 4, 4), comm.rank))
        before = state_bits(trainer, net), held(net)
        for spoiled in [True, False] if step == 1 else [False]:
            for i in range(accum):
                if not spoiled or i + 1 < accum:
                    trainer.train_batch(x, y)
                    continue
                message = rf"step 2: gradients are infinite or NaN on rank {rank}, {group} \({name}\); no weight"
                error = raises(dist.NonFiniteBlockGradientError, message, trainer.train_batch, x, y)
                assert (error.step, error.where) == (2, {rank: {group: [name]}})
                assert (state_bits(trainer, net), held(net)) == before
    trainer.verify_replicas()
    assert trainer.global_step == 3


def test_must_non_finite_in_a_world_of_one_and_in_sums_and_losses():
    net = Net()
    trainer = dist.BlockDistributedTrainer(net, dist.NoOpCommunicator(), CONFIG)
    trainer._loss_fn = lambda x: x.sum() * 0.0 + Spoil.apply(net.blocks[0].weight, value=math.nan)
    with pytest.raises(dist.NonFiniteBlockGradientError, match=r"step 1: .* on rank 0, block 0 \(blocks.0.weight\)"):
        trainer.train_batch(np.ones((2, 5)))

    def body(comm: dist.ThreadCommunicator) -> None:
        one = One(np.float32)
        trainer = dist.BlockDistributedTrainer(one, comm, CONFIG)
        trainer._loss_fn = lambda x: x.sum() * 0.0 + Spoil.apply(one.blocks[0].weight, value=3e38)
        with pytest.raises(dist.NonFiniteBlockGradientError, match="on the ranks' sum, block 0"):
            trainer.train_batch(np.ones(1, np.float32))
        trainer._loss_fn = lambda x: one.blocks[0].weight * 0.0 + (math.nan if comm.rank == 1 else 0.0)
        raises(dist.NonFiniteLossError, "loss of step 1 is nan on rank 1", trainer.train_batch, np.ones(1, np.float32))
        assert one.blocks[0].weight.item() == 0.0

    dist.run_threads(2, body, timeout=20)


def test_what_is_not_finite_is_named():
    grads = {"a": Tensor(np.zeros((2, 3))), "b": Tensor(np.array([0.0, 1e200]))}
    assert non_finite(grads) == []  # 1e200 is finite, its square is not
    grads["b"].data[1] = math.inf
    assert non_finite(grads) == ["b"] and non_finite({}) == []


@pytest.mark.parametrize("what", ["shape", "dtype", "step", "later step", "blocks", "samples"])
@in_threads(2, timeout=20)
def test_must_mismatch_raises_on_every_rank_before_averaging(comm: dist.ThreadCommunicator, what, tmp_path):
    odd = comm.rank == 1
    net = Net(dtype=np.float32 if what == "dtype" and odd else np.float64)
    if what == "shape" and odd:
        net.head.weight = nn.Parameter(Tensor(np.zeros((C, 4))))
    if what in ("shape", "dtype"):
        raises(dist.CollectiveMismatchError, "is .* on rank 1", dist.BlockDistributedTrainer, net, comm)
        return
    if what == "blocks":
        net.others = nn.ModuleList([nn.Linear(2, 2, bias=False)])
        trainer = dist.BlockDistributedTrainer(net, comm, CONFIG, blocks="others" if odd else "blocks")
        raises(dist.CollectiveMismatchError, "the blocks is", lambda: trainer.train_batch(*batch(0)))
        return
    trainer = dist.BlockDistributedTrainer(net, comm, CONFIG)
    if what == "samples":
        x, y = batch(0)
        raises(ValueError, r"one number of samples, not shapes \(12, 5\), \(11, 5\)", trainer.train_batch, x, y[1:])
        return
    if what == "later step":
        trainer.train_batch(*batch(0))
    trainer._step.global_step += odd
    before = held(net)
    raises(dist.CollectiveMismatchError, "the (global step|number of the step) is", trainer.train_batch, *batch(1))
    assert held(net) == before


@pytest.mark.parametrize(("kind", "errors"), [("kill", (dist.PeerLostError,)), ("delay", (dist.CommTimeoutError,))])
@pytest.mark.parametrize("call", [3, 13, 17])
def test_must_peer_loss_and_silence_raise_within_the_deadline(kind, errors, call):
    seen: dict[int, BaseException] = {}

    def body(comm: dist.ThreadCommunicator) -> None:
        net = Net()
        try:
            train(comm, net, (4, 4, 4), steps=6)
        except Exception as error:
            seen[comm.rank] = error
            raise

    with pytest.raises((*errors, dist.RankKilledError)):
        dist.run_threads(3, body, timeout=0.5, fault=dist.FaultPlan([dist.Fault(kind, 1, call, seconds=1.5)], order=0))
    assert isinstance(seen[0], errors) and isinstance(seen[2], errors)
