"""MpiCommunicator: the ranks are processes on one host or many, and MPI (mpi4py with Open MPI) carries the messages.

MPI is started when the first communicator is made (``mpi_runtime``). All messages are nonblocking, and whoever waits
for them looks at a clock (``Progress``): MPI itself knows no deadlines. Before an operation's payload the ranks
exchange headers (``call_header``); small payloads travel with them. A rank that fails tells the others in an *alarm*.
Open MPI's fault tolerance (ULFM, on under ``minigrad.distributed.launch``) tells of processes that died without a word.
"""

import struct
import threading
import time
from collections.abc import Hashable
from typing import Any

import numpy as np

from .. import call_header
from ..calls import DEFAULT_TIMEOUT, FINISHED, RENDEZVOUS_TIMEOUT, Call, CallKind, Work, check_seconds
from ..combine import combine, units
from ..comm_errors import CollectiveMismatchError, CommError, CommTimeoutError, PeerLostError, RendezvousError
from ..communicator import Communicator
from . import exchange
from .mpi_runtime import Messages, Operation, Runtime, Steps
from .rank_parent import VICTIM, joining, tell

INLINE_BYTES = 4096  # a payload of at most this size travels with the header
FAREWELL = 5.0  # seconds for which ``close`` waits for the other ranks' ``close``
GONE = 1.0  # seconds after which no message is expected any more from a rank that has closed
HEADER_TAG, ALARM_TAG, DATA_TAG, FIRST_PEER_TAG = 0, 1, 2, 8
TAGS = 2**18  # for each group; ``send`` and ``recv`` use four for each of their 2**15

# Kind, the first collective that misses the rank, whom to blame or -1, what happened.
_ALARM = struct.Struct("=qqq360s")
_ALARM_KINDS: tuple[type[CommError], ...] = (PeerLostError, CommTimeoutError, CollectiveMismatchError, RendezvousError)
_LEFT = "has closed its communicator or ended its program"
_CLOSED = -1  # the kind of alarm that is none: the rank has closed its communicator


class MpiCommunicator(Communicator):
    """All ranks of the MPI job, on the CPU.

    Start the processes with ``python -m minigrad.distributed.launch``, mpirun or srun. ``timeout`` is the deadline of
    each operation, ``rendezvous_timeout`` (default: at most 60) that of this constructor, which all ranks must reach;
    in seconds.

    Raises ModuleNotFoundError without mpi4py, RuntimeError without an MPI library, and RendezvousError when ranks are
    missing or mpirun and mpi4py belong to different MPIs.
    """

    @joining()
    def __init__(self, timeout: float = DEFAULT_TIMEOUT, rendezvous_timeout: float | None = None) -> None:
        check_seconds("timeout", timeout)
        if rendezvous_timeout is None:
            rendezvous_timeout = min(timeout, RENDEZVOUS_TIMEOUT)
        deadline = time.monotonic() + check_seconds("rendezvous_timeout", rendezvous_timeout)
        runtime = Runtime.get(rendezvous_timeout)
        world = runtime.mpi.COMM_WORLD
        try:
            wire = runtime.duplicate(deadline)
        except TimeoutError as error:
            late = f"not all {world.Get_size()} ranks made a communicator within {rendezvous_timeout:g} s"
            raise RendezvousError(late, rank=world.Get_rank()) from error
        self._open(runtime, wire, list(range(wire.size)), wire.rank, 0, timeout)

    def _open(self, runtime: Runtime, wire: Any, members: list[int], rank: int, context: int, timeout: float) -> None:
        """``members`` are ranks of the MPI communicator ``wire``; ``context`` numbers the groups that share it, so that
        each has tags of its own."""
        super().__init__(len(members), rank, timeout=timeout)
        self._runtime, self._progress, self._wire, self._members = runtime, runtime.progress, wire, members
        self._tag = context * TAGS
        runtime.contexts[wire.py2f()] = context
        self._mail = exchange.Mail(wire, members, rank, self._tag + DATA_TAG)
        self._peers = self._mail.peers
        self._collectives = 0  # begun so far
        self._under_way = False  # the last of them has not ended
        self._owner_thread = threading.get_ident()
        self._told = False  # the others know that this rank has failed
        self._gone: dict[int, float] = {}  # ranks that have closed, and when that was noticed
        # Alarms: since which collective; the error.
        self._failed: dict[int, tuple[int, tuple[type[CommError], str, int]]] = {}
        self._kept: list[Any] = []  # what MPI may still write to after a failure
        self._inbox = {p: np.empty(call_header.SIZE + INLINE_BYTES, np.uint8) for p in self._peers}
        self._headers = [wire.Recv_init(self._inbox[p], members[p], self._tag + HEADER_TAG) for p in self._peers]
        self._alarms = {p: np.empty(_ALARM.size, np.uint8) for p in self._peers}
        self._alarm_requests = {p: wire.Irecv(self._alarms[p], members[p], self._tag + ALARM_TAG) for p in self._peers}
        runtime.communicators.append(self)

    # ------------------------------------------------------------------ operations

    def _operation(self, call: Call) -> Operation:
        channel: Hashable
        if call.between_two:
            channel, steps = (id(self), call.kind, call.peer, call.tag), self._between_two(call)
        else:
            channel, steps = (id(self), "collectives"), self._collective(call)
        return Operation(self._progress, self, call, channel, steps, self.timeout)

    def _start(self, call: Call) -> Work:
        operation = self._operation(call)
        self._progress.submit(operation)
        return operation

    def _start_and_wait(self, call: Call) -> Work:
        if call.kind is CallKind.BARRIER:
            self._sync()
        self._progress.run(self._operation(call))
        return FINISHED

    def _collective(self, call: Call) -> Steps:
        self._collectives += 1
        self._under_way = True
        self.idle(call)  # a rank may have lost patience before this one came
        header = call_header.pack(call, self._collectives, call.step)
        sent = call.recv if call.kind is CallKind.BROADCAST else call.send
        inline = sent is not None and sent.nbytes <= INLINE_BYTES
        message = header
        if inline and (call.kind is not CallKind.BROADCAST or call.peer == self.rank):
            message = np.concatenate([message, sent.reshape(-1).view(np.uint8)])
        if self._headers:
            self._runtime.start_all(self._headers)
        outgoing = [(self._wire.Isend(message, self._members[p], self._tag + HEADER_TAG), p) for p in self._peers]
        yield [*zip(self._headers, self._peers), *outgoing]
        if not all(call_header.agree(self._inbox[p], header) for p in self._peers):
            raise self._mismatch(call, header)
        if inline:
            own = message[call_header.SIZE :]
            got = [own if p == self.rank else self._inbox[p][call_header.SIZE :] for p in range(self.world_size)]
            arrays = {p: x[: sent.nbytes].view(sent.dtype) for p, x in enumerate(got)}
            for sources, outs in units(call, arrays, {self.rank: call.recv}):
                combine(call.op, sources, outs)
        elif call.kind in exchange.PAYLOAD:
            yield from exchange.PAYLOAD[call.kind](self._mail, call)
        self._under_way = False

    def _between_two(self, call: Call) -> Steps:
        peer = call.peer
        base, sends = self._tag + FIRST_PEER_TAG + 4 * call.tag, call.kind is CallKind.SEND
        theirs = np.empty(call_header.SIZE, np.uint8)
        mine = call_header.pack(call, step=call.step)
        self.idle(call)
        outgoing, incoming = self._mail.tagged(base + (not sends)), self._mail.tagged(base + sends)
        yield outgoing.send(mine, peer) + incoming.recv(theirs, peer)
        if not call_header.agree(mine, theirs):
            words = call_header.differences({self.rank: mine, peer: theirs})
            raise call.error(CollectiveMismatchError, self.rank, f"sender and receiver disagree: {words}", (peer,))
        yield from exchange.PAYLOAD[call.kind](self._mail.tagged(base + 2), call)

    def _sync(self) -> None:
        for operation in self._progress.pending(self):
            operation.wait()

    # ------------------------------------------------------------------ what goes wrong

    def _mismatch(self, call: Call, header: np.ndarray) -> CommError:
        closed = [p for p in self._peers if call_header.read(self._inbox[p]).name == str(CallKind.CLOSE)]
        if closed and call.kind is not CallKind.CLOSE:
            return call.error(PeerLostError, self.rank, f"rank {', '.join(map(str, closed))} {_LEFT}", closed)
        headers = {self.rank: header, **self._inbox}
        reason = f"the ranks called different operations: {call_header.differences(headers)}"
        return call.error(CollectiveMismatchError, self.rank, reason, call_header.odd(headers, self.rank))

    def idle(self, call: Call) -> None:
        """Look whether another rank has sent an alarm; raises the error that this one gets from it."""
        for p, request in self._alarm_requests.items():
            if p not in self._gone and p not in self._failed:
                if not request.Test():
                    continue
                kind, first, blamed, text = _ALARM.unpack(self._alarms[p].tobytes())
                if kind == _CLOSED:
                    self._gone[p] = time.monotonic()
                else:
                    words = text.rstrip(bytes(1)).decode(errors="replace")
                    self._failed[p] = first, (_ALARM_KINDS[kind], words, p if blamed < 0 else blamed)
            if p in self._failed:
                first, (kind, text, blamed) = self._failed[p]
                if call.between_two or self._collectives >= first:
                    raise call.error(kind, self.rank, f"rank {p} has failed: {text}", (blamed,))
            elif call.between_two and call.peer == p and time.monotonic() > self._gone[p] + GONE:
                raise call.error(PeerLostError, self.rank, f"rank {p} {_LEFT}", (p,))

    def late(self, operation: Operation, missing: list[int], seconds: float) -> CommTimeoutError:
        """The error for an operation that took longer than ``seconds``."""
        who = f"nothing came from rank {', '.join(map(str, missing))}" if missing else "it has not ended"
        reason = f"{who} within {seconds:g} s; a rank is stalled, or never made this call"
        return operation.call.error(CommTimeoutError, self.rank, reason, missing)

    def broke(self, operation: Operation, error: BaseException) -> BaseException:
        """Refuse further work, tell the other ranks, end what is under way; returns the error to raise."""
        if self._error is None:
            self._error = self._translated(operation.call, operation.messages, error)
            if isinstance(self._error, PeerLostError) and self.rank not in self._error.ranks:
                tell(VICTIM)
        self._kept.append(operation)
        for other in self._progress.pending(self):
            if other is not operation:
                self._kept.append(other)
                other.end(self._error)
        self._tell()
        return self._error

    def _translated(self, call: Call, messages: Messages, error: BaseException) -> BaseException:
        """A CommError from one of MPI."""
        if not isinstance(error, self._runtime.mpi.Exception):
            return error
        lost = self._failed_ranks() or self._failing(messages)
        who = f"the process of rank {', '.join(map(str, lost))} is gone" if lost else f"MPI reports: {error}"
        out = call.error(PeerLostError, self.rank, who, lost)
        out.__cause__ = error
        return out

    def _failing(self, messages: Messages) -> list[int]:
        """The ranks at the other end of messages that ended with an error."""
        failing = set()
        for request, rank in messages:
            try:
                request.Test()
            except self._runtime.mpi.Exception:
                failing.add(rank)
        return sorted(failing)

    def _failed_ranks(self) -> list[int]:
        try:
            failed = self._wire.Get_failed()
            gone = failed.Translate_ranks(list(range(failed.Get_size())), self._wire.Get_group())
            return [rank for rank, member in enumerate(self._members) if member in gone]
        except (self._runtime.mpi.Exception, NotImplementedError):
            return []  # this MPI does not know which

    def give_up(self, error: BaseException, thread: int | None) -> None:
        """The program, or the thread of this number, has died of ``error``: nobody is left who would make the calls
        that the other ranks expect."""
        if self._error is None and (thread is None or self._owner_thread == thread):
            reason = f"its program ended with {type(error).__name__}: {error}"
            self._error = PeerLostError(reason, rank=self.rank, ranks=(self.rank,))
        if self._error is not None:
            self._tell()

    def _tell(self) -> None:
        """Tell the other ranks once why this one has failed; best effort, they have deadlines of their own."""
        if self._told:
            return
        self._told = True
        error = self._error
        kind = next((i for i, known in enumerate(_ALARM_KINDS) if isinstance(error, known)), 0)
        blamed = error.ranks[0] if isinstance(error, CommError) and error.ranks else -1
        first = self._collectives + (not self._under_way)
        self._send_alarms(kind, first, blamed, f"{type(error).__name__}: {error}")

    def _send_alarms(self, kind: int, first: int, blamed: int, text: str) -> None:
        words = np.frombuffer(_ALARM.pack(kind, first, blamed, text.encode()[:360]), np.uint8)
        try:
            requests = [self._wire.Isend(words, self._members[p], self._tag + ALARM_TAG) for p in self._peers]
            self._kept += [words, *requests]
            until = time.monotonic() + 0.1
            while not self._runtime.mpi.Request.Testall(requests) and time.monotonic() < until:
                time.sleep(1e-3)
        except self._runtime.mpi.Exception as error:
            self._kept.append(error)  # the wire is broken, which the others notice themselves

    # ------------------------------------------------------------------ life

    def _split(self, color: int | None, key: int) -> Communicator | None:
        self._sync()
        chosen, rows = self._regroup(color, key, self._runtime.contexts[self._wire.py2f()])
        # Larger than that of any group in which two of these ranks are already together.
        context = self._runtime.contexts[self._wire.py2f()] = int(rows[:, 2].max()) + 1
        if (context + 1) * TAGS > self._runtime.largest_tag:
            raise RuntimeError(f"split: {context} groups have used up the tags of MPI; make fewer, and keep them")
        if color is None:
            return None
        out = MpiCommunicator.__new__(MpiCommunicator)
        members = [self._members[r] for r in chosen]
        out._open(self._runtime, self._wire, members, chosen.index(self.rank), context, self.timeout)
        return out

    def _shut(self) -> None:
        if self._error is None:
            self._say_goodbye()
        elif self._progress.driving.acquire(timeout=FAREWELL):
            try:
                self._tell()
            finally:
                self._progress.driving.release()

    def _say_goodbye(self) -> None:
        """Close together with the other ranks if they come soon; otherwise leave them a note."""
        call = Call(CallKind.CLOSE, self._sequence + 1, None)
        farewell = Operation(self._progress, self, call, (id(self), "collectives"), self._close_steps(call), FAREWELL)
        try:
            self._progress.run(farewell)
        except CommError as error:
            self._kept.append(error)
            if isinstance(error, CommTimeoutError):
                self._error = None  # the others are still busy; MPI_Finalize will wait for them
                for request in self._alarm_requests.values():
                    request.Cancel()
                for header in self._headers:
                    header.Cancel()
        else:
            self._runtime.communicators.remove(self)

    def _close_steps(self, call: Call) -> Steps:
        self._send_alarms(_CLOSED, 0, -1, "")
        self._told = True
        yield from self._collective(call)
        yield [(request, p) for p, request in self._alarm_requests.items() if p not in self._gone]
        for request in self._headers:
            request.Free()
