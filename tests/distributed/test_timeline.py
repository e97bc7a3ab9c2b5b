"""The timeline's numbers follow from its events, and its files are whole and readable."""

import csv
import json

import pytest
from in_threads import good, outcomes
from refusals import raises

from minigrad.distributed.mirrors.flodl.timeline import EventKind, IdleGap, Timeline
from minigrad.files import durable


class Clock:
    def __init__(self) -> None:
        self.ms = 5000.0

    def __call__(self) -> float:
        return self.ms / 1e3


def scripted() -> Timeline:
    """Two replicas: 0 computes 0-10 and 30-40, 1 computes 0-30; averaged from 40 to 42, an epoch to 50."""
    clock = Clock()
    timeline = Timeline(clock=clock)

    def at(ms: float) -> Timeline:
        clock.ms = 5000 + ms
        return timeline

    at(0).event(EventKind.EPOCH_START, epoch=0)
    at(10).span(EventKind.BATCH, 0, 0.0, batch=0)
    at(12).event(EventKind.THROTTLE, 0, lead=3)
    at(30).span(EventKind.IDLE, 0, 10.0)
    timeline.span(EventKind.BATCH, 1, 0.0, batch=1)
    at(40).span(EventKind.BATCH, 0, 30.0, batch=2)
    timeline.event(EventKind.AVERAGE_START, round=1)
    at(42).event(EventKind.AVERAGE_END, round=1)
    timeline.event(EventKind.ANCHOR_CHANGED, before=10, after=12)
    at(45).custom("=saved", 1, step=3)
    at(50).event(EventKind.EPOCH_END, epoch=0)
    return timeline


def about(values):
    return pytest.approx(values, abs=1e-6)


def test_timeline_idle_gaps():
    timeline = scripted()
    gaps = [(gap.rank, about(gap.start_ms), about(gap.duration_ms)) for gap in timeline.idle_gaps(0)]
    assert gaps == [(0, 10, 20), (0, 40, 10)]
    assert timeline.idle_gaps(0, min_ms=15) == [IdleGap(0, about(10), about(20))]
    assert timeline.idle_gaps(1) == [IdleGap(1, about(30), about(20))]
    assert Timeline().idle_gaps(0) == []
    clock = Clock()
    nested = Timeline(clock=clock)
    for end, start in ((20, 10), (30, 0), (40, 35)):
        clock.ms = 5000.0 + end
        nested.span(EventKind.BATCH, 0, float(start))
    assert nested.idle_gaps(0) == [IdleGap(0, about(30), about(5))]


def test_timeline_summary():
    s = scripted().summary()
    assert (s.total_ms, s.average_ms) == (about(50), about(2))
    assert (s.busy_share, s.idle_ms, s.waited_ms) == (about([0.4, 0.6]), about([30, 20]), about([20, 0]))
    assert (s.batches, s.averages, s.anchor_changes, s.throttles, s.epochs, s.dropped) == ([2, 1], 1, 1, 1, 1, 0)


def test_timeline_events_are_in_order():
    at = [event.at_ms for event in scripted().events]
    assert at == sorted(at)


def test_timeline_drawing():
    lines = scripted().draw(10).splitlines()  # 5 ms a column
    assert lines[0].split()[-1] == "##....##.."
    assert lines[1].split()[-1] == "######...."
    assert lines[2] == "averaged   " + " " * 8 + "|"
    assert "0 to 50 ms" in lines[3]
    assert Timeline().draw() == "no events"


def test_timeline_json_and_csv(tmp_path):
    timeline = scripted()
    saved = json.loads(timeline.save_json(tmp_path / "new" / "run.json").read_text())
    assert saved["summary"]["averages"] == 1
    rows = list(csv.DictReader(timeline.save_csv(tmp_path / "run.csv").read_text().splitlines()))
    assert len(rows) == len(saved["events"]) == len(timeline.events) == 11
    for event, row, entry in zip(timeline.events, rows, saved["events"]):
        assert row["kind"] == entry["kind"] == event.kind.value
        assert float(row["at_ms"]) == about(event.at_ms) and entry["at_ms"] == event.at_ms
        assert row["rank"] == ("" if event.rank is None else str(event.rank))
        assert (json.loads(row["detail"]) if row["detail"] else {}) == entry["detail"] == event.detail


def test_timeline_file_that_cannot_be_written_stays_as_it_was(tmp_path, monkeypatch):
    path = scripted().save_csv(tmp_path / "run.csv")
    before = path.read_bytes()

    def full(fd: int, data) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "write_all", full)
    raises(OSError, "No space left", lambda: Timeline().save_csv(path))
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["run.csv"]


def test_timeline_is_bounded_and_safe_for_threads():
    timeline = Timeline(max_events=500)

    def work(rank: int) -> None:
        for i in range(400):
            timeline.custom("x", rank, i=i)

    good([*outcomes(range(3), work).values()])
    assert len(timeline.events) == 500 and timeline.summary().dropped == 700
    raises(ValueError, "max_events is 0, expected an integer >= 1", lambda: Timeline(max_events=0))
