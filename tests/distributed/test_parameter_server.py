"""AsyncParameterServer: versions, staleness, statistics, every optimizer, and many threads at once."""

import time

import numpy as np
import pytest
from in_threads import good, outcomes
from ranks import on_processes, requires_mpi
from refusals import raises

from minigrad import GradStore, Tensor, distributed as dist, nn, optim

SGD = dist.OptimizerKind.sgd(0.1)
START = np.array([1.0, -2.0, 3.0], np.float32)
ONES = np.ones(3, np.float32)


def server(optimizer: dist.OptimizerKind = SGD, max_staleness: int = 2, **options) -> dist.AsyncParameterServer:
    return dist.AsyncParameterServer(START, optimizer, max_staleness, **options)


def test_parameter_server_rejects_stale_gradients() -> None:
    ps = server(max_staleness=2)
    for version in range(3):
        ps.push_gradient(0, version, ONES)
    before = ps.pull_weights()
    words = "worker 7: the gradient is of version 0, 3 behind version 3; at most 2"
    error = raises(dist.StaleGradientError, words, ps.push_gradient, 7, 0, ONES)
    assert (error.worker, error.staleness, error.max_staleness) == (7, 3, 2)
    after = ps.pull_weights()
    assert np.array_equal(before[0], after[0]) and before[1] == after[1] == 3
    assert ps.push_gradient(7, 1, ONES) == 4  # two behind is allowed
    with pytest.raises(dist.StaleGradientError, match="at most 0"):
        strict = server(max_staleness=0)
        strict.push_gradient(0, 0, ONES)
        strict.push_gradient(0, 0, ONES)


def test_parameter_server_refuses_a_version_from_the_future() -> None:
    ps = server()
    raises(ValueError, "worker 3: worker_version is 1, but the newest version is 0", ps.push_gradient, 3, 1, ONES)
    for bad in (-1, True, 0.0, None):
        raises(ValueError, "worker_version is", ps.push_gradient, 3, bad, ONES)  # type: ignore[arg-type]
    assert ps.stats() == dist.ServerStats(0, 0, 0, 0, 0.0)


def test_parameter_server_length_error() -> None:
    for gradient, error, match in [
        (np.ones(2, np.float32), ValueError, r"worker 5: the gradient of weights has shape \(2,\), expected \(3,\)"),
        (np.ones(4, np.float32), ValueError, r"has shape \(4,\), expected \(3,\)"),
        (np.ones((1, 3), np.float32), ValueError, r"has shape \(1, 3\), expected \(3,\)"),
        (np.ones(3), TypeError, "worker 5: the gradient of weights has dtype float64, expected float32"),
        ({"weights": ONES}, TypeError, "the gradient is a dict, expected one array"),
        (np.array([1, np.nan, 1], np.float32), optim.NonFiniteGradientError, "worker 5: step 1, parameter weights: "),
    ]:
        ps = server(dist.OptimizerKind.adamw(0.1))
        raises(error, match, lambda gradient=gradient, ps=ps: ps.push_gradient(5, 0, gradient))
        assert ps.stats() == dist.ServerStats(0, 0, 0, 0, 0.0)
        assert np.array_equal(ps.pull_weights()[0], START)


def test_parameter_server_stats() -> None:
    ps = server(max_staleness=5)
    for worker_version in (0, 0, 1, 0):  # 0, 1, 1, 3 behind
        ps.push_gradient(0, worker_version, ONES)
    ps.pull_weights()
    assert ps.stats() == dist.ServerStats(4, 4, 0, 1, 5 / 4)
    for version in range(4, 4 + 126):
        ps.push_gradient(0, version, ONES)
    assert ps.stats().avg_staleness == (1 + 3) / 128  # of the last 128
    for version in range(130, 132):
        ps.push_gradient(0, version, ONES)
    assert ps.stats().avg_staleness == 0.0
    raises(dist.StaleGradientError, "", ps.push_gradient, 0, 0, ONES)
    assert ps.stats() == dist.ServerStats(132, 132, 1, 1, 0.0)


@pytest.mark.parametrize("optimizer", [SGD, dist.OptimizerKind.sgd(0.1, 0.9, 0.2), dist.OptimizerKind.adamw(0.05, 0.8)])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_parameter_server_honours_every_optimizer(optimizer: dist.OptimizerKind, clip: float | None) -> None:
    """Which are those of ``optim``, as the tests of DataParallelTrainer hold."""
    p = Tensor(START.astype(np.float64), requires_grad=True)
    alone = dist.SimpleTrainer(dist.TrainingConfig(max_grad_norm=clip), optimizer.build([("weights", p)]))
    ps = dist.AsyncParameterServer(START.astype(np.float64), optimizer, 3, gradient_clip=clip)
    for version, gradient in enumerate(np.random.default_rng(0).standard_normal((5, 3))):
        ps.push_gradient(0, max(0, version - 2), gradient)
        alone.step([("weights", p)], GradStore({p._id: Tensor(gradient)}), 0.0)
        assert np.array_equal(ps.pull_weights()[0], p.data)


def test_parameter_server_schedule_follows_the_version() -> None:
    schedule = optim.CosineAnnealing(0.5, 0.0, 0, 4)
    ps = server(dist.OptimizerKind.sgd(1.0), schedule=schedule)
    want = START.astype(np.float64)
    for version in range(3):
        ps.push_gradient(0, version, ONES)
        want -= schedule.get_lr(version)
    np.testing.assert_allclose(ps.pull_weights()[0], want, rtol=1e-6)


def test_a_models_weights_by_name() -> None:
    model = nn.Linear(3, 2)
    ps = dist.AsyncParameterServer(dict(model.named_parameters()), SGD, 0)
    grads = model(Tensor(np.ones((4, 3), np.float32))).sum().backward()
    gradient = {name: grads[p] for name, p in model.named_parameters()}
    assert ps.push_gradient(0, 0, gradient) == 1
    weights, _ = ps.pull_weights()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(weights[name], p.data - 0.1 * grads[p].data, rtol=1e-6)
    model.load_state_dict(weights)
    with pytest.raises(ValueError, match=r"worker 2: the gradient lacks \['bias'\] and has \['other'\]"):
        ps.push_gradient(2, 1, {"weight": gradient["weight"], "other": gradient["bias"]})
    raises(TypeError, "the gradient is a ndarray, expected a mapping", lambda: ps.push_gradient(2, 1, ONES))


def test_what_it_is_made_of_is_checked() -> None:
    for bad in (-1, 1.5, True):
        raises(ValueError, "max_staleness is", lambda bad=bad: server(max_staleness=bad))
    raises(TypeError, "expected one such as OptimizerKind", server, "sgd")  # type: ignore[arg-type]
    raises(TypeError, "weights has dtype int64, expected a floating", dist.AsyncParameterServer, np.arange(3), SGD, 1)
    raises(ValueError, "there are no weights", lambda: dist.AsyncParameterServer({}, SGD, 1))


def test_pushes_and_pulls_wait_for_a_step_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ps = server(max_staleness=100)
    step, inside, most = ps._trainer.step, [], []

    def slow(*args):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.005)
        try:
            return step(*args)
        finally:
            ps._params["weights"].data += 1.0  # a step that is half done
            time.sleep(0.005)
            ps._params["weights"].data -= 1.0
            inside.pop()

    monkeypatch.setattr(ps._trainer, "step", slow)

    def work(worker: int):
        if worker < 6:
            return ps.push_gradient(worker, 0, ONES)
        seen = [ps.pull_weights()]
        while seen[-1][1] < 6:
            time.sleep(0.001)
            seen.append(ps.pull_weights())
        return seen

    out = good([*outcomes(range(7), work, 30).values()])
    assert most == [1] * 6 and sorted(out[:6]) == [1, 2, 3, 4, 5, 6]
    for weights, version in out[6]:
        np.testing.assert_allclose(weights, START - 0.1 * version, rtol=1e-5)


def workers_and_server(comm: dist.Communicator) -> str:
    """Rank 0 serves the others, which each push 5 gradients of 1, and then some that cannot be taken."""
    weights = {name: Tensor(np.zeros(3 + ord(name), np.float32)) for name in (["a", "b"] if comm.rank else ["b", "a"])}
    if comm.rank == 0:
        ps = dist.AsyncParameterServer(weights, dist.OptimizerKind.sgd(1.0), max_staleness=9)
        ps.serve(comm)
        for name, found in ps.pull_weights()[0].items():
            assert np.array_equal(found, np.full(3 + ord(name), -10.0))
        return str(ps.stats().gradients_applied)
    ones = {name: np.ones(weight.shape, np.float32) for name, weight in weights.items()}
    with dist.RemoteParameterServer(comm, weights) as remote:
        for _ in range(5):
            found, version = remote.pull_weights()
            assert all(np.array_equal(found[name].numpy(), -version * ones[name]) for name in ones)
            remote.push_gradient(version, ones)
        raises(ValueError, f"worker {comm.rank}: worker_version is 99, but the newest", remote.push_gradient, 99, ones)
        with pytest.raises(optim.NonFiniteGradientError, match=f"worker {comm.rank}: "):
            remote.push_gradient(remote.pull_weights()[1], {**ones, "a": ones["a"] * np.float32(np.nan)})
        with pytest.raises(ValueError, match=r"the gradient of a has shape \(1,\), expected \(100,\)"):
            remote.push_gradient(0, {**ones, "a": np.ones(1, np.float32)})
    return "worker"


def test_workers_of_other_ranks() -> None:
    assert dist.run_threads(3, workers_and_server, timeout=30) == ["10", "worker", "worker"]
    raises(TypeError, "serve: the weights are one array", lambda: server().serve(dist.NoOpCommunicator()))


def test_a_worker_of_another_rank_hears_that_its_gradient_is_stale() -> None:
    def run(comm: dist.Communicator) -> None:
        weights = {"w": Tensor(START)}
        if comm.rank == 0:
            dist.AsyncParameterServer(weights, SGD, max_staleness=0).serve(comm)
            return
        with dist.RemoteParameterServer(comm, weights) as remote:
            for gradient in ({}, {**weights, "v": Tensor(START)}):
                raises(ValueError, "worker 1: the gradient lacks .* and has", remote.push_gradient, 0, gradient)
            raises(ValueError, "version is 0.5, expected an integer", remote.push_gradient, 0.5, weights)
            assert remote.push_gradient(0, weights) == 1
            with pytest.raises(dist.StaleGradientError, match=r"worker 1: .* 1 behind version 1; at most 0") as e:
                remote.push_gradient(0, weights)
            assert (e.value.worker, e.value.staleness, e.value.max_staleness) == (1, 1, 0)

    dist.run_threads(2, run, timeout=30)


@pytest.mark.long
@requires_mpi
def test_workers_in_processes() -> None:
    result = on_processes(3, workers_and_server)
    assert [result.lines(rank) for rank in range(3)] == [["10"], ["worker"], ["worker"]]
