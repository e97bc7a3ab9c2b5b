"""Collectives of NCCL as part of a CUDA graph (NCCL 2.9 and later).

    the captured stream    kernels ---+-------- kernels ---------+--- kernels
                                 ready|                      end |
    NCCL's for graphs                 +--- all_reduce -----------+

An operation begins a branch of the graph, ``Work.wait`` ends it, and a launch does all of it without the host. In the
simulator, whose graphs are calls in their order, each launch makes these calls of CuPy and NCCL again.
"""

from __future__ import annotations

from typing import Any

from minigrad import capturing

from ..calls import Call, Work
from ..comm_errors import CommunicatorBrokenError
from .nccl_launch import enqueue


class CapturedWork(Work):
    """An operation of an NcclCommunicator in a CUDA graph; ``wait`` lets what is captured from then on follow it."""

    def __init__(self, owner: Any, call: Call) -> None:
        self._owner, self._call = owner, call
        self._cuda: Any = owner._handles.cupy.cuda
        self._ready: Any = None
        self._end: Any = None
        self._joined = False

    def begin(self) -> None:
        """Put it on the communicator's stream for graphs, after what the current stream has."""
        owner = self._owner
        with self._cuda.Device(owner.device.index):
            self._ready, self._end = (self._cuda.Event(disable_timing=True) for _ in range(2))
            self._ready.record(self._cuda.get_current_stream())
        job = owner._thread.submit(self._issue)
        if not job.wait(owner.timeout) or job.error is not None:
            error = job.error or owner._expired(self._call, owner.timeout)
            raise owner._broken(error, self._call) from job.error

    def _issue(self) -> None:
        """In the communicator's thread, as all calls of NCCL."""
        handles = self._owner._handles
        if handles.comm is None:
            raise CommunicatorBrokenError("the communicator was aborted before the operation began")
        handles.captured.wait_event(self._ready)
        enqueue(handles, handles.comm, self._call, handles.captured.ptr)
        self._end.record(handles.captured)

    def is_completed(self) -> bool:
        """Whether ``wait`` was called: the operation itself happens in the graph's launches."""
        return self._joined

    def wait(self, timeout: float | None = None) -> None:
        """Let the captured stream wait for the operation. The host does not wait, so that ``timeout`` means nothing.

        Raises RuntimeError after the end of the capture.
        """
        if self._joined:
            return
        graph = capturing.recorded()
        if graph is None:
            raise RuntimeError(
                f"{self._call} is part of a graph: wait for it within the capture, then launch the graph"
            )
        self._joined = True
        graph.raw.capture_call(self._join)

    def _join(self) -> None:
        self._cuda.get_current_stream(self._owner.device.index).wait_event(self._end)
