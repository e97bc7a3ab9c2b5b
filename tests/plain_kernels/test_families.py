"""Families of the plain and of the CPU's kernels: derivatives are central differences, and both agree."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from optimizer_cases import FAMILIES
from refusals import raises

from minigrad import cpu_kernels, plain_kernels

TARGETS = np.array([3, 0, 2, 9])
POSITIONS = np.array([[1, 0], [4, 1]])
OPTIONS = 9, 0.1, np.array([0.5, 1.0, 2.0, 0.25, 1.5])  # ignored target, smoothing, weights of the classes


class Case(NamedTuple):
    """``forward`` of the inputs, whose shapes are given, and ``backward`` of dy and the inputs: their gradients."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


def embedding_gradient(k, dy, weight):
    dweight = np.zeros_like(weight)
    k.embedding.backward_into(dy, POSITIONS, dweight)
    return (dweight,)


def linear_loss(k, x, weight, needs=(False, False)):
    losses, *gradients = k.linear_cross_entropy.forward(x, weight, TARGETS, 9, 3.0, needs)
    return k.elementwise.div(k.reduce.sum(losses, (0,), False), 3.0), *gradients


def attention_case(heads: int, causal: bool, *dropout: Any) -> Case:
    options = causal, 0.5, *(dropout or (0.0, 0, 0))

    def backward(k, dy, *operands):
        return k.attention.backward(dy, *operands, *k.attention.forward(*operands, options), options)

    shapes = (2, 2 * heads, 5, 4), (2, heads, 6, 4), (2, heads, 6, 4)
    return Case(lambda k, *operands: k.attention.forward(*operands, options)[0], backward, shapes)


def one(family: str, *options: Any, forward="forward", backward="backward", keeps="x", shape=(3, 4)) -> Case:
    """A function of one array: its gradient is made of the input, or of the output where it ``keeps`` "y"."""

    def run(k, x):
        return getattr(getattr(k, family), forward)(x, *options)

    def gradient(k, dy, x):
        return (getattr(getattr(k, family), backward)(dy, x if keeps == "x" else run(k, x), *options),)

    return Case(run, gradient, (shape,))


CASES = {
    "softmax": one("softmax", 1, keeps="y"),
    "log-softmax": one("softmax", 1, forward="log_forward", backward="log_backward", keeps="y"),
    "softmax of long rows": one("softmax", 1, keeps="y", shape=(3, 40)),
    "softmax of columns": one("softmax", 1, keeps="y", shape=(3, 4, 5)),
    "log-softmax of columns": one(
        "softmax", 1, forward="log_forward", backward="log_backward", keeps="y", shape=(3, 4, 5)
    ),
    "gelu": one("gelu", "none"),
    "gelu, tanh": one("gelu", "tanh"),
    "dropout": Case(
        lambda k, x: k.dropout.forward(x, 0.4, 1, 2), lambda k, dy, x: (k.dropout.forward(dy, 0.4, 1, 2),), ((30, 4),)
    ),
    "cumsum": Case(lambda k, x: k.reduce.cumsum(x, 1), lambda k, dy, x: (k.reduce.reverse_cumsum(dy, 1),), ((3, 5),)),
    "layer norm": Case(
        lambda k, *inputs: k.layer_norm.forward(*inputs, 1e-5)[0],
        lambda k, dy, x, w, b: k.layer_norm.backward(dy, x, w, *k.layer_norm.forward(x, w, b, 1e-5)[1:]),
        ((4, 6), (6,), (6,)),
    ),
    "rms norm": Case(
        lambda k, *inputs: k.rms_norm.forward(*inputs, 1e-5)[0],
        lambda k, dy, x, w: k.rms_norm.backward(dy, x, w, k.rms_norm.forward(x, w, 1e-5)[1]),
        ((4, 6), (6,)),
    ),
    "linear": Case(
        lambda k, x, w, b: k.linear.forward(x, w, b),
        lambda k, dy, x, w, b: k.linear.backward(dy, x, w, (True, True, True)),
        ((20, 18), (17, 18), (17,)),
    ),
    "gelu before linear": Case(
        lambda k, h, w: k.linear.forward(k.gelu.forward(h, "tanh"), w),
        lambda k, dy, h, w: (
            k.linear.backward_gelu(dy, w, h, "tanh")[0],
            k.linear.backward(dy, k.linear.backward_gelu(dy, w, h, "tanh")[1], None, (False, True, False))[1],
        ),
        ((20, 18), (17, 18)),
    ),
    "attention": attention_case(2, False),
    "causal attention, a head of keys for two of queries": attention_case(1, True),
    "attention with dropout": attention_case(2, True, 0.3, 5, 6),
    "rotation": Case(
        lambda k, x: k.rope.rotate(x, *k.rope.tables(np.arange(5), 4, 100.0, x.dtype), True),
        lambda k, dy, x: (k.rope.rotate(dy, *k.rope.tables(-np.arange(5), 4, 100.0, x.dtype), True),),
        ((2, 5, 4),),
    ),
    "embedding": Case(lambda k, w: k.embedding.forward(w, POSITIONS), embedding_gradient, ((6, 3),)),
    "cross-entropy": Case(
        lambda k, x: k.cross_entropy.forward(x, TARGETS, OPTIONS)[0],
        lambda k, dy, x: (
            k.cross_entropy.backward(dy, x, TARGETS, k.cross_entropy.forward(x, TARGETS, OPTIONS)[1], OPTIONS),
        ),
        ((4, 5),),
    ),
    **{
        f"cross-entropy in one pass{words}": Case(
            lambda k, x, o=options: k.cross_entropy.forward_backward(np.ones(4, x.dtype), x, TARGETS, o)[0],
            lambda k, dy, x, o=options: k.cross_entropy.forward_backward(dy, x, TARGETS, o)[2:],
            ((4, 5),),
        )
        for words, options in {"": OPTIONS, " unweighted": (*OPTIONS[:2], None), " alone": (9, 0.0, None)}.items()
    },
    "cross-entropy of a linear layer": Case(
        lambda k, x, w: linear_loss(k, x, w)[0],
        lambda k, dy, x, w: k.linear_cross_entropy.backward(dy, x, *linear_loss(k, x, w, (True, True))[1:], 3.0),
        ((4, 3), (5, 3)),
    ),
}


def drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.normal(0, 1, shape) for shape in shapes]


@pytest.mark.parametrize("kernels", [plain_kernels, pytest.param(cpu_kernels, marks=pytest.mark.compiled)])
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_the_central_difference(name, kernels):
    """Along a random direction of each input; h^2 and the rounding of the difference are below 1e-9."""
    case, h = CASES[name], 1e-5
    inputs = drawn(*case.shapes)
    dy, *directions = drawn(np.shape(case.forward(kernels, *inputs)), *case.shapes)
    for i, gradient in enumerate(case.backward(kernels, np.asarray(dy), *inputs)):
        ends = []
        for step in (h, -h):
            moved = [x + step * directions[i] if i == j else x for j, x in enumerate(inputs)]
            ends.append((case.forward(kernels, *moved) * dy).sum())
        found = (gradient * directions[i]).sum()
        assert found == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-6, abs=1e-8), f"input {i}"


SPECIAL = [(np.nan, np.inf, -np.inf), (-np.inf,) * 4, (80.0, -80.0, 1e-30, 0.0)]


@pytest.mark.compiled
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize(
    ("name", "special"),
    [*((name, ()) for name in CASES), *((name, s) for name in CASES if "attention" not in name for s in SPECIAL)],
    ids=str,
)
@np.errstate(all="ignore")
def test_compiled_kernels_compute_what_plain_ones_do(name, dtype, tolerance, special):
    """Both get the same float32 numbers, the plain ones as float64; row i begins with repeats of ``special[i]``."""
    case = CASES[name]
    inputs = [x.astype(np.float32) for x in drawn(*case.shapes)]
    for row, value in zip(inputs[0], special):
        row.reshape(-1)[: len(special)] = value
    exact, inputs = [x.astype(np.float64) for x in inputs], [x.astype(dtype) for x in inputs]
    expected, found = case.forward(plain_kernels, *exact), case.forward(cpu_kernels, *inputs)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    (dy,) = drawn(expected.shape)
    dy = np.asarray(dy).astype(np.float32)
    wanted = case.backward(plain_kernels, dy.astype(np.float64), *exact)
    for a, b in zip(case.backward(cpu_kernels, dy.astype(dtype), *inputs), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=20 * tolerance, atol=20 * tolerance)


@pytest.mark.compiled
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compiled_steps_have_the_bits_of_plain_ones(family, dtype):
    """Three steps of small and large parameters; LAMB's norms are sums of another order."""
    (states, rows), ends = FAMILIES[family], []
    shapes = ((40, 7), (), (0, 3), (129, 257), (16_384,), (31,))
    for kernels in (plain_kernels, cpu_kernels):
        rng, used = np.random.default_rng(1), getattr(kernels, family)
        arrays = [[np.asarray(rng.random(shape), dtype) for shape in shapes] for _ in range(1 + states)]
        table = used.Table(*arrays)
        for _ in range(3):
            used.step(table, [np.asarray(rng.normal(size=s), dtype) for s in shapes], np.array(rows * 3))
        ends.append([x for column in arrays for x in column])
    tolerance = {"float32": 1e-6, "float64": 1e-13}[dtype] if family == "lamb" else 0
    for a, b in zip(*ends, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


@pytest.mark.compiled
@pytest.mark.parametrize("n", [0, 1, 7, 40_001])
def test_random_numbers_are_the_same_bits(n):
    seed, offset = 2**64 - 3, 2**33 + 1
    plain, compiled = plain_kernels, cpu_kernels
    draws: list[Callable[[Any], np.ndarray]] = [
        lambda k: k.random.philox_bits(n, seed, offset),
        lambda k: k.random.permutation(n, seed, offset),
        lambda k: k.random.integers(-(2**63), 2**63 - 1, n, seed, offset),
        lambda k: k.random.integers(-5, 1000, n, seed, offset),
    ]
    for dtype in ("float32", "float64"):
        draws += [lambda k, dtype=dtype: k.random.uniform(n, dtype, seed, offset)]
        draws += [lambda k, dtype=dtype: k.random.normal((n,), dtype, seed, offset)]
        draws += [lambda k, dtype=dtype: k.dropout.forward(np.ones((1, n), dtype), 0.3, seed, offset)]
    for draw in draws:
        a, b = draw(plain), draw(compiled)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kernels", [plain_kernels, pytest.param(cpu_kernels, marks=pytest.mark.compiled)])
def test_draws_outside_of_their_range_are_refused(kernels):
    for error, run in (
        ("seed=-1: expected", lambda: kernels.random.philox_bits(1, -1, 0)),
        ("offset=.*: expected", lambda: kernels.random.philox_bits(1, 0, 2**63)),
        (r"integers\(low=2, high=2\)", lambda: kernels.random.integers(2, 2, 1, 0, 0)),
        ("p=2: expected", lambda: kernels.dropout.forward(np.ones(1), 2, 0, 0)),
    ):
        raises(ValueError, error, run)
    raises(TypeError, "int64", lambda: kernels.random.normal(1, "int64", 0, 0))
