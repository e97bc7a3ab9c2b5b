"""PyTorch's schedulers: its values, a resumed one, what is refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from refusals import raises

import minigrad
from minigrad.optim import SGD, AdamW, Optimizer
from minigrad.optim import lr_scheduler as S

# Of the first group and, where it says more, of the second, whose rates are 0.2 and 0.4, after 0, 3, 6, 9, 12 and 15
# steps: PyTorch 2.13's numbers.
CASES: dict[str, tuple[Callable[[Any], S.LRScheduler], list[float]]] = {
    "LinearLR": (lambda o: S.LinearLR(o, total_iters=8), [0.06666667, 0.1166667, 0.1666667, 0.2, 0.2, 0.2]),
    "LambdaLR": (
        lambda o: S.LambdaLR(o, lambda t: 0.95**t),
        [0.2, 0.171475, 0.1470184, 0.1260499, 0.108072, 0.09265825],
    ),
    "StepLR": (lambda o: S.StepLR(o, step_size=4, gamma=0.5), [0.2, 0.2, 0.1, 0.05, 0.025, 0.025]),
    "ExponentialLR": (lambda o: S.ExponentialLR(o, 0.9), [0.2, 0.1458, 0.1062882, 0.0774841, 0.05648591, 0.04117823]),
    "CosineAnnealingLR": (
        lambda o: S.CosineAnnealingLR(o, T_max=10),
        [0.2, 0.1587785, 0.0690983, 0.004894348, 0.0190983, 0.1],
    ),
    "CosineAnnealingWarmRestarts": (
        lambda o: S.CosineAnnealingWarmRestarts(o, T_0=2, T_mult=2),
        [0.2, 0.1707107, 0.2, 0.1382683, 0.02928932, 0.1980785],
    ),
    "OneCycleLR": (
        lambda o: S.OneCycleLR(o, 0.3, total_steps=20),
        [0.012, 0.2004984, 0.2962392, 0.2435237, 0.1500006, 0.0564775],
    ),
    "OneCycleLR linear": (
        lambda o: S.OneCycleLR(o, 0.3, 16, pct_start=0.4, anneal_strategy="linear", div_factor=10),
        [0.03, 0.18, 0.2812502, 0.1875011, 0.09375206, 3e-06],
    ),
    "SequentialLR": (
        lambda o: S.SequentialLR(
            o, [S.LinearLR(o, 0.1, total_iters=4), S.CosineAnnealingLR(o, 6), S.ExponentialLR(o, 0.8)], [4, 9]
        ),
        [0.02, 0.155, 0.15, 0.2, 0.1024, 0.0524288],
    ),
}


def optimizer_of(kind: Any = AdamW) -> Optimizer:
    a, b = (minigrad.ones(n, requires_grad=True) for n in (2, 3))
    return kind([{"params": [a]}, {"params": [b], "lr": 0.4}], lr=0.2)


@pytest.mark.parametrize("name", CASES)
def test_the_rates_are_pytorchs_and_a_resumed_scheduler_goes_on(name: str) -> None:
    make, expected = CASES[name]
    optimizer = optimizer_of()
    scheduler = make(optimizer)
    found = []
    for step in range(16):
        if step % 3 == 0:
            found.append(optimizer.lr)
            state = json.loads(json.dumps(scheduler.state_dict()))
            other = make(optimizer_of())
            other.load_state_dict(state)
            assert other.get_last_lr() == scheduler.get_last_lr() == [g["lr"] for g in optimizer.param_groups]
        scheduler.step()
    assert found == pytest.approx(expected, rel=1e-5)
    assert scheduler.base_lrs == [0.2, 0.4] and scheduler.last_epoch == 16
    if name not in ("OneCycleLR", "OneCycleLR linear"):
        assert optimizer.param_groups[1]["lr"] == pytest.approx(2 * optimizer.lr)


def test_groups_have_functions_and_peaks_of_their_own_and_one_cycle_moves_momentum() -> None:
    optimizer = optimizer_of()
    S.LambdaLR(optimizer, [lambda t: 0.5, lambda t: 0.25])
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1]
    for kind, option, expected in ((AdamW, "betas", (0.85, 0.999)), (SGD, "momentum", 0.85)):
        optimizer = optimizer_of(kind)
        scheduler = S.OneCycleLR(optimizer, [0.3, 0.6], 20)
        for _ in range(5):
            scheduler.step()
        assert scheduler.get_last_lr() == pytest.approx([0.3, 0.6])
        assert optimizer.param_groups[1][option] == pytest.approx(expected)
    optimizer = optimizer_of()
    S.OneCycleLR(optimizer, 0.3, 20, cycle_momentum=False).step()
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_what_does_not_fit_is_refused() -> None:
    optimizer = optimizer_of()
    state = S.StepLR(optimizer, 3).state_dict()
    for message, use in [
        ("step_size is 0", lambda: S.StepLR(optimizer, 0)),
        ("one for all groups, or one for each of 2", lambda: S.LambdaLR(optimizer, [lambda t: 1.0])),
        ("anneal_strategy is 'sin'", lambda: S.OneCycleLR(optimizer, 0.1, 10, anneal_strategy="sin")),
        ("one fewer than schedulers", lambda: S.SequentialLR(optimizer, [S.StepLR(optimizer, 1)], [3])),
        ("not the state of a StepLR of 2 groups", lambda: S.StepLR(optimizer, 3).load_state_dict({"last_epoch": 1})),
        ("at least 9, the steps", lambda: S.OneCycleLR(optimizer, 0.1, 8).load_state_dict({**state, "last_epoch": 9})),
    ]:
        raises(ValueError, message, use)
