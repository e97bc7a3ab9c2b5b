"""These tests need a GPU, or the simulator: ``NUMBA_ENABLE_CUDASIM=1 pytest tests/cuda_kernels``."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

WITHOUT_DEVICE = {"test_inspect.py", "test_libcuda.py"}  # they launch nothing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    usable, reason = importlib.import_module("minigrad.cuda_kernels").availability()
    if usable:
        return
    for item in items:
        if Path(__file__).parent in item.path.parents and item.path.name not in WITHOUT_DEVICE:
            item.add_marker(pytest.mark.skip(reason=f"{reason}; NUMBA_ENABLE_CUDASIM=1 selects the simulator"))
