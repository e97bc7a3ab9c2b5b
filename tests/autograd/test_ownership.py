"""Whose memory a gradient is; what detach and clone share; changes of memory that a graph still needs."""

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from graph_cases import Passes, leaf
from refusals import raises

import minigrad as mg
from minigrad import Tensor, nn
from minigrad.nn import functional as F


class Kept(mg.Function):
    """y = x with a constant gradient, kept on the class."""

    GRAD: Any = np.ones(3)

    def forward(self, x: Any) -> Any:
        return x * 1

    def backward(self, dy: Any) -> Any:
        return self.GRAD


class KeptInTuple(Kept):
    """The same, in a tuple: nothing but the tuple refers to the array."""

    GRAD: Any = (np.ones(3),)


class KeptInBuffer(Kept):
    """The same, by an array whose base is none."""

    def backward(self, dy: Any) -> Any:
        return np.frombuffer(memoryview(self.GRAD))


class KeptOnNode(Kept):
    """A gradient computed in forward and saved."""

    def forward(self, x: Any) -> Any:
        self.saved = self.GRAD = (np.ones(3),)
        return x * 1


class PassesViews(Passes):
    """The same with views of dy."""

    def backward(self, dy: Any) -> Any:
        return dy[:], dy.T


class PassesOne(Passes):
    """The same with one new array for both."""

    def backward(self, dy: Any) -> Any:
        new = dy * 1
        return new, new


@pytest.mark.parametrize("op", [Passes, PassesViews, PassesOne])
@pytest.mark.parametrize("extra_uses", [0, 1, 3])
def test_no_gradient_shares_memory_with_anything(op: type[mg.Function], extra_uses: int) -> None:
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


@pytest.mark.parametrize("op", [Kept, KeptInTuple, KeptInBuffer, KeptOnNode])
def test_what_an_op_keeps_is_never_written_to(op: Any) -> None:
    x = leaf(3)
    y, z = op.apply(x), op.apply(x)
    loss = (y + z + y).sum()
    for _ in range(2):
        np.testing.assert_array_equal(loss.backward(retain_graph=True)[x].numpy(), np.full(3, 2.0))
    loss.backward(retain_graph=True)[x].fill_(9)
    np.testing.assert_array_equal(loss.backward()[x].numpy(), np.full(3, 2.0))
    np.testing.assert_array_equal(Kept.GRAD, np.ones(3))
    np.testing.assert_array_equal(KeptInTuple.GRAD[0], np.ones(3))


def test_gradient_through_views_owns_its_memory() -> None:
    x = leaf(2, 3)
    seed = mg.tensor(np.arange(6.0).reshape(3, 2))
    grads = x.T.backward(seed)
    assert grads[x].is_contiguous() and not np.shares_memory(grads[x].data, seed.data)
    np.testing.assert_array_equal(grads[x].numpy(), seed.numpy().T)


@pytest.mark.long
def test_gradients_of_a_gpt_share_no_memory() -> None:
    from minigrad.models import GPT2, GPT2Config

    model = GPT2(GPT2Config(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=8))
    tokens = mg.randint(0, 11, (2, 8), generator=mg.Generator(1))
    grads = model.loss(tokens, tokens).backward()
    arrays = [g.data for g in grads.values()] + [p.data for p in model.parameters()]
    spans = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(g.is_contiguous() for g in grads.values())


def test_detach_shares_memory_and_stops_gradients() -> None:
    x = leaf(3)
    d = x.detach()
    assert d.is_leaf and not d.requires_grad and np.shares_memory(d.data, x.data) and d.id != x.id
    np.testing.assert_array_equal((x * d).sum().backward()[x].numpy(), d.numpy())
    version = x.version
    d.add_(1)
    assert x.version == version + 1


def test_clone_copies_and_passes_gradients() -> None:
    x = leaf(3)
    y = x.clone()
    assert not np.shares_memory(x.data, y.data) and not y.is_leaf
    np.testing.assert_array_equal((y * 3).sum().backward()[x].numpy(), np.full(3, 3.0))


def test_requires_grad_errors() -> None:
    raises(RuntimeError, "int64", lambda: mg.arange(3).requires_grad_())
    raises(RuntimeError, "only floating", lambda: mg.tensor([True], requires_grad=True))
    raises(RuntimeError, r"\.detach\(\)", lambda: (leaf(3) * 2).requires_grad_(False))
    assert not (leaf(3).requires_grad_(False) * 2).requires_grad


def test_operations_without_a_derivative_do_not_require_grad() -> None:
    x = leaf(3)
    for y in (x > 0, x.argmax(), x.long(), x // 2, x.isnan()):
        assert not y.requires_grad and y.is_leaf


def test_non_tensors_and_pickles() -> None:
    raises(TypeError, "not pickled.*use minigrad.save", lambda: pickle.dumps([leaf(2)]))
    raises(TypeError, "not pickled", lambda: pickle.dumps(nn.Linear(2, 2)))


def test_mixed_devices_are_refused_before_any_kernel_runs() -> None:
    other = Tensor.wrap(np.ones(3), mg.Device("cuda"))  # naming the device needs no GPU
    raises(RuntimeError, r"(?s)a . b: inputs are on different devices.*on cpu, .*on cuda:0", lambda: leaf(3) + other)
    raises(RuntimeError, "different devices", lambda: mg.cat([leaf(3), other]))


VIEWS = [lambda w: w[0], lambda w: w.T, lambda w: w.reshape(6), lambda w: w[:, 1:][0], lambda w: w.detach()]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("saved", ["base", "view"])
def test_a_change_through_a_view_or_of_its_base_is_noticed(view, saved: str) -> None:
    w = mg.ones(2, 3, dtype="float64")
    part = view(w)
    needed, changed = (w, part) if saved == "base" else (part, w)
    y = (leaf(*needed.shape) * needed).sum()
    changed.zero_()
    raises(RuntimeError, "changed in place", lambda: y.backward())


def test_changes_before_the_operation_and_of_unsaved_tensors_are_allowed() -> None:
    x, w = leaf(3), mg.ones(3, dtype="float64")
    w.add_(1)
    y = x * w
    z = (y + w * 1).sum()  # Add saves nothing; neither is y saved
    y.detach().add_(5)
    np.testing.assert_array_equal(z.backward()[x].numpy(), np.full(3, 2.0))
    a = w.clone()
    total = (x * w).sum() + (x + a).sum()
    a.zero_()
    assert total.backward()


def test_an_optimizer_step_between_forward_and_backward_is_noticed() -> None:
    layer = nn.Linear(3, 3)
    loss = layer(layer(mg.ones(1, 3))).sum()
    grads = layer(mg.ones(1, 3)).sum().backward()
    mg.optim.AdamW(layer.parameters(), lr=0.1).step(grads)
    raises(RuntimeError, "that Linear needs", lambda: loss.backward())


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


def test_a_result_without_a_graph_has_one_version_for_all() -> None:
    p, x = Tensor([2.0], requires_grad=True), Tensor([3.0])
    with mg.no_grad():
        results = [x + x, p * x, x.exp()]
    for y in results:
        assert y.version == 0 and y.node is None and not y.requires_grad
        first, second = (y * p).sum(), (y.detach() * p).sum()
        y.add_(1.0)
        for loss in (first, second):
            raises(RuntimeError, "Mul needs .* changed in place", loss.backward)


def test_data_of_a_parameter_takes_a_tensor() -> None:
    p = mg.nn.Parameter([2.0, 3.0])
    p.data = p.data - 0.5 * mg.ones(2)
    assert isinstance(p.data, np.ndarray) and p.tolist() == [1.5, 2.5]


@pytest.mark.compiled  # NumPy takes a tensor for an array
@pytest.mark.parametrize("operation", [lambda w: w + 1, lambda w: w @ w.T, lambda w: F.linear(w, w), Tensor.sum, repr])
def test_data_that_was_set_to_a_tensor_is_named(operation) -> None:
    w = leaf(3, 3)
    w.data = mg.zeros(3, 3)
    raises(TypeError, r"the \.data of a tensor was set to a Tensor.*p\.copy_", operation, w)
    raises(TypeError, r"print: the \.data .* to a list", repr, setattr(w, "data", [1.0]) or w)
    with mg.no_grad():
        raises(AttributeError, r"'flags'; .* p\.copy_", setattr(w, "data", mg.zeros(3, 3)) or w.zero_)
