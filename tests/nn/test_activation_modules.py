"""Activations as modules: their functions with PyTorch's options, in PyTorch's order."""

import numpy as np
import pytest
from refusals import raises

import minigrad as mg
from minigrad import nn
from minigrad.nn import functional as F

FUNCTIONS = {"LeakyReLU": F.leaky_relu, "LogSoftmax": F.log_softmax}  # whose names differ by more than capitals
CASES = [
    *((name, {}) for name in ("SELU", "Mish", "LogSigmoid", "ReLU6", "Hardswish", "Hardtanh", "GLU", "ELU", "GELU")),
    *((name, {}) for name in ("ReLU", "LeakyReLU", "SiLU", "Sigmoid", "Tanh", "Softplus")),
    ("Hardtanh", {"min_val": -0.5, "max_val": 0.25}),
    ("GLU", {"dim": 0}),
    ("LeakyReLU", {"negative_slope": 0.2}),
    ("ELU", {"alpha": 0.7}),
    ("GELU", {"approximate": "tanh"}),
    ("Softmax", {"dim": 0}),
    ("LogSoftmax", {"dim": -1}),
    ("Softplus", {"beta": 2.0, "threshold": 3.0}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_module_is_its_function(name: str, options) -> None:
    x = mg.tensor(np.random.default_rng(0).standard_normal((6, 6)) * 4)
    layer, function = getattr(nn, name)(*options.values()), FUNCTIONS.get(name) or getattr(F, name.lower())
    np.testing.assert_array_equal(layer(x).numpy(), function(x, **options).numpy())
    assert not layer.state_dict() and repr(layer).startswith(f"{name}(")
    assert all(str(option) in repr(layer) for option in options.values())


@pytest.mark.parametrize("name", ["ReLU", "LeakyReLU", "SiLU", "ELU", "SELU", "Mish", "ReLU6", "Hardswish", "Hardtanh"])
def test_inplace_computes_a_new_tensor(name: str) -> None:
    x = mg.tensor([-1.0, 2.0])
    y = getattr(nn, name)(inplace=True)(x)
    assert x.tolist() == [-1, 2] and y.tolist() == getattr(nn, name)()(x).tolist() != x.tolist()
    assert nn.ReLU(True)(x).tolist() == [0, 2] and nn.Dropout(0.0, True)(x).tolist() == [-1, 2]


def test_glu_of_an_odd_size_and_of_integers() -> None:
    raises(ValueError, r"glu of shape \(2, 3\): expected an even size of dim -1", lambda: F.glu(mg.ones(2, 3)))
    raises(TypeError, "glu", lambda: F.glu(mg.tensor([1, 2])))
    assert F.glu(mg.ones(2, 4, dtype=mg.bfloat16)).dtype == mg.bfloat16
