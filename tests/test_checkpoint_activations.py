"""Checkpointed functions: the gradients of the plain call to the bit, in less memory, or an error."""

import dataclasses
import gc
import tracemalloc
import weakref

import numpy as np
import pytest
from graph_cases import Recorder, leaf, nodes_of
from refusals import raises

import minigrad as mg
from minigrad import Tensor, nn
from minigrad.nn import functional as F


def plain(fn, /, *inputs, **kwargs):
    return fn(*inputs, **kwargs)


def assert_equal_runs(run) -> None:
    """``run(call)`` gives the same loss, the same gradients and the same hook calls whichever way it calls."""
    seen = []
    for call in (plain, mg.checkpoint):
        mg.manual_seed(7)
        loss, hook = run(call), Recorder()
        grads = loss.backward(hook=hook)
        found = [(int(i), g.tolist()) for i, g in grads.items()]
        calls = [(int(i), g.tolist()) for i, _, g in hook.calls]
        seen.append((loss.item(), found, calls, mg.default_generator.offset))
    assert seen[0] == seen[1] and seen[0][1]


def assert_same_gradient(loss: Tensor, expected: Tensor, x: Tensor) -> None:
    assert loss.backward()[x].tolist() == expected.backward()[x].tolist()


def test_inputs_and_closure_get_the_gradients_of_the_plain_call() -> None:
    x, w, b = leaf(4, 8), leaf(8, 8, seed=1), leaf(8, seed=2)
    assert_equal_runs(lambda call: (call(lambda x: ((x @ w + b).tanh() * x).exp(), x * 2) * w.sum()).sum())


def test_a_parameter_used_inside_and_outside_is_reported_as_by_the_plain_call() -> None:
    x, w = leaf(3, 5), leaf(5, 5, seed=1)
    assert_equal_runs(lambda call: (call(lambda h: (h @ w).relu(), (x @ w).tanh()) @ w).sum())


@pytest.mark.parametrize("own_generator", [False, True])
def test_random_draws_are_repeated(own_generator: bool) -> None:
    x = leaf(50)
    generators = []

    def run(call) -> Tensor:
        generator = mg.Generator(3) if own_generator else None
        generators.append(generator)
        y = call(lambda x: F.dropout(F.dropout(x, 0.5, generator=generator).exp(), 0.3, generator=generator), x)
        mg.rand(3, generator=generator)  # draws go on between forward and backward
        return y.sum()

    assert_equal_runs(run)
    if own_generator:
        assert generators[0].offset == generators[1].offset == 3


def test_draws_of_a_generator_made_inside_and_of_one_seeded_anew() -> None:
    x = leaf(20)
    assert_equal_runs(lambda call: call(lambda x: F.dropout(x, 0.5, generator=mg.Generator(9)) * x, x).sum())
    y = mg.checkpoint(lambda x: F.dropout(x, 0.5) * x, x).sum()
    mg.manual_seed(12345)
    y.backward()
    assert mg.default_generator.offset == 0


def test_nested_checkpoints() -> None:
    x, w = leaf(6, 6), leaf(6, 6, seed=1)

    def run(call) -> Tensor:
        def inner(h: Tensor, scale: Tensor) -> Tensor:
            return F.dropout((h @ w).tanh(), 0.2) * scale

        def outer(h: Tensor) -> Tensor:
            captured = (h * 3).exp()
            h = call(inner, h @ w, captured) + call(lambda: (captured * w).tanh())
            return call(inner, h, captured).relu() * F.dropout(h, 0.5)

        return (call(outer, x) * call(outer, x * 2)).sum()

    assert_equal_runs(run)


@pytest.mark.parametrize("used", [(0, 1), (0,), (1,)])
def test_several_outputs_of_which_some_are_used(used: tuple[int, ...]) -> None:
    x, w = leaf(4), leaf(4, seed=1)

    def run(call) -> Tensor:
        h, more = call(lambda x: ((x * w).exp(), {"tanh": [(x * x * w).tanh(), "a word"]}), x)
        chosen = [(h, more["tanh"][0])[i] for i in used]
        del h, more
        return sum((y * y for y in chosen), start=mg.zeros(4)).sum()

    assert_equal_runs(run)


def test_an_output_that_is_an_input_and_one_without_gradient() -> None:
    x, w = leaf(4), leaf(4, seed=1)

    def run(call) -> Tensor:
        y = x * 2
        same, mask, z = call(lambda y: (y, y > 0, (y * w).exp()), y)
        assert same is y and not mask.requires_grad
        return (z.masked_fill(mask, 0.0) * same).sum()

    assert_equal_runs(run)


def test_leaves_as_output_and_functions_of_nothing() -> None:
    w = leaf(4)
    assert mg.checkpoint(lambda: w) is w
    assert mg.checkpoint(lambda x: x > 0, w).dtype == mg.bool_
    assert_same_gradient(mg.checkpoint(lambda: w * w).sum(), (w * w).sum(), w)


def test_no_grad_and_frozen_inputs_record_nothing() -> None:
    x = leaf(3)
    with mg.no_grad():
        assert mg.checkpoint(lambda x: x.exp(), x).node is None
    assert mg.checkpoint(lambda x: x.exp(), x.detach()).node is None


def test_retained_graphs_and_second_calls() -> None:
    x = leaf(4)
    runs = []

    def fn(x: Tensor) -> Tensor:
        runs.append(1)
        return (x.exp() * x).tanh()

    y = mg.checkpoint(fn, x).sum()
    assert y.backward(retain_graph=True)[x].tolist() == y.backward()[x].tolist()
    assert len(runs) == 2
    raises(RuntimeError, "a second time", lambda: y.backward())


def test_two_outputs_differentiated_one_after_the_other() -> None:
    x = leaf(4)
    a, b = mg.checkpoint(lambda x: (x.exp(), x.tanh()), x)
    assert_same_gradient(a.sum(), x.exp().sum(), x)
    assert_same_gradient(b.sum(), x.tanh().sum(), x)


def test_backward_without_recording() -> None:
    x = leaf(4)
    y = mg.checkpoint(lambda x: x.exp() * x, x).sum()
    with mg.no_grad():
        grads = y.backward()
    assert grads[x].tolist() == (x.exp() * x).sum().backward()[x].tolist()


# ---------------------------------------------------------------------- what is refused


def test_a_function_that_is_not_the_same_again() -> None:
    x, rng = leaf(3, 4), np.random.default_rng(0)
    calls: list[int] = []

    def count() -> int:
        calls.append(1)
        return len(calls) % 2

    wrong = {
        "other values; it must depend on its inputs, on parameters and": lambda x: (
            x * Tensor(rng.standard_normal(4), dtype=mg.float32)
        ).exp(),
        "Exp at first, then Tanh": lambda x: (x.exp() if count() else x.tanh()) * 0,
        "2 tensors at first, then 1": lambda x: [x.exp()] * (1 + count()),
        "other shapes": lambda x: x[: 2 + count()].exp(),
        r"AMax of \(3, 4\) at first, then of \(2, 4\)": lambda x: x[: 2 + count()].exp().amax() * 0,
        "fewer random draws": lambda x: (F.dropout(x, 0.5) if count() else x).exp() * 0,
        "draw was made that was not made": lambda x: (x if count() else F.dropout(x, 0.5)).exp() * 0,
        "requires grad in one run only": lambda x: (x if count() else x.detach()) * x * 0,
        "another leaf": lambda x: (x if count() else other).exp() * 0,
        "another graph": lambda x: ((h := x * 2) + (h if count() else x * 2)).exp() * 0,
    }
    other = leaf(3, 4, seed=5)
    for message, fn in wrong.items():
        calls.clear()
        outputs = mg.checkpoint(fn, x)
        loss = (outputs[0] if isinstance(outputs, list) else outputs).sum()
        raises(RuntimeError, message, loss.backward)


@pytest.mark.parametrize("which", ["input", "parameter", "keyword"])
def test_a_change_in_place_before_backward(which: str) -> None:
    x, w, c = leaf(3), leaf(3, seed=1), mg.ones(3)
    y = mg.checkpoint(lambda x, *, c: (x * c + w).exp(), x, c=c).sum()
    with mg.no_grad():
        {"input": x, "parameter": w, "keyword": c}[which].mul_(1)
    raises(RuntimeError, "input or a parameter of .*lambda.* was changed in place", lambda: y.backward())


def test_a_change_in_place_after_the_second_run() -> None:
    x = leaf(3)
    y = mg.checkpoint(lambda x: (x * x).exp(), x).sum()
    y.backward(retain_graph=True)
    with mg.no_grad():
        x.mul_(2)
    raises(RuntimeError, "a tensor that Mul needs for its gradient was changed in place", lambda: y.backward())


def test_the_result_may_be_changed_and_the_error_leaves_no_trace() -> None:
    x = leaf(3)
    fail = [False, True, False]

    def fn(x: Tensor) -> Tensor:
        if fail.pop(0):
            raise KeyboardInterrupt
        return x.exp()

    y = mg.checkpoint(fn, x)
    loss = (y * 1).sum()
    with mg.no_grad():
        y.fill_(0)
    raises(KeyboardInterrupt, "", lambda: loss.backward(retain_graph=True))
    assert_same_gradient(loss, x.exp().sum(), x)


def test_a_tensor_kept_from_inside() -> None:
    x, kept = leaf(3), []

    def fn(x: Tensor) -> Tensor:
        kept.append(x.exp())
        return kept[-1].tanh()

    y = mg.checkpoint(fn, x)
    inside = kept.pop()
    (y * inside).sum().backward()  # the way through the output is open
    kept.clear()
    mg.checkpoint(fn, x)
    raises(RuntimeError, "return the tensor from the function", lambda: kept.pop().sum().backward())


def test_something_else_than_tensors() -> None:
    raises(TypeError, "returned NoneType; expected a tensor", lambda: mg.checkpoint(lambda x: None, leaf(2)))


# ---------------------------------------------------------------------- memory


def saved_bytes(loss: Tensor) -> int:
    """Bytes of all arrays that the nodes below a tensor keep, each piece of memory once."""
    owners = {}
    for node in nodes_of(loss):
        for array in node.saved if isinstance(node.saved, tuple) else ():
            if isinstance(array, np.ndarray):
                owner = array if array.base is None else array.base
                owners[id(owner)] = owner.nbytes
    return sum(owners.values())


def test_a_graph_is_freed_without_the_collector() -> None:
    x = leaf(3)

    def nested(y: Tensor) -> Tensor:
        return mg.checkpoint(lambda y: mg.checkpoint(lambda y: y.exp().tanh(), y * y), y)

    gc.collect()
    gc.disable()
    try:
        y = x * 2
        z, kept = nested(y), weakref.ref(y)
        del y
        assert kept() is not None
        del z
        assert kept() is None
        z = nested(x * 2)
        kept = weakref.ref(z.node)
        z.sum().backward(retain_graph=True)
        del z
        assert kept() is None
    finally:
        gc.enable()


CONFIG = mg.models.GPT2Config(vocab_size=17, block_size=64, n_layer=4, n_head=2, n_embd=16, dropout=0.1)


def gpt_step(checkpoint_blocks: bool) -> tuple[mg.models.GPT2, Tensor]:
    mg.manual_seed(0)
    model = mg.models.GPT2(dataclasses.replace(CONFIG, checkpoint_blocks=checkpoint_blocks))
    tokens = mg.randint(0, 17, (4, 64), generator=mg.Generator(1))  # enough that arrays outweigh objects
    return model, model.loss(tokens, tokens)


def test_gpt_2_with_checkpointed_blocks() -> None:
    grads, peaks, saved = [], [], []
    for checkpoint_blocks in (False, True):
        gpt_step(checkpoint_blocks)[1].backward()  # compiles
        gc.collect()
        tracemalloc.start()
        try:
            model, loss = gpt_step(checkpoint_blocks)
            saved.append(saved_bytes(loss))
            store = loss.backward()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        grads.append([loss.item(), *(store[p].tolist() for p in model.parameters())])
        assert model.generate(mg.zeros(1, 4, dtype=mg.int64), 2, seed=0).shape == (1, 6)
    assert grads[0] == grads[1]
    assert saved[1] < 0.35 * saved[0]
    assert peaks[1] < 0.6 * peaks[0]


def test_a_checkpointed_module_with_frozen_and_trained_parts() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    x = mg.randn(5, 4, generator=mg.Generator(0))
    assert_equal_runs(lambda call: call(model, x).square().mean())
