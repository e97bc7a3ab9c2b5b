"""no_grad, enable_grad, set_grad_enabled."""

from functools import partial

import pytest
from graph_cases import leaf
from in_threads import outcomes
from refusals import raises

import minigrad as mg

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
