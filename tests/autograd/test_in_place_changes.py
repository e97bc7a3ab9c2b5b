"""Changes of memory that a graph still needs."""

import numpy as np
import pytest
from graph_cases import leaf
from refusals import raises

import minigrad as mg
from minigrad import Tensor, nn
from minigrad.nn import functional as F

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


@pytest.mark.compiled  # NumPy takes a tensor for an array
@pytest.mark.parametrize("operation", [lambda w: w + 1, lambda w: w @ w.T, lambda w: F.linear(w, w), lambda w: w.sum()])
def test_data_that_was_set_to_a_tensor_is_named(operation) -> None:
    w = leaf(3, 3)
    w.data = mg.zeros(3, 3)
    raises(TypeError, r"the \.data of an input was set to a tensor.*p\.copy_", operation, w)
