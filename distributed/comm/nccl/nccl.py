"""NcclCommunicator: the ranks are processes, or threads, with a GPU each; NVIDIA's NCCL, called through CuPy, moves the
data.

Each communicator has a CUDA stream and a thread of its own. An operation waits, on the GPU, for what the caller's
current stream was doing when it was started, and then runs beside it. The thread makes every call of NCCL, because
almost each of them may block for a peer that is gone: NCCL sets up its connections when they are first used, and knows
no deadline. So the rank's own thread only ever waits for a bounded time, then aborts from a third thread.

``Work.wait`` blocks the host until the GPU has finished, or reports what went wrong. PyTorch's returns as soon as the
current stream is made to wait, and leaves errors to a watchdog that ends the process; a result that may be garbage
never passes for one here. ``NcclWork.wait_on_stream`` is PyTorch's way, for those who call ``wait`` later.

cupyx.distributed is not used: its barrier deadlocks and its waits are without deadline.
"""

import atexit
import contextlib
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from minigrad import Device, DeviceError, capturing, cuda
from minigrad.cuda import cuda_graph
from minigrad.errors import check_int

from .. import call_header
from ..call_thread import CallThread, QueuedCall, in_threads
from ..calls import DEFAULT_TIMEOUT, RENDEZVOUS_TIMEOUT, Call, CallKind, Work, check_seconds, remaining
from ..comm_errors import CommError, CommTimeoutError, CommunicatorBrokenError, PeerLostError, RendezvousError
from ..communicator import Communicator
from .nccl_launch import CapturedWork, Handles, NcclLaunch

ID_BYTES = 128
END_SECONDS = 10.0  # for NCCL to abort or to destroy a communicator; then its thread is left to itself

_SYSTEM_ERROR, _REMOTE_ERROR, _IN_PROGRESS = 2, 6, 7  # ncclResult_t
_PEEK_SECONDS = 0.2  # how often a wait looks for a disagreement and for NCCL's own errors
_LONGEST_NAP = 1e-3


def unique_id() -> bytes:
    """A new identifier, 128 bytes, by which the ranks of one communicator find each other. Rank 0 makes it.

    Raises DeviceError if CuPy or NCCL is missing.
    """
    return bytes(_load()[1].get_unique_id())


def check_device(device: Device) -> None:
    """Raise DeviceError, saying what is missing, if NCCL cannot work on a CUDA device here.

    It needs CuPy, NCCL, the driver and the GPU, but none of minigrad's kernels.
    """
    from minigrad.cuda_kernels import driver

    _load()
    try:
        count = driver().devices
    except OSError as error:
        raise DeviceError(f"device {device} cannot be used: {error}") from error
    if device.index >= count:
        raise DeviceError(f"device {device} cannot be used: the NVIDIA driver shows {count} devices")


class NcclCommunicator(Communicator):
    """The GPUs of ``world_size`` processes; ``device`` is this rank's, ``unique_id`` the same on all ranks.

    ``init_process_group`` finds out all of these, and ``group`` is for several GPUs of one process. The constructor
    returns when all ranks have called it, at the latest after ``rendezvous_timeout`` seconds. With one rank
    ``unique_id`` may be left out.

    NCCL itself does not notice when ranks call different operations: they hang, or exchange garbage. With ``check``
    (the same on all ranks) each operation brings a header of 128 bytes: one more small all-gather on the stream before
    it, and one copy of world_size headers to the host when it is waited for; a disagreement raises
    CollectiveMismatchError. Without it a disagreement ends in CommTimeoutError, or is not noticed at all if the sizes
    in bytes agree. Switch it off for programs that are known to agree and whose operations are small and many.

    All operations of a rank run in the order in which it starts them. Messages between two ranks must be received in
    the order in which they are sent: tags do not pick one, and with ``check`` one that does not match is an error of
    the receiver. ``send`` and ``recv`` with ``async_op`` are collected, and start together at the next ``wait``,
    ``is_completed``, ``sync`` or collective. So those among them may be started in any order.

    The arithmetic is NCCL's: AVG scales each rank's values by 1 / world_size, then adds; MIN and MAX may lose a NaN.
    A rank that is gone is mostly noticed by the deadline, because NCCL tells of lost network connections only.
    CommTimeoutError names such a rank only for messages.

    Collectives can be captured in a CUDA graph (NCCL 2.9 and later), which each rank must do alike, and launch alike;
    headers are left out there, and ``wait`` makes the captured stream wait. One eager operation must come before, for
    NCCL's connections. ``wait_for`` waits for a launch with the deadline. ``close`` closes these graphs first.

    Do not have operations of two communicators of one GPU under way at once: NCCL may deadlock (until the deadline).
    Call ``close``: a process that ends without it aborts, which the other ranks see as a lost peer.

    Raises, besides what every communicator does, DeviceError if CuPy, NCCL or the GPU is missing, and CommError for
    what NCCL and CUDA report of themselves.
    """

    captures = True

    def __init__(
        self, world_size: int, rank: int, device: Device, unique_id: bytes | None = None, *,
        timeout: float = DEFAULT_TIMEOUT, rendezvous_timeout: float = RENDEZVOUS_TIMEOUT, check: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(world_size, rank, device, timeout)
        check_seconds("rendezvous_timeout", rendezvous_timeout)
        if device.type != "cuda":
            raise ValueError(f"device is {device}, expected a CUDA device")
        if unique_id is None and world_size > 1:
            raise ValueError(f"unique_id is None, but {world_size} ranks need one to find each other")
        if unique_id is not None and (not isinstance(unique_id, bytes) or len(unique_id) != ID_BYTES):
            raise ValueError(f"unique_id is {unique_id!r}, expected {ID_BYTES} bytes")
        nccl = _load()[1]

        def connect() -> Any:
            return nccl.NcclCommunicator(world_size, nccl.get_unique_id() if unique_id is None else unique_id, rank)

        self._set_up(connect, rendezvous_timeout, check)

    @classmethod
    def group(cls, devices: Sequence[Device], **options: Any) -> "list[NcclCommunicator]":
        """The communicators of GPUs of this process, in order of rank, each for a thread of its own. The ``options``
        are the constructor's: ``timeout``, ``rendezvous_timeout``, ``check``.

        One thread may use them all if it starts an operation on each of them (``async_op``) before it waits. Close them
        at once, from several threads: NCCL's destruction waits for all of them.
        """
        n = check_int("the number of devices", len(devices), 1)
        identifier = unique_id()
        made = in_threads("group", n, lambda rank: cls(n, rank, devices[rank], identifier, **options))
        errors = [error for future in made if (error := future.exception()) is not None]
        if errors:
            for future in made:
                if future.exception() is None:
                    future.result()._end()
            raise errors[0]
        return [future.result() for future in made]

    def _set_up(self, connect: Callable[[], Any], seconds: float, check: bool) -> None:
        self.check = check
        self._under_way: deque[NcclLaunch] = deque()
        self._collecting: NcclLaunch | None = None
        self._graphs: weakref.WeakSet[cuda_graph.Graph] = weakref.WeakSet()
        self._thread = CallThread(f"NCCL rank {self.rank} of {self.world_size}")
        self._ender = CallThread("end of NCCL")  # made now, because a process that is ending starts no more threads
        job = self._thread.submit(lambda: self._connect(connect))
        if not job.wait(seconds):
            late = f"not all of the {self.world_size} ranks built their NCCL communicator within {seconds:g} s"
            which = "NCCL cannot tell which (NCCL_DEBUG=INFO shows how far it came)"
            self._error = RendezvousError(f"{late}; {which}", rank=self.rank)
        elif job.error is not None:
            self._error = RendezvousError(f"NCCL did not start on {self.device}: {_words(job.error)}", rank=self.rank)
        if self._error is not None:
            self._closed = True
            self._thread.submit(lambda: None if job.error else job.result().comm.abort())  # should it come too late
            self._thread.stop()
            self._ender.stop()
            raise self._error from job.error
        self._handles: Handles = job.result()
        _OPEN.add(self)

    def _connect(self, connect: Callable[[], Any]) -> Handles:
        """In the communicator's thread: everything that CUDA and NCCL give."""
        cupy, nccl = _load()
        cupy.cuda.Device(self.device.index).use()
        stream, side, captured = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))
        stream.use()
        one = cupy.zeros(1, np.uint8)
        return Handles(cupy, nccl, connect(), stream, side, captured, one, self.world_size)

    # ------------------------------------------------------------------ starting

    def _start(self, call: Call) -> Work:
        graph = capturing.recorded()
        if graph is not None:
            return self._capture(call, graph)
        while self._under_way and self._under_way[0].over(0):  # and nobody has waited: let go of what it keeps alive
            self._finish_first()
        cuda = self._handles.cupy.cuda
        with cuda.Device(self.device.index):
            ready = cuda.Event(disable_timing=True)
            ready.record(cuda.get_current_stream())
        if call.between_two:
            launch = self._collecting = self._collecting or NcclLaunch()
            launch.add(call, ready)
        else:
            self._flush()
            launch = NcclLaunch()
            launch.add(call, ready)
            self._submit(launch)
        return NcclWork(self, call, launch)

    def _capture(self, call: Call, graph: cuda_graph.Graph) -> Work:
        """Make a collective part of a graph: a branch on a stream of its own, which ``wait`` joins."""
        if call.between_two or call.kind is CallKind.ALL_TO_ALL:
            raise cuda.CaptureError(f"{call.kind}() during capture: a graph has collectives, but no messages")
        captured = CapturedWork(self, call)
        self._graphs.add(graph)
        graph.raw.keep.append(captured)
        graph.raw.capture_call(captured.begin)
        return captured

    def wait_for(self, event: Any, check: Callable[[], None] = lambda: None) -> None:
        """Block the host until ``event`` (of ``minigrad.cuda``), which follows the launch of a graph with collectives,
        has happened; then call ``check``.

        Raises, and aborts, as ``Work.wait``: CommTimeoutError after ``timeout`` seconds, and what ``check`` raises.
        """
        if self._error is not None:
            self._check_usable("the launch of a graph")
        call = Call(CallKind.LAUNCH, self._sequence, self.step)
        deadline = time.monotonic() + self.timeout
        with self._aborting(call):
            self._await(lambda seconds: bool(event.query()), lambda: None, call, deadline, self.timeout)
            check()

    def _flush(self) -> None:
        """Start the sends and receives that were collected."""
        launch, self._collecting = self._collecting, None
        if launch is not None:
            self._submit(launch)

    def _submit(self, launch: NcclLaunch) -> None:
        self._under_way.append(launch)
        launch.job = self._thread.submit(lambda: launch.issue(self._handles, self.check))

    # ------------------------------------------------------------------ ending

    def _finish(self, launch: NcclLaunch, call: Call, deadline: float, seconds: float) -> None:
        """Block until the launch is over and found good. Raises, and aborts, if not."""
        if launch.settled:
            return
        if self._error is not None:
            reason = f"an error aborted the communicator while the operation was under way: {self._error}"
            raise call.error(CommunicatorBrokenError, self.rank, reason) from self._error
        if launch is self._collecting:
            self._flush()
        began = time.monotonic()
        with self._aborting(call), self._handles.cupy.cuda.Device(self.device.index):
            self._await(launch.over, lambda: launch.compare(self._handles, self.rank), call, deadline, seconds)
            launch.compare(self._handles, self.rank)
            launch.settle(self._handles)
        self._under_way.remove(launch)
        self.stats.busy_s += launch.seconds
        self.stats.waited_s += min(time.monotonic() - began, launch.seconds)

    @contextlib.contextmanager
    def _aborting(self, call: Call) -> Iterator[None]:
        """Abort because of an error within it, which is raised as one of ``call``."""
        try:
            yield
        except Exception as error:
            failure = self._fail(self._translated(error, call))
            self._end()
            raise failure from (None if failure is error else error)

    def _done(self, job: QueuedCall, call: Call) -> Any:
        """What a job of the communicator's thread returned. Aborts if it failed or is late."""
        with self._aborting(call):
            if not job.wait(self.timeout):
                raise self._expired(call, self.timeout)
            return job.result()

    def _await(
        self, over: Callable[[float], bool], look: Callable[[], None], call: Call, deadline: float, seconds: float
    ) -> None:
        """Block until ``over``, which may block for so many seconds, says so; now and then ``look``."""
        nap, peek = 0.0, time.monotonic() + _PEEK_SECONDS
        while not over(min(remaining(deadline), _PEEK_SECONDS)):
            now = time.monotonic()
            if now >= min(peek, deadline):
                peek = now + _PEEK_SECONDS
                look()
                self._check_async()
            if now >= deadline:
                raise self._expired(call, seconds)
            time.sleep(nap)
            nap = min(nap + 1e-6, _LONGEST_NAP)

    def _finish_first(self) -> None:
        launch = self._under_way[0]
        self._finish(launch, launch.calls[0], launch.began + self.timeout, self.timeout)

    def _check_async(self) -> None:
        """Raise what NCCL noticed in the background."""
        try:
            self._handles.comm.check_async_error()
        except KeyError as error:  # CuPy knows no name for the status
            if error.args != (_IN_PROGRESS,):
                raise

    def _expired(self, call: Call, seconds: float) -> CommTimeoutError:
        words = call_header.read(call_header.pack(call)).call
        first = self._under_way[0].calls[0] if self._under_way else call
        behind = "" if first is call else f"; the first operation that is not over is {first} ({first.sequence})"
        peer = call.peer if call.between_two else None
        who, end = ("Another rank", "; NCCL cannot tell which one") if peer is None else (f"Rank {peer}", "")
        late = f"{words} was not over within {seconds:g} s{behind}"
        reason = f"{late}. {who} is stalled or gone, or never made the call{end}"
        return call.error(CommTimeoutError, self.rank, reason, [] if peer is None else [peer])

    def _translated(self, error: BaseException, call: Call) -> CommError:
        if isinstance(error, CommError):
            return error
        status = getattr(error, "status", error.args[0] if isinstance(error, KeyError) and error.args else None)
        kind = PeerLostError if status in (_SYSTEM_ERROR, _REMOTE_ERROR) else CommError
        return call.error(kind, self.rank, f"NCCL failed: {_words(error)}")

    def _sync(self) -> None:
        self._flush()
        while self._under_way:
            self._finish_first()

    def _split(self, color: int | None, key: int) -> Communicator | None:
        """By ncclCommSplit, when all operations are over."""
        self._sync()
        call = self._call(CallKind.SPLIT)
        job = self._thread.submit(lambda: self._handles.comm.commSplit(-1 if color is None else color, key))
        comm = self._done(job, call)
        if comm is None:
            return None
        child = type(self).__new__(type(self))
        Communicator.__init__(child, comm.size(), comm.rank_id(), self.device, self.timeout)
        child._set_up(lambda: comm, self.timeout, self.check)
        return child

    def _shut(self) -> None:
        _OPEN.discard(self)
        try:
            if self._error is None:
                for graph in list(self._graphs):
                    self.wait_for(graph.raw.launched)
                self._close_graphs()
        finally:
            self._end("abort" if self._error is not None else "destroy")
            self._thread.stop()

    def _end(self, how: str = "abort") -> None:
        """Abort, so that NCCL's kernels leave the GPU, or destroy what is over."""
        comm, self._handles.comm = self._handles.comm, None
        if comm is not None:  # both may wait for peers that are gone
            if how == "abort":
                for graph in list(self._graphs):
                    with contextlib.suppress(Exception):  # CUDA itself may have failed
                        graph.stop()
            ended = self._ender.submit(getattr(comm, how))
            self._thread.submit(self._close_graphs)  # an abort waits for that, and that for their kernels to end
            ended.wait(END_SECONDS)
            self._ender.stop()

    def _close_graphs(self) -> None:
        """Destroy the graphs that hold collectives: NCCL's communicator must outlive them."""
        for graph in list(self._graphs):
            graph.close()


class NcclWork(Work):
    """An operation on the communicator's stream."""

    def __init__(self, owner: NcclCommunicator, call: Call, launch: NcclLaunch) -> None:
        self._owner, self._launch = owner, launch
        self._call: Call | None = call
        self._deadline = launch.began + owner.timeout

    def is_completed(self) -> bool:
        """Whether it has ended, well or not; starts collected messages."""
        if self._launch is self._owner._collecting and self._owner._error is None:
            self._owner._flush()
        return self._launch.settled or self._owner._error is not None or self._launch.over(0)

    def wait(self, timeout: float | None = None) -> None:
        """Block the host until the GPU has finished it and all ranks are known to have agreed.

        The deadline is the communicator's ``timeout`` after the start, or ``timeout`` seconds from now. An error aborts
        the communicator.
        """
        deadline, seconds = self._deadline, self._owner.timeout
        if timeout is not None:
            seconds = check_seconds("timeout", timeout)
            deadline = time.monotonic() + seconds
        if self._call is not None:
            self._owner._finish(self._launch, self._call, deadline, seconds)
            self._call = None  # and with it the tensors

    def wait_on_stream(self) -> None:
        """Let CuPy's current stream go on only after the operation; the host waits until NCCL has taken it at most.

        What the stream computes from the result counts only once ``wait``, ``sync`` or ``close`` has returned: errors
        and disagreements appear there.
        """
        owner, launch = self._owner, self._launch
        if launch.settled:
            return
        if launch is owner._collecting:
            owner._flush()
        job = launch.job
        if job is None or not job.wait(remaining(self._deadline)) or job.error is not None or owner._error is not None:
            self.wait()
        else:
            owner._handles.cupy.cuda.get_current_stream(owner.device.index).wait_event(launch.end)


def _load() -> tuple[Any, Any]:
    """CuPy and its module of NCCL. Raises DeviceError if one is missing."""
    try:
        import cupy

        with warnings.catch_warnings():  # CuPy warns if there is no libnccl; the error below says what to do
            warnings.simplefilter("ignore")
            from cupy.cuda import nccl
    except ImportError as error:
        raise DeviceError(f'NCCL is called through CuPy ({error}): pip install "minigrad-cuda[cuda13]"') from error
    if not nccl.available:
        remedy = 'pip install "minigrad-cuda[cuda13]" (or cuda12)'
        raise DeviceError(f"libnccl cannot be loaded; no CuPy wheel contains it: {remedy}")
    return cupy, nccl


def _words(error: BaseException) -> str:
    return f"unknown status {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"


# Kept until they are closed: where the last reference goes, CuPy destroys the communicator, which can block for ever.
_OPEN: set[NcclCommunicator] = set()


@atexit.register
def _abort_all() -> None:
    for communicator in list(_OPEN):
        communicator._end()
