"""Learning rates: schedules against their closed forms, PyTorch's schedulers against its values."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import raises

import minigrad
from minigrad import optim
from minigrad.optim import SGD, AdamW, Optimizer, lr_scheduler as S

COSINE_999 = 0.001 + 0.009 * (1 + math.cos(math.pi * 999 / 1000)) / 2
COSINE_QUARTER = 0.001 + 0.009 * (1 + math.sqrt(0.5)) / 2
WSD = {0: 0.0001, 99: 0.01, 100: 0.01, 499: 0.01, 500: 0.01, 1000: 0.001, 10**9: 0.001}
CLOSED_FORMS: list[tuple[optim.LrSchedule, dict[int, float]]] = [
    (optim.Constant(1e-3), {0: 1e-3, 10**12: 1e-3}),
    # The base rate is reached at the last step of the warmup.
    (optim.LinearWarmup(0.01, 100), {0: 0.0001, 49: 0.005, 98: 0.0099, 99: 0.01, 100: 0.01, 10**9: 0.01}),
    (optim.LinearWarmup(0.01, 0), {0: 0.01}),
    (optim.LinearWarmup(0.01, 1), {0: 0.01, 1: 0.01}),
    (optim.CosineAnnealing(0.01, 0.001, 100, 1100), {0: 0.0001, 99: 0.01, 100: 0.01, 350: COSINE_QUARTER, 600: 0.0055}),
    (optim.CosineAnnealing(0.01, 0.001, 100, 1100), {1100: 0.001}),
    (optim.CosineAnnealing(0.01, 0.001, 0, 1000), {0: 0.01, 999: COSINE_999, 1000: 0.001, 10**15: 0.001}),
    (optim.CosineAnnealing(0.01, 0.001, 5, 5), {4: 0.01, 5: 0.001}),  # a warmup and nothing else
    (optim.Wsd(0.01, 0.001, 100, 400, 500), {**WSD, 625: 0.001 + 0.009 * 0.75}),  # linear
    (optim.Wsd(0.01, 0.001, 100, 400, 500, "cosine"), {**WSD, 625: COSINE_QUARTER}),
    (optim.Wsd(0.01, 0.001, 100, 400, 500, optim.DecayShape.Sqrt), {**WSD, 625: 0.001 + 0.009 * 0.5}),
    (optim.Wsd(0.01, 0.001, 0, 2, 0), {0: 0.01, 1: 0.01, 2: 0.001}),
    (optim.Wsd(0.01, 0.001, 0, 0, 4, "sqrt"), {0: 0.01, 1: 0.001 + 0.009 * 0.5, 4: 0.001}),
    (optim.Wsd(0.01, 0.001, 0, 0, 0, "cosine"), {0: 0.001}),
    (optim.StepDecay(0.1, 0.1, 30), {0: 0.1, 29: 0.1, 30: 0.01, 59: 0.01, 60: 0.001, 90: 0.0001}),
    (optim.ExponentialDecay(0.1, 0.01), {0: 0.1, 1: 0.1 * math.exp(-0.01), 100: 0.1 / math.e, 10**7: 0.0}),
    (optim.CyclicalLr(0.001, 0.01, 100), {0: 0.001, 25: 0.0055, 50: 0.01, 75: 0.0055, 99: 0.00118}),
    (optim.CyclicalLr(0.001, 0.01, 100), {100: 0.001, 250: 0.01}),
    # An odd cycle still reaches the top.
    (optim.CyclicalLr(0.0, 1.0, 5), {0: 0, 1: 0.5, 2: 1, 3: 2 / 3, 4: 1 / 3, 5: 0}),
    (optim.CyclicalLr(0.0, 1.0, 2), {0: 0, 1: 1, 2: 0}),
    (optim.WarmRestarts(0.01, 0.0, 10, 2.0), {0: 0.01, 5: 0.005, 10: 0.01, 20: 0.005, 30: 0.01, 50: 0.005, 70: 0.01}),
    (optim.WarmRestarts(0.01, 0.0, 10, 1.0, 0.5), {0: 0.01, 10: 0.005, 20: 0.0025}),
    (optim.WarmRestarts(0.01, 0.0, 10, 1.0, 0.5), {9: 0.005 * (1 + math.cos(0.9 * math.pi))}),
    (optim.WarmRestarts(0.01, 0.0, 1), {10**15: 0.01}),  # immediate, not a loop over the periods
    # Periods 1, 1, 2, 3, 5: floors of 1.5**k, which do not stay at 1.
    (optim.WarmRestarts(0.01, 0.0, 1, 1.5), {0: 0.01, 1: 0.01, 2: 0.01, 3: 0.005, 4: 0.01, 7: 0.01}),
    (optim.WarmRestarts(0.01, 0.004, 10, 1.0, 0.1), {10: 0.004, 15: 0.004, 10**4: 0.004}),  # never under min_lr
    (optim.InverseSqrt(0.01, 4000), {0: 0.01 / 4000, 999: 0.0025, 3999: 0.01, 15999: 0.005}),
    (optim.Lambda(lambda step: 0.1 / (1 + step)), {0: 0.1, 9: 0.01}),
]


ALL = {type(schedule).__name__: schedule for schedule, _ in CLOSED_FORMS}


@pytest.mark.parametrize(("schedule", "expected"), CLOSED_FORMS)
def test_closed_form(schedule: optim.LrSchedule, expected: dict[int, float]) -> None:
    for step, lr in expected.items():
        # The formula and the schedule round in different orders.
        assert schedule.get_lr(step) == pytest.approx(lr, rel=1e-12, abs=1e-18), f"{schedule} at step {step}"


def test_rates_at_the_turning_points() -> None:
    assert optim.CosineAnnealing(0.3, 0.1, 0, 7).get_lr(0) == 0.3  # not a rounding beside it
    assert max(range(8000), key=optim.InverseSqrt(0.01, 4000).get_lr) == 3999
    for shape in optim.DecayShape:
        schedule = optim.Wsd(0.01, 0.001, 100, 400, 500, shape.value)
        assert schedule.decay_shape is shape and 0.001 < schedule.get_lr(999) < 0.0011


@pytest.mark.parametrize("schedule", ALL.values(), ids=ALL)
def test_every_schedule_is_a_pure_function_with_checked_steps(schedule: optim.LrSchedule) -> None:
    forwards = [schedule.get_lr(step) for step in range(200)]
    backwards = [schedule.get_lr(step) for step in reversed(range(200))]
    assert forwards == backwards[::-1]
    assert all(isinstance(lr, float) for lr in forwards)
    assert schedule.get_lr(np.int64(7)) == forwards[7]  # type: ignore[arg-type]  # any integer
    raises(ValueError, "counted from 0", lambda: schedule.get_lr(-1))
    raises(TypeError, "is an integer", schedule.get_lr, 1.5)  # type: ignore[arg-type]
    raises(dataclasses.FrozenInstanceError, "", lambda: setattr(schedule, dataclasses.fields(schedule)[0].name, 1.0))


def test_lambda_wants_a_function() -> None:
    raises(TypeError, "expected a function", optim.Lambda, 0.1)  # type: ignore[arg-type]


# Names, arguments, and PyTorch 2.13's rates of the first of two groups, 0.2 and 0.4, after 0, 3, 6, 9, 12 and 15 steps;
# and where others set rates.
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


@pytest.mark.parametrize(("name", "options", "expected", "_"), CASES)
def test_the_rates_are_pytorchs_and_a_resumed_scheduler_goes_on(name, options, expected, _) -> None:
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


@pytest.mark.parametrize(("name", "options", "_", "expected"), CASES)
def test_rates_that_others_have_set_are_followed_or_replaced_as_in_pytorch(name, options, _, expected) -> None:
    """PyTorch 2.13's after six steps: one that is set to 0.5 before the fourth, and beside ExponentialLR."""
    for beside, rate in enumerate(expected):
        optimizer = optimizer_of()
        schedulers = [made(name, options, optimizer), *[S.ExponentialLR(optimizer, 0.9)] * beside]
        for step in range(6):
            if step == 3 and not beside:
                optimizer.lr = 0.5
                if schedulers[0].follows:
                    optimizer.add_param_group({"params": [minigrad.ones(4, requires_grad=True)], "lr": 0.5})
            for scheduler in schedulers:
                scheduler.step()
        assert optimizer.lr == pytest.approx(rate, rel=1e-6)
        optimizer.add_param_group({"params": [minigrad.ones(5, requires_grad=True)], "lr": np.float32(0.5)})
        if schedulers[0].follows:
            schedulers[0].load_state_dict(json.loads(json.dumps(schedulers[0].state_dict())))
            assert optimizer.param_groups[-1]["lr"] == 0.5
        else:
            raises(ValueError, "expected 2; make another .* after add_param_group", schedulers[0].step)


def test_chained_schedulers_load_in_any_order_and_a_cosine_near_zero_keeps_its_base() -> None:
    chains = [(S.ExponentialLR(o, 0.9), S.StepLR(o, 3)) for o in map(optimizer_of, [AdamW] * 3)]
    for step in range(6):
        for i, j in ((1, 0), (1, 1), (2, 1), (2, 0)) if step == 3 else ():
            chains[i][j].load_state_dict(chains[0][j].state_dict())
        [scheduler.step() for chain in chains[: 1 if step < 3 else 3] for scheduler in chain]
    assert len({chain[0].optimizer.lr for chain in chains}) == 1
    cosine = S.CosineAnnealingLR(optimizer_of(), 1000)
    for step in range(2000):
        cosine.optimizer.lr = 1e-3 if step == 999 else cosine.optimizer.lr
        cosine.step()
    assert cosine.optimizer.lr == pytest.approx(0.2)
