"""These tests need a GPU, or the simulator: ``NUMBA_ENABLE_CUDASIM=1 pytest tests/cuda_kernels``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

WITHOUT_DEVICE = {"test_inspect.py"}  # it compiles, and launches nothing


class NoDevice(pytest.Module):
    """A file that is skipped before it is imported: kernels cannot even be declared without numba-cuda."""

    def collect(self):
        _, reason = importlib.import_module("minigrad.cuda_kernels").availability()
        pytest.skip(f"{reason}; NUMBA_ENABLE_CUDASIM=1 selects the simulator", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    usable, _ = importlib.import_module("minigrad.cuda_kernels").availability()
    return None if usable or module_path.name in WITHOUT_DEVICE else NoDevice.from_parent(parent, path=module_path)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that ran."""
    names: list[str] = []
    kernel = importlib.import_module("minigrad.cuda_kernels.platform.launch").Kernel
    original = kernel.launch

    def record(self: Any, *args: Any, **settings: Any) -> None:
        names.append(self.name)
        original(self, *args, **settings)

    monkeypatch.setattr(kernel, "launch", record)
    return names
