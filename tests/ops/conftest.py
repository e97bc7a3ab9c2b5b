"""Tests that take ``device`` run on every device of this machine; why one is missing is said once."""

import harness
import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", harness.devices()[0])


def pytest_report_collectionfinish() -> str:
    return harness.devices()[1]
