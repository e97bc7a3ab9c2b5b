"""NoOpCommunicator: a job of one rank."""

from __future__ import annotations

from minigrad.device import CPU, Device

from .calls import FINISHED, Call, Work
from .communicator import Communicator
from .deadlines import DEFAULT_TIMEOUT
from .place import device_of


class NoOpCommunicator(Communicator):
    """A world of one rank: every collective is a copy or nothing, so that the same program runs alone.

    It takes tensors of any device, whichever is its own ``device``. ``send`` and ``recv`` have nobody to talk to and
    raise ValueError.
    """

    captures = True

    def __init__(self, timeout: float = DEFAULT_TIMEOUT, device: str | Device = CPU) -> None:
        super().__init__(1, 0, Device(device), timeout)

    def _serves(self, device: Device) -> bool:
        return True

    def _start(self, call: Call) -> Work:
        if call.send is not None and call.send is not call.recv:
            device_of(call.recv).kernels.elementwise.assign(call.recv.reshape(-1), call.send.reshape(-1))
        return FINISHED

    def _sync(self) -> None:
        """Everything is already over."""

    def _split(self, color: int | None, key: int) -> Communicator | None:
        return None if color is None else NoOpCommunicator(self.timeout, self.device)

    def _shut(self) -> None:
        """It holds nothing."""
