"""Activations as modules: PyTorch's values, gradients, options and reprs of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import raises

import minigrad as mg
from minigrad import nn
from minigrad.nn import functional as F

torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")

CASES: list[tuple[str, tuple[Any, ...]]] = [
    *((name, ()) for name in ("SELU", "Mish", "LogSigmoid", "ReLU6", "Hardswish", "Hardtanh", "GLU", "ELU", "GELU")),
    *((name, ()) for name in ("ReLU", "LeakyReLU", "SiLU", "Sigmoid", "Tanh", "Softplus")),
    ("Hardtanh", (-0.5, 0.25)),
    ("GLU", (0,)),
    ("LeakyReLU", (0.2,)),
    ("ELU", (0.7,)),
    ("GELU", ("tanh",)),
    ("Softmax", (0,)),
    ("LogSoftmax", (-1,)),
    ("Softplus", (2.0, 3.0)),
    ("Unflatten", (1, (2, -1))),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_pytorchs_activation(name: str, options: tuple[Any, ...]) -> None:
    array = np.concatenate(
        [np.random.default_rng(0).standard_normal((4, 5)) * 4, [[-1, 0, 1, 6, -3], [3, -6, 20, 30, 2]]]
    )
    array = np.concatenate([array, array[:, :1]], 1)  # (6, 6)
    x, z = mg.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
    layer = getattr(nn, name)(*options)
    y, w = layer(x), getattr(torch.nn, name)(*options)(z)
    np.testing.assert_allclose(y.detach().numpy(), w.detach().numpy(), rtol=1e-7, atol=1e-12)
    weight = 1 + np.arange(y.numel(), dtype=float).reshape(y.shape)
    (w * torch.tensor(weight)).sum().backward()
    grads = (y * mg.tensor(weight)).sum().backward()
    np.testing.assert_allclose(grads[x].numpy(), z.grad.numpy(), rtol=1e-6, atol=1e-9)
    assert not layer.state_dict() and repr(layer).startswith(f"{name}(")
    assert all(str(option) in repr(layer) for option in options)


def test_glu_of_an_odd_size_and_of_integers() -> None:
    raises(ValueError, r"glu of shape \(2, 3\): expected an even size of dim -1", lambda: F.glu(mg.ones(2, 3)))
    raises(TypeError, "glu", lambda: F.glu(mg.tensor([1, 2])))
    assert F.glu(mg.ones(2, 4, dtype=mg.bfloat16)).dtype == mg.bfloat16
