"""Devices: names, identity, and what is said where one cannot be used."""

import copy
import importlib
import pickle
from types import SimpleNamespace

import pytest
from processes import python
from refusals import raises

import minigrad as mg
from minigrad import Device, DeviceError


def test_devices_are_unique_and_shown_by_name() -> None:
    assert Device("cpu") is Device("cpu:0") is Device() is Device(Device("cpu"))
    assert Device("cuda") is Device("cuda:0") and Device("cuda:1") is not Device("cuda")
    assert Device("cuda:3").index == 3 and Device("cuda:3").type == "cuda"
    assert copy.deepcopy(Device("cuda:2")) is Device("cuda:2") is pickle.loads(pickle.dumps(Device("cuda:2")))
    assert (str(Device("cpu")), str(Device("cuda"))) == ("cpu", "cuda:0")
    assert repr(Device("cuda:1")) == "Device('cuda:1')"


def test_a_device_that_cannot_be_used_says_what_is_missing() -> None:
    available, reason = importlib.import_module("minigrad.cuda_kernels").availability()
    if available:
        assert mg.zeros(2, device="cuda").device is Device("cuda")
        return
    assert reason
    raises(DeviceError, "device cuda:0 cannot be used: ", lambda: mg.zeros(2, device="cuda"))
    raises(DeviceError, "cannot be used", lambda: mg.ones(2).to("cuda"))
    raises(DeviceError, "unknown device 'tpu'", lambda: mg.ones(2, device="tpu"))


TOO_LARGE = [
    (True, 2, "of CUDA devices the simulator has 2, cuda:0 to cuda:1"),
    (False, 1, "of CUDA devices this process sees 1, cuda:0"),
]


@pytest.mark.parametrize(("simulated", "count", "message"), TOO_LARGE)
def test_an_index_that_is_too_large_says_which_devices_there_are(monkeypatch, simulated, count, message) -> None:
    package = importlib.import_module("minigrad.cuda_kernels")
    monkeypatch.setattr(package, "availability", lambda: (True, ""))
    monkeypatch.setattr(package, "simulated", lambda: simulated)
    monkeypatch.setitem(vars(package), "memory", SimpleNamespace(device_count=lambda: count))
    raises(DeviceError, rf"device cuda:5 cannot be used: {message}$", lambda: mg.zeros(2, device="cuda:5"))


def test_the_cpu_is_where_tensors_are() -> None:
    x = mg.ones(2)
    assert x.device is Device("cpu") and x.cpu() is x and x.to("cpu") is x and x.to(device="cpu") is x
    assert (x * 2).device is x.device
    assert Device("cpu").kernels.__name__ == "minigrad.cpu_kernels"


def test_threads(set_threads) -> None:
    set_threads(1)
    assert mg.get_num_threads() == 1
    for bad in (0, -1, 10_000, True, 1.5):
        raises(ValueError, "", mg.set_num_threads, bad)  # type: ignore[arg-type]  # what is tested
    assert mg.get_num_threads() == 1


def test_a_device_equals_its_names():
    cpu, first, second = Device("cpu"), Device("cuda"), Device("cuda:1")
    assert cpu == "cpu" and cpu == "cpu:0" and first == "cuda" and first == "cuda:0" and second == "cuda:1"
    assert cpu != "cuda" and first != "cuda:1" and second != "cuda" and cpu != "gpu" and cpu != first and cpu != 0
    assert {cpu: 1}[Device("cpu")] == 1


def test_minigrad_has_its_cuda_module() -> None:
    """As an attribute of the package alone, in a process that imported nothing else."""
    program = "import minigrad; assert minigrad.cuda.is_available() == bool(minigrad.cuda.device_count())"
    python("-c", program, returncode=0)
