"""PyTorch's schedulers: its values, a resumed one, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import raises

import minigrad
from minigrad.optim import SGD, AdamW, Optimizer
from minigrad.optim import lr_scheduler as S

# Names, arguments, and PyTorch 2.13's rates of the first of two groups, 0.2 and 0.4, after 0, 3, 6, 9, 12 and 15 steps.
CASES = json.loads(Path(__file__).parents[1].joinpath("golden/lr_scheduler.json").read_text())


def optimizer_of(kind: Any = AdamW) -> Optimizer:
    a, b = (minigrad.ones(n, requires_grad=True) for n in (2, 3))
    return kind([{"params": [a]}, {"params": [b], "lr": 0.4}], lr=0.2)


def made(name: str, options: dict[str, Any], optimizer: Optimizer) -> S.LRScheduler:
    """What JSON cannot say is added: a function, and three schedulers one after the other."""
    if name == "LambdaLR":
        return S.LambdaLR(optimizer, lambda step: 0.95**step)
    if name == "SequentialLR":
        first, second = S.LinearLR(optimizer, 0.1, total_iters=4), S.CosineAnnealingLR(optimizer, 6)
        return S.SequentialLR(optimizer, [first, second, S.ExponentialLR(optimizer, 0.8)], **options)
    return getattr(S, name)(optimizer, **options)


@pytest.mark.parametrize(("name", "options", "expected"), CASES)
def test_the_rates_are_pytorchs_and_a_resumed_scheduler_goes_on(name, options, expected) -> None:
    optimizer = optimizer_of()
    scheduler = made(name, options, optimizer)
    found = []
    for step in range(16):
        if step % 3 == 0:
            found.append(optimizer.lr)
            other = made(name, options, optimizer_of())
            other.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
            assert other.get_last_lr() == scheduler.get_last_lr() == [g["lr"] for g in optimizer.param_groups]
        scheduler.step()
    assert found == pytest.approx(expected, rel=1e-5)
    assert scheduler.base_lrs == [0.2, 0.4] and scheduler.last_epoch == 16
    assert optimizer.param_groups[1]["lr"] == pytest.approx(optimizer.lr * (1 if name == "OneCycleLR" else 2))


@pytest.mark.parametrize(("kind", "option"), [(AdamW, "betas"), (SGD, "momentum")])
def test_groups_have_peaks_of_their_own_and_one_cycle_moves_momentum(kind, option) -> None:
    for moves in (True, False):
        optimizer = optimizer_of(kind)
        before = optimizer.param_groups[1][option]
        scheduler = S.OneCycleLR(optimizer, [0.3, 0.6], 20, cycle_momentum=moves, base_momentum=0.8)
        for _ in range(5):
            scheduler.step()
        assert scheduler.get_last_lr() == pytest.approx([0.3, 0.6])
        expected = (0.8, 0.999) if option == "betas" else 0.8
        assert optimizer.param_groups[1][option] == pytest.approx(expected if moves else before)


def test_a_step_refuses_rates_that_it_has_not_set_and_groups_it_does_not_know() -> None:
    optimizer = optimizer_of()
    one, two = S.ExponentialLR(optimizer, 0.5), S.StepLR(optimizer, 3)
    one.step()
    raises(ValueError, "StepLR set the rates .0.2, 0.4., now they are .0.1, 0.2.: .* SequentialLR", two.step)
    optimizer.set_lr(0.3)
    raises(ValueError, "what others set would be lost", one.step)
    assert one.last_epoch == 1 and two.last_epoch == 0 and optimizer.lr == 0.3
    two = S.StepLR(optimizer, 3)
    optimizer.add_param_group({"params": [minigrad.ones(4, requires_grad=True)], "lr": 0.8})
    raises(ValueError, "now they are .0.2, 0.4, 0.8.: .* make it anew .after add_param_group", two.step)
    again = S.ExponentialLR(optimizer, 0.5)
    again.step()
    assert again.base_lrs == [0.2, 0.4, 0.8] and [g["lr"] for g in optimizer.param_groups] == [0.1, 0.2, 0.4]
