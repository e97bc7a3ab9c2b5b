"""Two replicas of unequal speed: what is printed is what was measured."""

import importlib.util
import re
import sys

from example_scripts import finish, load
from refusals import raises
from virtual_time import VirtualTime

SCRIPT = "heterogeneous_training.py"


def test_the_slow_one_gets_fewer_batches_and_nobody_waits(monkeypatch, tmp_path):
    arguments = ("--epochs", 3, "--samples", 640, "--sleep-ms", 15, "--anchor", 6, "--width", 40)
    monkeypatch.setattr(load(SCRIPT, monkeypatch), "time", VirtualTime(monkeypatch))
    shown = finish(SCRIPT, *arguments, cwd=tmp_path).stdout
    lockstep, cadence = shown.split("CADENCE:")
    assert "settled at 1.0:1.0" in lockstep and "batches        60 and 60" in lockstep
    assert "wanted         18:6" in cadence  # the slow one may be at a batch more when the fast one has done its own
    (ratio,) = re.findall(r"which is ([0-9.]+):1", cadence)
    assert 2.5 <= float(ratio) <= 3.4
    fast, slow = map(int, re.findall(r"batches +(\d+) and (\d+)", cadence)[0])
    assert fast + slow == 120 and 2.4 * slow < fast < 3.6 * slow
    before, after = map(float, re.findall(r"waiting: ([0-9.]+) % .* lockstep, ([0-9.]+) %", shown)[0])
    assert before == 33.3 and after < 12
    assert re.findall(r"^replica ([01])  [#.-]+$", shown, re.MULTILINE) == ["0", "1"] * 2  # the fast one above
    if importlib.util.find_spec("matplotlib") is not None:
        assert (tmp_path / "runs/heterogeneous_training.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_it_does_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed
    arguments = ("--epochs", 1, "--samples", 64, "--sleep-ms", 0, "--width", 0)
    shown = finish(SCRIPT, *arguments, cwd=tmp_path).stdout
    assert "no picture: matplotlib is not installed" in shown and "replica 0  " not in shown


def test_two_batches_are_needed(monkeypatch):
    script = load(SCRIPT, monkeypatch, "--samples", 31)
    raises(script.UsageError, "--samples is 31, expected at least two batches of 16", script.main)
    script = load(SCRIPT, monkeypatch, "--samples", 10**11)
    raises(script.UsageError, "162 parameters and 100,000,000,000 rows need about 4,000", script.main)
