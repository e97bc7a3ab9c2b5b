"""These tests need a GPU, or the simulator: ``NUMBA_ENABLE_CUDASIM=1 pytest tests/cuda_kernels``."""

import importlib

import pytest

WITHOUT_DEVICE = {"test_inspect.py"}  # it compiles, and launches nothing
OF_THE_SIMULATOR = {"test_simulator.py", "test_hopper_ptx.py", "test_tensor_core_ptx.py"}


class NoDevice(pytest.Module):
    """A file that is skipped before it is imported: kernels cannot even be declared without numba-cuda."""

    def collect(self):
        _, reason = importlib.import_module("minigrad.cuda_kernels").availability()
        reason = reason or "a GPU cannot be asked"
        pytest.skip(f"{reason}; NUMBA_ENABLE_CUDASIM=1 selects the simulator", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent: pytest.Collector) -> pytest.Module | None:
    kernels = importlib.import_module("minigrad.cuda_kernels")
    usable = kernels.simulated() if module_path.name in OF_THE_SIMULATOR else kernels.availability()[0]
    return None if usable or module_path.name in WITHOUT_DEVICE else NoDevice.from_parent(parent, path=module_path)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that ran."""
    names: list[str] = []
    kernel = importlib.import_module("minigrad.cuda_kernels.platform.launch").Kernel
    original = kernel.launch

    def record(self, *args, **settings) -> None:
        names.append(self.name)
        original(self, *args, **settings)

    monkeypatch.setattr(kernel, "launch", record)
    return names


@pytest.fixture
def order():
    """The simulator's threads in another order than by their numbers, in which tests/ops runs; a GPU has its own."""
    simulated = importlib.import_module("minigrad.cuda_kernels").simulated()
    with importlib.import_module("simulated").ordered(1 if simulated else None):
        yield
