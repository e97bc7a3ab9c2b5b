"""The devices of this machine, and fast ways that run whatever MINIGRAD_FAST says: these tests are about them."""

from __future__ import annotations

from collections.abc import Iterator

import harness
import pytest

from minigrad.modes import of_thread


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", harness.devices()[0])


@pytest.fixture(autouse=True)
def fast_ways() -> Iterator[None]:
    before, of_thread.mode.unfused = of_thread.mode.unfused, False
    yield
    of_thread.mode.unfused = before
