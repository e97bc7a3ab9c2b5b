"""In-place methods: they write to the memory itself, count versions, and refuse what autograd or a dtype forbids."""

import numpy as np
import pytest
from harness import host, simulated
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F

CHANGES = {
    "add_": lambda x: x.add_(2), "sub_": lambda x: x.sub_(2), "mul_": lambda x: x.mul_(2), "div_": lambda x: x.div_(2),
    "copy_": lambda x: x.copy_(5.0), "fill_": lambda x: x.fill_(5), "zero_": lambda x: x.zero_(),
    "uniform_": lambda x: x.uniform_(5, 6), "normal_": lambda x: x.normal_(5, 1),
    "setitem": lambda x: x.__setitem__(slice(None), 5.0), "iadd": lambda x: x.__iadd__(2),
}  # fmt: skip
EXPECTED = {"add_": 3, "sub_": -1, "mul_": 2, "div_": 0.5, "copy_": 5, "fill_": 5, "zero_": 0, "setitem": 5, "iadd": 3}

change = pytest.mark.parametrize("name", CHANGES)


@change
def test_the_memory_itself_changes(name, device):
    x = mg.ones(2, 3, device=device)
    view = x.T
    result = CHANGES[name](x)
    assert result is (None if name == "setitem" else x)
    assert x.version == view.version == 1
    np.testing.assert_array_equal(host(view).T, host(x))
    if name in EXPECTED:
        assert (x == EXPECTED[name]).all()
    else:
        assert (x != 1).all()


@change
def test_a_strided_view_changes_its_own_elements_only(name, device):
    x = mg.ones(4, 6, device=device)
    CHANGES[name](x[1:3, ::2])
    changed = host(x) != 1
    assert changed[1:3, ::2].all()
    assert changed.sum() == 6


@change
def test_a_tensor_of_the_graph_is_not_changed(name, device):
    x = mg.ones(3, device=device, requires_grad=True)
    for y in (x, x[1:]) if name == "iadd" else (x, x * 2, x[1:]):
        raises(RuntimeError, r"changes a tensor in place where gradients are recorded.*no_grad", CHANGES[name], y)
    assert x.tolist() == [1, 1, 1]
    assert x.version == 0
    with mg.no_grad():
        CHANGES[name](x)
    assert x.version == 1
    assert x.requires_grad
    CHANGES[name](x.detach())
    assert x.version == 2


@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "itruediv", "imod", "ipow"])
def test_an_operator_of_a_tensor_of_the_graph_makes_a_new_one(name, device):
    """With the gradient of the change, for both operands; the old tensor keeps its values, the new one its dtype."""
    double = [mg.tensor(v, dtype="float64", device=device, requires_grad=True) for v in ([1.5, 2.5], [1.2, 0.7])]

    def changed(x, w):
        y = x.exp()
        before, old = host(y).copy(), y
        y = getattr(y, f"__{name}__")(w)
        y = getattr(y, f"__{name}__")(1.5)
        assert (host(old) == before).all() and old is not y and y.dtype == mg.float64
        return y * y

    assert mg.gradcheck(changed, double)
    total = mg.zeros((), device=device)
    total += (double[0] * 3).sum()
    assert total.dtype == mg.float32 and total.backward()[double[0]].tolist() == [3, 3]
    rows, wider = mg.zeros(2, 2, device=device), mg.ones(2, 2, device=device)
    for leaf in (double[0], double[0].reshape(2, 1).T, rows[0]):  # or a view of one
        raises(RuntimeError, "changes a tensor in place", getattr(leaf, f"__{name}__"), double[0])
    raises(ValueError, r"shape \(2, 2\), the tensor \(2,\)", (double[0] * 1).__iadd__, wider)


@change
def test_a_read_only_tensor_is_not_changed(name, device):
    x = mg.ones(1, device=device).expand(3)
    raises(RuntimeError, r"read-only.*\.clone\(\)", lambda: CHANGES[name](x))


def test_values_that_require_grad_are_refused(device):
    x, g = mg.ones(3, device=device), mg.ones(3, device=device, requires_grad=True)
    for write in (x.add_, x.sub_, x.mul_, x.div_, x.copy_, lambda g: x.__setitem__(slice(None), g)):
        before = x.tolist(), x.version
        raises(RuntimeError, "where gradients are recorded.*would lose them", write, g)
        assert (x.tolist(), x.version) == before
        with mg.no_grad():
            write(g)


# Backward after a change ----------------------------------------------------------------------------------------------

SAVING = {
    "mul": lambda x, w: x * w,
    "div": lambda x, w: w / x,
    "pow": lambda x, w: x**w,
    "square": lambda x, w: w * 0 + x.square(),
    "log": lambda x, w: w + x.log(),
    "maximum": lambda x, w: w.maximum(x),
    "matmul": lambda x, w: w @ x,
    "amax": lambda x, w: w + x.amax(),
    "var": lambda x, w: w + (x * 1).var(),
    "norm": lambda x, w: w + x.norm(),
    "logsumexp": lambda x, w: w + x.logsumexp(0),
    "gelu": lambda x, w: w + F.gelu(x),
    "layer_norm": lambda x, w: w.sum() + F.layer_norm(x, 4),
    "linear": lambda x, w: F.linear(x, w),
    "where": lambda x, w: w.where(x > 0, x),
    "gather": lambda x, w: w + x.gather(0, mg.tensor([0, 0, 0, 1], device=x.device)),
    "cross_entropy": lambda x, w: w + F.cross_entropy(x, mg.tensor(1, device=x.device)),
    "attention": lambda x, w: F.scaled_dot_product_attention(*[(x * w[0]).reshape(1, 1, 2, 2)] * 3),
}
# x is not needed for these gradients: what they keep is their own result or the index.
NOT_SAVED = {"where", "var", "gather"}


@pytest.mark.parametrize("name", SAVING)
def test_backward_notices_a_changed_input(name, device):
    """It raises where the gradient needs the old values, and is right where it does not."""

    def run(x, w):
        return SAVING[name](x, w).sum()

    make = np.random.default_rng(0).random
    x0, w0 = make(4) + 0.5, make((4, 4)) + 0.5
    x, w = (mg.tensor(v, device=device, requires_grad=True) for v in (x0, w0))
    expected = run(x, w).backward()
    loss = run(x, w)
    x.detach().mul_(2)
    if name in NOT_SAVED:
        np.testing.assert_array_equal(host(loss.backward()[x]), host(expected[x]))
    else:
        raises(RuntimeError, r"changed in place after it was computed \(it is at version 1\)", lambda: loss.backward())


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "sqrt", "rsqrt", "reciprocal", "softmax", "relu"])
def test_backward_notices_a_changed_result(name, device):
    x = mg.tensor([0.5, 1.5], device=device, requires_grad=True)
    y = x.softmax(0) if name == "softmax" else getattr(x, name)()
    y.detach().zero_()
    raises(RuntimeError, "changed in place", lambda: y.sum().backward())


# Dtypes and shapes ----------------------------------------------------------------------------------------------------


def test_results_keep_the_dtype_but_not_below_their_category(device):
    """Precision may be lost, as in PyTorch; a fraction or a number may not become an integer or a bool."""
    x = mg.ones(2, device=device)
    x += mg.tensor(np.array([1.0, 2.0]), device=device)
    assert x.dtype == mg.float32
    assert x.tolist() == [2, 3]
    i = mg.tensor([1, 2], dtype="int32", device=device)
    i += mg.tensor([1, 2], device=device)
    i *= 2
    i -= 1
    assert i.dtype == mg.int32
    assert i.tolist() == [3, 7]
    with pytest.raises(TypeError, match="div_: the result is float32, which a int32 tensor cannot hold"):
        i /= 2
    raises(TypeError, "add_: the result is int64, which a bool tensor cannot", mg.tensor([True], device=device).add_, 1)
    assert i.version == 3


def test_the_tensor_does_not_grow(device):
    x = mg.ones(3, device=device)
    raises(ValueError, r"\(2,\).*\(3,\)", lambda: x.copy_(mg.ones(2, device=device)))
    assert x.version == 0
    for _ in range(2):  # the first call of a kind goes another way
        assert x.fill_(1).add_(mg.ones(1, device=device)).tolist() == [2, 2, 2]
        raises(ValueError, r"shape \(1, 3\), the tensor \(3,\)", x.add_, mg.ones(1, 3, device=device))
        assert x.add_(np.float64(0.3)).tolist() == mg.full((3,), 2.0, device=device).add(0.3).tolist()
        assert x.pow_(exponent=0).tolist() == [1, 1, 1]


@pytest.mark.parametrize("call", [
    lambda x, y: x.floor_divide_(y), lambda x, y: x.add_(y), lambda x, y: x.clamp_(y), lambda x, y: x.lerp_(y, 0.25),
    lambda x, y: x.masked_fill_(y > 0, 3.0),
])  # fmt: skip
def test_what_does_not_fit_changes_nothing_and_what_is_cast_fits_at_each_call(call, device):
    for n in (3, 64 if simulated("cuda") else 9000):
        x, y, half = (mg.ones(k, n, device=device) for k in (1, 2, 1))
        half = half.half()
        call(x, x.clone())
        for _ in range(2):  # the first call of a kind goes another way
            before = host(x).copy()
            raises(ValueError, r"\(2, |broadcast", call, x, y)
            assert (host(x) == before).all() and (host(half.add_(x)) == host(half.sub(x) + x)).all()
        assert half.tolist() == mg.ones(1, n).add(2 * x.cpu()).half().tolist()


@pytest.mark.parametrize("n", [8, 40 if simulated("cuda") else 700])
def test_an_operand_may_share_the_memory_that_changes(n, device):
    """As if it were a copy, also where several threads write. The first call of a kind goes another way."""
    for parts in (lambda x: (x, x.T), lambda x: (x[1:], x[:-1]), lambda x: (x[:-1], x[1:]), lambda x: (x, x[0])):
        x = mg.arange(n * n, device=device).reshape(n, n) * 1.0
        for _ in range(2):
            expected = np.subtract(*map(host, parts(x)))
            assert (host(parts(x)[0].sub_(parts(x)[1])) == expected).all()
        expected = host(parts(x)[1]).copy()
        assert (host(parts(x)[0].copy_(parts(x)[1])) == expected).all()


def test_copy_casts_and_broadcasts(device):
    x = mg.zeros(2, 3, dtype="int64", device=device)
    assert x.copy_(mg.tensor([1.9, -1.9, 0.0], device=device)).tolist() == [[1, -1, 0]] * 2
    assert x.copy_([4, 5, 6]).tolist() == [[4, 5, 6]] * 2
    assert mg.zeros((), dtype="float64", device=device).copy_(-0.3).item() == -0.3
    raises(ValueError, "fill_: no int64 is nan", lambda: x.fill_(float("nan")))
    raises(OverflowError, "1e\\+30 does not fit int64", lambda: x.fill_(1e30))
