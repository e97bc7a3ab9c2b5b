"""autocast: dtypes are those of PyTorch's, values are PyTorch's to bfloat16 rounding, gradients of weights float32."""

import itertools
import operator
from contextlib import contextmanager

import numpy as np
import pytest
from graph_cases import nodes_of
from in_threads import outcomes
from refusals import raises
from replica_models import Normed

import minigrad
import minigrad.nn.functional as F
from minigrad import Tensor, autocast, bfloat16, checkpoint, float16, float32, float64
from minigrad.ops.elementwise import Cast

BOTH = pytest.mark.parametrize("half", [bfloat16, float16], ids=str)
EPS = {bfloat16: 2.0**-8, float16: 2.0**-11}  # half the distance from 1 to the next number: one rounding

VALUES = np.linspace(0.2, 0.7, 16, dtype=np.float32).reshape(4, 4)
UNARY = (
    *("exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan"),
    *("sinh", "cosh", "asin", "acos", "atan", "asinh", "atanh", "erf", "tanh", "sigmoid", "relu", "neg", "abs"),
    *("square", "floor", "round", "mean", "var", "std", "prod", "max", "min", "amax", "nansum", "argmax"),
    *("norm", "sum"),
)
ALONG = ("softmax", "log_softmax", "logsumexp", "cumsum", "cumprod")
LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
ACTIVATIONS = (
    *("gelu", "silu", "elu", "softplus", "mish", "hardtanh", "hardswish"),
    *("leaky_relu", "selu", "hardsigmoid", "softsign", "normalize"),
)


def ops(m, f):
    """The same operations on tensors of minigrad and of PyTorch."""

    def index(x):
        return m.tensor([0, 1, 2, 3], device=x.device)

    found = {
        "matmul": lambda x: x @ x,
        "mm": lambda x: x.mm(x),
        "bmm": lambda x: x.unsqueeze(0).bmm(x.unsqueeze(0)),
        "einsum": lambda x: m.einsum("ij,jk->ik", x, x),
        "addmm": lambda x: m.addmm(x, x, x),
        "baddbmm": lambda x: m.baddbmm(x.unsqueeze(0), x.unsqueeze(0), x.unsqueeze(0)),
        "linear": lambda x: f.linear(x, x),
        "group_norm": lambda x: f.group_norm(x, 2),
        "batch_norm": lambda x: f.batch_norm(x, None, None, training=True),
        "cross_entropy_none": lambda x: f.cross_entropy(x, index(x), reduction="none"),
        "bce_with_logits": lambda x: f.binary_cross_entropy_with_logits(x, x),
        "kl_div": lambda x: f.kl_div(x, x, reduction="sum"),
        "cosine_similarity": lambda x: f.cosine_similarity(x, x),
        "sum_dim": lambda x: x.sum(0),
        "power": lambda x: x**2,
        "powers": lambda x: x**x,
        "power_of_number": lambda x: 2**x,
        "acosh": lambda x: (x + 1).acosh(),
        "sum_as_itself": lambda x: x.sum(dtype=x.dtype),
        "cumsum_as_itself": lambda x: x.cumsum(0, dtype=x.dtype),
        "add_number": lambda x: x + 1.0,
    }
    found |= {name: operator.methodcaller(name) for name in UNARY}
    found |= {name: operator.methodcaller(name, 0) for name in ALONG}
    found |= {name: lambda x, name=name: getattr(f, name)(x, x + 1) for name in LOSSES}
    found |= {name: lambda x, name=name: getattr(f, name)(x, index(x)) for name in ("cross_entropy", "nll_loss")}
    return found | {name: getattr(f, name) for name in ACTIVATIONS}


def mixed(m, f):
    def index(x):
        return m.tensor([0, 1, 2, 3], device=x.device)

    return {
        "add": lambda x, y: x + y,
        "mul": lambda x, y: x * y,
        "div": lambda x, y: x / y,
        "maximum": lambda x, y: m.maximum(x, y),
        "cat": lambda x, y: m.cat([x, y]),
        "stack": lambda x, y: m.stack([x, y]),
        "where": lambda x, y: m.where(x > 0, x, y),
        "matmul": lambda x, y: x @ y,
        "linear": lambda x, y: f.linear(x, y),
        "atan2": lambda x, y: m.atan2(x, y),
        "pow": lambda x, y: x**y,
        "index_put": lambda x, y: x.index_put((index(x),), y),
        "mse_loss": lambda x, y: f.mse_loss(x, y),
        "in_place": lambda x, y: x.clone().add_(y),
    }


# What PyTorch's CPU autocast names in its lists; what it does not, stays in the dtype it has (softmax, for one).
CPU_LISTS = (
    *("matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "linear", "cross_entropy", "nll_loss", "mse_loss"),
    *("l1_loss", "smooth_l1_loss", "huber_loss", "bce_with_logits", "kl_div", "prod"),
)


@contextmanager
def torch_cuda_autocast(torch, half):
    """``torch.autocast("cuda")``, which refuses to be switched on where there is no GPU."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", half)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


@BOTH
def test_dtypes_are_those_of_pytorch_on_cuda(half) -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    fake = pytest.importorskip("torch._subclasses.fake_tensor", reason="PyTorch's tensors of a GPU that is not there")
    one, two = [(float32,), (half,), (float64,)], [(float32, half), (half, float32), (half, half)]
    wrong = []
    for table, given in ((ops, one), (mixed, two)):
        ours, theirs = table(minigrad, F), table(torch, torch.nn.functional)
        for name, dtypes in itertools.product(ours, given):
            with autocast("cpu", half):
                found = ours[name](*(Tensor(VALUES).to(dtype) for dtype in dtypes)).dtype
            with fake.FakeTensorMode(), torch_cuda_autocast(torch, getattr(torch, str(half))):
                inputs = [torch.empty(4, 4, dtype=getattr(torch, str(dtype)), device="cuda") for dtype in dtypes]
                expected = theirs[name](*inputs).dtype
            if f"torch.{found}" != str(expected):
                wrong.append((name, *map(str, dtypes), str(found), str(expected)))
    assert not wrong


@BOTH
def test_what_pytorch_lists_for_the_cpu_has_its_dtype_and_values(half) -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    ours, theirs = ops(minigrad, F), ops(torch, torch.nn.functional)
    for name in CPU_LISTS:
        for dtype in (float32, half, float64):
            with autocast("cpu", half):
                found = ours[name](Tensor(VALUES).to(dtype))
            with torch.autocast("cpu", getattr(torch, str(half))):
                expected = theirs[name](torch.tensor(VALUES).to(getattr(torch, str(dtype))))
            assert str(found.dtype) == str(expected.dtype)[6:], (name, dtype)
            # Both round the inputs alike; what remains is one rounding of the result.
            close = {"rtol": 2 * EPS[half], "atol": 1e-6, "err_msg": f"{name} {dtype}"}
            np.testing.assert_allclose(found.float().numpy(), expected.float().numpy(), **close)


def test_attention_norms_and_embeddings() -> None:
    # PyTorch has these in its list for CUDA, but does not run them on a GPU that is not there.
    x = Tensor(VALUES)
    for given in (x, x.bfloat16()):
        with autocast("cpu"):
            q = given.reshape(1, 1, 4, 4)
            assert F.scaled_dot_product_attention(q, q, q).dtype == bfloat16
            assert F.scaled_dot_product_attention(q, q, q, attn_mask=minigrad.zeros(4, 4)).dtype == bfloat16
            assert F.packed_attention(minigrad.cat([given] * 3, 1).reshape(1, 4, 3, 2, 2)).dtype == bfloat16
            assert F.layer_norm(given, (4,), x[0], x[0]).dtype == float32
            assert F.rms_norm(given, (4,), x[0]).dtype == float32
            assert F.embedding(minigrad.arange(3), given).dtype == given.dtype
            assert F.dropout(given, 0.5).dtype == given.dtype
            assert F.linear(given, x, x[0]).dtype == bfloat16
    with autocast("cpu"):
        assert F.binary_cross_entropy(x.bfloat16(), x.bfloat16()).dtype == float32


def test_the_gradient_of_a_cast_weight_is_rounded_once_for_all_uses() -> None:
    # Both uses share the cast, so their gradients are added in bfloat16, as PyTorch's are: 256 + 1 = 256 there.
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    found = []
    for m, t in ((minigrad, minigrad.tensor), (torch, torch.tensor)):
        for cache in (True, False):
            w = m.ones(1, 1, requires_grad=True)
            with m.autocast("cpu", m.bfloat16, cache_enabled=cache):
                y = (t([[256.0]]) @ w).float() + (t([[1.0]]) @ w).float()
            grads = y.sum().backward()
            found.append((grads[w] if m is minigrad else w.grad).item())
    assert found == [256.0, 257.0, 256.0, 257.0]


def casts_of(y: Tensor) -> set[int]:
    """The nodes that cast a leaf, in the graph of ``y``."""
    casts = [node for node in nodes_of(y) if isinstance(node, Cast)]
    return {id(node) for node in casts if isinstance(node.edges[0], Tensor)}


def test_a_weight_is_cast_once_until_the_outermost_context_ends() -> None:
    w, x = minigrad.ones(2, 2, requires_grad=True), minigrad.ones(2, 2)
    with autocast("cpu"):
        first = x @ w
        with autocast("cpu", enabled=False):
            assert (x @ w).dtype == float32
        with autocast("cpu"):
            second = x @ w
        assert casts_of(first) == casts_of(second) and len(casts_of(first)) == 1
        with minigrad.no_grad():
            w.mul_(3.0)
        third = x @ w
        assert (third.detach().numpy() == 6.0).all()  # a weight changed in place is cast again
        with autocast("cpu", float16):
            assert (x @ w).dtype == float16
        with autocast("cpu", cache_enabled=False):
            assert casts_of(x @ w) != casts_of(third)
        assert casts_of(x @ w) == casts_of(third)
    with autocast("cpu"):
        assert casts_of(x @ w) != casts_of(third)


def test_a_weight_that_was_cast_without_gradients_gets_them_later() -> None:
    w, x = minigrad.ones(2, 2, requires_grad=True), minigrad.ones(2, 2)
    with autocast("cpu"):
        with minigrad.no_grad():
            assert not (x @ w).requires_grad
        grads = (x @ w).sum().backward()
        with minigrad.no_grad():
            assert not (x @ w).requires_grad
    assert grads[w].tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_contexts_nest_end_with_errors_and_belong_to_their_thread() -> None:
    x = minigrad.ones(2, 2)
    outer = autocast("cpu", float16)
    with outer:
        assert minigrad.is_autocast_enabled("cpu") and not minigrad.is_autocast_enabled("cuda")
        with autocast("cuda", bfloat16):  # of another type of device
            assert (x @ x).dtype == float16 and minigrad.get_autocast_dtype("cuda") == bfloat16
        with autocast("cpu"), outer:
            assert minigrad.get_autocast_dtype("cpu") == float16
        with pytest.raises(KeyError), autocast("cpu", enabled=False):
            raise KeyError
        with autocast("cpu", float32, enabled=False):  # what a program with one switch for both passes
            assert (x @ x).dtype == float32
        assert (x @ x).dtype == float16
        elsewhere = outcomes([0], lambda _: (x @ x).dtype)
    assert elsewhere[0] == (x @ x).dtype == float32
    assert not minigrad.is_autocast_enabled("cpu")
    assert (minigrad.get_autocast_dtype("cpu"), minigrad.get_autocast_dtype("cuda")) == (bfloat16, float16)


def test_as_a_decorator() -> None:
    @autocast("cpu", float16)
    def product(x: Tensor, depth: int) -> Tensor:
        y = x @ x
        return y if depth == 0 else product(x, depth - 1)

    x = minigrad.ones(2, 2)
    assert product(x, 2).dtype == float16 and (x @ x).dtype == float32
    with pytest.raises(TypeError, match="autocast: .*steps is a generator"):

        @autocast("cpu")
        def steps():
            yield 1


def test_refuses() -> None:
    raises(ValueError, "device_type is 'gpu', expected 'cpu', 'cuda', or None for both", lambda: autocast("gpu"))
    raises(ValueError, "dtype is float32, expected bfloat16 or float16", lambda: autocast("cpu", float32))


def test_checkpoint_repeats_the_dtypes_outside_of_the_context() -> None:
    minigrad.manual_seed(0)
    net, x = Normed(8, 16, 4), minigrad.randn(5, 8)

    def results(run):
        with autocast("cpu"):
            net(x)  # fills the cache of casts, which a second run must not depend on
            y = run(x)
        grads = y.float().square().sum().backward()
        return [y.tolist(), *(grads[p].tolist() for p in net.parameters())]

    once = results(net)
    assert results(lambda x: checkpoint(net, x)) == once
    assert results(lambda x: checkpoint(lambda x: checkpoint(net, x), x)) == once
    twice = results(lambda x: net(x) + net(x))  # one cast for both uses, in both runs
    assert results(lambda x: checkpoint(lambda x: net(x) + net(x), x)) == twice
    y = checkpoint(net, x)  # and it stays float32 if backward happens within a context
    with autocast("cpu"):
        y.sum().backward()


def test_numbers_integers_and_views_are_left_alone() -> None:
    with autocast("cpu"):
        assert (minigrad.arange(4).reshape(2, 2) @ minigrad.arange(4).reshape(2, 2)).dtype == minigrad.int64
        assert minigrad.arange(4).sum().dtype == minigrad.int64
        assert minigrad.ones(3).reshape(1, 3).T.dtype == float32
