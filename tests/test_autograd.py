"""The engine: graphs of every shape, ownership of gradients, errors, modes, hooks, memory."""

from __future__ import annotations

import gc
import itertools
import pickle
import threading
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest

import minigrad as mg
from minigrad import Function, Tensor, nn
from minigrad.autograd import TensorCore
from minigrad.device import Device
from minigrad.engine import reachable
from minigrad.nn import functional as F


class Cube(Function):
    """y = x^3;  dx = 3 x^2 dy."""

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return x * x * x

    def backward(self, dy: Any) -> Any:
        (x,) = self.saved
        return 3 * x * x * dy


def leaf(*shape: int, seed: int = 0, dtype: Any = np.float64) -> Tensor:
    rng = np.random.default_rng(seed)
    return Tensor(np.asarray(rng.standard_normal(shape), dtype), requires_grad=True)


def nodes_alive() -> int:
    gc.collect()
    # By type: isinstance would ask every object for its class, and some answer with a warning.
    return sum(issubclass(type(o), Function) for o in gc.get_objects())


# ---------------------------------------------------------------------- shapes of graphs


def test_a_chain_of_100_000_operations() -> None:
    x = mg.tensor(2.0, requires_grad=True)
    y = x
    for _ in range(100_000):
        y = y + 1.0
    assert y.item() == 100_002
    assert y.backward()[x].item() == 1


def test_a_long_chain_is_dropped_without_backward() -> None:
    x = mg.tensor(2.0, requires_grad=True)
    y = x
    for _ in range(100_000):
        y = -y
    oldest = weakref.ref(x)
    del x, y  # frees node after node: must not recurse
    assert oldest() is None


def test_a_chain_of_saving_operations_is_freed_and_differentiated() -> None:
    x = mg.tensor(1.0, dtype="float64", requires_grad=True)
    y = x
    for _ in range(20_000):
        y = y * 1.0001
    grad = y.backward()[x].item()
    assert grad == pytest.approx(1.0001**20_000, rel=1e-10)


def test_diamonds_are_walked_once_per_node() -> None:
    """2^200 paths, 400 nodes."""
    x = mg.tensor(1.0, dtype="float64", requires_grad=True)
    y = x
    for _ in range(200):
        y = y * 0.5 + y * 0.5
    assert y.backward()[x].item() == 1


def test_nested_diamond_against_the_formula() -> None:
    x = leaf(5)
    a = x * x
    b = a * x
    y = (a * b + b / (a + 1)).sum()
    v = x.detach().numpy()
    want = 5 * v**4 + (3 * v**2 * (v**2 + 1) - v**3 * 2 * v) / (v**2 + 1) ** 2
    np.testing.assert_allclose(y.backward()[x].numpy(), want, rtol=1e-12)


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


def test_an_input_that_needs_no_gradient_gets_none() -> None:
    x, constant = leaf(3), mg.ones(3, dtype="float64")
    grads = (x * constant + constant).sum().backward()
    assert x in grads and constant not in grads and len(grads) == 1


def test_only_leaves_have_gradients() -> None:
    x = leaf(3)
    y = x * 2
    grads = (y * y).sum().backward()
    assert grads.keys() == [x.id]
    with pytest.raises(KeyError, match="is not a leaf"):
        grads[y]


def test_a_leaf_that_the_loss_does_not_depend_on() -> None:
    x, other = leaf(3), leaf(3)
    unused = other * x  # recorded, but above the loss, not below it
    grads = (x * 1).sum().backward()
    assert other not in grads and unused.requires_grad


def test_backward_of_a_leaf_is_the_seed_in_its_own_memory() -> None:
    x = mg.tensor(3.0, requires_grad=True)
    seed = mg.tensor(5.0)
    grad = x.backward(seed)[x]
    assert grad.item() == 5
    grad.fill_(0)
    assert seed.item() == 5


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((), (3, 4)),
        ((1,), (3, 4)),
        ((4,), (3, 4)),
        ((3, 1), (1, 4)),
        ((2, 1, 4), (3, 1)),
        ((1, 1), ()),
        ((), ()),
        ((0, 3), (1, 3)),
        ((0,), ()),
    ],
)
def test_gradients_are_summed_back_over_broadcast_dimensions(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = leaf(*a), leaf(*b, seed=1)
    z = x * y
    dz = np.random.default_rng(2).standard_normal(z.shape)
    grads = z.backward(Tensor(dz))
    for p, other in ((x, y), (y, x)):
        full = dz * np.broadcast_to(other.detach().numpy(), z.shape)
        extra = z.ndim - p.ndim
        axes = (*range(extra), *(extra + i for i, n in enumerate(p.shape) if n == 1 and z.shape[extra + i] != 1))
        want = full.sum(axis=axes).reshape(p.shape)
        assert grads[p].shape == p.shape and grads[p].dtype == p.dtype
        np.testing.assert_allclose(grads[p].numpy(), want, rtol=1e-13, atol=1e-13)


def test_gradients_have_the_dtype_of_their_leaf() -> None:
    x, y = leaf(3, dtype=np.float32), leaf(3, dtype=np.float64)
    z = x * y
    grads = z.sum().backward()
    assert z.dtype == np.float64
    assert grads[x].dtype == np.float32 and grads[y].dtype == np.float64


# ---------------------------------------------------------------------- ownership


class KeptAlone(Function):
    """A constant gradient, kept on the class."""

    GRAD = np.ones(3)

    def forward(self, x: Any) -> Any:
        return x * 1

    def backward(self, dy: Any) -> Any:
        return self.GRAD


class KeptInTuple(Function):
    """The same, in a tuple: nothing but the tuple refers to the array."""

    GRADS = (np.ones(3),)

    def forward(self, x: Any) -> Any:
        return x * 1

    def backward(self, dy: Any) -> Any:
        return self.GRADS


class KeptOnNode(Function):
    """A gradient computed in forward and saved."""

    def forward(self, x: Any) -> Any:
        self.saved = (np.ones(3),)
        return x * 1

    def backward(self, dy: Any) -> Any:
        return self.saved


class Passes(Function):
    """y = a + b with both gradients the array dy itself."""

    def forward(self, a: Any, b: Any) -> Any:
        return a + b

    def backward(self, dy: Any) -> Any:
        return dy, dy


class PassesViews(Function):
    """The same with views of dy."""

    def forward(self, a: Any, b: Any) -> Any:
        return a + b

    def backward(self, dy: Any) -> Any:
        return dy[:], dy.T


class PassesOne(Function):
    """The same with one new array for both."""

    def forward(self, a: Any, b: Any) -> Any:
        return a + b

    def backward(self, dy: Any) -> Any:
        new = dy * 1
        return new, new


@pytest.mark.parametrize("op", [Passes, PassesViews, PassesOne])
@pytest.mark.parametrize("extra_uses", [0, 1, 3])
def test_no_gradient_shares_memory_with_anything(op: type[Function], extra_uses: int) -> None:
    a, b, c = leaf(3), leaf(3, seed=1), leaf(3, seed=2)
    constant, seed = mg.tensor(np.arange(3.0)), mg.tensor(np.array([1.0, 2.0, 3.0]))
    y = op.apply(op.apply(a, b), c)
    for _ in range(extra_uses):
        y = y + a + (b * constant)
    grads = y.backward(seed)
    others = [t.data for t in (a, b, c, constant, seed, y)]
    found = {p: grads[p].data for p in (a, b, c)}
    before = [array.copy() for array in others]
    for p, array in found.items():
        rest = {q: grads[q].data.copy() for q in found if q is not p}
        grads[p].mul_(0).add_(77)
        for q, kept in rest.items():
            np.testing.assert_array_equal(grads[q].data, kept)
        assert not any(np.shares_memory(array, other) for other in others)
        assert array.flags.c_contiguous
    for array, kept in zip(others, before, strict=True):
        np.testing.assert_array_equal(array, kept)


@pytest.mark.parametrize("op", [KeptAlone, KeptInTuple, KeptOnNode])
def test_what_an_op_keeps_is_never_written_to(op: Any) -> None:
    x = leaf(3)
    y, z = op.apply(x), op.apply(x)
    loss = (y + z + y).sum()
    for _ in range(2):
        np.testing.assert_array_equal(loss.backward(retain_graph=True)[x].numpy(), np.full(3, 2.0))
    loss.backward(retain_graph=True)[x].fill_(9)
    np.testing.assert_array_equal(loss.backward()[x].numpy(), np.full(3, 2.0))
    np.testing.assert_array_equal(KeptAlone.GRAD, np.ones(3))
    np.testing.assert_array_equal(KeptInTuple.GRADS[0], np.ones(3))


def test_gradient_through_views_owns_its_memory() -> None:
    x = leaf(2, 3)
    seed = mg.tensor(np.arange(6.0).reshape(3, 2))
    grads = x.T.backward(seed)
    assert grads[x].is_contiguous() and not np.shares_memory(grads[x].data, seed.data)
    np.testing.assert_array_equal(grads[x].numpy(), seed.numpy().T)


def test_gradients_of_a_gpt_share_no_memory() -> None:
    from minigrad.models import GPT2, GPT2Config

    model = GPT2(GPT2Config(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=8))
    tokens = mg.randint(0, 11, (2, 8), generator=mg.Generator(1))
    grads = model.loss(tokens, tokens).backward()
    arrays = [g.data for g in grads.values()] + [p.data for p in model.parameters()]
    spans = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(g.is_contiguous() for g in grads.values())


# ---------------------------------------------------------------------- custom functions


def test_the_cube_of_the_documentation() -> None:
    x = leaf(4)
    assert mg.gradcheck(Cube.apply, [x])
    np.testing.assert_allclose(Cube.apply(x).sum().backward()[x].numpy(), 3 * x.detach().numpy() ** 2)


def test_an_op_with_parameters_and_several_inputs() -> None:
    class ScaledDifference(Function):
        """z = c (x - y);  dx = c dz, dy = -c dz, summed back over broadcast dimensions by autograd."""

        def forward(self, x: Any, y: Any, *, c: float) -> Any:
            self.c = c
            return c * (x - y)

        def backward(self, dz: Any) -> Any:
            return self.c * dz if self.needs[0] else None, -self.c * dz if self.needs[1] else None

    assert mg.gradcheck(lambda x, y: ScaledDifference.apply(x, y, c=3.0), [leaf(2, 3), leaf(3, seed=1)])


def test_numpy_scalars_from_forward_and_backward_become_arrays() -> None:
    class Total(Function):
        """y = sum of x;  dx = dy everywhere."""

        def forward(self, x: Any) -> Any:
            self.saved = (x.shape,)
            return x.sum()  # a NumPy scalar

        def backward(self, dy: Any) -> Any:
            return np.broadcast_to(dy, self.saved[0])  # read-only

    x = leaf(2, 3)
    y = Total.apply(x)
    assert isinstance(y.data, np.ndarray) and y.shape == ()
    grad = (y + y).backward()[x]
    grad.add_(1)
    np.testing.assert_array_equal(grad.numpy(), np.full((2, 3), 3.0))


def test_none_means_zero() -> None:
    class Stops(Function):
        """y = a + b, but no gradient to a."""

        def forward(self, a: Any, b: Any) -> Any:
            return a + b

        def backward(self, dy: Any) -> Any:
            return None, dy

    a, b = leaf(3), leaf(3)
    grads = Stops.apply(a * 2, b).sum().backward()
    assert a not in grads and b in grads
    for stopped in (a, a * 2):  # also a node that no gradient reaches, below which the leaf still becomes final
        grads = (Stops.apply(stopped, b) + a).sum().backward()
        np.testing.assert_array_equal(grads[a].numpy(), np.ones(3))


def _wrong(result: Any) -> type[Function]:
    class Wrong(Function):
        def forward(self, a: Any, b: Any) -> Any:
            return a + b

        def backward(self, dy: Any) -> Any:
            return result(dy)

    return Wrong


@pytest.mark.parametrize("result", [lambda dy: dy, lambda dy: (dy,), lambda dy: (dy, dy, dy), lambda dy: ()])
def test_a_wrong_number_of_gradients(result: Any) -> None:
    with pytest.raises(RuntimeError, match=r"Wrong\.backward returned \d gradients for 2 inputs"):
        _wrong(result).apply(leaf(3), leaf(3)).sum().backward()


@pytest.mark.parametrize("shape", [(2,), (3, 3, 1), ()])
def test_a_gradient_of_the_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match=r"shape .* for input 1 of shape \(3,\)"):
        _wrong(lambda dy: (dy, np.ones(shape))).apply(leaf(3), leaf(3)).sum().backward()


def test_missing_methods_are_named() -> None:
    class Empty(Function):
        pass

    class NoBackward(Function):
        def forward(self, x: Any) -> Any:
            return x * 1

    class NoBackwardInto(NoBackward):
        adds_in_place = True

    with pytest.raises(NotImplementedError, match="Empty has no forward"):
        Empty.apply(leaf(2))
    with pytest.raises(NotImplementedError, match="NoBackward has no backward"):
        NoBackward.apply(leaf(2)).sum().backward()
    with pytest.raises(NotImplementedError, match="NoBackwardInto has no backward_into"):
        NoBackwardInto.apply(leaf(2)).sum().backward()


def test_an_op_that_adds_in_place_meets_gradients_from_elsewhere() -> None:
    class Row(Function):
        """y = x[i];  dx[i] += dy."""

        adds_in_place = True

        def forward(self, x: Any, i: int) -> Any:
            self.i = i
            return x[i].copy()

        def backward_into(self, dy: Any, dx: Any) -> None:
            dx[self.i] += dy

    x = leaf(3, 2)
    outer = mg.tensor(np.full((3, 2), 10.0))
    for before in (True, False):  # the dense gradient arrives before or after the sparse ones
        y = x * 1 if before else None
        rows = Row.apply(x, 0) + Row.apply(x, 2) + Row.apply(x, 2)
        y = x * 1 if y is None else y
        loss = (y * outer).sum() + rows.sum()
        np.testing.assert_array_equal(loss.backward()[x].numpy(), [[11, 11], [10, 10], [12, 12]])
    seed = mg.tensor(np.full((3, 2), 5.0))
    row = Row.apply(x, 1).expand(3, 2)
    total = Passes.apply(Passes.apply(x, x.detach()), row)  # dx is the seed itself: it must be copied, not added to
    np.testing.assert_array_equal(total.backward(seed)[x].numpy(), [[5, 5], [20, 20], [5, 5]])
    np.testing.assert_array_equal(seed.numpy(), np.full((3, 2), 5.0))


def test_apply_without_a_tensor() -> None:
    with pytest.raises(TypeError, match="Cube: expected at least one Tensor"):
        Cube.apply(np.ones(3))


def test_value_errors_of_forward_name_the_op_and_its_inputs() -> None:
    with pytest.raises(ValueError, match=r"(?s)Add: .*\n  inputs: \(2, 3\) float32 on cpu, \(4,\) float32 on cpu"):
        mg.ones(2, 3) + mg.ones(4)


# ---------------------------------------------------------------------- calling backward


def test_retain_graph_gives_the_same_twice() -> None:
    x = leaf(5)
    loss = (x.exp() * x).sum()
    first = loss.backward(retain_graph=True)[x].numpy().copy()
    np.testing.assert_array_equal(loss.backward(retain_graph=True)[x].numpy(), first)
    np.testing.assert_array_equal(loss.backward()[x].numpy(), first)
    with pytest.raises(RuntimeError, match="second time: .*retain_graph=True"):
        loss.backward()


def test_a_freed_graph_says_so_where_it_is_reached() -> None:
    x = leaf(5)
    shared = x.exp()
    shared.sum().backward()
    with pytest.raises(RuntimeError, match="backward through Exp a second time"):
        (shared * 2).sum().backward()


def test_create_graph_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="no higher-order gradients"):
        leaf(2).sum().backward(create_graph=True)


def test_a_gradient_is_needed_for_more_than_one_element() -> None:
    x = leaf(2, 3)
    with pytest.raises(RuntimeError, match=r"shape \(2, 3\): only a scalar.*\.sum\(\)"):
        (x * 2).backward()
    assert (leaf(1, 1) * 2).backward()  # one element is enough
    with pytest.raises(RuntimeError, match=r"shape \(0,\)"):
        (leaf(0) * 2).backward()


@pytest.mark.parametrize("gradient", [mg.ones(3), mg.ones(2, 3, dtype="float32"), mg.ones(()), np.ones((3, 2))])
def test_gradient_must_fit(gradient: Any) -> None:
    with pytest.raises(ValueError, match=r"gradient has shape .* but the tensor has \(2, 3\) and float64"):
        (leaf(2, 3) * 2).backward(gradient)


def test_without_requires_grad() -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        mg.ones(3).sum().backward()
    x = leaf(3)
    with mg.no_grad():
        y = (x * 2).sum()
    with pytest.raises(RuntimeError, match="no_grad or detached"):
        y.backward()


def test_nan_and_inf_pass_without_warnings() -> None:
    x = mg.tensor([0.0, -1.0, np.inf], requires_grad=True)
    large = mg.tensor([3e38, 3e38, 3e38])
    grad = ((x.log() + x).sum() * large).sum().backward()[x]  # backward overflows
    assert not np.isfinite(grad.numpy()).any()


# ---------------------------------------------------------------------- modes


def test_no_grad_and_enable_grad_nest() -> None:
    x = leaf(2)
    assert mg.is_grad_enabled()
    with mg.no_grad():
        assert not (x * 2).requires_grad
        with mg.enable_grad():
            assert (x * 2).requires_grad
            with mg.no_grad():
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
    def without(x: Tensor, *, depth: int) -> bool:
        """Doc."""
        return without(x, depth=depth - 1) if depth else (x * 2).requires_grad

    @mg.enable_grad()
    def with_grad(x: Tensor) -> bool:
        return (x * 2).requires_grad

    x = leaf(2)
    assert without.__name__ == "without" and without.__doc__ == "Doc."
    assert without(x, depth=3) is False
    with mg.no_grad():
        assert with_grad(x) is True
    assert mg.is_grad_enabled()


def test_generator_and_coroutine_functions_are_refused() -> None:
    def generator() -> Any:
        yield 1

    async def coroutine() -> None: ...

    for fn in (generator, coroutine):
        with pytest.raises(TypeError, match="generator or coroutine"):
            mg.no_grad()(fn)


def test_each_thread_has_its_own_mode() -> None:
    x = leaf(2)
    inside, checked = threading.Event(), threading.Event()
    seen = {}

    def work() -> None:
        seen["start"] = mg.is_grad_enabled()
        with mg.no_grad():
            inside.set()
            checked.wait(10)
            seen["inside"] = (x * 2).requires_grad

    thread = threading.Thread(target=work)
    with mg.no_grad():
        thread.start()
        assert inside.wait(10)
    seen["here"] = (x * 2).requires_grad
    checked.set()
    thread.join()
    assert seen == {"start": True, "inside": False, "here": True}


# ---------------------------------------------------------------------- detach, clone, requires_grad_


def test_detach_shares_memory_and_stops_gradients() -> None:
    x = leaf(3)
    d = x.detach()
    assert d.is_leaf and not d.requires_grad and np.shares_memory(d.data, x.data) and d.id != x.id
    grads = (x * d).sum().backward()
    np.testing.assert_array_equal(grads[x].numpy(), d.numpy())
    version = x.version
    d.add_(1)
    assert x.version == version + 1


def test_clone_copies_and_passes_gradients() -> None:
    x = leaf(3)
    y = x.clone()
    assert not np.shares_memory(x.data, y.data) and not y.is_leaf
    np.testing.assert_array_equal((y * 3).sum().backward()[x].numpy(), np.full(3, 3.0))


def test_requires_grad_errors() -> None:
    with pytest.raises(RuntimeError, match="int64"):
        mg.arange(3).requires_grad_()
    with pytest.raises(RuntimeError, match="only floating"):
        mg.tensor([True], requires_grad=True)
    with pytest.raises(RuntimeError, match=r"\.detach\(\)"):
        (leaf(3) * 2).requires_grad_(False)
    x = leaf(3).requires_grad_(False)
    assert not (x * 2).requires_grad


def test_operations_without_a_derivative_do_not_require_grad() -> None:
    x = leaf(3)
    for y in (x > 0, x.argmax(), x.long(), x // 2, x.isnan()):
        assert not y.requires_grad and y.is_leaf


def test_non_tensors_and_pickles() -> None:
    with pytest.raises(TypeError, match="not pickled.*save_safetensors"):
        pickle.dumps([leaf(2)])
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(nn.Linear(2, 2))


def test_mixed_devices_are_refused_before_any_kernel_runs() -> None:
    elsewhere = Tensor.wrap(np.ones(3), Device("cuda"))  # naming the device needs no GPU
    with pytest.raises(RuntimeError, match=r"(?s)Add: inputs are on different devices.*on cpu, .*on cuda:0"):
        leaf(3) + elsewhere
    with pytest.raises(RuntimeError, match="different devices"):
        mg.cat([leaf(3), elsewhere])


# ---------------------------------------------------------------------- in-place changes


def test_a_changed_saved_input_is_noticed() -> None:
    x, w = leaf(3), mg.ones(3, dtype="float64")
    y = (x * w).sum()
    w.add_(1)
    with pytest.raises(RuntimeError, match=r"that Mul needs .* changed in place .*version 1.*\.clone"):
        y.backward()


def test_a_changed_saved_output_is_noticed() -> None:
    x = leaf(3)
    y = x.exp()
    z = y.sum()
    y.detach().mul_(2)
    with pytest.raises(RuntimeError, match="Exp"):
        z.backward()


@pytest.mark.parametrize(
    "view", [lambda w: w[0], lambda w: w.T, lambda w: w.reshape(6), lambda w: w[:, 1:][0], lambda w: w.detach()]
)
def test_a_change_through_a_view_is_noticed(view: Any) -> None:
    x, w = leaf(2, 3), mg.ones(2, 3, dtype="float64")
    part = view(w)
    y = (x * w).sum()
    part.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


def test_a_change_of_the_base_of_a_saved_view_is_noticed() -> None:
    x, w = leaf(3), mg.ones(2, 3, dtype="float64")
    y = (x * w[0]).sum()
    w.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


def test_changes_before_the_operation_and_of_unsaved_tensors_are_allowed() -> None:
    x, w = leaf(3), mg.ones(3, dtype="float64")
    w.add_(1)
    y = x * w
    z = (y + w * 1).sum()  # Add saves nothing; neither is y saved
    y.detach().add_(5)
    np.testing.assert_array_equal(z.backward()[x].numpy(), np.full(3, 2.0))
    a = w.clone()
    total = (x + a).sum()
    a.zero_()
    assert total.backward()


def test_changing_a_copy_is_allowed() -> None:
    x, w = leaf(3), mg.ones(3, dtype="float64")
    y = (x * w).sum()
    w.clone().zero_()
    assert y.backward()


def test_an_optimizer_step_between_forward_and_backward_is_noticed() -> None:
    layer = nn.Linear(3, 3)
    loss = layer(layer(mg.ones(1, 3))).sum()
    grads = layer(mg.ones(1, 3)).sum().backward()
    mg.optim.AdamW(layer.parameters(), lr=0.1).step(grads)
    with pytest.raises(RuntimeError, match="that Linear needs"):
        loss.backward()


def test_indices_and_class_weights_may_change_after_forward() -> None:
    x, index = leaf(4), mg.tensor([0, 1])
    array, mask = np.array([3, 3]), mg.tensor([True, False, True, False])
    y = x[index].sum() + x[array].sum() + x[mask].sum()
    index.add_(1)
    array[:] = 0
    mask.fill_(True)
    np.testing.assert_array_equal(y.backward()[x].numpy(), [2, 1, 1, 2])

    logits, weight = leaf(2, 3), mg.ones(3, dtype="float64")
    loss = F.cross_entropy(logits, mg.tensor([0, 1]), weight)
    first = loss.backward(retain_graph=True)[logits].numpy().copy()
    weight.mul_(100)
    np.testing.assert_array_equal(loss.backward()[logits].numpy(), first)


# ---------------------------------------------------------------------- hooks


class Recorder:
    """Keeps the calls; ``fail_at`` raises at that call."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.calls: list[tuple[mg.TensorId, Tensor, np.ndarray]] = []
        self.fail_at = fail_at

    def on_leaf_grad_ready(self, id: mg.TensorId, grad: Tensor) -> None:
        if len(self.calls) == self.fail_at:
            raise KeyboardInterrupt("stop")
        self.calls.append((id, grad, grad.numpy().copy()))


def test_each_leaf_is_reported_once_with_its_final_gradient() -> None:
    a, b, c = leaf(3), leaf(3, seed=1), leaf(3, seed=2)
    y = a * b + a * c + a + b[0]
    hook = Recorder()
    grads = (y * a).sum().backward(hook=hook)
    assert sorted(id for id, _, _ in hook.calls) == sorted([a.id, b.id, c.id])
    assert all(isinstance(id, mg.TensorId) for id, _, _ in hook.calls)
    for id, grad, seen in hook.calls:
        assert grads[id] is grad
        np.testing.assert_array_equal(grad.numpy(), seen)
    assert grads.keys() == [id for id, _, _ in hook.calls]


def test_leaves_used_late_are_reported_early() -> None:
    layers = [nn.Linear(4, 4) for _ in range(5)]
    x = mg.ones(2, 4)
    for layer in layers:
        x = layer(x).tanh()

    class Progress(Recorder):
        """Also: how many Tanh nodes had been freed at each call, so that the calls do not all come at the end."""

        def on_leaf_grad_ready(self, id: mg.TensorId, grad: Tensor) -> None:
            super().on_leaf_grad_ready(id, grad)
            done.append(sum(r() is None for r in activations))

    activations = []
    y = x
    hook, done = Progress(), []
    for node in _walk(y.sum()):
        if type(node).__name__ == "Tanh":
            activations.append(weakref.ref(node.saved[0]))
    del node, x
    loss = y.sum()
    del y
    loss.backward(hook=hook)
    ids = [id for id, _, _ in hook.calls]
    want = [{p.id for p in layer.parameters()} for layer in reversed(layers)]
    assert [set(ids[i : i + 2]) for i in range(0, 10, 2)] == want
    assert done == sorted(done) and done[1] <= 2 and done[-1] >= 4


def _walk(root: Tensor) -> list[Function]:
    return reachable(root.node)[0]


def test_a_leaf_used_early_and_late_is_reported_after_its_last_use() -> None:
    tied, middle = leaf(3), leaf(3, seed=1)
    hook = Recorder()
    ((tied * middle).exp() * tied).sum().backward(hook=hook)
    assert [id for id, _, _ in hook.calls][-1] in (tied.id, middle.id)
    assert len(hook.calls) == 2
    x = tied * 2
    hook = Recorder()
    ((x * middle) * tied).sum().backward(hook=hook)
    assert [id for id, _, _ in hook.calls] == [middle.id, tied.id]


def test_a_leaf_as_root_is_reported() -> None:
    x = mg.tensor(1.0, requires_grad=True)
    hook = Recorder()
    x.backward(hook=hook)
    assert len(hook.calls) == 1


def test_an_exception_in_a_hook_propagates_and_breaks_nothing() -> None:
    layers = [nn.Linear(3, 3) for _ in range(3)]
    x = mg.ones(1, 3)
    for layer in layers:
        x = layer(x).tanh()
    loss = x.sum()
    for fail_at in range(6):
        with pytest.raises(KeyboardInterrupt):
            loss.backward(hook=Recorder(fail_at), retain_graph=True)
    hook = Recorder()
    again = loss.backward(hook=hook)
    assert len(hook.calls) == len(again) == 6
    assert mg.is_grad_enabled()


# ---------------------------------------------------------------------- memory


def test_saved_arrays_are_released_as_backward_goes() -> None:
    x = leaf(10)
    alive: list[int] = []

    class Probe(Function):
        """The identity, that counts the arrays still saved when its backward runs."""

        def forward(self, x: Any) -> Any:
            return x * 1

        def backward(self, dy: Any) -> Any:
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


def test_memory_plateaus_over_1000_steps() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    optimizer = mg.optim.AdamW(model.parameters(), lr=1e-3)
    x, targets = mg.randn(6, 8, generator=mg.Generator(0)), mg.tensor([0, 1, 2, 3, 0, 1])

    def steps(n: int) -> None:
        for _ in range(n):
            optimizer.step(F.cross_entropy(model(x), targets).backward())

    steps(20)
    gc.collect()
    objects = len(gc.get_objects())
    tracemalloc.start()
    try:
        steps(500)
        gc.collect()
        first = tracemalloc.get_traced_memory()[0]
        steps(1000)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - first < 5_000  # less than 5 bytes a step: nothing per step
    finally:
        tracemalloc.stop()
    gc.collect()
    assert abs(len(gc.get_objects()) - objects) < 100


def test_10_000_failing_backwards_leak_nothing() -> None:
    class Breaks(Function):
        """The identity, whose backward raises."""

        def forward(self, x: Any) -> Any:
            return x * 1

        def backward(self, dy: Any) -> Any:
            raise ArithmeticError("broken")

    x = leaf(4)
    nodes_before = nodes_alive()
    for step in range(10_000):
        y = Breaks.apply(x.exp() * x)
        loss = (y * y).sum()
        try:
            loss.backward()
        except ArithmeticError:
            pass
        else:
            pytest.fail("the error was lost")
        if step == 100:
            objects = len(gc.get_objects())
    del y, loss
    assert nodes_alive() == nodes_before
    assert abs(len(gc.get_objects()) - objects) < 100
    np.testing.assert_array_equal((x * 2).sum().backward()[x].numpy(), np.full(4, 2.0))


# ---------------------------------------------------------------------- threads


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
    results: dict[tuple[int, int], np.ndarray] = {}
    barrier = threading.Barrier(6)

    def work(i: int) -> None:
        barrier.wait()
        for repeat in range(10):
            results[i, repeat] = grads_of(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 60
    for (i, _), grad in results.items():
        np.testing.assert_array_equal(grad, alone[i])


def test_one_retained_graph_in_several_threads() -> None:
    x = leaf(50)
    loss = (x.exp() * x).sum() + (x + x).sum()
    want = loss.backward(retain_graph=True)[x].numpy()
    found = []

    def work() -> None:
        for _ in range(30):
            found.append(loss.backward(retain_graph=True)[x].numpy())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 120
    assert all(np.array_equal(grad, want) for grad in found)


def test_apply_returns_tensors_not_cores() -> None:
    assert type(Cube.apply(leaf(2))) is Tensor
    assert TensorCore.tensor_type is Tensor


def test_forward_must_return_one_array() -> None:
    class Two(Function):
        def forward(self, x: Any) -> Any:
            return x, x

    with pytest.raises(TypeError, match=r"Two.forward returned a tuple; expected one array"):
        Two.apply(mg.ones(3))


def test_set_grad_enabled():
    x = mg.ones(2, requires_grad=True)
    assert mg.is_grad_enabled()
    with mg.set_grad_enabled(False):
        assert not (x * 2).requires_grad
        with mg.set_grad_enabled(True):
            assert (x * 2).requires_grad
        assert not mg.is_grad_enabled()
    assert mg.is_grad_enabled()
    try:
        mg.set_grad_enabled(False)
        assert not mg.is_grad_enabled()
    finally:
        mg.set_grad_enabled(True)
    decorated = mg.set_grad_enabled(False)(lambda: (x * 2).requires_grad)
    assert mg.is_grad_enabled() and not decorated() and mg.is_grad_enabled()


def test_a_result_without_a_graph_has_one_version_for_all() -> None:
    p, x = Tensor([2.0], requires_grad=True), Tensor([3.0])
    with mg.no_grad():
        results = [x + x, p * x, x.exp()]
    for y in results:
        assert y.version == 0 and y.node is None and not y.requires_grad
        first, second = (y * p).sum(), (y.detach() * p).sum()
        y.add_(1.0)
        for loss in (first, second):
            with pytest.raises(RuntimeError, match="Mul needs .* changed in place"):
                loss.backward()
