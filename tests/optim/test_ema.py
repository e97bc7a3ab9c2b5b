"""EMA: the recurrence, the swap and its way back, exact resume, refusals."""

import json

import numpy as np
import pytest
from refusals import raises

import minigrad
from minigrad.nn import Linear, Module, Sequential
from minigrad.optim import EMA


def make_module(dtype=np.float32) -> Module:
    minigrad.manual_seed(0)
    return Sequential(Linear(3, 5), Linear(5, 2)).to(dtype)


def change(module: Module, step: int) -> None:
    rng = np.random.default_rng(step)
    for p in module.parameters():
        p.data[...] = rng.standard_normal(p.shape)


def values(module: Module) -> list[np.ndarray]:
    return [p.data.copy() for p in module.parameters()]


HALVES = minigrad.float16, minigrad.bfloat16


@pytest.mark.parametrize("dtype", [np.float32, np.float64, *HALVES], ids=str)
@pytest.mark.parametrize("warmup", [False, True])
def test_is_the_recurrence(dtype, warmup: bool) -> None:
    """Averages of half-width parameters are float32: they move by steps that the parameters' own dtype cannot hold, and
    are rounded where they are applied."""
    module = make_module(dtype)
    most = 0.9995 if dtype in HALVES else 0.6
    ema = EMA(module, most, warmup)
    expected = [p.data.astype(np.float64) for p in module.parameters()]
    for t in range(1, 31):
        change(module, t)
        ema.update()
        d = min(most, (1 + t) / (10 + t)) if warmup else most
        expected = [d * a + (1 - d) * p.data.astype(np.float64) for a, p in zip(expected, module.parameters())]
    assert ema.updates == 30
    averages, rtol = ema.state_dict()[0], {np.float32: 1e-6, np.float64: 1e-15}.get(dtype, 1e-5)
    with ema.applied():
        for p, average, a in zip(module.parameters(), averages.values(), expected, strict=True):
            assert (p.dtype, average.dtype) == (dtype, np.float32 if dtype in HALVES else dtype)
            np.testing.assert_allclose(average, a, rtol=rtol, atol=min(rtol, 1e-6))
            np.testing.assert_array_equal(p.data, average.astype(dtype))
    again = EMA(make_module(dtype), 0.5)
    again.load_state_dict(*ema.state_dict())
    np.testing.assert_array_equal(again.state_dict()[0]["0.weight"], averages["0.weight"])


def test_weights_come_back_and_autograd_is_told() -> None:
    module = make_module()
    ema = EMA(module, 0.5)
    change(module, 1)
    ema.update()
    before, arrays = values(module), [p.data for p in module.parameters()]
    loss = module(minigrad.ones(1, 3)).sum()
    with pytest.raises(ZeroDivisionError), ema.applied():
        assert not np.array_equal(values(module)[0], before[0])
        raise ZeroDivisionError
    assert all(p.data is a for p, a in zip(module.parameters(), arrays, strict=True))
    assert all(np.array_equal(p, q) for p, q in zip(values(module), before, strict=True))
    raises(RuntimeError, "changed in place", lambda: loss.backward())


def test_inside_of_applied_only_reading_is_allowed() -> None:
    ema = EMA(make_module())
    saved = ema.state_dict()
    with ema.applied():
        for call in (ema.update, lambda: ema.load_state_dict(*saved), lambda: ema.applied().__enter__()):
            raises(RuntimeError, r"inside of applied\(\)", call)
        assert ema.state_dict()[1] == saved[1]
    ema.update()


def test_resumed_equals_uninterrupted_bit_for_bit() -> None:
    module = make_module()
    ema = EMA(module, 0.9, warmup=True)
    change(module, 1)
    ema.update()
    arrays, meta = ema.state_dict()
    saved = {name: array.copy() for name, array in arrays.items()}
    change(module, 2)
    ema.update()
    again = make_module()
    resumed = EMA(again, 0.5)
    resumed.load_state_dict(arrays, json.loads(json.dumps(meta)))
    change(again, 2)
    resumed.update()
    assert resumed.state_dict()[1] == ema.state_dict()[1] == {"decay": 0.9, "warmup": True, "updates": 2}
    for name, array in ema.state_dict()[0].items():
        np.testing.assert_array_equal(resumed.state_dict()[0][name], array)
        np.testing.assert_array_equal(arrays[name], saved[name])  # what was saved is a copy


def test_a_state_that_does_not_fit_is_reported_and_nothing_is_changed() -> None:
    ema = EMA(make_module())
    arrays, meta = ema.state_dict()
    for bad_arrays, bad_meta, message in [
        ({**arrays, "x": np.zeros(1)}, meta, "'x' belongs to no parameter"),
        ({k: a for k, a in arrays.items() if k != "0.bias"}, meta, "'0.bias' is missing"),
        ({**arrays, "0.bias": np.zeros(5)}, meta, "'0.bias' has shape .* dtype float64"),
        (arrays, {**meta, "updates": -1}, "updates is -1"),
        (arrays, {**meta, "decay": 2}, "decay is 2"),
        (arrays, {**meta, "warmup": 1}, "warmup is 1"),
    ]:
        raises(ValueError, f"(?s)do not fit.*{message}", ema.load_state_dict, bad_arrays, bad_meta)
    assert ema.state_dict()[1] == meta


def test_what_cannot_be_averaged_is_named() -> None:
    raises(ValueError, "decay is 1.0, expected a number below 1", lambda: EMA(make_module(), 1.0))
    raises(ValueError, "warmup is 10, expected True or False", lambda: EMA(make_module(), warmup=10))
    module = make_module()
    ema = EMA(module)
    module.double()
    for use in (ema.update, ema.applied().__enter__):
        raises(ValueError, r"parameter 0.weight is now float64 .* make a new EMA", use)
    assert ema.updates == 0
