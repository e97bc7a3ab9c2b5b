"""DdpBuilder: averages in host memory and through communicators are the same, weighted with the batches done."""

import threading
from collections import Counter

import numpy as np
import pytest
from replica_builder import ASYNC, CADENCE, Net, adamw, arrays, builder, epoch_batches, loss_of, plain

from minigrad import Tensor, distributed
from minigrad.distributed.mirrors.flodl import policies, replica_threads
from minigrad.distributed.mirrors.flodl.replica_group import average, weighted_mean


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_the_average_is_weighted_and_the_same_on_all(dtype):
    world, weights = 3, [7, 3, 1]

    def replicas() -> list[list[Tensor]]:
        made = []
        for rank in range(world):
            model = Net(seed=rank, dtype=dtype)
            model.mean.data[...] = rank
            model.seen.data[...] = (5, 9, 2)[rank]
            made.append([*model.parameters(), *model.buffers()])
        return made

    want = [sum(w * r[i].data.astype(np.float64) for w, r in zip(weights, replicas())) / 11 for i in range(5)]
    mine = replicas()
    deltas = distributed.run_threads(world, lambda comm: average(comm, mine[comm.rank], weights), timeout=5)
    for tensors_of_rank in mine:
        assert [a.data.tobytes() for a in tensors_of_rank] == [a.data.tobytes() for a in mine[0]]
    host, tolerance = mine[0], 4 * float(np.finfo(dtype).eps)
    for i, a in enumerate(host):
        assert a.dtype == replicas()[0][i].dtype
        if i not in (2, 4):  # the frozen bias stays, a counter becomes the largest
            np.testing.assert_allclose(a.data.astype(np.float64), want[i], rtol=tolerance, atol=tolerance)
    assert host[4].item() == 9 and host[2].data.tobytes() == replicas()[0][2].data.tobytes()
    alone = weighted_mean(replicas(), weights)
    assert [a.data.tobytes() for a in alone] == [a.data.tobytes() for a in host]
    both = replicas()[1], host
    pre, post = (np.concatenate([r[i].data.astype(np.float64).ravel() for i in (0, 1, 3)]) for r in both)
    assert deltas[1] == pytest.approx(np.linalg.norm(pre - post) / np.linalg.norm(post), rel=10 * tolerance)


@pytest.mark.parametrize("policy", [CADENCE, ASYNC])
@pytest.mark.parametrize("backend", policies.AverageBackend)
def test_backends_learn_with_every_policy(policy, backend):
    handle = builder(policy=policy, backend=backend, num_epochs=25, anchor=2, max_anchor=4).run()
    losses = []
    while (metrics := handle.next_metrics()) is not None:
        losses.append(metrics.avg_loss)
    state = handle.join()
    assert len(losses) == 25 and losses[-1] < 0.3 * losses[0]
    assert sum(state.report.batches) == 25 * 12 and state.report.averages > 1


@pytest.mark.parametrize("backend", policies.AverageBackend)
def test_backends_weight_with_the_batches_done(backend):
    """With so large an anchor there is one average, at the end: of 9 batches and of 3."""
    options = {"policy": CADENCE, "anchor": 200, "partition_ratios": [3, 1], "num_epochs": 1}
    state = builder(**options, backend=backend).run().join()
    alone = [plain(part, adamw) for part in (epoch_batches(0)[:9], epoch_batches(0)[9:])]
    assert state.report.count_history == [[9, 3]]
    for name in ("w", "v", "mean"):
        want = (9 * alone[0][name] + 3 * alone[1][name]) / 12
        np.testing.assert_allclose(arrays(state)[name], want, rtol=0, atol=1e-14)
    assert arrays(state)["seen"] == 9


def test_backends_of_the_cpu_average_while_all_replicas_train(monkeypatch):
    """Each average waits for the other replica's next batch, which never comes if that stands still."""
    done, overlapping, changed = Counter(), [], threading.Condition()

    def train(model, batch):
        with changed:
            done[threading.current_thread().name] += 1
            changed.notify_all()
        return loss_of(model, batch)

    def slow_mean(parts, weights):
        with changed:
            before = done.copy()
            me = threading.current_thread().name
            overlapping.append(
                changed.wait_for(lambda: any(done[name] > before[name] for name in done if name != me), 1)
            )
        return weighted_mean(parts, weights)

    monkeypatch.setattr(replica_threads, "weighted_mean", slow_mean)
    options = {"anchor": 2, "max_anchor": 2, "num_epochs": 8}
    report = builder(train_fn=train, policy=ASYNC, backend=policies.AverageBackend.CPU, **options).run().join().report
    assert sum(overlapping) >= 3  # some find it at its limit of overshoot, or at the end of the run
    assert sum(report.batches) == 8 * 12 and report.averages > len(overlapping)
