"""Captured steps on two ranks, whose collectives are part of the graph: the simulator's devices and a fake NCCL."""

import in_threads
import nccl_programs
import numpy as np
import pytest
from fake_nccl import FakeMachine, on_ranks
from nccl_programs import Pair, rows, trainer_of, weights
from refusals import raises

import minigrad as mg
from minigrad import Tensor, cuda_kernels, distributed as dist
from minigrad.device import Device
from minigrad.distributed.train import captured_step

if not cuda_kernels.simulated():
    pytest.skip("NUMBA_ENABLE_CUDASIM=1 selects the simulator", allow_module_level=True)

NOT_OVER = "the launch of a graph was not over within 0.05 s"


def on_both(fn):
    return on_ranks(dist.NcclCommunicator.group([Device("cuda:0"), Device("cuda:1")], timeout=100), fn)


def good(fn):
    return in_threads.good(on_both(fn))


def after_steps(comm: dist.Communicator, count: int):
    """A model, its trainer, their captured step, and the weights after so many of it."""
    model = Pair(comm.device)
    trainer = trainer_of("bucketed", comm)
    step = trainer.capture(model.loss, model.named_parameters())
    for i in range(count):
        step(rows(comm, i)).result()
    return model, trainer, step, weights(model)


@pytest.mark.parametrize(("kind", "count"), [("distributed", 2), ("bucketed", 2), ("scaled", 1)])
def test_cuda_captured_steps_of_ranks_are_the_eager_ones(machine: FakeMachine, kind: str, count: int) -> None:
    """To the bit: metrics, weights, moments and counts; with a scale, steps that overflow on one rank are left out."""

    first, second = good(lambda comm: nccl_programs.captured(comm, kind, count))
    assert first == second
    assert (None in first[0]) == (kind == "scaled") and first[1] != weights(Pair(Device("cuda")))


def test_cuda_collectives_of_a_graph_are_made_by_its_launches(machine: FakeMachine) -> None:
    """All ranks' values of now, without the host; an operation overlaps until its ``wait``."""

    def fn(comm: dist.Communicator):
        x, out = Tensor(np.zeros(3, np.float32), device=comm.device), []
        everyone = mg.zeros(6, device=comm.device)
        graph = mg.cuda.Graph(comm.device)
        with graph.capture():
            y = x * 2.0
            work = comm.all_reduce(y, async_op=True)
            z = x + 1.0
            assert not work.is_completed()
            work.wait()
            y = y + z
            comm.all_gather(y, everyone)
        assert all(rank != comm.rank for _, rank, *_ in machine.calls("allReduce", "allGather"))
        for i in range(2):
            x.copy_(Tensor(np.full(3, comm.rank + i, np.float32), device=comm.device))
            graph.replay()
            out.append(everyone.cpu().numpy()[::3].tolist())
        return out

    # 2 (0 + 1) + rank + 1, then 2 (1 + 2) + rank + 2
    assert good(fn) == [[[3.0, 4.0], [8.0, 9.0]]] * 2
    calls = machine.calls("allReduce", "allGather", "destroy")
    assert [name for name, *_ in calls].count("allReduce") == 4


def test_cuda_loss_that_is_not_finite_on_one_rank_stops_all(machine: FakeMachine) -> None:
    def fn(comm: dist.Communicator):
        model, _, step, before = after_steps(comm, 2)
        with pytest.raises(dist.NonFiniteLossError, match="the loss of step 3 is inf on rank 1"):
            step(rows(comm, 2) * (1e30 if comm.rank else 1.0)).result()
        assert weights(model) == before
        return step(rows(comm, 3)).result().step

    assert good(fn) == [3, 3]


def test_cuda_captured_steps_compare_what_the_ranks_hold(machine: FakeMachine) -> None:
    def fn(comm: dist.Communicator) -> None:
        model = Pair(comm.device)
        trainer = dist.BucketedTrainer(dist.TrainingConfig(compare_every=4), comm)
        step = trainer.capture(model.loss, model.named_parameters())
        for i in range(5):
            step(rows(comm, i)).result()
        assert step.graphs == 1
        model.b.detach().mul_(1.0 + comm.rank)
        for i in range(5, 7):
            step(rows(comm, i)).result()
        raises(dist.ReplicaMismatchError, r"copies of 'b' .* \(step 8\); unless the program", step, rows(comm, 7))

    good(fn)


def test_cuda_index_out_of_range_on_one_rank_stops_all(machine: FakeMachine) -> None:
    def fn(comm: dist.Communicator):
        model = Pair(comm.device)
        trainer = trainer_of("distributed", comm)
        step = trainer.capture(lambda x, i: model.loss(x) + model.a[i].sum(), model.named_parameters())
        good, bad = (Tensor(np.array([0, last])) for last in (2, 3))
        for i in range(2):
            step(rows(comm, i), good).result()
        before = weights(model)
        with pytest.raises(IndexError, match="step 3: an index or a class target is out of range"):
            step(rows(comm, 2), bad if comm.rank else good).result()
        assert weights(model) == before
        step(rows(comm, 3), good).result()
        return weights(model)

    out = good(fn)
    assert out[0] == out[1]


def test_cuda_ranks_whose_inputs_or_steps_differ_are_told(machine: FakeMachine) -> None:
    def shapes(comm: dist.Communicator) -> None:
        _, _, step, _ = after_steps(comm, 0)
        words = r"inputs of a captured step is 'float32 \(2, 3\)' on rank 1"
        raises(dist.CollectiveMismatchError, words, lambda: step(rows(comm, 0)[: 1 + comm.rank]))

    def rates(comm: dist.Communicator) -> None:
        model = Pair(comm.device)
        trainer = dist.BucketedTrainer(dist.TrainingConfig(), comm)
        step = trainer.capture(model.loss, model.named_parameters())
        for i in range(2):
            step(rows(comm, i)).result()
        trainer.optimizer.set_lr(0.1 * (1 + comm.rank))
        raises(dist.CollectiveMismatchError, r"'learning rate': 0.[12].* on rank [01]", step(rows(comm, 2)).result)

    good(shapes)
    good(rates)


@pytest.mark.parametrize("what", ["shapes", "capture"])
def test_cuda_rank_that_launches_alone_changes_no_weight(machine: FakeMachine, what: str) -> None:
    """While rank 0 launches its graph, rank 1 makes an eager step for new shapes, or captures anew."""

    def fn(comm: dist.Communicator):
        model, trainer, step, before = after_steps(comm, 3)
        comm.timeout, machine.patience = 0.3, 0.5
        if comm.rank and what == "capture":
            trainer.config = trainer.config.with_max_grad_norm(0.25)
        with pytest.raises(dist.CollectiveMismatchError if comm.rank == 0 else dist.CommTimeoutError):
            step(rows(comm, 3)[: 1 if comm.rank and what == "shapes" else 2]).result()
        raises(dist.CommunicatorBrokenError, "", lambda: step(rows(comm, 4)))
        return trainer.global_step, weights(model) == before

    assert good(fn) == [(3, True)] * 2


def test_cuda_ranks_that_go_on_differently_after_an_error_are_told(machine: FakeMachine) -> None:
    """Rank 0 has seen that a step failed and makes it again, when rank 1 launches the one after it."""

    def fn(comm: dist.Communicator):
        model, trainer, step, before = after_steps(comm, 2)
        pending = step(rows(comm, 2) * 1e30)
        if comm.rank == 0:
            raises(dist.NonFiniteLossError, "", pending.result)
        pending = step(rows(comm, 3))
        raises(dist.CollectiveMismatchError, "same step of the same graph, and no weight was changed", pending.result)
        return trainer.global_step, weights(model) == before

    assert good(fn) == [(2, True)] * 2


def test_cuda_capture_that_fails_on_one_rank_is_an_error_of_all(machine: FakeMachine) -> None:
    def fn(comm: dist.Communicator):
        model = Pair(comm.device)
        calls = []

        def loss(x: Tensor) -> Tensor:
            calls.append(x)
            if comm.rank and len(calls) == 2:
                raise ZeroDivisionError
            return model.loss(x)

        trainer = trainer_of("bucketed", comm)
        step = trainer.capture(loss, model.named_parameters())
        step(rows(comm, 0)).result()
        before, comm.timeout = weights(model), 0.3
        raises(ZeroDivisionError if comm.rank else dist.CommTimeoutError, "", lambda: step(rows(comm, 1)))
        return trainer.global_step, step.graphs, weights(model) == before

    assert good(fn) == [(1, 0, True)] * 2


def test_cuda_ranks_that_capture_different_gradients_keep_no_graph(machine: FakeMachine) -> None:
    def fn(comm: dist.Communicator):
        model = Pair(comm.device)
        odd = []
        step = trainer_of("bucketed", comm).capture(
            lambda x: model.loss(x) + (model.unused.sum() if odd else 0.0), model.named_parameters()
        )
        step(rows(comm, 0)).result()
        odd += [1] * comm.rank
        words = r"the parameters with a gradient is .*'unused'.* on rank 1"
        raises(dist.CollectiveMismatchError, words, step, rows(comm, 1))
        found = step.graphs
        odd.clear()
        return found, [step(rows(comm, i)).result().step for i in range(1, 3)], weights(model)

    out = good(fn)
    assert out[0] == out[1] and out[0][:2] == (0, [2, 3])


def reduction(comm: dist.Communicator):
    """A graph that is one collective, and its tensor."""
    graph, x = mg.cuda.Graph(comm.device), mg.zeros(1, device=comm.device)
    with graph.capture():
        comm.all_reduce(x)
    return graph, x


def test_cuda_close_does_not_wait_for_a_launch_for_ever(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(comm: dist.Communicator) -> None:
        graph, _ = reduction(comm)
        graph.replay()
        monkeypatch.setattr(graph.raw.launched, "query", lambda: False)
        comm.timeout = 0.05
        raises(dist.CommTimeoutError, NOT_OVER, comm.close)

    good(fn)
    assert len(machine.calls("abort")) == 2 and not machine.calls("destroy")


def test_cuda_graph_that_gives_way_waits_with_the_deadline(machine, monkeypatch) -> None:
    """A capture that would close the oldest graph, of which a launch is under way."""
    monkeypatch.setattr(captured_step, "END_SECONDS", 0.01)

    def fn(comm: dist.Communicator):
        model = Pair(comm.device)
        step = trainer_of("bucketed", comm).capture(model.loss, model.named_parameters(), max_graphs=1)
        for i in range(3):
            step(rows(comm, i)[:1]).result()
        step(rows(comm, 3)).result()
        step(rows(comm, 4)[:1])
        comm.timeout = 0.05
        monkeypatch.setattr(step._launched[0].event, "query", lambda: False)
        raises(dist.CommTimeoutError, NOT_OVER, lambda: step(rows(comm, 5)))

    good(fn)


def test_cuda_communicator_is_aborted_also_where_the_device_cannot_be_told(machine, monkeypatch) -> None:
    def fn(comm: dist.Communicator) -> None:
        graph, x = reduction(comm)
        graph.stopped = x.data
        monkeypatch.setattr(graph.raw, "write_beside", lambda *_: 1 / 0)
        comm._end()

    good(fn)
    assert len(machine.calls("abort")) == 2


def test_cuda_launch_that_is_not_over_in_time_aborts(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step does not count: the device, told to stop, has left out its update."""
    monkeypatch.setattr(captured_step, "END_SECONDS", 0.01)

    def fn(comm: dist.Communicator):
        _, trainer, step, _ = after_steps(comm, 2)
        pending = step(rows(comm, 2))
        comm.timeout = 0.05
        monkeypatch.setattr(step._launched[0].event, "query", lambda: False)
        raises(dist.CommTimeoutError, NOT_OVER, pending.result)
        raises(dist.CommTimeoutError, "", pending.result)
        raises(dist.CommunicatorBrokenError, "", lambda: step(rows(comm, 3)))
        return trainer.global_step, int(step._recorder.stopped)

    assert good(fn) == [(2, 1)] * 2
    assert len(machine.calls("abort")) == 2


def test_cuda_captures_that_cannot_be_are_refused(machine: FakeMachine) -> None:
    def fn(comm: dist.Communicator) -> None:
        model = Pair(comm.device)
        fused = dist.FusedDistributedOptimizer(None, comm)
        with pytest.raises(ValueError, match="FusedDistributedOptimizer on 2 ranks exchanges values by the host"):
            fused.capture(model.loss, model.named_parameters())
        graph = mg.cuda.Graph(comm.device)
        with pytest.raises(mg.cuda.CaptureError, match=r"send\(\) during capture"), graph.capture():
            comm.send(model.a.detach(), 1 - comm.rank)

    good(fn)

    def by_host(comm: dist.Communicator) -> None:
        model = Pair(comm.device)
        with pytest.raises(ValueError, match="ThreadCommunicator exchanges data by the host.*needs NcclCommunicator"):
            trainer_of("bucketed", comm).capture(model.loss, model.named_parameters())
        graph = mg.cuda.Graph(comm.device)
        with pytest.raises(mg.cuda.CaptureError, match=r"all_reduce\(\) during capture"), graph.capture():
            comm.all_reduce(model.a.detach())

    dist.run_threads(2, by_host, devices=[Device("cuda:0"), Device("cuda:1")])
