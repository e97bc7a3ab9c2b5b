"""GradScaler: what is unscaled is exact, an overflow leaves the step out, and the scale moves as PyTorch's."""

import math

import numpy as np
from refusals import raises

import minigrad
from minigrad import GradStore, Tensor, float16
from minigrad.optim import SGD, GradScaler, LossScaleStrategy


def store(p: Tensor, value: float, dtype=np.float32) -> GradStore:
    return GradStore({p._id: Tensor(np.full(p.shape, value, dtype))})


def param() -> Tensor:
    return minigrad.zeros(3, requires_grad=True)


def test_scaled_and_unscaled_the_gradients_are_the_same_to_the_bit() -> None:
    w = minigrad.tensor([0.3, -1.7, 1e-20], requires_grad=True)
    scaler = GradScaler()
    plain = (w * w).sum().backward()
    grads = scaler.scale((w * w).sum()).backward()
    assert (grads[w].numpy() == 65536 * plain[w].numpy()).all()
    scaler.unscale_(grads)
    assert (grads[w].numpy() == plain[w].numpy()).all() and not scaler.found_inf


def test_the_scale_grows_and_backs_off() -> None:
    """PyTorch's rule; below 1 it does not go."""
    p = param()
    scaler = GradScaler(8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2)
    optimizer, scales = SGD([p], lr=1.0), []
    for value in (1.0, 1.0, math.inf, 1.0, 1.0, 1.0, math.nan, math.inf, -math.inf, 1.0):
        scale, before = scaler.get_scale(), p.numpy(force=True).copy()
        assert scaler.step(optimizer, store(p, value)) is math.isfinite(value)
        scaler.update()
        scales.append(scaler.get_scale())
        np.testing.assert_allclose(p.numpy(force=True), before - (value / scale if math.isfinite(value) else 0))
    assert scales == [8.0, 32.0, 8.0, 8.0, 32.0, 32.0, 8.0, 2.0, 1.0, 1.0]


def test_scale_of_losses() -> None:
    scaler = GradScaler(1024.0)
    assert scaler.scale() == scaler.get_scale() == 1024.0
    y = scaler.scale(minigrad.tensor(100.0, dtype=float16))  # more than float16 holds
    assert (y.dtype, y.item()) == (np.float32, 102400.0)
    assert [z.item() for z in scaler.scale([minigrad.tensor(1.0), minigrad.tensor(2.0)])] == [1024.0, 2048.0]
    assert scaler.scale_loss(minigrad.tensor(3.0)).item() == 3072.0


def test_disabled_it_does_nothing() -> None:
    scaler, p = GradScaler(enabled=False), param()
    loss = minigrad.tensor(2.0)
    grads = store(p, 1.0)
    assert scaler.scale(loss) is loss and not scaler.is_enabled() and scaler.get_scale() == 1.0
    assert scaler.step(SGD([p], lr=1.0), grads)
    scaler.update()
    assert p.tolist() == [-1.0] * 3


def test_several_optimizers_share_a_scale() -> None:
    scaler, a, b, c = GradScaler(4.0), param(), param(), param()
    assert scaler.step(SGD([a], lr=1.0), store(a, 4.0))
    assert not scaler.step(SGD([b], lr=1.0), store(b, math.inf))
    assert scaler.step(SGD([c], lr=1.0), store(c, 8.0))
    scaler.update()
    assert (a.tolist(), b.tolist(), c.tolist()) == ([-1.0] * 3, [0.0] * 3, [-2.0] * 3)
    assert scaler.get_scale() == 2.0


def test_gradients_are_unscaled_once() -> None:
    scaler, p = GradScaler(4.0), param()
    grads = store(p, 4.0)
    assert scaler.unscale_grads(grads)
    raises(RuntimeError, "have been unscaled already", lambda: scaler.unscale_(grads))
    assert scaler.step(SGD([p], lr=1.0), grads) and p.tolist() == [-1.0] * 3
    scaler.update()
    raises(RuntimeError, "no gradients were unscaled", lambda: scaler.update())
    raises(ValueError, r"shape \(3,\) is float16", lambda: scaler.unscale_(store(p, 4.0, np.float16)))


def test_a_scale_stays_within_what_float32_holds() -> None:
    scaler = GradScaler(2.0, growth_interval=1)
    scaler.update(2.0**127)
    scaler.update_scale(overflow=False)
    assert scaler.get_scale() == 2.0**127
    raises(ValueError, "new_scale", lambda: scaler.update(0.5))


def test_a_fixed_scale_stays() -> None:
    scaler, p = GradScaler.fixed(8.0), param()
    for value in (1.0, math.inf, math.inf, 1.0):
        assert scaler.step(SGD([p], lr=1.0), store(p, value)) is math.isfinite(value)
        scaler.update()
        assert scaler.get_scale() == 8.0
    raises(ValueError, "saved scale is 4, this scaler's is", scaler.load_state_dict, {"scale": 4.0, "good_steps": 0})


def test_options_are_read_set_and_checked() -> None:
    scaler = GradScaler()
    scaler.set_growth_factor(3.0)
    scaler.set_backoff_factor(0.25)
    scaler.set_growth_interval(7)
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()) == (3.0, 0.25, 7)
    raises(ValueError, "backoff_factor", lambda: scaler.set_backoff_factor(1.5))
    raises(ValueError, "growth_interval", lambda: scaler.set_growth_interval(0))
    raises(ValueError, "growth_factor", lambda: scaler.set_growth_factor(0.5))
    optimizer = SGD([param()], lr=1.0)  # as PyTorch's scaler is called
    raises(TypeError, "step takes the GradStore that loss.backward", GradScaler(enabled=False).step, optimizer)
    raises(TypeError, "unscale_ takes the GradStore that", GradScaler(enabled=False).unscale_, optimizer)
    raises(ValueError, "init_scale", GradScaler, 0.5)
    raises(ValueError, "good_steps", scaler.load_state_dict, {"scale": 2.0, "good_steps": -1})


def test_strategies_are_boostrs() -> None:
    assert LossScaleStrategy.none().to_grad_scaler() is None
    fixed, dynamic = LossScaleStrategy.fixed(128.0).to_grad_scaler(), LossScaleStrategy.dynamic().to_grad_scaler()
    assert fixed is not None and dynamic is not None
    assert (fixed.get_scale(), fixed.adapts, dynamic.get_scale(), dynamic.adapts) == (128.0, False, 65536.0, True)
    assert (dynamic.growth_factor, dynamic.backoff_factor, dynamic.growth_interval) == (2.0, 0.5, 2000)
    raises(ValueError, "", LossScaleStrategy.fixed, 0.5)
    raises(ValueError, "", lambda: LossScaleStrategy.dynamic(growth_interval=0))
    raises(ValueError, "", LossScaleStrategy, "static")
