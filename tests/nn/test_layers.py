"""Layers: what they compute, how they start, what they refuse."""

import math

import numpy as np
import pytest
from harness import needs_torch, torch
from refusals import raises

import minigrad as mg
from minigrad import Tensor, nn
from minigrad.nn import functional as F


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def double(layer):
    return layer.to(mg.float64)


def test_linear_starts_as_in_pytorch() -> None:
    mg.manual_seed(0)
    layer = nn.Linear(400, 300)
    for p in (layer.weight, layer.bias):
        v, bound = p.detach().numpy(), 1 / math.sqrt(400)
        assert np.abs(v).max() <= bound and np.abs(v).max() > 0.98 * bound
        assert abs(v.std() - bound / math.sqrt(3)) < 0.1 * bound and abs(v.mean()) < 0.1 * bound
    assert layer.weight.shape == (300, 400) and layer.bias.shape == (300,)
    assert nn.Linear(2, 2, bias=False).bias is None and nn.Linear(2, 2, dtype="float64").weight.dtype == np.float64
    assert nn.Linear(0, 2)(mg.zeros(3, 0)).shape == (3, 2)


def test_embedding_starts_standard_normal() -> None:
    mg.manual_seed(0)
    v = nn.Embedding(300, 100).weight.detach().numpy()
    assert abs(v.mean()) < 0.02 and abs(v.std() - 1) < 0.02


@pytest.mark.parametrize("shape", [5, (5,), (4, 5)])
@pytest.mark.parametrize(("affine", "bias"), [(True, True), (True, False), (False, True)])
def test_layer_norm(shape, affine: bool, bias: bool) -> None:
    layer = double(nn.LayerNorm(shape, 1e-5, affine, bias))  # PyTorch's third argument: elementwise_affine
    assert (layer.weight is not None, layer.bias is not None) == (affine, affine and bias)
    x = values(3, 4, 5) * 7 + 100
    axes = tuple(range(-len(layer.normalized_shape), 0))
    want = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(layer(Tensor(x)).detach().numpy(), want, rtol=1e-9, atol=1e-9)
    state = {n: values(*p.shape, seed=1) for n, p in layer.state_dict().items()}
    layer.load_state_dict(state)
    want = want * state.get("weight", 1) + state.get("bias", 0)
    np.testing.assert_allclose(layer(Tensor(x)).detach().numpy(), want, rtol=1e-9, atol=1e-9)


def test_modules_become_half_and_bfloat16() -> None:
    layer = nn.BatchNorm1d(3)
    dtypes = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}
    for name, dtype in dtypes.items():
        assert getattr(layer, name)() is layer
        assert layer.weight.dtype == layer.running_mean.dtype == dtype  # type: ignore[union-attr]
        assert str(layer.num_batches_tracked.dtype) == "int64"  # type: ignore[union-attr]


def test_dropout() -> None:
    mg.manual_seed(3)
    layer, x = nn.Dropout(0.25), mg.ones(200, 200, requires_grad=True)
    kept = layer(x).detach().numpy()
    assert set(np.unique(kept)) == {0, np.float32(1 / 0.75)} and abs((kept == 0).mean() - 0.25) < 0.008
    assert not np.array_equal(layer(x).detach().numpy(), kept)
    assert layer.eval()(x) is x and nn.Dropout(0.0)(x) is x
    assert not nn.Dropout(1.0)(x).detach().numpy().any()
    for p in (-0.1, 1.1, math.nan):
        raises(ValueError, "expected a probability", nn.Dropout, p)


# ---------------------------------------------------------------------- the other normalisations


NORMALISATIONS = [
    *[("RMSNorm", (5,), (3, 5)), ("RMSNorm", ((4, 5), 1e-3, False), (3, 4, 5)), ("GroupNorm", (2, 6), (3, 6, 4))],
    *[("GroupNorm", (3, 6, 1e-3, False), (3, 6)), ("BatchNorm1d", (4,), (7, 4))],
    *[("BatchNorm1d", (4, 1e-3, None), (7, 4, 3)), ("BatchNorm1d", (4, 1e-3, 0.3, False), (7, 4, 3))],
    ("BatchNorm1d", (4, 1e-5, 0.1, True, False), (7, 4)),
]


@needs_torch
@pytest.mark.parametrize(("name", "args", "shape"), NORMALISATIONS)
def test_normalisations_are_pytorchs(name: str, args, shape: tuple[int, ...]) -> None:
    """Names, order and values of the state; outputs in training and evaluation; gradients."""
    ours, theirs = getattr(nn, name)(*args), getattr(torch.nn, name)(*args)
    for (n, ours_t), (name, t) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
        assert (n, ours_t.shape) == (name, tuple(t.shape))
        np.testing.assert_array_equal(ours_t.numpy(), t.numpy())
    state = {n: values(*p.shape, seed=9).astype("f4") for n, p in ours.named_parameters()}
    ours.load_state_dict(state, strict=False)
    theirs.load_state_dict({n: torch.tensor(v) for n, v in state.items()}, strict=False)
    for step in range(4):
        if step == 3:
            ours.eval(), theirs.eval()
        x = values(*shape, seed=step).astype("f4") * 3 + 1
        a, b = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        y, z = ours(a), theirs(b)
        np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), atol=2e-5)
        (z * z * z).sum().backward()
        grads = (y * y * y).sum().backward()
        np.testing.assert_allclose(grads[a].numpy(), b.grad.numpy(), rtol=1e-3, atol=1e-3)
    for n, t in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[n].numpy(), t.numpy(), rtol=1e-5, atol=1e-6)


def test_batch_norm_resumes_from_its_state() -> None:
    layer, again = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    layer(Tensor(values(5, 3).astype("f4")))
    again.load_state_dict(layer.state_dict())
    assert again.num_batches_tracked.item() == 1 and again.num_batches_tracked.dtype == np.int64
    x = Tensor(values(2, 3, seed=1).astype("f4"))
    np.testing.assert_array_equal(layer.eval()(x).detach().numpy(), again.eval()(x).detach().numpy())
    assert layer.num_batches_tracked.item() == 1  # evaluation counts nothing


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_normalisations_of_half_width_with_float32_parameters(dtype: str) -> None:
    """The result is of the input's dtype, gradients are of their own tensors': float32's, rounded once."""
    wide = mg.tensor(values(4, 6).astype("f4")).to(dtype).float()
    zeros, ones = mg.zeros(6), mg.ones(6)
    calls = {
        "layer_norm": lambda x, w, b: F.layer_norm(x, (6,), w, b),
        "rms_norm": lambda x, w, b: F.rms_norm(x, (6,), w, 1e-5),
        "group_norm": lambda x, w, b: F.group_norm(x, 2, w, b),
        "batch_norm": lambda x, w, b: F.batch_norm(x, zeros.clone(), ones.clone(), w, b, training=True),
        "batch_norm evaluating": lambda x, w, b: F.batch_norm(x, zeros, ones, w, b),
    }
    for name, call in calls.items():
        x = wide.to(dtype).requires_grad_()
        parameters = [mg.tensor(values(6, seed=i).astype("f4"), requires_grad=True) for i in (1, 2)]
        y, expected = call(x, *parameters), call(wide, *parameters).detach()
        unit = float(mg.finfo(x.dtype).eps)
        assert y.dtype == dtype, name
        np.testing.assert_allclose(y.detach().float().numpy(), expected.numpy(), rtol=unit, atol=unit, err_msg=name)
        grads = y.sum().backward()
        assert grads[x].dtype == dtype and all(grads[p].dtype == "float32" for p in parameters if p in grads), name


def test_normalisations_refuse_other_sizes() -> None:
    for layer in (nn.GroupNorm(2, 4), nn.BatchNorm1d(4)):
        for x in (mg.ones(2, 5), mg.ones(4)):
            raises(ValueError, rf"{type(layer).__name__}: x of shape .*; expected \(N, 4", layer, x)
    raises(ValueError, "num_channels=5 is not a multiple of num_groups=2", lambda: nn.GroupNorm(2, 5))
    raises(ValueError, r"does not end in normalized_shape \(5,\)", lambda: nn.RMSNorm(5)(mg.ones(2, 4)))
    assert repr(nn.RMSNorm(5)) == "RMSNorm((5,), eps=None)" and repr(nn.GroupNorm(2, 4)) == "GroupNorm(2, 4, eps=1e-05)"


@pytest.mark.parametrize("padding_idx", [1, -3])
def test_embedding_with_padding(padding_idx: int) -> None:
    """The row of the padding starts with zeros and is not learned, whatever is in it."""
    layer, indices = nn.Embedding(4, 2, padding_idx), np.array([[0, 1, 3], [1, 1, 0]])
    assert (layer.weight[1] == 0).all() and not (layer.weight[0] == 0).any() and layer.padding_idx == 1
    weight = layer.weight.detach().numpy() + 1
    layer.load_state_dict({"weight": weight})
    y = layer(mg.tensor(indices))
    np.testing.assert_array_equal(y.detach().numpy(), weight[indices])
    np.testing.assert_array_equal(y.sum().backward()[layer.weight].numpy()[:, 0], [2, 0, 0, 1])
    assert "padding_idx=1" in repr(layer) and "padding" not in repr(nn.Embedding(4, 2))
    raises(ValueError, "padding_idx=4 is no row of 4", lambda: nn.Embedding(4, 2, 4))


class Net(nn.Module):
    """Of other code."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList([nn.MLP(4), nn.MLP(5)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.h:
            x = layer(x)
        return x


def test_an_error_within_a_model_is_one_exception_that_names_the_layer_by_its_path() -> None:
    with pytest.raises(
        ValueError, match="x ends with 4, and in is 5\n  in h.1(.c_fc)? of Net\n  at .*x = layer"
    ) as caught:
        Net()(mg.ones(2, 4))
    assert caught.value.__cause__ is None
    with pytest.raises(ValueError, match="a @ b: inner dimensions differ: 3 and 2.*\n  inputs: .*\n  at ") as caught:
        mg.ones(2, 3) @ mg.ones(2, 3)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
