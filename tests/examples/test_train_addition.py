"""Addition: the sums are right, none is both learned and tested, and the share is what the model writes."""

import re
import sys

import numpy as np
import pytest
from example_scripts import load, recorded
from refusals import raises

import minigrad

ADDITION = "train_addition.py"
pytestmark = pytest.mark.usefixtures("same_generator")


@pytest.mark.parametrize("reverse", [True, False])
def test_the_sums_are_all_and_right(reverse, monkeypatch):
    addition = load(ADDITION, monkeypatch)
    lines = [addition.text(row) for row in addition.all_sums(reverse)]
    assert len(set(lines)) == len(lines) == 10_000
    for line in lines:
        question, total = line.split("=")
        assert len(line) == 9 and len(total) == 3
        assert sum(map(int, question.split("+"))) == int(total[::-1] if reverse else total)


def written(model, tokens: np.ndarray) -> np.ndarray:
    """Nine tokens for six, from the whole text each time: no cache of keys and values."""
    for _ in range(3):
        with minigrad.no_grad():
            following = model(minigrad.from_numpy(tokens))[:, -1].numpy().argmax(1)
        tokens = np.concatenate([tokens, following[:, None]], 1)
    return tokens


@pytest.mark.long
def test_the_share_is_what_the_model_writes_on_sums_it_never_saw(monkeypatch, capsys):
    addition = load(ADDITION, monkeypatch, "--steps", 300, "--batch-size", 128, "--held-out", 400, "--seed", 5, "--ask")
    seen = recorded(monkeypatch, addition, "train")
    asked = iter(["57 + 68", "nonsense", "3+4=", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(asked))
    assert addition.main() == 0
    model, known = seen[:2]
    learned = {tuple(row) for row in known}
    held_out = np.array([row for row in addition.all_sums() if tuple(row) not in learned])
    assert len(learned) == 9600 and len(held_out) == 400
    right = int((written(model, held_out[:, :6]) == held_out).all(1).sum())
    shown = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"some of them: (\d+ \+ \d+ = \d+(, |$)){5}", shown[-5])
    for line, start in zip(shown[-3:], ("57 + 68 = ", "two numbers", "3 + 4 = ")):
        assert line.startswith(start)
    assert shown[-4].startswith(f"{right} of 400 held-out sums right: {right / 4:.2f} % ")
    assert 10 < right < 400  # some are wrong, so the number means something
    wrong = [line for line in shown if line.startswith("wrong: ")]
    assert len(wrong) == min(400 - right, 10)
    for line in wrong:  # as people write them
        form = r"wrong: (\d+) \+ (\d+) = (\d+); \1 \+ \2 = (\d+) is right"
        a, b, given, correct = map(int, re.fullmatch(form, line).groups())
        assert a + b == correct != given


def test_only_the_answer_is_learned(monkeypatch):
    addition = load(ADDITION, monkeypatch, "--steps", 2, "--batch-size", 7, "--held-out", 10)
    targets: list[np.ndarray] = []
    cross_entropy = addition.F.cross_entropy

    def noted(logits, target, **options):
        targets.append(target.numpy().reshape(7, 8))
        return cross_entropy(logits, target, **options)

    monkeypatch.setattr(addition.F, "cross_entropy", noted)
    assert addition.main() == 0
    for target in targets:
        assert (target[:, :5] == -100).all() and ((target[:, 5:] >= 0) & (target[:, 5:] < 10)).all()
    assert len(targets) == 2 and (targets[0] != targets[1]).any()


@pytest.mark.parametrize("script", [ADDITION, "train_vit_digits.py"])
@pytest.mark.parametrize(
    ("flag", "value", "error"),
    [
        ("--steps", 0, "--steps"),
        ("--seed", -1, "--seed"),
        ("--batch-size", 2**20, "GB of memory.*--batch-size 1?.... f"),
    ],
)
def test_values_out_of_range_are_refused(script, flag, value, error, monkeypatch):
    module = load(script, monkeypatch, flag, value)
    monkeypatch.setattr(sys.modules["estimate"], "free_memory", lambda device: 2**30)
    raises(module.UsageError, error, module.main)
    raises(module.UsageError, "--held-out", load(script, monkeypatch, "--held-out", -1).main)
