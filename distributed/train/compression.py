"""Compression of what a bucket's all-reduce sends: fewer bytes for less precision."""

from __future__ import annotations

from minigrad.dtypes import bfloat16
from minigrad.tensor import Tensor

from ..comm.calls import ReduceOp, Work
from ..comm.communicator import Communicator


class BFloat16Compression:
    """Sends gradients as bfloat16: half of float32's bytes, 8 bits of precision, the same range.

    Pass it as a trainer's ``hook``. Each rank's gradient is rounded once, and their mean once more, each time by at
    most 2^-8 of its value: together by at most 2^-7 (and a little) of the ranks' mean absolute value. All ranks round
    alike, so their weights stay equal.
    """

    def __call__(self, communicator: Communicator, bucket: Tensor) -> Work:
        sent = bucket.to(bfloat16)
        return _Decompress(communicator.all_reduce(sent, ReduceOp.AVG, async_op=True), sent, bucket)


class _Decompress(Work):
    def __init__(self, work: Work, sent: Tensor, bucket: Tensor) -> None:
        self._work, self._sent, self._bucket = work, sent, bucket

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def wait(self, timeout: float | None = None) -> None:
        self._work.wait(timeout)
        self._bucket.device.kernels.elementwise.assign(self._bucket.data, self._sent.data)
