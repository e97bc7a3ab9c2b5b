"""Replicas on GPUs of one process: their communicators, Ddp and Trainer, against one model on the CPU in float64.

In the simulator, which has two devices, or on GPUs; where there is one, both replicas share it.
"""

import threading

import communicator_suite as suite
import numpy as np
import pytest
from data_parallel import ROWS, Net
from nccl_programs import sgd, wrap_does_what_it_does_on_the_cpu
from refusals import raises
from replica_models import bits, host

import minigrad as mg
from minigrad import Tensor, data, nn
from minigrad import distributed as dist
from minigrad.data.prefetch import pinned
from minigrad.device import CPU, Device
from minigrad.nn import functional as F

if not mg.cuda.is_available():
    pytest.skip("no CUDA device, and NUMBA_ENABLE_CUDASIM=1 is not set", allow_module_level=True)

DEVICES = [Device("cuda:0"), Device(f"cuda:{min(1, mg.cuda.device_count() - 1)}")]
SLOW = ("check_large_all_reduce", "check_order", "check_asynchronous")

BREAKING = [c for c in suite.BREAKING if c.__name__ in ("break_by_other_shape", "break_by_silence", "break_by_close")]


def batch(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    x, y = np.random.default_rng(0).standard_normal((2, rows, 5))
    return Tensor(x), Tensor(y)


def net(device: Device | str = CPU, tied: bool = False, frozen: tuple[str, ...] = (), seed: int = 0) -> Net:
    model = Net(np.float64, seed, tied)
    for name, p in model.named_parameters():
        p.requires_grad_(name not in frozen)
    return model.to(device=device)


def loss_of(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return model.loss(x, y)


def assert_close(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-10, atol=1e-12, err_msg=name)


# ------------------------------------------------------------------ communicators


@pytest.mark.parametrize("check", [c for c in suite.CHECKS if c.__name__ not in SLOW], ids=lambda check: check.__name__)
def test_cuda_threads_have_a_communicator_without_nccl(check: suite.Check) -> None:
    dist.run_threads(2, check, timeout=300, devices=DEVICES)


@pytest.mark.parametrize("check", BREAKING, ids=lambda check: check.__name__)
def test_cuda_threads_break_as_a_communicator_should(check: suite.Check) -> None:
    dist.run_threads(2, check, timeout=30, devices=DEVICES)


def test_cuda_large_arrays_are_combined_by_all_devices_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    from minigrad.distributed.comm.threads import thread_group

    homes = []
    combine = thread_group.combine

    def noted(op, sources, outs) -> None:
        homes.append(outs[0].device)
        combine(op, sources, outs)

    monkeypatch.setattr(thread_group, "combine", noted)
    monkeypatch.setattr(thread_group, "SMALL_BYTES", 100)  # by the group's own threads

    def fn(comm: dist.ThreadCommunicator) -> None:
        t = Tensor(np.arange(101, dtype=np.float32) * (comm.rank + 1), device=comm.device)
        comm.all_reduce(t)
        np.testing.assert_array_equal(t.cpu().numpy(), 3 * np.arange(101))

    dist.run_threads(2, fn, timeout=30, devices=DEVICES)
    assert sorted(homes) == sorted(device.index for device in DEVICES)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cuda_three_ranks_on_two_devices_get_the_bits_of_the_cpu(dtype: str) -> None:
    def fn(comm: dist.ThreadCommunicator) -> list[bytes]:
        values = np.random.default_rng(comm.rank).standard_normal(40).astype(dtype)
        results = []
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
            t = Tensor(values, device=comm.device)
            comm.all_reduce(t, op)
            results.append(t.cpu().numpy().tobytes())
        return results

    got = dist.run_threads(3, fn, timeout=60, devices=[*DEVICES, DEVICES[1]])
    assert got == dist.run_threads(3, fn, timeout=60)


def test_cuda_threads_take_faults() -> None:
    def fn(comm: dist.ThreadCommunicator) -> float:
        t = Tensor(np.ones(3), device=comm.device)
        comm.all_reduce(t)
        return t.cpu().numpy()[0]

    flipped = dist.run_threads(2, fn, 30, dist.FaultPlan([dist.Fault("flip", rank=1, call=1, bit=63)]), DEVICES)
    assert flipped == [0.0, 0.0]  # 1 and -1
    with pytest.raises(dist.CommTimeoutError):
        dist.run_threads(2, fn, 0.3, dist.FaultPlan([dist.Fault("drop", rank=1, call=1)]), DEVICES)


def test_cuda_replicas_get_communicators_that_say_what_they_are(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "minigrad.distributed")
    comms = dist.replica_communicators([DEVICES[0], DEVICES[0]])  # twice the same: nothing for NCCL
    assert [(type(c), c.rank, c.device) for c in comms] == [(dist.ThreadCommunicator, r, DEVICES[0]) for r in range(2)]
    assert "cuda:0, cuda:0: no NCCL" in caplog.text
    raises(
        ValueError, "NcclComms requires CUDA devices, got CPU", lambda: dist.replica_communicators([CPU, DEVICES[0]])
    )
    with pytest.raises(mg.device.DeviceError, match="cuda:99 cannot be used"):
        dist.replica_communicators([DEVICES[0], Device("cuda:99")])


# ------------------------------------------------------------------ Ddp


def test_cuda_wrap_keeps_replicas_alike() -> None:
    wrap_does_what_it_does_on_the_cpu(DEVICES)


# ------------------------------------------------------------------ Trainer


@pytest.mark.parametrize("kinds", [{}, {"tied": True, "frozen": ("bias",)}], ids=["plain", "tied and frozen"])
def test_cuda_setup_of_two_replicas_is_training_on_the_whole_batch(kinds) -> None:
    seen = set()

    def noting(model: Net, x: Tensor, y: Tensor) -> Tensor:
        seen.add((mg.cuda.current_device(), threading.current_thread().name))
        return model.loss(x, y)

    exact = dist.Trainer.setup(net(**kinds), net, sgd)
    with dist.Trainer.setup(
        net(DEVICES[0], **kinds), lambda device: net(device, **kinds), sgd, devices=DEVICES
    ) as trainer:
        for rows in (7, 5):  # unequal shares
            metrics, wanted = trainer.step(noting, *batch(rows)), exact.step(loss_of, *batch(rows))
            assert metrics is not None and wanted is not None
            assert metrics.loss == pytest.approx(wanted.loss, rel=1e-12)
        trainer.assert_replicas_identical()
        assert trainer.devices == DEVICES
        assert seen == {(device.index, f"replica-{rank}") for rank, device in enumerate(DEVICES)}
        for model in trainer.models:
            assert_close(host(model), host(exact.models[0]))


def test_cuda_setup_of_one_replica_is_plain_training() -> None:
    trainer, exact = dist.Trainer.setup(net(DEVICES[1]), net, sgd), dist.Trainer.setup(net(), net, sgd)
    assert trainer.devices == [DEVICES[1]]
    for one in (trainer, exact):
        one.step(loss_of, *batch())
    assert_close(host(trainer.models[0]), host(exact.models[0]))


def normed(device: Device) -> nn.Module:
    mg.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).to(device=device).double()


def test_cuda_batch_norms_buffers_are_those_of_the_first_replica() -> None:
    """As on the CPU, where each replica sees the same rows."""
    x, y = batch()[0], Tensor(np.arange(ROWS) % 2)
    found = []
    for devices in (DEVICES, [CPU, CPU]):
        with dist.Trainer.setup(normed(devices[0]), normed, sgd, devices=devices) as trainer:
            trainer.step(lambda model, x, y: F.cross_entropy(model(x), y), x, y)
            trainer.assert_replicas_identical()
            found += [host(model) for model in trainer.models]
    for state in found[1:]:
        assert_close(state, found[0])
    assert found[0]["1.num_batches_tracked"] == 1 and found[0]["1.running_mean"].any()


def test_cuda_el_che_deals_whole_batches_out() -> None:
    config = dist.DdpConfig(speed_hint=(0, 2.0), max_anchor=1)
    exact = dist.Trainer.setup(net(), net, sgd)
    with dist.Trainer.setup_with(net(DEVICES[0]), net, sgd, config, devices=DEVICES) as trainer:
        metrics = [trainer.step(loss_of, *(t[i : i + 2] for t in batch())) for i in (0, 2, 4)]
        assert metrics[:2] == [None, None] and metrics[2] is not None  # 1 and 2 batches
        exact.step(loss_of, *(t[:6] for t in batch()))
        for model in trainer.models:
            assert_close(host(model), host(exact.models[0]))


def test_cuda_setup_on_gpus_of_different_names_has_el_che(monkeypatch: pytest.MonkeyPatch) -> None:
    with dist.Trainer.setup(net(DEVICES[0]), net, sgd, devices=DEVICES) as trainer:
        assert trainer.el_che is None
    names = iter(["RTX 5060 Ti", "GTX 1060"])
    monkeypatch.setattr(mg.cuda_kernels.memory, "device_name", lambda device: next(names))
    with dist.Trainer.setup(net(DEVICES[0]), net, sgd, devices=DEVICES) as trainer:
        assert trainer.el_che is not None


def test_cuda_a_replica_that_raises_changes_nothing() -> None:
    calls = threading.Semaphore(1)

    def failing(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)  # writes the running averages
        if x.device is DEVICES[1] and calls.acquire(blocking=False):
            raise ValueError("on purpose")
        return loss

    x, y = batch()[0], Tensor(np.arange(ROWS) % 2)
    with dist.Trainer.setup(normed(DEVICES[0]), normed, sgd, devices=DEVICES) as trainer:
        before = [bits(model) for model in trainer.models]
        raises(dist.ReplicaError, "ValueError: on purpose", lambda: trainer.step(failing, x, y))
        assert [bits(model) for model in trainer.models] == before
        assert trainer.step(failing, x, y) is not None


def test_cuda_replicas_that_differ_are_named() -> None:
    with dist.Trainer.setup(net(DEVICES[0]), net, sgd, devices=DEVICES) as trainer:
        trainer.models[1].bias.data = net(DEVICES[1], seed=5).bias.data
        raises(dist.ReplicaMismatchError, "'bias'.*differ", trainer.assert_replicas_identical)


# ------------------------------------------------------------------ builder mode


@pytest.mark.parametrize("backend", dist.AverageBackend)
def test_cuda_builder_averages_as_on_the_cpu(backend: dist.AverageBackend) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 8, 5))
    states = []
    for devices in (DEVICES, [CPU, CPU]):
        seen: list[tuple[Device, str]] = []

        def train_fn(model, batch, seen=seen) -> Tensor:
            seen.append((batch[0].device, threading.current_thread().name))
            return model.loss(*batch)

        options = {"devices": devices, "policy": "sync", "backend": backend, "batch_timeout": 300.0}
        handle = dist.DdpBuilder(net, sgd, train_fn, dataset=(x, y), batch_size=2, num_epochs=2, **options).run()
        metrics = [handle.next_metrics() for _ in range(2)]
        assert all(m is not None and m.device_indices == [d.index for d in devices] for m in metrics)
        assert handle.devices == devices
        states.append(handle.join())
        assert set(seen) == {(device, f"replica-{rank}") for rank, device in enumerate(devices)}
    got, wanted = states
    assert all(isinstance(array, np.ndarray) for array in got.params.values())
    assert_close(got.params, wanted.params)
    assert got.report is not None and got.report.averages == 4
    for (arrays, _), (others, _) in zip(got.replicas, wanted.replicas, strict=True):  # the optimizers' states
        assert_close(dict(arrays), dict(others))


def test_cuda_batches_arrive_by_pinned_memory() -> None:
    made = []

    def batches():
        for step in range(4):
            made.append(np.full((2, 3), float(step)))
            yield {"x": made[-1], "name": "a"}

    with data.Prefetcher(batches(), device=DEVICES[1]) as ahead:
        for step, batch in enumerate(ahead):
            assert batch["x"].device is DEVICES[1] and batch["name"] == "a"
            assert batch["x"].cpu().tolist() == [[float(step)] * 3] * 2
    assert len(made) == 4
    held = pinned((made[0], Tensor(made[1])))
    assert all(x.is_pinned() for x in held)
