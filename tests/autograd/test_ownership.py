"""Whose memory a gradient is."""

import itertools
from typing import Any

import numpy as np
import pytest
from graph_cases import Passes, leaf

import minigrad as mg


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


@pytest.mark.parametrize("op", [Kept, KeptInTuple, KeptOnNode])
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
