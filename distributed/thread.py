"""ThreadCommunicator: the ranks are threads of one process, for tests and for replicas in one process.

A *group* is the memory that the ranks share. Each rank posts its part of an operation there; when the last part has
arrived, the operation is checked and queued, and its blocks of elements are worked off: a small operation by the thread
that completed it, a large one by the group's own threads, while the ranks compute. One thread combines each block and
hands the result to every rank, so all ranks hold the same bits. Operations run one at a time, in the order in which
they became complete.

Nothing waits without a deadline. The first failure is the group's: every operation that still waits for somebody ends
with it, and so does every later call.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from minigrad.device import CPU

from .combine import combine
from .comm_errors import CollectiveMismatchError, CommError, CommTimeoutError, PeerLostError
from .communicator import DEFAULT_TIMEOUT, Call, Communicator, ReduceOp, Work, check_seconds, remaining
from .faults import FaultCounter, FaultPlan, RankKilledError, with_flipped_bit

BLOCK_BYTES = 1 << 20  # what one thread handles at once; between blocks it needs the interpreter lock
SMALL_BYTES = 1 << 16  # below this, waking another thread takes longer than the work

_T = TypeVar("_T")
_Task = tuple[ReduceOp | None, list[Any], list[Any]]  # arguments of ``combine``


class _ThreadWork(Work):
    """One rank's part of an operation."""

    def __init__(self, owner: ThreadCommunicator, call: Call, operation: _Operation) -> None:
        self.owner, self.call, self.operation = owner, call, operation
        self.deadline = time.monotonic() + owner.timeout
        self.ended = threading.Event()
        self.ended_at = 0.0
        self.failed = False

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self.ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Block until it has ended; raises the error of the group's first failure."""
        began = time.monotonic()
        deadline = self.deadline if timeout is None else began + check_seconds("timeout", timeout)
        if not self.ended.is_set():
            if not self.ended.wait(min(remaining(deadline), threading.TIMEOUT_MAX)):
                self.owner._group.expire(self, deadline - began if timeout is not None else self.owner.timeout)
            self.owner.stats.waited_s += max(0.0, self.ended_at - began)
        if self.failed:
            raise self.owner._failed_with(self.call)


class _Operation:
    """What all ranks have posted of one operation."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks  # those that must post
        self.posts: dict[int, _ThreadWork] = {}
        self.works: list[_ThreadWork] = []  # the posts, and those that were lost on the way
        self.sends: dict[int, Any] = {}
        self.tasks: deque[_Task] = deque()
        self.nbytes = 0
        self.running = 0

    @property
    def complete(self) -> bool:
        return len(self.posts) == len(self.ranks)

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(r for r in self.ranks if r not in self.posts)

    def agrees(self) -> bool:
        calls = [work.call for work in self.posts.values()]
        if any(call.name in ("send", "recv") for call in calls):
            return len({(call.dtype, int(np.prod(call.shape))) for call in calls}) == 1
        return len({str(call) for call in calls}) == 1

    def who_called_what(self) -> str:
        words = [f"rank {rank} called {_words(work.call)}" for rank, work in sorted(self.posts.items())]
        return "; ".join(words + [f"rank {rank} none" for rank in self.missing])

    def prepare(self) -> None:
        """All have posted and agree: list the work."""
        calls = {rank: work.call for rank, work in self.posts.items()}
        first = next(iter(calls.values()))
        units = _units(calls, self.sends)
        self.nbytes = sum(len(outs) * outs[0].nbytes for _, outs in units if outs)
        self.tasks = deque(_blocks(first.op, units))


@dataclass(frozen=True)
class _Failure:
    kind: type[CommError]
    reason: str
    ranks: tuple[int, ...]


def _words(call: Call) -> str:
    return f"{call} (operation {call.sequence})"


def _units(calls: dict[int, Call], sends: dict[int, Any]) -> list[tuple[list[Any], list[Any]]]:
    """The operation as pairs (sources, outs) of 1-D arrays: the sources combined go to each of the outs."""
    name = next(iter(calls.values())).name
    ranks = sorted(calls)
    src = {rank: array.reshape(-1) for rank, array in sends.items()}
    dst = {rank: call.recv.reshape(-1) for rank, call in calls.items() if call.recv is not None}
    if name == "barrier":
        return []
    if name == "all_reduce":
        return [([src[r] for r in ranks], [dst[r] for r in ranks])]
    if name == "broadcast":
        root = calls[0].peer
        outs = [dst[r] for r in ranks if r != root]
        return [([src[root]], outs)] if root is not None and outs else []
    if name in ("send", "recv"):
        return [(list(src.values()), list(dst.values()))]
    if name == "reduce_scatter":
        parts = {r: np.split(src[r], len(ranks)) for r in ranks}
        return [([parts[s][r] for s in ranks], [dst[r]]) for r in ranks]
    parts = {r: np.split(dst[r], len(ranks)) for r in ranks}  # by whom it comes from
    if name == "all_to_all":
        sent = {r: np.split(src[r], len(ranks)) for r in ranks}
        return [([sent[s][r]], [parts[r][s]]) for s in ranks for r in ranks]
    return [([src[s]], [parts[r][s] for r in ranks]) for s in ranks]  # all_gather, split


def _blocks(op: ReduceOp | None, units: list[tuple[list[Any], list[Any]]]) -> Iterator[_Task]:
    for sources, outs in units:
        step = max(1, BLOCK_BYTES // sources[0].itemsize)
        for i in range(0, sources[0].size, step):
            yield op, [s[i : i + step] for s in sources], [o[i : i + step] for o in outs]


class _Group:
    """What the ranks share: the operations under way, who has left, and the first failure."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.failure: _Failure | None = None
        self._lock = threading.Lock()
        self._work_to_do = threading.Condition(self._lock)
        self._incomplete: dict[Hashable, _Operation] = {}
        self._queue: deque[_Operation] = deque()
        self._last_call: dict[int, Call] = {}
        self._left: dict[int, str] = {}
        self._helpers: list[threading.Thread] = []
        self._children: dict[Hashable, tuple[_Group, list[int]]] = {}

    # ------------------------------------------------------------------ what the ranks call

    def post(
        self, key: Hashable, ranks: tuple[int, ...], owner: ThreadCommunicator, call: Call, send: Any, arrives: bool
    ) -> _ThreadWork:
        """Add a rank's part to operation ``key`` of ``ranks``; unless it ``arrives``, only this rank knows of it."""
        with self._lock:
            if self.failure is not None:
                raise owner._failed_with(call)
            operation = self._incomplete.setdefault(key, _Operation(ranks))
            work = _ThreadWork(owner, call, operation)
            operation.works.append(work)
            owner._meter_start()
            self._last_call[owner.rank] = call
            if arrives:
                operation.posts[owner.rank] = work
                if send is not None:
                    operation.sends[owner.rank] = send
            self._check_present(operation)
            if self.failure is not None or not operation.complete:
                return work
            if not operation.agrees():
                self._fail(CollectiveMismatchError, self._mismatch(operation), operation.ranks)
                return work
            del self._incomplete[key]
            operation.prepare()
            self._queue.append(operation)
            if operation.nbytes > SMALL_BYTES or len(self._queue) > 1:
                self._call_helpers()
                return work
        began = time.monotonic()
        while self._run_one(operation):
            pass
        owner.stats.waited_s += time.monotonic() - began
        return work

    def expire(self, work: _ThreadWork, seconds: float) -> None:
        """A rank has waited ``seconds`` for this: the group fails, unless it has just ended."""
        with self._lock:
            operation = work.operation
            if work.ended.is_set():
                return
            waiting = f"rank {work.owner.rank} waited {seconds:g} s in {_words(work.call)}"
            if operation.complete:
                self._fail(CommTimeoutError, f"{waiting}, which has begun but not ended", ())
            elif not operation.agrees():
                self._fail(CollectiveMismatchError, self._mismatch(operation), operation.ranks)
            else:
                late = ", ".join(f"rank {rank} ({self._doing(rank)})" for rank in operation.missing)
                self._fail(CommTimeoutError, f"{waiting} for {late}", operation.missing)
            self._end(work, failed=True)

    def leave(self, rank: int, error: BaseException | None) -> None:
        """A rank goes, in peace or because of ``error``; whoever needs it learns that."""
        with self._lock:
            if rank in self._left:
                return
            if error is None:
                self._left[rank] = "has closed its communicator"
                for operation in list(self._incomplete.values()):
                    self._check_present(operation)
            else:
                self._left[rank] = f"is gone: {type(error).__name__}: {error}"
                self._fail(PeerLostError, f"rank {rank} {self._left[rank]}", (rank,))
            self._work_to_do.notify_all()

    def child(self, key: Hashable, members: list[int], rank: int) -> _Group:
        """The group that the members of ``key`` share; each of them asks once."""
        with self._lock:
            group, waiting = self._children.setdefault(key, (_Group(len(members)), list(members)))
            waiting.remove(rank)
            if not waiting:
                del self._children[key]
            return group

    # ------------------------------------------------------------------ failures, with the lock held

    def _check_present(self, operation: _Operation) -> None:
        gone = [rank for rank in operation.missing if rank in self._left]
        if gone:
            waiting = ", ".join(f"rank {rank} in {_words(work.call)}" for rank, work in operation.posts.items())
            reason = "; ".join(f"rank {rank} {self._left[rank]}" for rank in gone)
            self._fail(PeerLostError, f"{reason}, needed by {waiting or 'an operation'}", tuple(gone))

    def _mismatch(self, operation: _Operation) -> str:
        return f"the ranks do not agree: {operation.who_called_what()}"

    def _doing(self, rank: int) -> str:
        call = self._last_call.get(rank)
        return "made no call yet" if call is None else f"its last call: {_words(call)}"

    def _fail(self, kind: type[CommError], reason: str, ranks: Sequence[int]) -> None:
        if self.failure is None:
            self.failure = _Failure(kind, reason, tuple(ranks))
        for operation in self._incomplete.values():
            for work in operation.works:
                self._end(work, failed=True)
        self._incomplete.clear()

    def _end(self, work: _ThreadWork, failed: bool) -> None:
        if not work.ended.is_set():
            work.failed, work.ended_at = failed, time.monotonic()
            work.owner._meter_stop(work.ended_at)
            work.ended.set()

    # ------------------------------------------------------------------ working the queue off

    def _run_one(self, until: _Operation | None = None) -> bool:
        """Do one block of the first operation; False if there is none to do, or operation ``until`` is over."""
        with self._lock:
            claimed = self._claim(until)
        if claimed is None:
            return False
        operation, task = claimed
        trouble = None
        try:
            combine(*task)
        except Exception as error:  # out of memory, most likely; the ranks must hear of it
            trouble = f"{type(error).__name__}: {error}"
        with self._lock:
            operation.running -= 1
            if trouble is not None:
                operation.tasks.clear()
                self._fail(CommError, f"{_words(operation.works[0].call)} failed: {trouble}", ())
                for work in operation.works:
                    self._end(work, failed=True)
            self._retire()
        return True

    def _claim(self, until: _Operation | None) -> tuple[_Operation, _Task] | None:
        self._retire()
        if not self._queue or (until is not None and self._queue[0] is not until):
            return None
        operation = self._queue[0]
        if not operation.tasks:
            return None  # other threads are at its last blocks
        operation.running += 1
        return operation, operation.tasks.popleft()

    def _retire(self) -> None:
        """End the operations at the head of the queue whose blocks are all done."""
        ended = False
        while self._queue and not self._queue[0].tasks and not self._queue[0].running:
            ended = True
            for work in self._queue.popleft().works:
                self._end(work, failed=False)
        if ended and self._queue:
            self._call_helpers()

    def _call_helpers(self) -> None:
        while len(self._helpers) < min(self.size, os.cpu_count() or 1):
            name = f"minigrad-communication-{len(self._helpers)}"
            helper = threading.Thread(target=self._help, name=name, daemon=True)
            self._helpers.append(helper)
            helper.start()
        self._work_to_do.notify_all()

    def _help(self) -> None:
        while True:
            with self._lock:
                while not (self._queue and self._queue[0].tasks):
                    if len(self._left) == self.size:
                        return
                    self._work_to_do.wait()
            self._run_one()


class ThreadCommunicator(Communicator):
    """One rank of a group of threads; ``group`` makes all of them, ``run_threads`` the threads as well.

    ``send`` ends when the other rank has received, so two ranks that both send first and receive then do not get on
    here, as they may not elsewhere.
    """

    def __init__(self, group: _Group, rank: int, timeout: float, faults: FaultCounter) -> None:
        super().__init__(group.size, rank, CPU, timeout)
        self._group, self._faults = group, faults
        self._collectives = 0
        self._messages: Counter[tuple[int, int, int]] = Counter()  # by source, destination, tag
        self._started: deque[_ThreadWork] = deque()
        self._under_way, self._busy_since = 0, 0.0
        self._children: list[ThreadCommunicator] = []

    @classmethod
    def group(
        cls, n: int, timeout: float = DEFAULT_TIMEOUT, fault: FaultPlan | None = None
    ) -> list[ThreadCommunicator]:
        """The communicators of a new group of ``n`` ranks, one for each thread; ``fault`` is what shall go wrong."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"a group of {n!r} ranks: expected an integer >= 1")
        shared = _Group(n)
        return [cls(shared, rank, timeout, FaultCounter(fault, rank)) for rank in range(n)]

    def _start(self, call: Call) -> Work:
        send = call.recv if call.name == "broadcast" and call.peer == self._rank else call.send
        fault = self._faults.next()
        arrives = True
        if fault is not None:
            if fault.kind == "delay":
                time.sleep(fault.seconds)
            elif fault.kind == "kill":
                killed = RankKilledError(f"rank {self._rank} was killed in {_words(call)}, as planned")
                self._error = killed
                self._abandon(killed)
                raise killed
            elif fault.kind == "flip" and send is not None:
                send = with_flipped_bit(send, fault.bit)
            arrives = fault.kind != "drop"
        key, ranks = self._place(call)
        work = self._group.post(key, ranks, self, call, send, arrives)
        self._forget_ended()
        self._started.append(work)
        if call.name == "barrier":
            self._sync()
        return work

    def _place(self, call: Call) -> tuple[Hashable, tuple[int, ...]]:
        """Which operation this call is a part of, the same on all ranks that it needs."""
        if call.name in ("send", "recv"):
            assert call.peer is not None
            here, there = self._rank, call.peer
            stream = (here, there, call.tag) if call.name == "send" else (there, here, call.tag)
            self._messages[stream] += 1
            return (stream, self._messages[stream]), (here, there)
        self._collectives += 1
        return self._collectives, tuple(range(self._world_size))

    def _sync(self) -> None:
        for work in list(self._started):
            work.wait()
        self._forget_ended()

    def _forget_ended(self) -> None:
        while self._started and self._started[0].is_completed():
            self._started.popleft()

    def _split(self, color: int | None, key: int) -> Communicator | None:
        mine = np.array([-1 if color is None else color, key], np.int64)
        everyone = np.empty((self._world_size, 2), np.int64)
        self._start(self._call("split", mine, everyone)).wait()
        if color is None:
            return None
        members = [int(r) for r in np.argsort(everyone[:, 1], kind="stable") if everyone[r, 0] == color]
        shared = self._group.child((self._collectives, color), members, self._rank)
        child = ThreadCommunicator(shared, members.index(self._rank), self.timeout, self._faults)
        self._children.append(child)
        return child

    def _shut(self) -> None:
        error = self._error
        try:
            if error is None and self._group.failure is None:
                self._sync()
        finally:
            self._abandon(error if error is not None else self._error)

    def _abandon(self, error: BaseException | None) -> None:
        """Leave the group; in case of an error the sub-groups too, where others may wait for this rank."""
        self._group.leave(self._rank, error)
        if error is not None:
            for child in self._children:
                child._abandon(error)

    # ------------------------------------------------------------------ for the group

    def _failed_with(self, call: Call) -> CommError:
        """The group's failure as this rank's error, raised by ``call``."""
        failure = self._group.failure
        assert failure is not None
        error = failure.kind(
            failure.reason,
            op=call.name,
            sequence=call.sequence,
            rank=self._rank,
            step=call.step,
            ranks=failure.ranks,
        )
        return self._fail(error)

    def _meter_start(self) -> None:
        if not self._under_way:
            self._busy_since = time.monotonic()
        self._under_way += 1

    def _meter_stop(self, now: float) -> None:
        self._under_way -= 1
        if not self._under_way:
            self.stats.busy_s += now - self._busy_since


def run_threads(
    n: int,
    fn: Callable[[ThreadCommunicator], _T],
    timeout: float = DEFAULT_TIMEOUT,
    fault: FaultPlan | None = None,
) -> list[_T]:
    """Run ``fn(comm)`` in ``n`` threads, one for each rank of a new group; returns the results in order of rank.

    If ranks fail, the first error is raised, with all of them by rank as its attribute ``rank_errors``; what the others
    raise because of it does not hide it. After the first error the others have ``timeout`` seconds to end; a rank that
    has not is named in the error. A rank that computes without end while nobody waits for it is waited for.
    """
    comms = ThreadCommunicator.group(n, timeout, fault)
    results: dict[int, _T] = {}
    errors: dict[int, BaseException] = {}  # in order of time
    changed = threading.Condition()
    ended: set[int] = set()

    def run(rank: int) -> None:
        try:
            with comms[rank] as comm:
                try:
                    results[rank] = fn(comm)  # type: ignore[arg-type]
                except BaseException as error:
                    errors[rank] = error  # before the others hear of it
                    raise
        except BaseException as error:
            errors.setdefault(rank, error)
        finally:
            with changed:
                ended.add(rank)
                changed.notify_all()

    for rank in range(n):
        threading.Thread(target=run, args=(rank,), name=f"rank-{rank}", daemon=True).start()
    with changed:
        changed.wait_for(lambda: len(ended) == n or errors)
        if errors:
            changed.wait_for(lambda: len(ended) == n, timeout=min(timeout, threading.TIMEOUT_MAX))
        running = sorted(set(range(n)) - ended)
    if not errors:
        return [results[rank] for rank in range(n)]
    raise _first(errors, running)


def _first(errors: dict[int, BaseException], running: list[int]) -> BaseException:
    """The error to raise: a planned death, else the earliest, with the others attached."""
    killed = [error for error in errors.values() if isinstance(error, RankKilledError)]
    first = killed[0] if killed else next(iter(errors.values()))
    first.rank_errors = dict(errors)  # type: ignore[attr-defined]
    notes = [f"rank {rank} raised {type(error).__name__}: {error}" for rank, error in sorted(errors.items())]
    notes += [f"rank {rank} is still running" for rank in running]
    if hasattr(first, "add_note"):  # Python 3.11 and later
        first.add_note("\n".join(notes))
    return first
