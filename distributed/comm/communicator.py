"""Communicator: what ranks can do together, whichever engine carries it; NoOpCommunicator: a job of one rank.

The names are boostr's (``all_reduce(ptr, count, dtype, op)`` there; tensors know these themselves). Everything that
every engine would otherwise repeat is here, once: arguments are checked, operations numbered, a failed communicator
refuses work. An engine writes ``_start``, which begins one ``Call``, and ``_split`` and ``_shut``.

A communicator belongs to one thread of each rank. All ranks call the same collectives in the same order.
"""

import json
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import numpy as np

from minigrad import Tensor, capturing, cuda
from minigrad.device import CPU, Device
from minigrad.dtypes import SUPPORTED, bool_, is_floating
from minigrad.errors import check_int
from minigrad.modes import Closing

from .calls import DEFAULT_TIMEOUT, FINISHED, Call, CallKind, CommStats, ReduceOp, Work, check_seconds
from .comm_errors import CommError, CommunicatorBrokenError
from .place import address_of, device_of, on_device, on_host


class Communicator(Closing, ABC):
    """A group of ``world_size`` ranks, of which this is number ``rank``, from 0. Its tensors must be on ``device``.

    Collectives work in place on tensors of the communicator's device. Without ``async_op`` a method returns when its
    result is there; with it, the returned ``Work`` tells when. Tensors must be C-contiguous; dtype and shape of what is
    sent must agree on all ranks (dtype and number of elements for ``send`` and ``recv``). Writing into a tensor counts
    as an in-place change.

    ``timeout`` is the deadline of each operation, in seconds. ``step``, set by trainers, is named in errors.

    Raises TypeError or ValueError for arguments that do not fit, before anything is sent; RendezvousError,
    CommTimeoutError, PeerLostError or CollectiveMismatchError for what goes wrong between ranks, and
    CommunicatorBrokenError for every call after one of these, and after ``close``.
    """

    captures: ClassVar[bool] = False
    """Whether its collectives can be part of a CUDA graph: whether the GPU makes them without the host."""

    def __init__(self, world_size: int, rank: int, device: Device = CPU, timeout: float = DEFAULT_TIMEOUT) -> None:
        check_int("world_size", world_size, 1)
        check_int("rank", rank, 0, world_size - 1)
        self.world_size: Final[int] = world_size
        self.rank: Final[int] = rank
        self.device: Final[Device] = device
        self.timeout: float = check_seconds("timeout", timeout)
        self.step: int | None = None
        self.stats: CommStats = CommStats()
        self._sequence = 0
        self._error: BaseException | None = None
        self._closed = False
        self._held: Callable[[], Sequence[tuple[str, Tensor]]] = tuple

    # ------------------------------------------------------------------ collectives

    def all_reduce(self, tensor: Tensor, op: ReduceOp = ReduceOp.SUM, *, async_op: bool = False) -> Work:
        """Replace ``tensor`` on every rank by all ranks' tensors combined; all get the same bits."""
        array = self._array("all_reduce", "tensor", tensor, writes=True)
        self._check_op("all_reduce", op, array.dtype)
        return self._run(self._call(CallKind.ALL_REDUCE, array, array, op=op), async_op, tensor)

    def broadcast(self, tensor: Tensor, root: int = 0, *, async_op: bool = False) -> Work:
        """Replace ``tensor`` on every rank by that of rank ``root``."""
        array = self._array("broadcast", "tensor", tensor, writes=True)
        check_int("broadcast: root", root, 0, self.world_size - 1)
        return self._run(self._call(CallKind.BROADCAST, None, array, peer=root), async_op, tensor)

    def all_gather(self, send: Tensor, recv: Tensor, *, async_op: bool = False, of: str = "", own: bool = True) -> Work:
        """Write all ranks' ``send``, one after the other in order of rank, into ``recv`` (world_size times as many
        elements). ``send`` may be this rank's part of ``recv``: then it is done in place. ``of`` says what they are, in
        a few words that all ranks must pass alike. ``own=False``: this rank's part may be left as it is."""
        a, b = self._pair("all_gather", send, recv, 1, self.world_size)
        return self._run(self._call(CallKind.ALL_GATHER, a, b, of=of, own=own), async_op, recv)

    def reduce_scatter(
        self, send: Tensor, recv: Tensor, op: ReduceOp = ReduceOp.SUM, *, async_op: bool = False, of: str = ""
    ) -> Work:
        """Combine all ranks' ``send`` and write part number ``rank`` of world_size equal parts into ``recv``, which may
        be that part of ``send`` itself. ``of`` as for ``all_gather``."""
        a, b = self._pair("reduce_scatter", send, recv, self.world_size, 1)
        self._check_op("reduce_scatter", op, a.dtype)
        return self._run(self._call(CallKind.REDUCE_SCATTER, a, b, op=op, of=of), async_op, recv)

    def all_to_all(self, send: Tensor, recv: Tensor, *, async_op: bool = False) -> Work:
        """Send part j of ``send`` (world_size equal parts) to rank j; part i of ``recv`` comes from rank i."""
        a, b = self._pair("all_to_all", send, recv, 1, 1)
        if a.size % self.world_size:
            raise ValueError(f"all_to_all: send has {a.size} elements, no multiple of the {self.world_size} ranks")
        return self._run(self._call(CallKind.ALL_TO_ALL, a, b), async_op, recv)

    def barrier(self) -> None:
        """Return when every rank has called it, and all earlier operations of this rank have ended."""
        self._run(self._call(CallKind.BARRIER), False, None)

    # ------------------------------------------------------------------ between two ranks

    def send(self, tensor: Tensor, dest: int, tag: int = 0, *, async_op: bool = False) -> Work:
        """Send ``tensor`` to rank ``dest``, which receives it with the same ``tag``, dtype and number of elements."""
        array = self._array("send", "tensor", tensor, writes=False)
        self._check_peer("send", "dest", dest, tag)
        return self._run(self._call(CallKind.SEND, array, None, peer=dest, tag=tag), async_op, None)

    def recv(self, tensor: Tensor, src: int, tag: int = 0, *, async_op: bool = False) -> Work:
        """Receive into ``tensor`` what rank ``src`` sends with this ``tag``."""
        array = self._array("recv", "tensor", tensor, writes=True)
        self._check_peer("recv", "src", src, tag)
        return self._run(self._call(CallKind.RECV, None, array, peer=src, tag=tag), async_op, tensor)

    # ------------------------------------------------------------------ life

    def expose(self, held: Callable[[], Sequence[tuple[str, Tensor]]]) -> None:
        """Told by the trainer that steps what all ranks must hold alike: ``held()`` are names and tensors. The ranks
        compare them before they save (``save_distributed_checkpoint``). Faults on purpose change them (``FaultPlan``).
        They are kept until another trainer steps, or ``close``.
        """
        self._held = held

    def sync(self) -> None:
        """Wait until all operations that this rank has started are over."""
        self._check_usable("sync")
        self._sync()

    def split(self, color: int | None, key: int = 0) -> "Communicator | None":
        """Part the ranks: those that pass the same ``color`` form a new communicator, in order of ``key``, then rank.

        All ranks must call it. ``color`` None takes part in no new group and returns None. The new communicator is
        closed by itself.
        """
        if color is not None:
            check_int("split: color", color, 0, 2**31 - 1)
        check_int("split: key", key, -(2**31), 2**31 - 1)
        self._check_usable("split")
        return self._split(color, key)

    def close(self) -> None:
        """Release what it holds, after a bounded wait for operations under way. May be called twice; never raises for
        a communicator that has already failed."""
        if not self._closed:
            self._closed, self._held = True, tuple
            try:
                if self._error is None:
                    self._sync()
            finally:
                self._shut()

    def __exit__(self, *error: Any) -> None:
        if self._error is None:
            self._error = error[1]  # the others may be in an operation that this rank will never reach: do not wait
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ", broken" if self._error is not None else ""
        return f"{type(self).__name__}(rank {self.rank} of {self.world_size}, {self.device}{state})"

    # ------------------------------------------------------------------ what an engine writes

    @abstractmethod
    def _start(self, call: Call) -> Work:
        """Begin the operation."""

    def _start_and_wait(self, call: Call) -> Work:
        """The same, when the caller waits for it at once."""
        work = self._start(call)
        work.wait()
        return work

    @abstractmethod
    def _sync(self) -> None:
        """Wait for all that was started."""

    @abstractmethod
    def _split(self, color: int | None, key: int) -> "Communicator | None":
        """The new group's communicator."""

    @abstractmethod
    def _shut(self) -> None:
        """Release everything, after ``_sync``; without waiting for others if ``self._error`` is set."""

    # ------------------------------------------------------------------ shared by the engines

    def _regroup(self, color: int | None, *more: int) -> tuple[list[int], np.ndarray]:
        """The ranks of this one's new group, by the first of ``more``, then rank; and what each has passed, as rows."""
        mine = np.array([-1 if color is None else color, *more], np.int64)
        rows = np.empty((self.world_size, mine.size), np.int64)
        self._start_and_wait(self._call(CallKind.SPLIT, mine, rows))
        return [int(rank) for rank in np.argsort(rows[:, 1], kind="stable") if rows[rank, 0] == color], rows

    def _fail(self, error: CommError) -> CommError:
        """Remember the first error, after which the communicator refuses work; returns the error to raise."""
        if self._error is None:
            self._error = error
        return error

    def _check_usable(self, name: object) -> None:
        reason = "the communicator is closed" if self._closed else None
        if self._error is not None and not self._closed:
            reason = f"the communicator takes no more work, because an earlier operation failed: {self._error}"
        if reason is not None:
            raise CommunicatorBrokenError(reason, op=str(name), rank=self.rank, step=self.step) from self._error

    def _call(self, kind: CallKind, send: Any = None, recv: Any = None, **rest: Any) -> Call:
        """The next call; ``rest`` are other fields of Call."""
        self._check_usable(kind)
        if not self.captures and capturing.recorded() is not None:
            why = f"{type(self).__name__} exchanges data by the host, and a graph's launch could not do that again"
            raise cuda.CaptureError(f"{kind}() during capture: {why}; capture collectives of NcclCommunicator")
        self._sequence += 1
        return Call(kind, self._sequence, self.step, send, recv, **rest)

    def _run(self, call: Call, async_op: bool, written: Tensor | None) -> Work:
        if written is not None:
            written.bump_version()
        self.stats.operations += 1
        if call.send is not None:
            self.stats.bytes_sent += int(call.send.nbytes)
        self.stats.wire_bytes += call.wire_bytes(self.world_size)
        return self._start(call) if async_op else self._start_and_wait(call)

    # ------------------------------------------------------------------ checks

    def _array(self, name: str, what: str, tensor: Any, writes: bool) -> Any:
        """The raw array of a tensor that may be sent, or written to."""
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: {what} is a {type(tensor).__name__}, expected a minigrad Tensor")
        if not self._serves(tensor.device):
            here = f"{type(self).__name__} serves {self.device}; move it with .to({str(self.device)!r})"
            raise ValueError(f"{name}: {what} is on {tensor.device}, {here}")
        array = tensor.data
        if array.dtype not in SUPPORTED:
            raise TypeError(f"{name}: {what} has dtype {array.dtype}, expected one of {', '.join(map(str, SUPPORTED))}")
        if not array.flags.c_contiguous:
            remedy = "pass .contiguous()" + (", and copy the result back" if writes else "")
            kind = f"of shape {tuple(array.shape)} is not contiguous (a transposed or sliced view)"
            raise ValueError(f"{name}: {what} {kind}; {remedy}")
        if writes and not getattr(array.flags, "writeable", True):
            raise ValueError(f"{name}: {what} of shape {tuple(array.shape)} is read-only; pass a clone()")
        return array

    def _serves(self, device: Device) -> bool:
        return device is self.device

    def _pair(self, name: str, send: Any, recv: Any, send_parts: int, recv_parts: int) -> tuple[Any, Any]:
        a = self._array(name, "send", send, writes=False)
        b = self._array(name, "recv", recv, writes=True)
        if a.dtype != b.dtype:
            raise TypeError(f"{name}: send has dtype {a.dtype}, recv {b.dtype}; they must be the same")
        if a.size * recv_parts != b.size * send_parts:
            wanted = a.size * recv_parts / send_parts
            needs = f"send must have {self.world_size} times as many elements as recv"
            if wanted.is_integer():
                needs = f"recv needs {int(wanted)} elements"
            shown = f"send has shape {tuple(a.shape)} and recv {tuple(b.shape)}"
            raise ValueError(f"{name}: {shown}; with {self.world_size} ranks {needs}")
        if self.world_size > 1 and a.size and send.device.kernels.may_share_memory(a, b):
            part, whole = sorted((a, b), key=lambda array: int(array.size))
            if a.size == b.size or address_of(part) != address_of(whole) + self.rank * part.nbytes:
                raise ValueError(f"{name}: send and recv share memory; pass two, or in place the rank's part")
        return a, b

    def _check_op(self, name: str, op: Any, dtype: Any) -> None:
        if not isinstance(op, ReduceOp):
            choices = ", ".join(f"ReduceOp.{o.name}" for o in ReduceOp)
            raise TypeError(f"{name}: op is {op!r}, expected one of {choices}")
        if op is ReduceOp.AVG and not is_floating(dtype):
            raise TypeError(f"{name}: the average of {dtype} is no {dtype}; reduce a floating tensor, or take SUM")
        if dtype == bool_ and op not in (ReduceOp.MIN, ReduceOp.MAX):
            raise TypeError(f"{name}: {op.value} of bool is not defined; take MAX for 'any' or MIN for 'all'")

    def _check_peer(self, name: str, what: str, rank: Any, tag: Any) -> None:
        if check_int(f"{name}: {what}", rank, 0, self.world_size - 1) == self.rank:
            raise ValueError(f"{name}: {what} is {rank}, this rank itself; it has nobody to exchange with")
        check_int(f"{name}: tag", tag, 0, 2**15 - 1)


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


class CommunicatorGroup(Closing):
    """The communicators of a rank that is one of ``data`` x ``pipeline`` x ``tensor`` (boostr's ``CommunicatorGroup``).

    Rank (d, p, t) is number (d * pipeline + p) * tensor + t of ``world``. The attributes are communicators, those of
    one rank included:

        data      the ranks with this one's p and t, which hold the same part of the model
        pipeline  those with its d and t: the stages, in order
        tensor    those with its d and p: the parts of a stage's layers
        model     those with its d: the parts of one model

    To make one is a collective of all ranks. Raises ValueError for sizes that do not multiply to the world's.
    """

    def __init__(self, world: Communicator, *, data: int = 1, pipeline: int = 1, tensor: int = 1) -> None:
        for name, size in (("data", data), ("pipeline", pipeline), ("tensor", tensor)):
            check_int(name, size, 1)
        if data * pipeline * tensor != world.world_size:
            sizes = f"{data} x {pipeline} x {tensor} ranks (data, pipeline, tensor)"
            raise ValueError(f"{sizes} of {world.world_size}; expected sizes whose product is the number of ranks")
        stage, t = divmod(world.rank, tensor)
        d, p = divmod(stage, pipeline)
        self._made: list[Communicator] = []
        self.world: Communicator = world
        self.data: Communicator = self._part(p * tensor + t)
        self.pipeline: Communicator = self._part(d * tensor + t)
        self.tensor: Communicator = self._part(stage)
        self.model: Communicator = self._part(d)

    def _part(self, color: int) -> Communicator:
        part = self.world.split(color)
        assert part is not None
        self._made.append(part)
        return part

    def close(self) -> None:
        """Close all but ``world``, whose owner closes it."""
        for part in reversed(self._made):
            part.close()


def as_group(communicator: Communicator | CommunicatorGroup, along: str) -> Any:
    """A group as it is; of one communicator, a group of this dimension alone."""
    if isinstance(communicator, CommunicatorGroup):
        return communicator
    alone = dict.fromkeys(("data", "pipeline", "tensor"), NoOpCommunicator())
    return SimpleNamespace(**{**alone, "world": communicator, "model": communicator, along: communicator})


# ------------------------------------------------------------------ bytes, JSON and parts of arrays between ranks

FIRST = 256  # bytes of the first message: the length in 8, then as much as fits


def all_gather_rows(communicator: Communicator, array: np.ndarray) -> np.ndarray:
    """Every rank's array (n,), in order of rank: (world_size, n). Size and dtype are the same on all ranks.

    Raises CommError, naming the ranks, for what a bit that flipped on the way has changed.
    """
    device, ranks, send = communicator.device, communicator.world_size, _with_sum(array.tobytes())
    recv = Tensor.wrap(device.kernels.empty((ranks * send.size,), np.uint8), device)
    communicator.all_gather(on_device(send, device), recv)
    rows = on_host(recv).reshape(ranks, send.size)
    _check_sums(communicator, "all_gather", dict(enumerate(rows)))
    return np.ascontiguousarray(rows[:, :-4]).view(array.dtype)


def _with_sum(data: bytes) -> np.ndarray:
    """The bytes, and their CRC-32."""
    return np.frombuffer(data + zlib.crc32(data).to_bytes(4, "little"), np.uint8)


def _check_sums(communicator: Communicator, op: str, received: dict[int, np.ndarray]) -> None:
    """CommError, and a communicator that takes no more work, unless what came from each rank ends with its CRC-32."""
    if bad := [rank for rank, row in received.items() if not np.array_equal(row, _with_sum(row[:-4].tobytes()))]:
        text = f"what came from rank {', '.join(map(str, bad))} was damaged on its way: its CRC-32 does not fit"
        number, rank, step = communicator._sequence, communicator.rank, communicator.step
        raise communicator._fail(CommError(text, op=op, sequence=number, rank=rank, step=step, ranks=bad))


def all_gather_bytes(communicator: Communicator, data: bytes) -> list[bytes]:
    """Every rank's ``data``, in order of rank; lengths may differ. A collective of all ranks."""
    lengths = all_gather_rows(communicator, np.array([len(data)], np.int64))[:, 0].tolist()
    padded = np.zeros(max(lengths), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    return [row[:length].tobytes() for row, length in zip(all_gather_rows(communicator, padded), lengths)]


def all_gather_json(communicator: Communicator, value: Any) -> list[Any]:
    """Every rank's JSON value, in order of rank. A collective of all ranks."""
    return [json.loads(raw) for raw in all_gather_bytes(communicator, json.dumps(value).encode())]


def part_of(n: int, communicator: Communicator) -> tuple[int, int]:
    """(begin, end) of this rank's part of n things: ceil(n / ranks) each, the last parts shorter or empty."""
    size = math.ceil(n / communicator.world_size)
    return min(communicator.rank * size, n), min((communicator.rank + 1) * size, n)


def all_gather_columns(communicator: Communicator, part: Any, n: int) -> Any:
    """All ranks' raw arrays (..., n_r), cut as ``part_of`` says, side by side: (..., n)."""
    ranks, device = communicator.world_size, device_of(part)
    k = device.kernels
    send = k.zeros((*part.shape[:-1], math.ceil(n / ranks)), part.dtype)
    k.elementwise.assign(send[..., : part.shape[-1]], part)
    parts = k.empty((ranks, *send.shape), part.dtype)
    communicator.all_gather(Tensor.wrap(send, device), Tensor.wrap(parts, device))
    return k.contiguous(k.movement.cat(tuple(parts[rank] for rank in range(ranks)), -1)[..., :n])


def send_bytes(
    communicator: Communicator, data: bytes, dest: int, tag: int = 0, *, async_op: bool = False
) -> list[Work]:
    """Send ``data``, perhaps empty, to rank ``dest``, which calls ``recv_bytes``."""
    whole = (len(data).to_bytes(8, "little") + data).ljust(FIRST, b"\0")
    parts = [_with_sum(part) for part in (whole[:FIRST], whole[FIRST:]) if part]
    return [communicator.send(on_device(part, communicator.device), dest, tag, async_op=async_op) for part in parts]


def recv_bytes(communicator: Communicator, src: int, tag: int = 0) -> bytes:
    """What rank ``src`` sends."""
    first = _receive(communicator, src, tag, FIRST)
    end = 8 + int.from_bytes(first[:8], "little")
    return first[8:end] if end <= FIRST else first[8:] + _receive(communicator, src, tag, end - FIRST)


def _receive(communicator: Communicator, src: int, tag: int, size: int) -> bytes:
    data = on_device(np.empty(size + 4, np.uint8), communicator.device)
    communicator.recv(data, src, tag)
    received = on_host(data)
    _check_sums(communicator, "recv", {src: received})
    return received[:-4].tobytes()
