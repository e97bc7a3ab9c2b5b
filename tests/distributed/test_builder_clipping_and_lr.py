"""DdpBuilder: each replica clips its own gradients before the average; the learning rate by schedule and replicas."""

import numpy as np
import pytest
from replica_builder import SYNC, builder, is_replica, loss_of, sgd

from minigrad import Tensor, optim
from minigrad.distributed.mirrors.flodl.replica_threads import Replica


def test_clipping_is_each_replicas_own_before_averaging(monkeypatch):
    norms: dict[int, list[float]] = {0: [], 1: []}
    original = optim.SGD.step

    def step(self: optim.SGD, grads) -> None:
        squares = sum(float((g.data.astype(np.float64) ** 2).sum()) for _, g in grads.items())
        norms[int(is_replica(1))].append(np.sqrt(squares))
        original(self, grads)

    monkeypatch.setattr(optim.SGD, "step", step)

    def unequal(model, batch) -> Tensor:
        return loss_of(model, batch) * (100.0 if is_replica(1) else 1e-3)

    state = builder(policy=SYNC, optim_factory=sgd, train_fn=unequal, max_grad_norm=0.25).run().join()
    assert norms[1] == pytest.approx([0.25] * 12, rel=1e-4)
    assert all(norm < 0.25 for norm in norms[0])  # not clipped by the other's norm
    assert np.isfinite(state.params["w"]).all()


@pytest.mark.parametrize(("world", "ratio", "scale"), [(1, 1.0, 1.0), (2, 1.0, 2.0), (3, 0.5, 2.0), (2, 0.0, 1.0)])
def test_lr_sequence_of_the_schedule(world, ratio, scale):
    seen: dict[int, list[float]] = {rank: [] for rank in range(world)}
    asked = []

    def schedule(n: int) -> optim.CosineAnnealing:
        asked.append(n)
        return optim.CosineAnnealing(0.1, 0.0, 3, 30)

    def epoch_fn(epoch: int, replica: Replica) -> None:
        step = replica.trainer.optimizer.step

        def watched(grads) -> None:
            seen[replica.rank].append(replica.trainer.optimizer.lr)
            step(grads)

        if epoch == 0:
            replica.trainer.optimizer.step = watched  # type: ignore[method-assign]

    builder(policy=SYNC, replicas=world, scheduler=schedule, lr_scale_ratio=ratio, epoch_fn=epoch_fn).run().join()
    want = [scale * optim.CosineAnnealing(0.1, 0.0, 3, 30).get_lr(step) for step in range(2 * (12 // world))]
    assert asked == [world]
    for rank in range(world):
        assert seen[rank] == want


def test_lr_without_a_schedule_is_scaled_once():
    rates = []
    fn = lambda epoch, replica: rates.append(replica.trainer.optimizer.lr)  # noqa: E731
    builder(policy=SYNC, epoch_fn=fn, lr_scale_ratio=0.5, replicas=3).run().join()
    assert rates == [0.02 * 2] * 6
