"""Replicas on GPUs of one process: their communicators, Ddp and DdpBuilder (tests/distributed/test_trainer_setup.py has
Trainer), against one model on the CPU in float64.

In the simulator, which has two devices, or on GPUs; where there is one, both replicas share it.
"""

import threading

import communicator_suite as suite
import numpy as np
import pytest
from data_parallel import Net
from nccl_programs import sgd, wrap_does_what_it_does_on_the_cpu
from refusals import raises

import minigrad as mg
from minigrad import Tensor, data, distributed as dist
from minigrad.data.prefetch import pinned
from minigrad.device import CPU, Device

if not mg.cuda.is_available():
    pytest.skip("no CUDA device, and NUMBA_ENABLE_CUDASIM=1 is not set", allow_module_level=True)

DEVICES = [Device("cuda:0"), Device(f"cuda:{min(1, mg.cuda.device_count() - 1)}")]
SLOW = ("check_large_all_reduce", "check_order", "check_asynchronous")

BREAKING = [c for c in suite.BREAKING if c.__name__ in ("break_by_other_shape", "break_by_silence", "break_by_close")]


def net(device: Device = CPU, seed: int = 0) -> Net:
    return Net(np.float64, seed).to(device=device)


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
    raises(ValueError, "NcclComms requires CUDA devices, got CPU", dist.replica_communicators, [CPU, DEVICES[0]])
    raises(mg.device.DeviceError, "cuda:99 cannot be used", dist.replica_communicators, [DEVICES[0], Device("cuda:99")])


# ------------------------------------------------------------------ Ddp


def test_cuda_wrap_keeps_replicas_alike() -> None:
    wrap_does_what_it_does_on_the_cpu(DEVICES)


# ------------------------------------------------------------------ Trainer


def test_cuda_setup_on_gpus_of_different_names_has_el_che(monkeypatch: pytest.MonkeyPatch) -> None:
    with dist.Trainer.setup(net(DEVICES[0]), net, sgd, devices=DEVICES) as trainer:
        assert trainer.el_che is None
    names = iter(["RTX 5060 Ti", "GTX 1060"])
    monkeypatch.setattr(mg.cuda_kernels.memory, "device_name", lambda device: next(names))
    with dist.Trainer.setup(net(DEVICES[0]), net, sgd, devices=DEVICES) as trainer:
        assert trainer.el_che is not None


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
