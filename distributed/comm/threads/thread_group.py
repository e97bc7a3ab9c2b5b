"""What the ranks of a ThreadCommunicator share: operations that wait for somebody, a queue of those that need not.

Each rank posts its part of an operation; when the last part has arrived, the operation is checked and queued, and its
blocks of elements are worked off: a small operation by the thread that completed it, a large one by the group's own
threads, while the ranks compute. One thread combines each block and hands the result to every rank, so all ranks hold
the same bits. Operations run one at a time, in the order in which they became complete.

The first failure is the group's: every operation that still waits for somebody ends with it, and so does every later
one.
"""

import functools
import math
import os
import threading
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from ..call_thread import CallThread
from ..calls import Call, PendingWork, ReduceOp
from ..combine import DEVICE_BLOCK_BYTES, combine, units
from ..comm_errors import CollectiveMismatchError, CommError, CommTimeoutError, PeerLostError
from ..place import is_on_host
from .turns import Turns

BLOCK_BYTES = 1 << 20  # what one thread handles at once; between blocks it needs the interpreter lock
SMALL_BYTES = 1 << 16  # below this, waking another thread takes longer than the work

_Task = tuple[ReduceOp | None, list[Any], list[Any]]  # arguments of ``combine``


class RankPart(PendingWork):
    """One rank's part of an operation of a group. ``ready`` is an event of a GPU, before which the arrays must not be
    touched, or None."""

    def __init__(self, owner: Any, group: "Group", call: Call, ready: Any) -> None:
        self.group: Group = group
        super().__init__(owner, call, owner.timeout)
        self.ready: Any = ready
        self.operation: _Operation | None = None
        self.failed: bool = False

    def wait(self, timeout: float | None = None) -> None:
        """Block until it has ended; raises the group's failure, as this rank's error, if it did not end well."""
        super().wait(timeout)
        self.owner.forget_ended()
        if self.failed:
            assert self.group.failure is not None
            kind, reason, ranks = self.group.failure
            raise self.owner._fail(self.call.error(kind, self.owner.rank, reason, ranks))

    def now(self) -> float:
        """The time, in seconds, as the group's ranks know it."""
        return self.group.turns.now

    def pause(self, until: float) -> None:
        """Return when it has ended, or at this time, and the rank's turn has come."""
        self.group.turns.pause(self.owner._world.rank, until, self.ended)

    def expire(self, seconds: float) -> None:
        """The group fails, unless it has just ended."""
        self.group.expire(self, seconds)

    def finish(self, failed: bool) -> None:
        """End it, unless that has happened; with the group's lock held."""
        if not self.ended.is_set():
            self.failed = failed
            self.end()
            self.owner.stats.end(self.ended_at)


class _Operation:
    """What all ranks have posted of one operation."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks  # those that must post
        self.parts: dict[int, RankPart] = {}
        self.all_parts: list[RankPart] = []  # these, and those that were lost on the way
        self.sends: dict[int, Any] = {}
        self.tasks: deque[_Task] = deque()
        self.ready: list[Any] = []
        self.nbytes: int = 0
        self.running = 0

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(r for r in self.ranks if r not in self.parts)

    def agrees(self) -> bool:
        calls = [part.call for part in self.parts.values()]
        if any(call.between_two for call in calls):
            return len({(call.dtype, math.prod(call.shape)) for call in calls}) <= 1
        return len({str(call) for call in calls}) <= 1

    def disagreement(self) -> str:
        words = [f"rank {rank} called {words_of(part.call)}" for rank, part in sorted(self.parts.items())]
        return "the ranks do not agree: " + "; ".join(words + [f"rank {rank} none" for rank in self.missing])

    def prepare(self) -> None:
        """All have posted and agree: list the work."""
        parts = self.parts.values()
        call = next(iter(parts)).call
        received = {part.owner.rank: part.call.recv for part in parts if part.call.recv is not None}
        pairs = units(call, self.sends, received)
        self.nbytes = sum(len(outs) * outs[0].nbytes for _, outs in pairs)
        self.ready = [part.ready for part in parts if part.ready is not None]
        self.tasks = deque(_blocks(call.op, pairs))

    def end(self, failed: bool) -> None:
        """Wake all ranks, and let go of their arrays: part and operation know each other."""
        for part in self.all_parts:
            part.finish(failed)
        self.parts.clear()
        self.all_parts.clear()
        self.sends.clear()
        self.tasks.clear()


def words_of(call: Call) -> str:
    """A call and its number, as errors name it."""
    return f"{call} (operation {call.sequence})"


def _blocks(op: ReduceOp | None, pairs: list[tuple[list[Any], list[Any]]]) -> Iterator[_Task]:
    for sources, outs in pairs:
        size, most, on_gpus = sources[0].size, BLOCK_BYTES, not is_on_host(outs[0])
        if on_gpus:
            most = min(DEVICE_BLOCK_BYTES, -(-size // len(outs)) * sources[0].itemsize)  # at least one for each GPU
        step = max(1, most // sources[0].itemsize)
        for i in range(0, size, step):
            yield op, [s[i : i + step] for s in sources], [o[i : i + step] for o in outs]
            if on_gpus:
                outs = [*outs[1:], outs[0]]  # the next GPU combines


class Group:
    """What the ranks share: the operations under way, who has left, and the first failure."""

    def __init__(self, size: int, turns: Turns) -> None:
        self.size = size
        self.turns = turns
        self.failure: tuple[type[CommError], str, Sequence[int]] | None = None  # each rank makes its own error of it
        self._lock = threading.Lock()
        self._incomplete: dict[Hashable, _Operation] = {}
        self._queue: deque[_Operation] = deque()
        self._last_call: dict[int, tuple[str, _Operation]] = {}
        self._left: dict[int, str] = {}
        self._helpers: list[CallThread] = []
        self._children: dict[Hashable, tuple[Group, list[int]]] = {}

    # ------------------------------------------------------------------ what the ranks call

    def post(self, key: Hashable, ranks: tuple[int, ...], part: RankPart, send: Any, arrives: bool) -> None:
        """Add a rank's part to operation ``key`` of ``ranks``; unless it ``arrives``, only this rank knows of it. It
        fails at once if the group has failed.
        """
        rank, call, stats = part.owner.rank, part.call, part.owner.stats
        with self._lock:
            stats.begin(part.now())
            if self.failure is not None:
                part.finish(failed=True)
                return
            operation = part.operation = self._incomplete.setdefault(key, _Operation(ranks))
            operation.all_parts.append(part)
            self._last_call[rank] = f"{call.kind} (operation {call.sequence})", operation
            if arrives:
                operation.parts[rank] = part
                if send is not None:
                    operation.sends[rank] = send
            self._check_present(operation)
            if self.failure is not None or operation.missing:
                return
            if not operation.agrees():
                self._fail(CollectiveMismatchError, operation.disagreement(), operation.ranks)
                return
            del self._incomplete[key]
            operation.prepare()
            self._queue.append(operation)
            if len(self._queue) > 1:
                return  # its turn comes
            if operation.nbytes > SMALL_BYTES and not self.turns.ordered:
                self._call_helpers()
                return
        began = part.now()
        self._work(operation)
        stats.waited_s += part.now() - began

    def expire(self, part: RankPart, seconds: float) -> None:
        """A rank has waited ``seconds`` for this: the group fails, unless it has just ended."""
        with self._lock:
            operation = part.operation
            if operation is None or part.ended.is_set():
                return
            waiting = f"rank {part.owner.rank} waited {seconds:g} s in {words_of(part.call)}"
            if not operation.missing:
                self._fail(CommTimeoutError, f"{waiting}, which has begun but not ended", ())
            elif not operation.agrees():
                self._fail(CollectiveMismatchError, operation.disagreement(), operation.ranks)
            else:
                late = self._late(operation)
                words = ", ".join(f"rank {rank} ({self._doing(rank, part)})" for rank in late)
                self._fail(CommTimeoutError, f"{waiting} for {words}", late)
            part.finish(failed=True)

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
            if len(self._left) == self.size:
                while self._helpers:
                    self._helpers.pop().stop()

    def child(self, key: Hashable, members: list[int], rank: int) -> "Group":
        """The group that the members of ``key`` share; each of them asks once."""
        with self._lock:
            group, waiting = self._children.setdefault(key, (Group(len(members), self.turns), list(members)))
            waiting.remove(rank)
            if not waiting:
                del self._children[key]
            return group

    # ------------------------------------------------------------------ failures, with the lock held

    def _check_present(self, operation: _Operation) -> None:
        gone = [rank for rank in operation.missing if rank in self._left]
        if gone:
            waiting = ", ".join(f"rank {rank} in {words_of(part.call)}" for rank, part in operation.parts.items())
            reason = "; ".join(f"rank {rank} {self._left[rank]}" for rank in gone)
            self._fail(PeerLostError, f"{reason}, needed by {waiting or 'an operation'}", tuple(gone))

    def _late(self, operation: _Operation) -> Sequence[int]:
        """The ranks that an operation waits for; in place of one that waits itself, those that it waits for."""
        reached, late = [*operation.missing], []
        for rank in reached:  # grows
            missing = self._last_call[rank][1].missing if rank in self._last_call else ()
            if rank in missing or not missing:
                late.append(rank)
            else:
                reached += [other for other in missing if other not in reached]
        return late or operation.missing

    def _doing(self, rank: int, waiting: RankPart) -> str:
        if rank == waiting.owner.rank:
            return "itself: what it sent was lost"
        return f"its last call: {self._last_call[rank][0]}" if rank in self._last_call else "made no call yet"

    def _fail(self, kind: type[CommError], reason: str, ranks: Sequence[int]) -> None:
        if self.failure is None:
            self.failure = kind, reason, ranks
        for operation in self._incomplete.values():
            operation.end(failed=True)
        self._incomplete.clear()

    # ------------------------------------------------------------------ working the queue off

    def _work(self, operation: _Operation) -> None:
        """Do blocks of the queue's first operation until none is left."""
        while (task := self._claim(operation)) is not None:
            try:
                for ready in operation.ready:
                    ready.synchronize()
                combine(*task)
            except Exception as error:  # out of memory, most likely; the ranks must hear of it
                with self._lock:
                    if operation.all_parts:
                        words = words_of(operation.all_parts[0].call)
                        self._fail(CommError, f"{words} failed: {type(error).__name__}: {error}", ())
                    operation.end(failed=True)
            with self._lock:
                operation.running -= 1

    def _claim(self, operation: _Operation) -> _Task | None:
        """A block to do. Where there is none, all operations end that are done, and the next one begins."""
        with self._lock:
            if operation.tasks:
                operation.running += 1
                return operation.tasks.popleft()
            ended = False
            while self._queue and not self._queue[0].tasks and not self._queue[0].running:
                self._queue.popleft().end(failed=False)
                ended = True
            if ended and self._queue:
                self._call_helpers()
            return None

    def _call_helpers(self) -> None:
        """Have threads do the blocks of the queue's first operation."""
        while len(self._helpers) < min(self.size, os.cpu_count() or 1):
            self._helpers.append(CallThread(f"minigrad-communication-{len(self._helpers)}"))
        for helper in self._helpers:
            helper.submit(functools.partial(self._work, self._queue[0]))
