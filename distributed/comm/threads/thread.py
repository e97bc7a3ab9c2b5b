"""ThreadCommunicator: the ranks are threads of one process, for tests and for replicas in one process.

Their tensors are on the CPU or on GPUs; those of GPUs are combined there (``combine``), which needs no NCCL.

Nothing waits without a deadline. What the ranks share is in ``thread_group``; here is what one rank sees.
"""

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from typing import TypeVar

from minigrad.device import CPU, Device
from minigrad.errors import check_int
from minigrad.modes import of_thread
from minigrad.random import drawing_from, generators_for

from ..call_thread import in_threads
from ..calls import DEFAULT_TIMEOUT, Call, CallKind, Work
from ..communicator import Communicator
from .faults import Fault, FaultPlan, RankKilledError, with_flipped_bit
from .thread_group import Group, RankPart, words_of
from .turns import SeededTurns, Turns

GRACE = 1.0  # seconds that a rank has beyond its last deadline to end

_T = TypeVar("_T")


class ThreadCommunicator(Communicator):
    """One rank of a group of threads; ``group`` makes all of them, ``run_threads`` the threads as well.

    ``send`` ends when the other rank has received. So two ranks that both send first and receive then do not get on
    here, as they may not elsewhere.
    """

    def __init__(
        self, group: Group, rank: int, timeout: float, faults: Iterator[Fault | None],
        parent: "ThreadCommunicator | None" = None, device: Device = CPU,
    ) -> None:  # fmt: skip
        super().__init__(group.size, rank, device, timeout)
        self._world: ThreadCommunicator = self if parent is None else parent._world
        self._group, self._faults = group, faults
        self._collectives = 0
        self._messages: Counter[tuple[int, int, int]] = Counter()  # by source, destination, tag
        self._started: deque[RankPart] = deque()
        self._children: list[ThreadCommunicator] = []

    @classmethod
    def group(
        cls,
        n: int,
        timeout: float = DEFAULT_TIMEOUT,
        fault: FaultPlan | None = None,
        devices: Sequence[Device] | None = None,
    ) -> "list[ThreadCommunicator]":
        """The communicators of a new group of ``n`` ranks, one for each thread; ``fault`` is what shall go wrong.

        ``devices``: where each rank's tensors are, all on the CPU (the default) or all on GPUs, which ranks may share.
        """
        check_int("the number of ranks", n, 1)
        places = [CPU] * n if devices is None else list(devices)
        if len(places) != n or len({place.type for place in places}) > 1:
            raise ValueError(f"a group of {n} ranks on {[*map(str, places)]}: expected {n} devices, all CPUs or GPUs")
        plan = FaultPlan([]) if fault is None else fault
        shared = Group(n, Turns() if plan.order is None else SeededTurns(n, plan.order))
        return [cls(shared, rank, timeout, plan.of_rank(rank), device=places[rank]) for rank in range(n)]

    def _start(self, call: Call) -> Work:
        send = call.recv if call.kind is CallKind.BROADCAST and call.peer == self.rank else call.send
        fault = next(self._faults)
        arrives, turns, me = True, self._group.turns, self._world.rank
        self._pause()
        if fault is not None:
            if fault.kind in ("delay", "stop"):
                turns.pause(me, turns.now + (fault.seconds if fault.kind == "delay" else math.inf), threading.Event())
            if fault.kind in ("kill", "stop"):
                end = "killed" if fault.kind == "kill" else "stopped"
                killed = RankKilledError(f"rank {me} was {end} in {words_of(call)}, as planned")
                self._world._abandon(killed)
                raise killed
            if fault.kind == "damage" and (held := self._held()):
                bit, number = divmod(fault.bit, len(held))
                _, one = held[number]
                one.device.kernels.elementwise.assign(one.data, with_flipped_bit(one.data, bit))
            if fault.kind == "flip" and send is not None and call.kind is not CallKind.SPLIT:
                send = with_flipped_bit(send, fault.bit)
            arrives = fault.kind != "drop"
        ready = None
        if self.device is not CPU:
            ready = self.device.kernels.streams.Event()
            ready.record()
        key, ranks = self._place(call)
        work = RankPart(self, self._group, call, ready)
        self._group.post(key, ranks, work, send, arrives)
        self.forget_ended()
        self._started.append(work)
        if call.kind is CallKind.BARRIER:
            self._sync()
        return work

    def _pause(self) -> None:
        """Let another rank run, where a plan has an order."""
        self._group.turns.pause(self._world.rank, -math.inf)

    def _place(self, call: Call) -> tuple[Hashable, tuple[int, ...]]:
        """Which operation this call is a part of, the same on all ranks that it needs."""
        if call.between_two:
            here, there = self.rank, call.peer
            stream = (here, there, call.tag) if call.kind is CallKind.SEND else (there, here, call.tag)
            self._messages[stream] += 1
            return (stream, self._messages[stream]), (here, there)
        self._collectives += 1
        return self._collectives, tuple(range(self.world_size))

    def _sync(self) -> None:
        for work in list(self._started):
            work.wait()

    def _split(self, color: int | None, key: int) -> Communicator | None:
        members, _ = self._regroup(color, key)
        if color is None:
            return None
        shared = self._group.child((self._collectives, color), members, self.rank)
        child = ThreadCommunicator(shared, members.index(self.rank), self.timeout, self._faults, self, self.device)
        self._children = [c for c in self._children if not c._closed] + [child]
        return child

    def _shut(self) -> None:
        self._abandon(self._error)
        if self is self._world:
            self._group.turns.leave(self.rank)

    def _abandon(self, error: BaseException | None) -> None:
        """Leave the group; in case of an error the sub-groups too, where others may wait for this rank."""
        self._group.leave(self.rank, error)
        if error is not None:
            if self._error is None:
                self._error = error
            for child in self._children:
                child._abandon(error)

    def forget_ended(self) -> None:
        """Let go of operations that have ended, and of their arrays."""
        while self._started and self._started[0].is_completed():
            self._started.popleft()


def run_threads(
    n: int,
    fn: Callable[[ThreadCommunicator], _T],
    timeout: float = DEFAULT_TIMEOUT,
    fault: FaultPlan | None = None,
    devices: Sequence[Device] | None = None,
) -> list[_T]:
    """Run ``fn(comm)`` in ``n`` threads, one for each rank of a new group; returns the results in order of rank.
    ``devices`` are those of the ranks' tensors, by default the CPU; a GPU is its thread's current device.

    If ranks fail, the first error is raised, with all of them by rank as its attribute ``rank_errors``; what the others
    raise because of it does not hide it. After the first error the others have ``timeout`` seconds and one more to
    end; a rank that has not is named in the error. A rank that computes without end while nobody waits for it is
    waited for.

    Each rank's default generator is its own, as that of a process would be. The caller's default generator and the rank
    decide its seed; ``manual_seed`` in ``fn`` seeds the rank's. The rank computes with the caller's
    ``minigrad.kernels`` and plans (``minigrad.unfused``).
    """
    comms = ThreadCommunicator.group(n, timeout, fault, devices)
    generators, here = generators_for(n), of_thread.mode
    errors: dict[int, BaseException] = {}  # in order of time

    def run(rank: int) -> _T:
        mode = of_thread.mode
        mode.kernels, mode.unfused = here.kernels, here.unfused
        try:
            with comms[rank] as comm, drawing_from(generators[rank]):
                comm.device.activate()
                comm._pause()
                try:
                    return fn(comm)
                except BaseException as error:
                    errors[rank] = error  # before the others hear of it
                    raise
        except BaseException as error:
            errors.setdefault(rank, error)
            raise

    try:
        jobs = in_threads("rank", n, run)
        wait(jobs, return_when=FIRST_EXCEPTION)
        wait(jobs, min(timeout + GRACE, threading.TIMEOUT_MAX))  # if all went well, they have ended
    except BaseException as error:  # Ctrl-C: the ranks must not go on alone
        for comm in comms:
            comm._abandon(error)
        raise
    if not errors:
        return [job.result() for job in jobs]
    raise _first(errors, [rank for rank, job in enumerate(jobs) if not job.done()])


def _first(errors: dict[int, BaseException], running: list[int]) -> BaseException:
    """The error to raise: a planned death, else the earliest, with the others attached."""
    first = next((e for e in errors.values() if isinstance(e, RankKilledError)), next(iter(errors.values())))
    first.rank_errors = dict(errors)  # type: ignore[attr-defined]
    notes = [f"rank {rank} raised {type(error).__name__}: {error}" for rank, error in sorted(errors.items())]
    notes += [f"rank {rank} is still running" for rank in running]
    if hasattr(first, "add_note"):  # Python 3.11 and later
        first.add_note("\n".join(notes))
    return first
