"""What each rank of a run did when: the share of its time in which it computed and waited, in columns of a picture."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from .series import Series

COLUMNS = 240
COMPUTES, WAITS = "batch", "idle"  # kinds of spans, as minigrad.distributed.Timeline writes them
AVERAGED = "sync_end", "average_end"


def read_timeline(path: Path) -> dict[str, Any] | None:
    """The picture of a file that ``Timeline.save_json`` wrote. Raises ValueError for another file."""
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["events"]
        spans = [(e["kind"], e["rank"], e["at_ms"], e["at_ms"] + e["duration_ms"]) for e in events]
        end = max((end for *_, end in spans), default=0.0)
        begin = min((start for _, _, start, _ in spans), default=0.0)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is no timeline: {error!r}") from error
    ranks = sorted({rank for kind, rank, *_ in spans if kind == COMPUTES and rank is not None})
    if not ranks or end <= begin:
        return None
    edges = np.linspace(begin, end, COLUMNS + 1)

    def shares(kind: str, rank: int) -> list[float]:
        """The part of each column that spans cover; those of a rank do not overlap."""
        found = np.array(sorted(span[2:] for span in spans if span[:2] == (kind, rank)), dtype=float).reshape(-1, 2)
        covered = np.repeat(np.cumsum([0.0, *(found[:, 1] - found[:, 0])]), 2)[1:-1]
        total = np.interp(edges, found.ravel(), covered) if len(found) else np.zeros_like(edges)
        return _percent(np.diff(total) / np.diff(edges))

    return {
        "unit": "seconds",
        "begin": 0.0,
        "end": (end - begin) / 1e3,
        "ranks": [{"rank": rank, "computes": shares(COMPUTES, rank), "waits": shares(WAITS, rank)} for rank in ranks],
        "averages": [round((start - begin) / 1e3, 3) for kind, _, start, _ in spans if kind in AVERAGED][-COLUMNS:],
    }


def waiting_of(shares: list[Series]) -> dict[str, Any] | None:
    """The same picture from what the lines of a log say: the share of the time between two lines that a rank waited."""
    if not shares or not shares[0]:
        return None
    curves = [series.shown() for series in shares]
    steps = curves[0]["step"]
    return {
        "unit": "steps",
        "begin": steps[0],
        "end": max(steps[-1], steps[0] + 1),
        "ranks": [
            {"rank": rank, "waits": _percent(np.array(curve["value"])), "computes": None}
            for rank, curve in enumerate(curves)
        ],
        "averages": [],
    }


def _percent(shares: Any) -> list[float]:
    return [round(100 * min(1.0, max(0.0, share))) if math.isfinite(share) else 0 for share in shares.tolist()]
