"""Timeline: what happened when in a run of several replicas, and where they waited (flodl's ``Timeline``).

flodl samples the utilisation of its GPUs every 100 ms and guesses from it; here every batch is a span with a begin and
an end, so the gaps are exact.
"""

import csv
import enum
import io
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minigrad.errors import check_int
from minigrad.files import durable

IDLE_SHARE = 0.05  # a column of the drawing is idle below this share of computing (flodl's threshold)


class EventKind(enum.Enum):
    """What an event tells; those with a duration are spans."""

    BATCH = "batch"  # span: a replica trains on one batch
    IDLE = "idle"  # span: a replica waits for others
    EPOCH_START = "epoch_start"
    EPOCH_END = "epoch_end"
    SYNC_START = "sync_start"  # averaging by a communicator
    SYNC_END = "sync_end"
    AVERAGE_START = "average_start"  # averaging in this process's memory
    AVERAGE_END = "average_end"
    ANCHOR_CHANGED = "anchor_changed"
    THROTTLE = "throttle"
    CUSTOM = "custom"


AVERAGE_STARTS = (EventKind.SYNC_START, EventKind.AVERAGE_START)
AVERAGE_ENDS = (EventKind.SYNC_END, EventKind.AVERAGE_END)


@dataclass(frozen=True)
class Event:
    """One event: ``at_ms`` since the timeline's begin, ``rank`` None where it concerns all replicas."""

    at_ms: float
    kind: EventKind
    rank: int | None = None
    duration_ms: float = 0.0
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def end_ms(self) -> float:
        """When a span ends; of other events, when they happen."""
        return self.at_ms + self.duration_ms


@dataclass(frozen=True)
class IdleGap:
    """A time in which a replica trained on no batch."""

    rank: int
    start_ms: float
    duration_ms: float


@dataclass(frozen=True)
class TimelineSummary:
    """Totals; lists are in order of rank. ``busy_share`` is computing by total time, ``waited_ms`` the sum of the
    spans of waiting, ``idle_ms`` that of all gaps. ``dropped`` events no longer count, because there were too many."""

    total_ms: float
    batches: list[int]
    busy_share: list[float]
    idle_ms: list[float]
    waited_ms: list[float]
    averages: int
    average_ms: float
    anchor_changes: int
    throttles: int
    epochs: int
    dropped: int


class Timeline:
    """A record of events, which any thread may add to.

    It keeps the newest ``max_events`` and counts those it ``dropped``. ``clock`` gives seconds.
    """

    def __init__(self, max_events: int = 200_000, clock: Callable[[], float] = time.perf_counter) -> None:
        check_int("max_events", max_events, 1)
        self._clock, self._began = clock, clock()
        self._events: deque[Event] = deque(maxlen=max_events)
        self._lock = threading.Lock()
        self.dropped: int = 0

    def now_ms(self) -> float:
        """Milliseconds since the begin."""
        return (self._clock() - self._began) * 1e3

    def event(self, kind: EventKind, rank: int | None = None, **detail: Any) -> None:
        """Something happens now; ``detail`` are JSON values."""
        self._add(Event(self.now_ms(), kind, rank, 0.0, detail))

    def span(self, kind: EventKind, rank: int, start_ms: float, **detail: Any) -> None:
        """Something that began at ``start_ms`` (of ``now_ms``) ends now."""
        self._add(Event(start_ms, kind, rank, max(0.0, self.now_ms() - start_ms), detail))

    def custom(self, label: str, rank: int | None = None, **detail: Any) -> None:
        """An event of your own."""
        self.event(EventKind.CUSTOM, rank, label=label, **detail)

    def _add(self, event: Event) -> None:
        with self._lock:
            self.dropped += len(self._events) == self._events.maxlen
            self._events.append(event)

    @property
    def events(self) -> list[Event]:
        """All events that are kept, in order of their begin."""
        with self._lock:
            return sorted(self._events, key=lambda event: event.at_ms)

    @property
    def ranks(self) -> list[int]:
        """The replicas that trained."""
        return sorted({e.rank for e in self.events if e.kind is EventKind.BATCH and e.rank is not None})

    # ------------------------------------------------------------------ what it says

    def idle_gaps(self, rank: int, min_ms: float = 0.0) -> list[IdleGap]:
        """The times longer than ``min_ms``, between the first and the last event, in which ``rank`` ran no batch."""
        events = self.events
        if not events:
            return []
        gaps, reached = [], events[0].at_ms
        for start, end in [*_batches(events, rank), (_end(events), _end(events))]:
            if start - reached > min_ms:
                gaps.append(IdleGap(rank, reached, start - reached))
            reached = max(reached, end)
        return gaps

    def summary(self) -> TimelineSummary:
        """Totals of the events that are kept."""
        events, ranks = self.events, self.ranks
        total = _end(events) - events[0].at_ms if events else 0.0
        idle = [sum(gap.duration_ms for gap in self.idle_gaps(rank)) for rank in ranks]
        counts = {kind: sum(e.kind is kind for e in events) for kind in EventKind}
        return TimelineSummary(
            total_ms=total,
            batches=[len(_batches(events, rank)) for rank in ranks],
            busy_share=[1.0 - ms / total if total else 0.0 for ms in idle],
            idle_ms=idle,
            waited_ms=[sum(e.duration_ms for e in events if e.kind is EventKind.IDLE and e.rank == r) for r in ranks],
            averages=sum(counts[kind] for kind in AVERAGE_ENDS),
            average_ms=_between(events, AVERAGE_STARTS, AVERAGE_ENDS),
            anchor_changes=counts[EventKind.ANCHOR_CHANGED],
            throttles=counts[EventKind.THROTTLE],
            epochs=counts[EventKind.EPOCH_END],
            dropped=self.dropped,
        )

    def draw(self, width: int = 72) -> str:
        """A line of text per replica: ``#`` computes most of the time, ``-`` partly, ``.`` waits; ``|`` where all were
        averaged."""
        events = self.events
        if not events:
            return "no events"
        begin, step = events[0].at_ms, max(_end(events) - events[0].at_ms, 1e-9) / width
        lefts = begin + step * np.arange(width)
        lines = []
        for rank in self.ranks:
            busy = np.zeros(width)
            for start, end in _batches(events, rank):
                busy += np.maximum(np.minimum(end, lefts + step) - np.maximum(start, lefts), 0.0) / step
            marks = ("#" if share >= 0.5 else "-" if share >= IDLE_SHARE else "." for share in busy)
            lines.append(f"replica {rank}  " + "".join(marks))
        averages = {min(width - 1, int((e.at_ms - begin) / step)) for e in events if e.kind in AVERAGE_ENDS}
        lines.append("averaged   " + "".join("|" if i in averages else " " for i in range(width)))
        lines.append(f"           0 to {width * step:.0f} ms; # computes, - partly, . waits")
        return "\n".join(line.rstrip() for line in lines)

    # ------------------------------------------------------------------ files

    def save_json(self, path: str | os.PathLike[str]) -> Path:
        """Write summary and events to a file, whole or not at all."""
        events = [{**vars(e), "kind": e.kind.value} for e in self.events]
        return _save(path, json.dumps({"summary": asdict(self.summary()), "events": events}, allow_nan=False))

    def save_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write one line per event to a file: at_ms, kind, rank (empty for all), duration_ms, detail as JSON."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["at_ms", "kind", "rank", "duration_ms", "detail"])
        for e in self.events:
            rank = "" if e.rank is None else e.rank
            detail = json.dumps(e.detail, allow_nan=False) if e.detail else ""
            rows.writerow([f"{e.at_ms:.3f}", e.kind.value, rank, f"{e.duration_ms:.3f}", detail])
        return _save(path, text.getvalue())


class NoTimeline(Timeline):
    """Where nothing is to be recorded."""

    def _add(self, event: Event) -> None:
        """Forget it."""


def _save(path: str | os.PathLike[str], text: str) -> Path:
    durable.make_directories(Path(path).parent)
    durable.replace_file(Path(path), [text.encode()])
    return Path(path)


def _end(events: Iterable[Event]) -> float:
    return max(event.end_ms for event in events)


def _between(events: list[Event], starts: Sequence[EventKind], ends: Sequence[EventKind]) -> float:
    """Milliseconds from each start to the next end."""
    total, began = 0.0, None
    for e in events:
        if e.kind in starts:
            began = e.at_ms
        elif e.kind in ends and began is not None:
            total, began = total + e.at_ms - began, None
    return total


def _batches(events: list[Event], rank: int) -> list[tuple[float, float]]:
    return [(e.at_ms, e.end_ms) for e in events if e.kind is EventKind.BATCH and e.rank == rank]
