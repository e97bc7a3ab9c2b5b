"""Graphs: chains and diamonds, seeds, what is freed when, modes, several threads."""

import gc
import weakref
from functools import partial

import numpy as np
import pytest
from graph_cases import leaf
from in_threads import good, outcomes
from refusals import raises

import minigrad as mg
from minigrad import Function


def test_a_chain_of_100_000_operations() -> None:
    x = mg.tensor(2.0, dtype="float64", requires_grad=True)
    y = x
    for _ in range(50_000):
        y = (y + 1.0) * 1.0001
    assert y.backward()[x].item() == pytest.approx(1.0001**50_000, rel=1e-10)


def test_a_long_chain_is_dropped_without_backward() -> None:
    x = mg.tensor(2.0, requires_grad=True)
    y = x
    for _ in range(100_000):
        y = -y
    oldest = weakref.ref(x)
    del x, y  # frees node after node: must not recurse
    assert oldest() is None


def test_diamonds_are_walked_once_per_node() -> None:
    """2^200 paths, 400 nodes."""
    x = mg.tensor(1.0, dtype="float64", requires_grad=True)
    y = x
    for _ in range(200):
        y = y * 0.5 + y * 0.5
    assert y.backward()[x].item() == 1


@pytest.mark.parametrize("uses", [1, 2, 3, 7])
def test_a_tensor_used_many_times(uses: int) -> None:
    x, y = leaf(4), leaf(4, seed=1)
    total = x * 0
    for i in range(uses):
        total = total + (x + y if i % 2 else x * y)
    grads = total.sum().backward()
    plain = uses // 2
    np.testing.assert_allclose(grads[x].numpy(), plain + (uses - plain) * y.detach().numpy())
    np.testing.assert_allclose(grads[y].numpy(), plain + (uses - plain) * x.detach().numpy())


@pytest.mark.parametrize("uses", [2, 3, 5])
def test_a_number_used_many_times(uses: int) -> None:
    x = leaf()
    y = x * 3  # NumPy's sum of two 0-d arrays is no array
    total = x
    for _ in range(uses):
        total = total + y + x
    np.testing.assert_allclose(total.backward()[x].numpy(), 1 + 4 * uses)


def test_the_same_tensor_as_both_inputs() -> None:
    x = leaf(3)
    np.testing.assert_array_equal((x + x).sum().backward()[x].numpy(), np.full(3, 2.0))
    np.testing.assert_allclose((x * x).sum().backward()[x].numpy(), 2 * x.detach().numpy())
    np.testing.assert_array_equal((x - x).sum().backward()[x].numpy(), np.zeros(3))


def test_only_leaves_below_the_loss_that_need_it_have_gradients() -> None:
    x, constant, other = leaf(3), mg.ones(3, dtype="float64"), leaf(3)
    y = x * constant + constant
    unused = other * x  # recorded, but above the loss, not below it
    grads = (y * y).sum().backward()
    assert grads.keys() == [x.id] and unused.requires_grad
    raises(KeyError, "is not a leaf", lambda: grads[y])


def test_backward_of_a_leaf_is_the_seed_in_its_own_memory() -> None:
    x = mg.tensor(3.0, requires_grad=True)
    seed = mg.tensor(5.0)
    grad = x.backward(seed)[x]
    assert grad.item() == 5
    grad.fill_(0)
    assert seed.item() == 5


def test_gradients_have_the_dtype_of_their_leaf() -> None:
    x, y = leaf(3, dtype=np.float32), leaf(3, dtype=np.float64)
    z = x * y
    grads = z.sum().backward()
    assert z.dtype == np.float64
    assert grads[x].dtype == np.float32 and grads[y].dtype == np.float64
    np.testing.assert_array_equal(y.float().sum().backward()[y].numpy(), np.ones(3))


def test_retain_graph_gives_the_same_twice() -> None:
    x = leaf(5)
    loss = (x.exp() * x).sum()
    first = loss.backward(retain_graph=True)[x].numpy().copy()
    np.testing.assert_array_equal(loss.backward(retain_graph=True)[x].numpy(), first)
    np.testing.assert_array_equal(loss.backward()[x].numpy(), first)
    raises(RuntimeError, "second time: .*retain_graph=True", lambda: loss.backward())


def test_a_freed_graph_says_so_where_it_is_reached() -> None:
    x = leaf(5)
    shared = x.exp()
    shared.sum().backward()
    raises(RuntimeError, "backward through Exp a second time", lambda: (shared * 2).sum().backward())


def test_a_gradient_is_needed_for_more_than_one_element() -> None:
    x = leaf(2, 3)
    raises(RuntimeError, r"shape \(2, 3\): only a scalar.*\.sum\(\)", lambda: (x * 2).backward())
    assert (leaf(1, 1) * 2).backward()  # one element is enough
    raises(RuntimeError, r"shape \(0,\)", lambda: (leaf(0) * 2).backward())


@pytest.mark.parametrize("gradient", [mg.ones(3), mg.ones(2, 3, dtype="float32"), mg.ones(()), np.ones((3, 2))])
def test_gradient_must_fit(gradient) -> None:
    found = rf"gradient is a {type(gradient).__name__} of shape .* but the tensor has \(2, 3\) and"
    raises(ValueError, found, (leaf(2, 3) * 2).backward, gradient)
    raises(ValueError, r"is a GradStore of .*; a loss needs none: loss\.backward\(\)", leaf(1).backward, mg.GradStore())


def test_without_requires_grad() -> None:
    with mg.no_grad():
        y = (leaf(3) * 2).sum()
    raises(RuntimeError, "no_grad or detached", lambda: y.backward())


def test_nan_and_inf_pass_without_warnings() -> None:
    x = mg.tensor([0.0, -1.0, np.inf], requires_grad=True)
    large = mg.tensor([3e38, 3e38, 3e38])
    grad = ((x.log() + x).sum() * large).sum().backward()[x]  # backward overflows
    assert not np.isfinite(grad.numpy()).any()


def test_saved_arrays_are_released_as_backward_goes() -> None:
    x = leaf(10)
    alive: list[int] = []

    class Probe(Function):
        """The identity, that counts the arrays still saved when its backward runs."""

        def forward(self, x):
            return x * 1

        def backward(self, dy):
            alive.append(sum(r() is not None for r in saved))
            return dy

    y, saved = x, []
    for _ in range(6):
        y = Probe.apply(y).exp()
        saved.append(weakref.ref(y.node.saved[0]))
    loss = y.sum()
    del y
    loss.backward()
    assert alive == [5, 4, 3, 2, 1, 0]
    assert loss.node is not None


def test_the_graph_is_freed_with_its_root_and_without_the_collector() -> None:
    x = leaf(3)
    gc.collect()
    gc.disable()
    try:
        y = x.exp()
        node, array = weakref.ref(y), weakref.ref(y.node.saved[0])
        loss = (y * y).sum()
        del y
        assert node() is None and array() is not None
        del loss
        assert array() is None
    finally:
        gc.enable()


def test_backward_in_several_threads_at_once() -> None:
    shared = leaf(20, 20)  # a weight that all graphs have in common

    def grads_of(seed: int) -> np.ndarray:
        x = mg.tensor(np.random.default_rng(seed).standard_normal((8, 20)))
        y = x
        for _ in range(4):
            y = (y @ shared).tanh() + y
        grad: np.ndarray = (y * y).mean().backward()[shared].numpy()
        return grad

    alone = [grads_of(i) for i in range(6)]
    found = outcomes(range(6), lambda i: [grads_of(i) for _ in range(10)])
    for want, grads in zip(alone, good([*found.values()]), strict=True):
        for grad in grads:
            np.testing.assert_array_equal(grad, want)


def test_one_retained_graph_in_several_threads() -> None:
    x = leaf(50)
    loss = (x.exp() * x).sum() + (x + x).sum()
    want = loss.backward(retain_graph=True)[x].numpy()
    found = outcomes(range(4), lambda _: [loss.backward(retain_graph=True)[x].numpy() for _ in range(30)])
    for grads in good([*found.values()]):
        assert all(np.array_equal(grad, want) for grad in grads)


SET = partial(mg.set_grad_enabled, False), partial(mg.set_grad_enabled, True)


@pytest.mark.parametrize(("off", "on"), [(mg.no_grad, mg.enable_grad), SET], ids=["no_grad", "set_grad_enabled"])
def test_modes_nest(off, on) -> None:
    x = leaf(2)
    assert mg.is_grad_enabled()
    with off():
        assert not (x * 2).requires_grad
        with on():
            assert (x * 2).requires_grad
            with off():
                assert not mg.is_grad_enabled()
            assert mg.is_grad_enabled()
        assert not mg.is_grad_enabled()
    assert (x * 2).requires_grad


def test_modes_are_restored_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), mg.no_grad():
        raise ZeroDivisionError
    assert mg.is_grad_enabled()


def test_an_instance_can_be_nested_and_reused() -> None:
    mode = mg.no_grad()
    with mode, mg.enable_grad(), mode:
        assert not mg.is_grad_enabled()
    assert mg.is_grad_enabled()


def test_modes_as_decorators() -> None:
    @mg.no_grad()
    def without(x: mg.Tensor, *, depth: int) -> bool:
        """Doc."""
        return without(x, depth=depth - 1) if depth else (x * 2).requires_grad

    @mg.enable_grad()
    def with_grad(x: mg.Tensor) -> bool:
        return (x * 2).requires_grad

    x = leaf(2)
    assert without.__name__ == "without" and without.__doc__ == "Doc."
    assert without(x, depth=3) is False
    with mg.no_grad():
        assert with_grad(x) is True
    assert mg.is_grad_enabled()


def test_generator_and_coroutine_functions_are_refused() -> None:
    def generator():
        yield 1

    async def coroutine() -> None: ...

    for fn in (generator, coroutine):
        raises(TypeError, "generator or coroutine", mg.no_grad(), fn)


def test_each_thread_has_its_own_mode() -> None:
    x = leaf(2)
    with mg.no_grad():
        assert outcomes([0], lambda _: (x * 2).requires_grad) == {0: True}

    def without(_: int) -> bool:
        mg.set_grad_enabled(False)
        return (x * 2).requires_grad

    assert outcomes([0], without) == {0: False} and mg.is_grad_enabled()


def test_set_grad_enabled_acts_at_once() -> None:
    try:
        mg.set_grad_enabled(False)
        assert not mg.is_grad_enabled()
    finally:
        mg.set_grad_enabled(True)
    decorated = mg.set_grad_enabled(False)(lambda: (leaf(2) * 2).requires_grad)
    assert mg.is_grad_enabled() and not decorated() and mg.is_grad_enabled()
