"""How operations are put on a CUDA stream through NCCL: the calls, their order and grouping, and what came of them.

The operations of a CUDA graph (NCCL 2.9 and later) are branches of it:

    the captured stream    kernels ---+-------- kernels ---------+--- kernels
                                 ready|                      end |
    NCCL's for graphs                 +--- all_reduce -----------+

An operation begins a branch, ``Work.wait`` ends it, and a launch does all of it without the host. In the simulator,
whose graphs are calls in their order, each launch makes these calls of CuPy and NCCL again.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad import capturing, dtypes

from .. import call_header
from ..call_thread import QueuedCall
from ..calls import Call, CallKind, ReduceOp, Work
from ..comm_errors import CollectiveMismatchError, CommunicatorBrokenError

# ncclDataType_t and ncclRedOp_t. NCCL has no bool; the minimum and maximum of bool are those of bytes.
DTYPES = {
    dtypes.uint8: 1, dtypes.bool_: 1, dtypes.int32: 2, dtypes.int64: 4,
    dtypes.float16: 6, dtypes.float32: 7, dtypes.float64: 8, dtypes.bfloat16: 9,
}  # fmt: skip
OPS = {ReduceOp.SUM: 0, ReduceOp.PROD: 1, ReduceOp.MAX: 2, ReduceOp.MIN: 3, ReduceOp.AVG: 4}
_UINT8 = DTYPES[dtypes.uint8]


@dataclass
class Handles:
    """What CUDA and NCCL gave to one communicator.

    ``stream`` carries the operations, ``side`` copies headers to the host while ``stream`` may be stuck, ``captured``
    carries what becomes part of a graph. ``one`` is a byte on the device. ``comm`` is CuPy's NcclCommunicator, None
    once it was aborted or destroyed.
    """

    cupy: Any
    nccl: Any
    comm: Any
    stream: Any
    side: Any
    captured: Any
    one: Any
    world_size: int


class NcclLaunch:
    """What goes to NCCL in one piece: a collective, or a group of sends and receives.

    It keeps the buffers alive until it is ``settled``: over, found good and counted.
    """

    def __init__(self) -> None:
        self.began: float = time.monotonic()
        self.calls: list[Call] = []
        self.ready: list[Any] = []  # events: when the buffers have been computed
        self.job: QueuedCall | None = None
        self.begin: Any = None
        self.end: Any = None
        self.seconds: float = 0.0  # on the GPU
        self.settled: bool = False
        self._headers: list[tuple[Call, range | list[int], Any]] = []  # (call, from whom, array on the device)
        self._kept: list[Any] = []

    def add(self, call: Call, ready: Any) -> None:
        """Take a call, whose buffers are ready when the event ``ready`` has happened."""
        self.calls.append(call)
        self.ready.append(ready)

    def issue(self, handles: Handles, check: bool) -> None:
        """Put it on the stream; in the communicator's thread."""
        comm, stream, cuda = handles.comm, handles.stream, handles.cupy.cuda
        if comm is None:
            raise CommunicatorBrokenError("the communicator was aborted before the operation began")
        for ready in self.ready:
            stream.wait_event(ready)
        self.begin, end = cuda.Event(), cuda.Event()
        self.begin.record(stream)
        messages = self.calls[0].between_two
        if check and not messages:
            self._gather_headers(handles, comm)
        if messages or self.calls[0].kind is CallKind.ALL_TO_ALL:
            handles.nccl.groupStart()
            try:
                for call in self.calls:
                    if check and messages:
                        self._pass_header(handles, comm, call)
                    enqueue(handles, comm, call, stream.ptr)
            finally:
                handles.nccl.groupEnd()
        else:
            enqueue(handles, comm, self.calls[0], stream.ptr)
        end.record(stream)
        self.end = end

    def _gather_headers(self, handles: Handles, comm: Any) -> None:
        mine = handles.cupy.asarray(call_header.pack(self.calls[0]))
        theirs = handles.cupy.zeros((handles.world_size, call_header.SIZE), np.uint8)
        comm.allGather(_pointer(mine), _pointer(theirs), call_header.SIZE, _UINT8, handles.stream.ptr)
        self._headers.append((self.calls[0], range(handles.world_size), theirs))
        self._kept.append(mine)

    def _pass_header(self, handles: Handles, comm: Any, call: Call) -> None:
        """Before a message, in the same group.

        A group of all headers before the group of all messages would hold each message back until every partner of the
        group is there. That could deadlock where the messages alone do not.
        """
        if call.kind is CallKind.SEND:
            mine = handles.cupy.asarray(call_header.pack(call))
            comm.send(_pointer(mine), call_header.SIZE, _UINT8, call.peer, handles.stream.ptr)
            self._kept.append(mine)
        else:
            theirs = handles.cupy.zeros(call_header.SIZE, np.uint8)
            comm.recv(_pointer(theirs), call_header.SIZE, _UINT8, call.peer, handles.stream.ptr)
            self._headers.append((call, [call.peer], theirs))

    def over(self, seconds: float) -> bool:
        """Whether it has ended, well or not; blocks at most ``seconds``, and only until NCCL has taken it."""
        if self.job is None or not self.job.wait(seconds):
            return False
        return self.job.error is not None or bool(self.end.done)

    def compare(self, handles: Handles, rank: int) -> None:
        """Raise what NCCL said to it, or CollectiveMismatchError if a header that is there tells another call."""
        if self.job is None or not self.job.wait(0):
            return
        if self.job.error is not None:
            raise self.job.error
        over = bool(self.end.done)  # before the headers are read
        for call, ranks, array in self._headers:
            mine = call_header.pack(call)
            headers = array.get(stream=handles.side).reshape(-1, call_header.SIZE)
            there = {r: h for r, h in zip(ranks, headers) if call_header.whole(h)}
            odd = [r for r, h in there.items() if not call_header.agree(h, mine)]
            if odd or (over and len(there) < len(headers)):
                there[rank] = mine
                silent = [r for r in ranks if r not in there]
                words = call_header.differences(there) + (f"; {silent} did not say what they call" if silent else "")
                raise call.error(CollectiveMismatchError, rank, words, odd)

    def settle(self, handles: Handles) -> None:
        """It is over and good: note how long it took, let the buffers go."""
        self.seconds = handles.cupy.cuda.get_elapsed_time(self.begin, self.end) / 1e3
        self.settled = True
        self.calls, self.ready, self._headers, self._kept = [], [], [], []


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
        owner._done(owner._thread.submit(self._issue), self._call)

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
            raise RuntimeError(f"{self._call} is part of a graph: wait for it in the capture, then launch the graph")
        self._joined = True
        graph.raw.capture_call(self._join)

    def _join(self) -> None:
        self._cuda.get_current_stream(self._owner.device.index).wait_event(self._end)


def enqueue(handles: Handles, comm: Any, call: Call, stream: int) -> None:
    """One call of NCCL, on the stream with this handle."""
    if call.kind is CallKind.BARRIER:  # NCCL discards operations on nothing, so a barrier moves a byte
        comm.allReduce(_pointer(handles.one), _pointer(handles.one), 1, _UINT8, OPS[ReduceOp.MAX], stream)
        return
    array = call.array
    if not array.size:
        return
    code = DTYPES[array.dtype]
    op = -1 if call.op is None else OPS[call.op]
    if call.kind is CallKind.ALL_REDUCE:
        comm.allReduce(_pointer(call.send), _pointer(call.recv), array.size, code, op, stream)
    elif call.kind is CallKind.BROADCAST:
        comm.broadcast(_pointer(array), _pointer(array), array.size, code, call.peer, stream)
    elif call.kind is CallKind.ALL_GATHER:
        comm.allGather(_pointer(call.send), _pointer(call.recv), array.size, code, stream)
    elif call.kind is CallKind.REDUCE_SCATTER:
        comm.reduceScatter(_pointer(call.send), _pointer(call.recv), call.recv.size, code, op, stream)
    elif call.kind is CallKind.ALL_TO_ALL:
        count = array.size // handles.world_size
        for peer in range(handles.world_size):
            offset = peer * count * array.dtype.itemsize
            comm.send(_pointer(call.send) + offset, count, code, peer, stream)
            comm.recv(_pointer(call.recv) + offset, count, code, peer, stream)
    elif call.kind is CallKind.SEND:
        comm.send(_pointer(array), array.size, code, call.peer, stream)
    else:  # RECV; split and close are no operations of NCCL's stream
        comm.recv(_pointer(array), array.size, code, call.peer, stream)


def _pointer(array: Any) -> int:
    """The address of a tensor's array, or of one of CuPy's, which headers are."""
    return int(array.pointer if hasattr(array, "pointer") else array.data.ptr)
