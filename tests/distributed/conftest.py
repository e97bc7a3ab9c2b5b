"""What several tests of this folder need."""

import pytest
from fake_nccl import FakeMachine

from minigrad.distributed.comm.nccl import nccl


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """The GPUs and the NCCL library that NcclCommunicator finds."""
    machine = FakeMachine()
    monkeypatch.setattr(nccl, "_load", lambda: (machine.cupy, machine.nccl))
    monkeypatch.setattr(nccl, "END_SECONDS", 0.3)
    yield machine
    machine.shut()
