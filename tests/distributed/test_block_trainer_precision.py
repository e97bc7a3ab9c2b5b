"""The learning rate of a schedule, and float16 with a scaler: an overflow leaves the step out on all ranks."""

import math

import numpy as np
from block_trainer_nets import CONFIG, Net, Spoil, alone, assert_like_one_process, train
from in_threads import in_threads
from refusals import raises

from minigrad import Tensor, nn, optim
from minigrad import distributed as dist


def test_should_lr_follows_warmup_and_cosine():
    schedule = optim.CosineAnnealing(0.02, 0.0, warmup_steps=2, total_steps=4)
    want = alone(Net(), schedule=schedule)
    for got in dist.run_threads(2, lambda comm: train(comm, Net(comm.rank), (8, 4), schedule=schedule), timeout=20):
        assert_like_one_process(got, want)
        assert [m.lr for m in got[0]] == [schedule.get_lr(i) for i in range(4)]


class Half(nn.Module):
    """float32 weights, computed with in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4, bias=False)])

    def loss(self, x: Tensor) -> Tensor:
        return ((x.half() @ self.blocks[0].weight.half()).float() * 1e-7).sum() / len(x)


def test_should_precision_an_overflow_leaves_the_step_out_on_all_ranks_and_the_scaler_is_saved(tmp_path):
    def make(comm: dist.Communicator) -> tuple[Half, dist.BlockDistributedTrainer]:
        net, scaler = Half(), optim.GradScaler(growth_interval=2)
        optimizer = optim.SGD(net.named_parameters(), lr=1e6)
        config = dist.TrainingConfig(max_grad_norm=None)
        return net, dist.BlockDistributedTrainer(net, comm, config, optimizer=optimizer, scaler=scaler)

    def body(comm: dist.ThreadCommunicator) -> None:
        net, trainer = make(comm)
        before = net.blocks[0].weight.data.copy()
        small, huge = np.ones((2, 4), np.float32), np.full((2, 4), 6e4, np.float32)
        assert trainer.train_batch(small) is not None
        np.testing.assert_allclose(before - net.blocks[0].weight.data, 0.1, rtol=2e-2)  # 1e-7 is no normal float16
        before = net.blocks[0].weight.data.copy()
        if comm.rank == 1:  # finite in the forward pass; its gradient times the scale is more than float16 can hold
            trainer._loss_fn = lambda x: (x.half() * net.blocks[0].weight[0].half()).float().sum() * 1e-3
        assert trainer.train_batch(small if comm.rank == 0 else huge) is None
        assert (trainer.global_step, trainer.skipped_steps) == (1, 1)
        assert np.array_equal(net.blocks[0].weight.data, before)
        assert trainer.scaler is not None and trainer.scaler.get_scale() == 32768.0
        trainer._loss_fn = net.loss
        for _ in range(3):
            assert trainer.train_batch(small) is not None
        assert trainer.scaler.state_dict() == {"scale": 65536.0, "good_steps": 1}
        trainer.save_checkpoint(tmp_path)
        _, other = make(comm)
        other.load_checkpoint(tmp_path)
        assert other.scaler is not None and other.scaler.state_dict() == {"scale": 65536.0, "good_steps": 1}
        assert (other.global_step, other.skipped_steps) == (4, 1)

    dist.run_threads(2, body, timeout=20)


@in_threads(2, timeout=20)
def test_should_precision_what_is_no_overflow_still_halts(comm: dist.ThreadCommunicator):
    net = Half()
    trainer = dist.BlockDistributedTrainer(net, comm, CONFIG, scaler=optim.GradScaler(2.0))
    trainer._loss_fn = lambda x: x.sum() * 0.0 + Spoil.apply(net.blocks[0].weight, value=math.nan)
    x = np.ones((1, 4), np.float32)
    assert trainer.train_batch(x) is None
    # At a scale of 1 it is no overflow.
    raises(dist.NonFiniteBlockGradientError, "", trainer.train_batch, x)
    trainer._loss_fn = lambda x: (net.blocks[0].weight * math.nan).sum()
    raises(dist.NonFiniteLossError, "", trainer.train_batch, x)
