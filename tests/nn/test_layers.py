"""Layers, activations and losses as modules: their start, values, state and errors."""

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


@pytest.mark.parametrize(("shape", "affine", "bias"), [(5, True, True), ((4, 5), True, False), ((5,), False, True)])
def test_layer_norm(shape, affine: bool, bias: bool) -> None:
    layer = nn.LayerNorm(shape, 1e-3, affine, bias).double()  # PyTorch's third argument: elementwise_affine
    x, axes = values(3, 4, 5) * 7 + 100, tuple(range(-len(layer.normalized_shape), 0))
    state = {n: values(*p.shape, seed=1) for n, p in layer.state_dict().items()}
    assert list(state) == ["weight", "bias"][: affine + (affine and bias)]
    layer.load_state_dict(state)
    want = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-3)
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
    *[("LayerNorm", (5,), (3, 4, 5)), ("LayerNorm", ((4, 5), 1e-3, True, False), (3, 4, 5))],
    *[("LayerNorm", ((5,), 1e-3, False), (3, 5)), ("RMSNorm", (5,), (3, 5))],
    *[("RMSNorm", ((4, 5), 1e-3, False), (3, 4, 5)), ("GroupNorm", (2, 6), (3, 6, 4))],
    *[("GroupNorm", (3, 6, 1e-3, False), (3, 6)), ("BatchNorm1d", (4,), (7, 4))],
    *[
        ("BatchNorm1d", (4, 1e-3, None), (7, 4, 3)),
        ("BatchNorm1d", (4, 1e-3, 1.0), (7, 4, 3)),
        ("BatchNorm1d", (4, 1e-3, 0.3, False), (7, 4, 3)),
    ],
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


FUNCTIONS = {"LeakyReLU": F.leaky_relu, "LogSoftmax": F.log_softmax}  # whose names differ by more than capitals
ACTIVATIONS = [
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


@pytest.mark.parametrize(("name", "options"), ACTIVATIONS)
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


RNG = np.random.default_rng(0)
LOGITS, LABELS = RNG.standard_normal((6, 4)), np.array([0, 3, -100, 1, 2, 3])
TARGET, P = RNG.uniform(0.1, 0.9, (6, 4)), RNG.uniform(0.05, 0.95, (6, 4))
WEIGHT = np.array([0.5, 2.0, 1.0, 0.25])
LOG_P = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))

LOSSES = [
    ("CrossEntropyLoss", {}, LOGITS, LABELS),
    ("CrossEntropyLoss", {"weight": WEIGHT, "label_smoothing": 0.1, "ignore_index": 3}, LOGITS, np.abs(LABELS % 4)),
    ("NLLLoss", {}, LOG_P, LABELS),
    ("NLLLoss", {"weight": WEIGHT}, LOG_P, LABELS),
    ("MSELoss", {}, LOGITS, TARGET),
    ("L1Loss", {}, LOGITS, TARGET),
    ("SmoothL1Loss", {"beta": 0.5}, LOGITS, TARGET),
    ("HuberLoss", {"delta": 0.7}, LOGITS, TARGET),
    ("BCELoss", {"weight": WEIGHT}, P, TARGET),
    ("BCEWithLogitsLoss", {"weight": WEIGHT, "pos_weight": WEIGHT + 1}, LOGITS, TARGET),
    ("KLDivLoss", {"log_target": True}, LOG_P, np.log(TARGET)),
]


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # PyTorch's advice to take "batchmean"
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("name", "options", "x", "target"), LOSSES, ids=[f"{c[0]}-{len(c[1])}" for c in LOSSES])
def test_it_is_pytorchs(name, options, x, target, reduction):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def loss(library, convert):
        values = {key: convert(value) if isinstance(value, np.ndarray) else value for key, value in options.items()}
        return getattr(library, name)(reduction=reduction, **values)(convert(x), convert(target))

    ours, theirs = loss(nn, mg.tensor), loss(torch.nn, torch.tensor)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-12)


def test_weights_move_with_the_module_and_options_show():
    loss = nn.CrossEntropyLoss(mg.tensor(WEIGHT), label_smoothing=0.1)
    assert [name for name, _ in loss.named_buffers()] == ["weight"] and not list(loss.parameters())
    assert loss.to(dtype=mg.float32).weight.dtype == mg.float32
    assert repr(nn.MSELoss("sum")) == "MSELoss(reduction='sum')"
    for module in (nn.MSELoss, nn.CrossEntropyLoss, nn.KLDivLoss):
        raises(ValueError, "reduction='average'; expected 'mean'", lambda module=module: module(reduction="average"))


def test_the_divergence_per_sample():
    x, target = mg.tensor(LOG_P), mg.tensor(TARGET / TARGET.sum(1, keepdims=True))
    expected = (target.numpy() * (np.log(target.numpy()) - LOG_P)).sum() / 6
    assert nn.KLDivLoss("batchmean")(x, target).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 4, 3), (2, 4, 3, 2), (0, 4)])
@pytest.mark.parametrize("weighted", [False, True])
def test_log_likelihood_of_any_number_of_dimensions_is_cross_entropys(shape, weighted):
    rng = np.random.default_rng(1)
    x = mg.tensor(rng.standard_normal(shape), requires_grad=True)
    dim = min(1, len(shape) - 1)
    labels = mg.tensor(rng.integers(0, 4, shape[:dim] + shape[dim + 1 :]))
    weight = mg.tensor(WEIGHT) if weighted else None
    for reduction in ("mean", "sum", "none"):
        losses = [
            F.cross_entropy(x, labels, weight, ignore_index=2, reduction=reduction),
            F.nll_loss(x.log_softmax(dim), labels, weight, ignore_index=2, reduction=reduction),
        ]
        np.testing.assert_allclose(*[loss.numpy(force=True) for loss in losses], rtol=1e-12)
        if x.numel():
            grads = [loss.sum().backward()[x].numpy() for loss in losses]
            np.testing.assert_allclose(*grads, rtol=1e-10, atol=1e-12)


def test_small_layers():
    x = mg.tensor(RNG.standard_normal((2, 3, 4)) * 10)
    assert nn.Identity()(x) is x
    assert nn.Flatten()(x).shape == (2, 12) and nn.Flatten(0, 1)(x).shape == (6, 4)
    assert repr(nn.Flatten()) == "Flatten(start_dim=1, end_dim=-1)"
    assert nn.Unflatten(1, (3, -1))(x).shape == (2, 3, 1, 4) and "(3, -1)" in repr(nn.Unflatten(1, (3, -1)))
