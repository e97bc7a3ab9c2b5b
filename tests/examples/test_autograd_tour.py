"""The tour: it visits every stop, what it calls true was computed, and it notices what is false."""

import math

import pytest
from example_scripts import load, run
from refusals import raises

from minigrad.ops.elementwise import Exp

TOUR = "autograd_tour.py"
pytestmark = pytest.mark.usefixtures("same_generator")


def test_every_stop_is_visited_and_every_statement_true(tmp_path):
    result = run(TOUR, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")  # no progress bar where nobody watches
    lines = result.stdout.splitlines()
    assert lines[0] == "about 0.3 GB of memory, some seconds"
    stops = [line for line in lines if line[:1].isdigit()]
    statements = [line for line in lines if line.startswith("    true: ")]
    assert [int(line.split(".")[0]) for line in stops] == list(range(1, 10))
    assert len(statements) >= 15 and "FALSE" not in result.stdout
    assert lines[-1] == f"stops: {len(stops)}, statements checked: {len(statements)}, all true"
    assert list(tmp_path.iterdir()) == []  # a tour leaves nothing behind


def test_the_values_shown_are_those_of_calculus(monkeypatch, capsys):
    assert load(TOUR, monkeypatch, 3).main() == 0
    shown = capsys.readouterr().out
    assert "    > y = a * b + a.exp()\n    > grads = y.backward()\n    grads = GradStore" in shown
    assert f"grads[a] = tensor({3 + math.exp(2):.4f})" in shown
    assert shown.endswith("stops: 1, statements checked: 4, all true\n")


def test_a_wrong_derivative_makes_its_statement_false(monkeypatch, capsys):
    right = Exp.backward
    monkeypatch.setattr(Exp, "backward", lambda self, dy: 2 * right(self, dy))
    assert load(TOUR, monkeypatch, 3, 4).main() == 1
    shown = capsys.readouterr().out
    assert "FALSE: by the rules of calculus, dy/da is b + e^a" in shown
    assert shown.endswith(", FALSE: 1\n")


def test_a_training_that_stops_short_is_noticed(monkeypatch, capsys):
    tour = load(TOUR, monkeypatch, 8, 9)
    monkeypatch.setattr(tour, "tqdm", lambda steps, **options: steps[:20])
    assert tour.main() == 1
    assert capsys.readouterr().out.count("FALSE: ") == 3  # two statements and the count of them


def test_there_is_no_tenth_stop(monkeypatch):
    tour = load(TOUR, monkeypatch, 10)
    raises(tour.UsageError, "no stop 10: they are 1 to 9", tour.main)
