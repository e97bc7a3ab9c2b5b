"""SimpleTrainer: boostr's surface and order of work, nothing half done on an error, and exact resume anywhere."""

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from optimizer_cases import SHAPES, make_grads, make_params
from refusals import raises

import minigrad
from minigrad import GradStore, Tensor, TensorId, nn, serialization
from minigrad.distributed import NonFiniteLossError, SimpleTrainer, TrainingConfig, TrainingMetrics
from minigrad.distributed.train.step import Named, Reducer, Step
from minigrad.optim import AdamW, CosineAnnealing, Lambda, decay_groups


def amid_a_window() -> tuple[list[Tensor], SimpleTrainer]:
    """After one step, and with the first of the next one's two micro-batches."""
    params, trainer = make_params(), SimpleTrainer(TrainingConfig(grad_accum_steps=2))
    for i in range(3):
        trainer.step(params, make_grads(params, i), 1.0)
    return params, trainer


def state_bits(trainer: SimpleTrainer, params: list[Tensor]) -> list[bytes]:
    """Weights, moments, counts, learning rate and window, to the last bit."""
    arrays, meta = trainer.state_dict(params)
    saved = [name.encode() + arrays[name].tobytes() for name in sorted(arrays)]
    return [p.data.tobytes() for p in params] + saved + [json.dumps(meta, sort_keys=True).encode()]


# ---------------------------------------------------------------------- boostr's surface


def test_the_configuration_has_boostrs_fields_defaults_and_builders():
    config = TrainingConfig()
    assert config == TrainingConfig(learning_rate=1e-3, weight_decay=0.01, max_grad_norm=1.0, grad_accum_steps=1)
    changed = config.with_lr(0.1).with_weight_decay(0.2).with_max_grad_norm(None).with_grad_accum_steps(4)
    assert changed == TrainingConfig(0.1, 0.2, None, 4)
    assert config == TrainingConfig()  # builders return copies


def test_a_trainer_makes_an_adamw_of_its_configuration():
    params = make_params()
    trainer = SimpleTrainer(TrainingConfig(learning_rate=0.5, weight_decay=0.25))
    assert trainer.global_step == 0
    assert isinstance(trainer.step(params, make_grads(params, 0), 1.0), TrainingMetrics)
    assert isinstance(trainer.optimizer, AdamW)
    assert (trainer.optimizer.config.lr, trainer.optimizer.config.weight_decay) == (0.5, 0.25)
    assert re.match(r"SimpleTrainer\(step 1, TrainingConfig\(learning_rate=0.5,.*AdamW\(", repr(trainer))


def test_a_given_optimizer_keeps_its_own_learning_rate_and_decay():
    params = make_params()
    optimizer = AdamW(params, lr=0.125, weight_decay=0.5)
    trainer = SimpleTrainer.with_optimizer(TrainingConfig(learning_rate=9.0, weight_decay=9.0), optimizer)
    metrics = trainer.step(params, make_grads(params, 0), 1.0)
    assert trainer.optimizer is optimizer
    assert metrics is not None and metrics.lr == 0.125
    assert optimizer.param_groups[0]["weight_decay"] == 0.5


# ---------------------------------------------------------------------- order of work


class Recorder(AdamW):
    """An AdamW that notes what is done to it."""

    events: list[Any]

    def set_lr(self, lr: float) -> None:
        self.events.append(("lr", lr))
        super().set_lr(lr)

    def step(self, grads: GradStore) -> None:
        self.events.append(("step", {number: grad.data.copy() for number, grad in grads.items()}))
        super().step(grads)


def test_each_window_is_averaged_reduced_once_scheduled_clipped_and_stepped_once():
    params = make_params(np.float64)
    optimizer = Recorder(params)
    events = optimizer.events = []

    class Reducing(Reducer):
        """Pretends that other ranks change what the window comes to, and that it arrives in two parts."""

        def reduce(self, step: Step, named: Named):
            assert [p for _, p in named] == params
            (grads,), loss = super().reduce(step, named)
            events.append(("reduce", {p.id: grads[p].data.copy() for p in params}, loss))
            others = [GradStore(), GradStore()]
            for i, p in enumerate(params):
                others[i % 2].insert(p, grads[p] * 10.0)
            return iter(others), loss + 100.0

    schedule = Lambda(lambda step: 0.5**step)
    trainer = SimpleTrainer(TrainingConfig(max_grad_norm=0.5, grad_accum_steps=3), optimizer, schedule)
    trainer._step.reducer = Reducing()
    for window in range(2):
        stores = [make_grads(params, 10 * window + i) for i in range(3)]
        mean = {p.id: np.asarray(sum(store[p].data for store in stores) / 3) for p in params}
        assert [trainer.step(params, store, float(i)) for i, store in enumerate(stores[:2])] == [None, None]
        assert not events and trainer.global_step == window
        metrics = trainer.step(params, stores[2], 2.0)
        assert [event[0] for event in events] == ["reduce", "lr", "step"]
        for p in params:
            np.testing.assert_allclose(events[0][1][p.id], mean[p.id], rtol=1e-14)
        assert events[0][2] == 1.0  # the mean of 0, 1, 2
        assert events[1][1] == 0.5**window  # the schedule counts from 0
        norm = 10 * math.sqrt(sum(float((g**2).sum()) for g in mean.values()))  # of what the reduction returned
        for p in params:
            np.testing.assert_allclose(events[2][1][p.id], 10 * mean[p.id] * 0.5 / (norm + 1e-6), rtol=1e-12)
        assert metrics == TrainingMetrics(window + 1, 101.0, metrics.grad_norm, 0.5**window)
        assert metrics.grad_norm == pytest.approx(norm, rel=1e-12)  # before clipping
        events.clear()
    assert optimizer.timestep == trainer.global_step == 2


# ---------------------------------------------------------------------- parameters


def as_ids(params: list[Tensor]) -> Any:
    return {p.id: p for p in params}


def as_ids_backwards(params: list[Tensor]) -> Any:
    return {p.id: p for p in reversed(params)}


def as_names(params: list[Tensor]) -> Any:
    return [(f"p{i}", p) for i, p in enumerate(params)]


@pytest.mark.parametrize("form", [as_ids, as_ids_backwards, as_names, iter, tuple])
@pytest.mark.parametrize("own", [True, False])
def test_every_form_of_params_gives_the_same_bits(form, own):
    expected = make_params()
    trainer = SimpleTrainer(TrainingConfig(grad_accum_steps=2))
    wanted = [trainer.step(expected, make_grads(expected, i), 1.0) for i in range(4)]
    params = make_params()
    config = TrainingConfig(grad_accum_steps=2)
    trainer = SimpleTrainer(config) if own else SimpleTrainer.with_optimizer(config, AdamW(params))
    assert [trainer.step(form(params), make_grads(params, i), 1.0) for i in range(4)] == wanted
    for p, q in zip(params, expected):
        assert p.data.tobytes() == q.data.tobytes()
    assert all(isinstance(key, TensorId) for key in as_ids(params))


def test_the_order_of_a_mapping_may_change_between_steps_and_between_save_and_resume():
    expected = make_params()
    trainer = SimpleTrainer(TrainingConfig(grad_accum_steps=2))
    for i in range(4):
        trainer.step(as_ids(expected), make_grads(expected, i), 1.0)

    params = make_params()
    first = SimpleTrainer(TrainingConfig(grad_accum_steps=2))
    for i in range(3):  # ends amid a window
        first.step((as_ids, as_ids_backwards)[i % 2](params), make_grads(params, i), 1.0)
    second = SimpleTrainer(TrainingConfig(grad_accum_steps=2))
    arrays, meta = first.state_dict(as_ids(params))
    kept = {name: array.tobytes() for name, array in arrays.items()}
    second.load_state_dict(as_ids_backwards(params), arrays, meta)
    second.step(as_ids(params), make_grads(params, 3), 1.0)
    assert state_bits(second, params) == state_bits(trainer, expected)
    assert {name: array.tobytes() for name, array in arrays.items()} == kept  # what is saved and loaded is a copy


def test_layers_may_come_go_and_be_frozen_between_two_steps():
    model, trainer = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), SimpleTrainer()

    def step() -> list[bool]:
        before = [p.data.copy() for p in model.parameters()]
        loss = model(minigrad.ones(4, 2)).square().mean() + sum(p.sum() for p in model.parameters())
        trainer.step(model.named_parameters(), loss.backward(), loss.item())
        return [not np.array_equal(p.data, old) for p, old in zip(model.parameters(), before, strict=True)]

    assert step() == [True] * 4
    model.append(nn.Linear(1, 1))
    assert step() == [True] * 6
    old, model[2] = model[2], nn.Linear(3, 1, bias=False)
    trainer.optimizer.add_param_group({"params": [("replaced", model[2].weight)]})
    untouched = [p.data.copy() for p in old.parameters()]
    assert step() == [True] * 5
    assert all(np.array_equal(p.data, data) for p, data in zip(old.parameters(), untouched, strict=True))
    model[0].requires_grad_(False)
    assert step() == [False, False, True, True, True]
    model[0].requires_grad_(True)
    assert step() == [True] * 5


def test_a_trained_parameter_that_a_given_optimizer_lacks_is_refused_by_name():
    params = make_params(shapes=SHAPES[:3])
    trainer = SimpleTrainer.with_optimizer(TrainingConfig(), AdamW(params[:2]))
    before = [p.data.copy() for p in params]
    with pytest.raises(ValueError, match="tail require grad but are not in the optimizer"):
        trainer.step([("a", params[0]), ("b", params[1]), ("tail", params[2])], make_grads(params, 0), 1.0)
    assert trainer.global_step == 0
    for p, old in zip(params, before):
        np.testing.assert_array_equal(p.data, old)
    params[2].requires_grad_(False)
    assert trainer.step(params, make_grads(params, 0, skip=(2,)), 1.0) is not None


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_names_the_step_and_changes_nothing(loss):
    params = make_params()
    trainer = SimpleTrainer(TrainingConfig(grad_accum_steps=2))
    for i in range(2):
        trainer.step(params, make_grads(params, i), 1.0)
    before = state_bits(trainer, params)
    trainer.step(params, make_grads(params, 2), 1.0)
    error = raises(NonFiniteLossError, "the loss of step 2 is", trainer.step, params, make_grads(params, 3), loss)
    assert error.step == 2
    assert state_bits(trainer, params) == before  # the window was dropped
    assert trainer.step(params, make_grads(params, 4), 1.0) is None  # and a new one begins


# ---------------------------------------------------------------------- what must not pass


# ---------------------------------------------------------------------- resuming


def grouped(params: list[Tensor]) -> SimpleTrainer:
    """Two groups, a schedule, clipping and windows of three: all that a state can hold."""
    optimizer = AdamW(decay_groups(as_names(params), 0.1), betas=(0.9, 0.99))
    config = TrainingConfig(max_grad_norm=2.0, grad_accum_steps=3)
    return SimpleTrainer.with_optimizer(config, optimizer).with_lr_schedule(CosineAnnealing(0.1, 0.01, 2, 5))


@pytest.mark.parametrize("stop", range(10))
def test_resumed_equals_uninterrupted_wherever_it_stopped(stop, tmp_path):
    def micro_step(trainer: SimpleTrainer, params: list[Tensor], i: int) -> TrainingMetrics | None:
        return trainer.step(as_names(params), make_grads(params, i, skip=(i % 4,)), 1.0 / (i + 3))

    expected = make_params()
    uninterrupted = grouped(expected)
    wanted = [micro_step(uninterrupted, expected, i) for i in range(10)]

    params = make_params()
    trainer = grouped(params)
    metrics = [micro_step(trainer, params, i) for i in range(stop)]
    arrays, meta = trainer.state_dict(as_names(params))
    weights = {name: p.data for name, p in as_names(params)}
    serialization.save_checkpoint(tmp_path, {"model": weights, "trainer": arrays}, {"step": stop, "trainer": meta})

    saved = serialization.load_checkpoint(tmp_path)
    params = [Tensor(saved.tensors["model"][f"p{i}"], requires_grad=True) for i in range(len(SHAPES))]
    trainer = grouped(params)
    trainer.load_state_dict(as_names(params), saved.tensors["trainer"], saved.state["trainer"])
    assert trainer.global_step == stop // 3
    metrics += [micro_step(trainer, params, i) for i in range(stop, 10)]
    assert metrics == wanted
    assert state_bits(trainer, params) == state_bits(uninterrupted, expected)


def damages() -> dict[str, Any]:
    """What may be wrong with a saved state, as functions of its arrays and the rest."""
    return {
        "no step": lambda arrays, meta: meta.pop("global_step"),
        "negative step": lambda arrays, meta: meta.update(global_step=-1),
        "step of another type": lambda arrays, meta: meta.update(global_step=True),
        "no optimizer": lambda arrays, meta: meta.pop("optimizer"),
        "optimizer is a list": lambda arrays, meta: meta.update(optimizer=[1]),
        "no window": lambda arrays, meta: meta.pop("window"),
        "window of another length": lambda arrays, meta: meta["window"].update(accum_steps=3),
        "a moment is missing": lambda arrays, meta: arrays.pop("optimizer.exp_avg.1"),
        "a gradient of no parameter": lambda arrays, meta: arrays.update({"window.grad.9": np.ones(4)}),
        "an array of neither": lambda arrays, meta: arrays.update({"model.w": np.ones(1)}),
    }


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_state_is_refused_and_nothing_changes(damage):
    params, trainer = amid_a_window()
    arrays, meta = trainer.state_dict(params)
    damages()[damage](arrays, meta)
    before = state_bits(trainer, params)
    raises(ValueError, "", trainer.load_state_dict, params, arrays, meta)
    assert state_bits(trainer, params) == before


# ---------------------------------------------------------------------- the rest


def test_gradients_of_other_tensors_only_are_refused() -> None:
    p, other = minigrad.ones(2, requires_grad=True), minigrad.ones(2, requires_grad=True)
    trainer = SimpleTrainer()
    for params in ([p], iter(())):  # the latter: a generator that the last step has used up
        with pytest.raises(ValueError, match=r"none of the 1 gradients belongs to any of the [01] parameters"):
            trainer.step(params, other.sum().backward(), 1.0)
    assert trainer.global_step == 0
    assert trainer.step([p], (p * other).sum().backward(), 1.0) is not None
    assert trainer.step([p], minigrad.GradStore(), 1.0) is not None


@pytest.mark.compiled
def test_a_captured_step_refuses_what_it_cannot_do() -> None:
    model = nn.Linear(3, 1)
    trainer = SimpleTrainer(TrainingConfig(grad_accum_steps=2))
    raises(RuntimeError, "no step was captured", lambda: trainer.launch(minigrad.ones(2, 3)))
    step = trainer.capture(lambda x: model(x).sum(), model.named_parameters())
    raises(ValueError, r"input 0 is \(3, 3\): with grad_accum_steps=2 its first dim", step, minigrad.ones(3, 3))
    loss = model(minigrad.ones(1, 3)).sum()
    trainer.step(model.named_parameters(), loss.backward(), loss.item())
    raises(ValueError, "call flush first", lambda: step(minigrad.ones(2, 3)))
    trainer.flush(model.named_parameters())
    raises(TypeError, "input 0 is a ndarray", lambda: step(np.ones((2, 3), np.float32)))
    trainer.capture_forward_pass(lambda x: model(x).sum(), minigrad.ones(1, 3))
    raises(RuntimeError, "launch_backward_graph: there is no backward pass", lambda: trainer.launch_backward_graph())
    trainer.capture_backward_pass(lambda loss: loss.backward())
    assert trainer.launch_forward_graph(minigrad.ones(1, 3)).item() == model(minigrad.ones(1, 3)).sum().item()
    assert trainer.launch_backward_graph()[model.weight].tolist() == [[1.0, 1.0, 1.0]]
