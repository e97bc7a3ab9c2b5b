"""A machine with GPUs that are not there: the part of CuPy and NCCL that NcclCommunicator uses, over NumPy arrays.

Each rank is a thread. Streams are queues that threads of their own work off, so operations are as asynchronous as on a
GPU; events and waits between streams order them, and nothing else does. A collective moves data once all ranks have
put it on their streams, and hangs for ever, as NCCL does, if they differ or one is missing. ``log`` records the calls.
"""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
import time
from collections import defaultdict, deque
from types import SimpleNamespace

import ml_dtypes
import numpy as np
from in_threads import outcomes

from minigrad.distributed import ReduceOp
from minigrad.distributed.comm.combine import combine

# Written from nccl.h, not taken from what is tested.
TYPES = {1: np.uint8, 2: np.int32, 4: np.int64, 6: np.float16, 7: np.float32, 8: np.float64, 9: ml_dtypes.bfloat16}
CODES = {code: np.dtype(kind) for code, kind in TYPES.items()}
OPS = (ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.AVG)


class FakeArray(np.ndarray):
    """An array with CuPy's ``data.ptr`` and ``get``."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self, stream=None):
        done = threading.Event()
        out = []
        stream.enqueue(lambda: (out.append(np.array(self)), done.set()))
        assert done.wait(10), "a copy on a stream that is stuck"
        return out[0]


class FakeStream:
    """A CUDA stream: what is enqueued runs in order, on a thread of its own."""

    _numbers = itertools.count(1000)
    known: dict[int, FakeStream] = {}  # noqa: RUF012

    def __init__(self, machine: FakeMachine, null: bool = False) -> None:
        self.machine, self.null, self.ptr = machine, null, next(self._numbers)
        self.known[self.ptr] = self
        self.before: FakeStream | None = None
        self.tasks = queue.SimpleQueue()
        if not null:
            machine.streams.append(self)
            threading.Thread(target=self._run, daemon=True).start()

    def enqueue(self, task) -> None:
        if self.null:
            task()
        else:
            self.tasks.put(task)

    def _run(self) -> None:
        while (task := self.tasks.get()) is not None:
            task()

    def wait_event(self, event: FakeEvent) -> None:
        assert event.recorded, "the stream is to wait for an event that was never recorded"
        self.enqueue(lambda: event.happened.wait(self.machine.patience))

    def use(self) -> FakeStream:
        self.machine.local.stream = self
        return self

    def __enter__(self) -> FakeStream:
        self.before = self.machine.current()
        return self.use()

    def __exit__(self, *_: object) -> None:
        self.machine.local.stream = self.before


class FakeEvent:
    """A CUDA event."""

    def __init__(self, disable_timing: bool) -> None:
        self.timed = not disable_timing
        self.happened, self.recorded, self.at = threading.Event(), False, 0.0

    def record(self, stream: FakeStream) -> None:
        self.recorded = True
        stream.enqueue(self._happen)

    def _happen(self) -> None:
        self.at = time.monotonic()
        self.happened.set()

    @property
    def done(self) -> bool:
        assert self.recorded
        return self.happened.is_set()


class FakeMachine:
    """Stands for the modules ``cupy`` and ``cupy.cuda.nccl``, shared by the ranks' threads."""

    def __init__(self) -> None:
        self.patience = 30.0  # seconds after which a stream gives up waiting for another one
        self.local = threading.local()
        self.lock = threading.Lock()
        self.log = []  # (call, *arguments)
        self.streams: list[FakeStream] = []
        self.worlds: dict[bytes, FakeWorld] = {}
        self.numbers = itertools.count(1)
        cuda = SimpleNamespace(
            Device=lambda index: FakeDevice(self, index),
            Stream=lambda non_blocking: FakeStream(self) if non_blocking else None,
            Event=lambda disable_timing=False: FakeEvent(disable_timing),
            get_current_stream=lambda device_id=-1: self.current(),
            get_elapsed_time=self.elapsed,
        )
        self.cupy = SimpleNamespace(
            cuda=cuda,
            zeros=lambda shape, dtype: np.zeros(shape, dtype).view(FakeArray),
            asarray=lambda array: np.array(array).view(FakeArray),
        )
        self.nccl = SimpleNamespace(
            NcclCommunicator=lambda n, identifier, rank: FakeComm.join(self, n, identifier, rank),
            get_unique_id=lambda: next(self.numbers).to_bytes(128, "big"),
            groupStart=self.group_start,
            groupEnd=self.group_end,
            available=True,
        )

    def note(self, name: str, *arguments) -> None:
        with self.lock:
            self.log.append((name, *arguments))

    def calls(self, *names: str):
        """The recorded calls of these names, as (name, *arguments)."""
        return [call for call in self.log if call[0] in names]

    def current(self) -> FakeStream:
        if getattr(self.local, "stream", None) is None:
            self.local.stream = FakeStream(self, null=True)
        return self.local.stream

    @staticmethod
    def elapsed(begin: FakeEvent, end: FakeEvent) -> float:
        assert begin.timed and end.timed and begin.done and end.done
        return (end.at - begin.at) * 1e3

    def group_start(self) -> None:
        assert getattr(self.local, "group", None) is None, "groups are not nested here"
        self.local.group = []

    def group_end(self) -> None:
        group, self.local.group = self.local.group, None
        if group:
            assert len({(id(comm), id(stream)) for comm, stream, *_ in group}) == 1
            comm, stream = group[0][:2]
            stream.enqueue(lambda: comm.exchange([entry[2:] for entry in group]))

    def shut(self) -> None:
        """Let every thread go that still waits."""
        for world in list(self.worlds.values()):
            with world.changed:
                world.over = True
                world.changed.notify_all()
        for stream in self.streams:
            stream.tasks.put(None)


class FakeDevice:
    """``cupy.cuda.Device``."""

    def __init__(self, machine: FakeMachine, index: int) -> None:
        self.machine, self.index = machine, index

    def use(self) -> None:
        self.machine.local.device = self.index

    def __enter__(self) -> FakeDevice:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to restore."""


class FakeWorld:
    """What the ranks of one NCCL communicator share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.over = False
        self.posts = defaultdict(dict)
        self.finished: set[tuple[str, int]] = set()
        self.mail = defaultdict(deque)


class FakeComm:
    """CuPy's NcclCommunicator of one rank."""

    def __init__(self, machine: FakeMachine, world: FakeWorld, rank: int) -> None:
        self.machine, self.world, self.rank = machine, world, rank
        self.numbers, self.splits = itertools.count(), itertools.count()
        self.gone = False
        self.under_way = 0
        self.async_error: Exception | None = None
        machine.note("NcclCommunicator", world.size, rank)

    @classmethod
    def join(cls, machine: FakeMachine, size: int, identifier: bytes, rank: int) -> FakeComm:
        assert isinstance(identifier, bytes) and len(identifier) == 128
        with machine.lock:
            world = machine.worlds.setdefault(identifier, FakeWorld(size))
        comm = cls(machine, world, rank)
        comm.meet(("init", 0), None, lambda posts: None)
        return comm

    # ---------------------------------------------------------------- NCCL's interface

    def size(self) -> int:
        return self.world.size

    def rank_id(self) -> int:
        return self.rank

    def check_async_error(self) -> None:
        if self.async_error is not None:
            raise self.async_error

    def abort(self) -> None:
        self.machine.note("abort", self.rank)
        with self.world.changed:
            self.gone = True
            self.world.changed.notify_all()

    def destroy(self) -> None:
        self.machine.note("destroy", self.rank)

    def commSplit(self, color: int, key: int) -> FakeComm | None:
        assert self.under_way == 0, "NCCL may deadlock if a communicator is split while it works"
        made: dict[int, FakeComm] = {}

        def part(posts) -> None:
            for color in {c for c, _ in posts.values()} - {-1}:
                members = sorted((k, r) for r, (c, k) in posts.items() if c == color)
                world = FakeWorld(len(members))
                with self.machine.lock:
                    self.machine.worlds[b"split" + bytes(str(id(world)), "ascii")] = world
                for number, (_, r) in enumerate(members):
                    made[r] = FakeComm(self.machine, world, number)
            posts["made"] = made  # type: ignore[index]

        posts = self.meet(("split", next(self.splits)), (color, key), part)
        return posts["made"].get(self.rank)

    def allReduce(self, send, recv, count, dtype, op, stream):
        self.collective("allReduce", stream, (count, dtype, op), send, recv, count, count)

    def broadcast(self, send, recv, count, dtype, root, stream):
        self.collective("broadcast", stream, (count, dtype, root), send, recv, count, count)

    def allGather(self, send, recv, count, dtype, stream):
        self.collective("allGather", stream, (count, dtype, 0), send, recv, count, count * self.world.size)

    def reduceScatter(self, send, recv, count, dtype, op, stream):
        self.collective("reduceScatter", stream, (count, dtype, op), send, recv, count * self.world.size, count)

    def send(self, buffer, count, dtype, peer, stream):
        self.message("send", buffer, count, dtype, peer, stream)

    def recv(self, buffer, count, dtype, peer, stream):
        self.message("recv", buffer, count, dtype, peer, stream)

    # ---------------------------------------------------------------- how it is done

    def check(self, name, stream, count, dtype, *addresses) -> FakeStream:
        assert all(type(x) is int for x in (*addresses, count, dtype, stream)), "NCCL takes integers"
        assert count > 0, "NCCL discards operations on nothing"
        assert not self.gone, f"{name} on a communicator that was aborted"
        assert hasattr(self.machine.local, "device"), f"{name} in a thread that has not chosen its GPU"
        return FakeStream.known[stream]

    def collective(self, name, stream, what, send, recv, send_count, recv_count):
        count, dtype, extra = what
        self.machine.note(name, self.rank, send, recv, count, dtype, extra, stream)
        on = self.check(name, stream, count, dtype, send, recv)
        assert getattr(self.machine.local, "group", None) is None, "a collective inside a group"
        key = ("op", next(self.numbers))
        post = (name, what, view(send, send_count, dtype), view(recv, recv_count, dtype))
        self.under_way += 1
        on.enqueue(lambda: (self.meet(key, post, move), self.ended()))

    def ended(self) -> None:
        self.under_way -= 1

    def message(self, name, buffer, count, dtype, peer, stream):
        self.machine.note(name, self.rank, buffer, count, dtype, peer, stream)
        on = self.check(name, stream, count, dtype, buffer, peer)
        group = getattr(self.machine.local, "group", None)
        assert group is not None, "a message outside a group"
        group.append((self, on, name, view(buffer, count, dtype), peer))

    def meet(self, key, post, action):
        """Wait for the same step of every rank; the last one acts for all. NCCL knows no deadline."""
        world = self.world
        with world.changed:
            posts = world.posts[key]
            posts[self.rank] = post
            if len(posts) == world.size and key not in world.finished:
                if action(posts) is not False:
                    world.finished.add(key)
                world.changed.notify_all()
            while not (key in world.finished or self.gone or world.over):
                world.changed.wait()
            if key not in world.finished:  # its kernel has left the GPU
                posts.pop(self.rank, None)
            return posts

    def exchange(self, entries) -> None:
        """A group: all sends and receives make progress together; it is over when all have found their partners."""
        world = self.world
        mine = []
        with world.changed:
            for name, array, peer in entries:
                if name == "send":
                    letter = SimpleNamespace(array=array, taken=False)
                    world.mail[self.rank, peer].append(letter)
                    mine.append(letter)
            world.changed.notify_all()
            wanted = [(array, peer) for name, array, peer in entries if name == "recv"]
            while not (self.gone or world.over):
                left = []
                for array, peer in wanted:
                    box = world.mail[peer, self.rank]
                    if any(p == peer for _, p in left) or not box or box[0].array.nbytes != array.nbytes:
                        left.append((array, peer))  # it, or an earlier one of the same peer, is still waiting
                        continue
                    letter = box.popleft()
                    array.view(np.uint8)[...] = letter.array.view(np.uint8)
                    letter.taken = True
                    world.changed.notify_all()
                wanted = left
                if not wanted and all(letter.taken for letter in mine):
                    return
                world.changed.wait()


def view(address: int, count: int, dtype: int) -> np.ndarray:
    """The memory at an address. Nobody keeps it alive but the communicator."""
    nbytes = count * CODES[dtype].itemsize
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), CODES[dtype])


def move(posts) -> bool | None:
    """What a collective does; False, and nothing, if the ranks differ."""
    name, what = posts[0][:2]
    if any(post[:2] != (name, what) for post in posts.values()):
        return False
    sends, recvs = ([posts[r][i] for r in range(len(posts))] for i in (2, 3))
    if name == "broadcast":
        for recv in recvs:
            recv[...] = sends[what[2]].copy()
    elif name == "allGather":
        gathered = np.concatenate(sends)
        for recv in recvs:
            recv[...] = gathered
    else:
        combined = np.empty_like(sends[0])
        combine(OPS[what[2]], sends, [combined])
        parts = [combined] * len(sends) if name == "allReduce" else np.split(combined, len(sends))
        for recv, part in zip(recvs, parts):
            recv[...] = part
    return None


def on_ranks(comms, fn):
    """What ``fn(comm)`` returns, or raises, on each rank, in threads; the communicators are closed."""

    def rank(number: int):
        with comms[number] as comm:
            comm.device.activate()
            return fn(comm)

    return [*outcomes(range(len(comms)), rank, 100).values()]
