"""One operation of a communicator: how long it may take, as an engine gets it, while it is under way, and as the
statistics count it."""

import enum
import functools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from .comm_errors import CommError

DEFAULT_TIMEOUT = 600.0  # seconds an operation may take
RENDEZVOUS_TIMEOUT = 60.0  # seconds until all ranks must have met


def check_seconds(name: str, value: Any) -> float:
    """``value`` as a float. Raises ValueError unless it is a number of seconds > 0 (infinity never ends)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} is {value!r}, expected a number of seconds > 0")
    return float(value)


Seconds: TypeAlias = Annotated[float, check_seconds]


def remaining(deadline: float) -> float:
    """Seconds until ``deadline`` on the clock of ``time.monotonic``, not below 0."""
    return max(0.0, deadline - time.monotonic())


E = TypeVar("E", bound=CommError)


class ReduceOp(enum.Enum):
    """How ``all_reduce`` and ``reduce_scatter`` combine the ranks' values. AVG, the sum divided by the number of ranks,
    is for floating dtypes only."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "avg"


class CallKind(enum.Enum):
    """What an operation is. The order is that of the codes in headers: new ones come at the end."""

    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"
    SEND = "send"
    RECV = "recv"
    SPLIT = "split"
    CLOSE = "close"
    LAUNCH = "the launch of a graph"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Call:
    """One operation, checked, as an engine gets it.

    ``send`` and ``recv`` are contiguous raw arrays of the device (the same one for ``all_reduce``; only ``recv`` for
    ``broadcast``, which on the root is also what is sent). ``peer`` is the root, destination or source, -1 where there
    is none. ``of`` are the caller's own words for what it is that travels. Without ``own`` an all-gather may leave out
    the rank's own part of ``recv``.
    """

    kind: CallKind
    sequence: int
    step: int | None
    send: Any = None
    recv: Any = None
    op: ReduceOp | None = None
    peer: int = -1
    tag: int = 0
    of: str = ""
    own: bool = True

    @property
    def array(self) -> Any:
        """What is sent, or received where nothing is sent; None for ``barrier``."""
        return self.recv if self.send is None else self.send

    @property
    def dtype(self) -> Any:
        """The dtype of ``array``, None for ``barrier``."""
        return None if self.array is None else self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of ``array``, () for ``barrier``."""
        return () if self.array is None else tuple(self.array.shape)

    def wire_bytes(self, ranks: int) -> int:
        """What each of the ranks sends, without headers, by the way that sends least (of a broadcast, the root)."""
        parts = {"all_reduce": 2, "broadcast": 2, "reduce_scatter": 1, "all_to_all": 1, "all_gather": ranks, "send": 1}
        of = 1 if self.kind is CallKind.SEND else ranks / max(ranks - 1, 1)
        return 0 if self.array is None else round(parts.get(self.kind.value, 0) * int(self.array.nbytes) / of)

    @property
    def between_two(self) -> bool:
        """Whether it is a message to or from another rank, no collective."""
        return self.kind in (CallKind.SEND, CallKind.RECV)

    def error(self, kind: type[E], rank: int, reason: str, ranks: Sequence[int] = ()) -> E:
        """The error of this call of a rank; ``ranks`` are to blame."""
        return kind(reason, op=str(self.kind), sequence=self.sequence, rank=rank, step=self.step, ranks=ranks)

    def __str__(self) -> str:
        """All that must be the same on every rank, in words: ``all_reduce(sum) of (3, 4) float32``."""
        return in_words(str(self.kind), self.op, self.shape, self.dtype, self.peer, self.of)


@functools.lru_cache  # a training makes the same calls again and again
def in_words(name: str, op: ReduceOp | None, shape: tuple[int, ...] | str, dtype: Any, peer: int, of: str) -> str:
    """An operation in words; its shape may be words as well."""
    words = name
    if op is not None:
        words += f"({op.value})"
    if dtype is not None:
        words += f" of {of}{', ' * bool(of)}{shape} {dtype}"
    if name == "broadcast":
        words += f" from rank {peer}"
    return words


@dataclass
class CommStats:
    """What a communicator has done so far. Times are seconds of the wall clock.

    ``bytes_sent`` are those of the tensors that this rank has put in, ``wire_bytes`` those that it sends to the others
    of them and of results: 2 (W - 1) / W times a tensor for an all-reduce over W ranks. It is half of that for a
    reduce-scatter of it, and for an all-gather to a tensor of that size.

    ``busy_s`` is the time in which at least one operation was under way. ``waited_s`` is the part of it for which the
    rank's own thread stood still.
    """

    operations: int = 0
    bytes_sent: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0
    wire_bytes: int = 0
    _under_way: int = field(default=0, init=False, repr=False, compare=False)
    _since: float = field(default=0.0, init=False, repr=False, compare=False)

    def begin(self, now: float) -> None:
        """One operation more is under way, since this time."""
        if not self._under_way:
            self._since = now
        self._under_way += 1

    def end(self, now: float) -> None:
        """One operation less, since this time."""
        self._under_way -= 1
        if not self._under_way:
            self.busy_s += now - self._since

    @property
    def hidden_share(self) -> float:
        """The share of communication that ran beside the rank's own work, 0 to 1; 0 if there was none."""
        return max(0.0, 1.0 - self.waited_s / self.busy_s) if self.busy_s > 0 else 0.0


class Work(ABC):
    """An operation under way; what it writes may be read, and what it reads be changed, only after ``wait``."""

    @abstractmethod
    def is_completed(self) -> bool:
        """Whether it has ended, well or not; never blocks."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> None:
        """Block until it has ended, at most ``timeout`` seconds (default: what the communicator allows).

        Raises the operation's error, or CommTimeoutError.
        """


class PendingWork(Work):
    """An operation of the communicator ``owner``, for which ``allowed`` seconds are; another thread calls ``end``."""

    grace: ClassVar[float] = 0.0
    """Seconds after the deadline in which that thread should have called it."""

    def __init__(self, owner: Any, call: Call, allowed: float) -> None:
        self.owner: Any = owner
        self.call: Call = call
        self.allowed: float = allowed
        self.deadline: float = self.now() + allowed
        self.ended: threading.Event = threading.Event()
        self.ended_at: float = 0.0
        self.error: BaseException | None = None

    def now(self) -> float:
        """The time, in seconds, by which its deadline is meant."""
        return time.monotonic()

    def pause(self, until: float) -> None:
        """Return when it has ended, or at this time."""
        self.ended.wait(min(remaining(until), threading.TIMEOUT_MAX))

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self.ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Block until it has ended; raises its error."""
        began = self.now()
        seconds = self.allowed if timeout is None else check_seconds("timeout", timeout)
        if not self.ended.is_set():
            until = self.deadline + self.grace if timeout is None else began + seconds
            self.pause(until)
            if not self.ended.is_set():
                self.expire(seconds)
            self.owner.stats.waited_s += max(0.0, self.ended_at - began)
        if self.error is not None:
            raise self.error

    @abstractmethod
    def expire(self, seconds: float) -> None:
        """Its rank has waited ``seconds`` in vain: end it with an error, unless it has just ended."""

    def end(self, error: BaseException | None = None) -> None:
        """It has ended, well or not: wake who waits for it."""
        self.error, self.ended_at = error, self.now()
        self.ended.set()


class FinishedWork(Work):
    """An operation that is over."""

    def is_completed(self) -> bool:
        """True."""
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Returns at once."""


FINISHED = FinishedWork()
