"""The devices of this machine. These tests are about fast ways, so there must be some."""

from collections.abc import Callable

import harness
import pytest

from minigrad.modes import FAST_IS_OFF


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", harness.devices()[0])


@pytest.fixture(autouse=True)
def fast_ways() -> None:
    if FAST_IS_OFF:
        pytest.skip("MINIGRAD_FAST=0: there are no fast ways to test")


@pytest.fixture
def on_one_thread(set_threads: Callable[[int], None]) -> None:
    """One thread shares any batch evenly."""
    set_threads(1)
