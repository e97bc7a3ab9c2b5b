"""detach, clone, requires_grad_, and what has no gradient."""

import pickle

import numpy as np
from graph_cases import leaf
from refusals import raises

import minigrad as mg
from minigrad import Tensor, nn


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
    raises(TypeError, "not pickled.*save_safetensors", lambda: pickle.dumps([leaf(2)]))
    raises(TypeError, "not pickled", lambda: pickle.dumps(nn.Linear(2, 2)))


def test_mixed_devices_are_refused_before_any_kernel_runs() -> None:
    other = Tensor.wrap(np.ones(3), mg.Device("cuda"))  # naming the device needs no GPU
    raises(RuntimeError, r"(?s)a . b: inputs are on different devices.*on cpu, .*on cuda:0", lambda: leaf(3) + other)
    raises(RuntimeError, "different devices", lambda: mg.cat([leaf(3), other]))
