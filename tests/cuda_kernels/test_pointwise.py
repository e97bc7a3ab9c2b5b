"""Elementwise kernels: layouts, the vector and the scalar path, dtypes, fusion, against NumPy."""

import contextlib
import operator
import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from refusals import raises

import minigrad
from minigrad import plain_kernels
from minigrad.cuda_kernels import comparison, elementwise, gelu, trigonometry
from minigrad.cuda_kernels.platform import launch
from minigrad.cuda_kernels.platform.array import copy, from_host, to_host
from minigrad.cuda_kernels.pointwise import formulas, layout, pointwise, rules
from minigrad.ops import activation as ops

RNG = np.random.default_rng(0)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [*map(np.dtype, ("float64", "float32", "float16", "int64", "int32", "uint8", "bool")), BFLOAT16]


def draw(*shape, dtype="f4"):
    return RNG.integers(-40, 40, shape).astype(dtype) / np.ones((), dtype)


LAYOUTS = {
    "contiguous": lambda x: x, "transposed": lambda x: x.transpose(), "permuted": lambda x: x.transpose(2, 0, 1),
    "reversed": lambda x: x[::-1, :, ::-1], "steps": lambda x: x[:, ::2, 1::2], "odd place": lambda x: x[..., 1:],
    "row": lambda x: x[:1, :1], "column": lambda x: x[..., :1], "one": lambda x: x[:1, :1, :1],
}  # fmt: skip


@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS)
def test_any_two_layouts(first, second, order):
    x, y = draw(3, 5, 6), draw(3, 5, 6)
    hx, hy = LAYOUTS[first](x), LAYOUTS[second](y)
    dx, dy = LAYOUTS[first](from_host(x)), LAYOUTS[second](from_host(y))
    try:
        expected = hx - hy
    except ValueError:
        raises(ValueError, "could not be broadcast together with shapes", lambda: elementwise.sub(dx, dy))
        return
    np.testing.assert_array_equal(to_host(elementwise.sub(dx, dy)), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 11])
def test_lengths_and_alignments(n, start, dtype):
    """128-bit accesses where the address allows them, single ones for what is left and elsewhere."""
    x, y = draw(16, dtype=dtype)[: n + start], draw(16, dtype=dtype)[: n + start]
    z = elementwise.add(from_host(x)[start:], from_host(y)[start:])
    np.testing.assert_array_equal(to_host(z), x[start:] + y[start:])


def test_the_innermost_dimension_is_read_in_words():
    """A row is added to each row of a matrix, and a column, with 128-bit accesses; a misaligned array has none."""

    def modes(*inputs):
        plan = layout.plan(4, tuple((x.shape, x.strides, x.itemsize) for x in inputs), None, 4)
        return [part.modes for part in plan.parts]

    x = draw(4, 8)
    assert modes(x, x) == [(layout.VECTOR,) * 3]
    assert modes(x, x[0]) == [(layout.VECTOR,) * 3]
    assert modes(x, x[:, :1]) == [(layout.VECTOR, layout.SAME, layout.VECTOR)]
    assert modes(x[:, :5], x[:, :5]) == [(layout.VECTOR, layout.VECTOR, layout.GATHER)]
    assert modes(x.T, x.T) == [(layout.VECTOR,) * 3]  # the result has the order of its inputs
    assert modes(x.T, x.T.copy()) == [(layout.GATHER, layout.VECTOR, layout.VECTOR)]
    odd = draw(5, 7)[:, :4]
    assert modes(odd, odd) == [(layout.GATHER, layout.GATHER, layout.VECTOR)]


def test_results_keep_the_order_of_their_inputs():
    x = from_host(draw(2, 3, 4)).transpose(1, 2, 0)
    assert elementwise.neg(x).strides == x.strides
    assert elementwise.add(x, from_host(draw(3, 4, 2))).contiguous


@pytest.mark.parametrize("rank", range(7))
def test_numbers_of_dimensions(rank):
    """None of them follow on one another: a kernel sees them all, up to five."""
    x = draw(*(3 + i % 2 for i in range(rank)))
    some = (slice(None, None, 2),) * rank
    np.testing.assert_array_equal(to_host(elementwise.sub(from_host(x)[some], 2)), x[some] - 2)


def test_more_dimensions_than_a_kernel_sees(launched):
    x, y = draw(2, 3, 2, 3, 2, 3, 2), draw(2, 1, 2, 3, 1, 3)
    order = (6, 4, 2, 0, 5, 3, 1)
    z = elementwise.mul(from_host(x).transpose(*order), from_host(y))
    np.testing.assert_array_equal(to_host(z), x.transpose(order) * y)
    assert len(launched) > 1


@pytest.mark.parametrize("shape", [(40,), (7, 9), (3, 4, 5)])
def test_arrays_too_large_for_one_launch(shape, launched, monkeypatch):
    monkeypatch.setattr(layout, "MOST_GROUPS", 4)
    layout.plan.cache_clear()
    x, y = draw(*shape), draw(*shape)
    z = elementwise.add(from_host(x), from_host(y).transpose().transpose())
    np.testing.assert_array_equal(to_host(z), x + y)
    assert len(launched) >= x.size // 16
    np.testing.assert_array_equal(to_host(copy(from_host(x)[..., ::2])), x[..., ::2])
    layout.plan.cache_clear()


SPECIAL = np.array(
    [0, -0.0, 1, -1, 2.5, -2.5, 300, -3, 65519.99, 65520, 1 + 2**-11 + 2**-30, 1e-9, np.nan, np.inf, -np.inf]
)


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts(source, target):
    with np.errstate(all="ignore"):
        x = (SPECIAL if source.kind in "fV" else np.array([0, 1, 2, 127, 255])).astype(source)
        expected = x.astype(target)
    found = to_host(elementwise.cast(from_host(x), target))
    assert found.dtype == target
    np.testing.assert_array_equal(found.astype("f8"), expected.astype("f8"))
    np.testing.assert_array_equal(np.signbit(found.astype("f8"))[:2], np.signbit(expected.astype("f8"))[:2])
    y = from_host(np.zeros((2, x.size), target))
    elementwise.assign(y, from_host(x))
    np.testing.assert_array_equal(to_host(y)[1].astype("f8"), expected.astype("f8"))


KERNELS = [
    (operation, words)
    for operation in {**vars(comparison), **vars(elementwise), **vars(trigonometry)}.values()
    if isinstance(operation, pointwise.Pointwise) and operation.name not in ("cast", "fill", "clamp", "nan_to_num")
    for words in (*operation.eager, *operation.lazy)
    if operation.module != "division" and " to " not in words
]


@pytest.mark.parametrize(("operation", "words"), KERNELS, ids=lambda x: getattr(x, "name", x))
def test_every_kernel_computes_what_the_plain_ones_do(operation, words, launched):
    name, kinds = f"{operation.module}.{operation.name}_{words.replace(' ', '_')}", words.split() * operation.inputs
    with np.errstate(all="ignore"):
        x = np.meshgrid(*(SPECIAL.astype(minigrad.dtypes.as_dtype(kind)) for kind in kinds[: operation.inputs]))
        wide = [a.astype("f4") if a.itemsize == 2 else a for a in x]
        expected = getattr(getattr(plain_kernels, operation.module), operation.name)(*wide)
        expected = expected if wide[-1] is x[-1] or expected.dtype != "f4" else expected.astype(x[-1].dtype)
    found = to_host(operation(*map(from_host, x)))
    assert len(launched) == 1 and found.dtype == expected.dtype
    assert words in operation.eager or launched == [launch.LAZY_KERNELS[name]().name]
    rtol = 1e-15 if "64" in words else 2e-6 if "32" in words else 2**-8
    np.testing.assert_allclose(found.astype("f8"), expected.astype("f8"), rtol=rtol)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fill(dtype):
    x = from_host(np.zeros((3, 5), dtype))
    elementwise.fill(x[:, 1::2], 1)
    expected = np.zeros((3, 5), dtype)
    expected[:, 1::2] = 1
    np.testing.assert_array_equal(to_host(x), expected)
    elementwise.fill(x[:, ::2], 1)
    elementwise.fill(x[:, 1::2], 0)
    np.testing.assert_array_equal(to_host(x), 1 - expected.astype("f4"))
    elementwise.fill(x, 0)
    assert not to_host(x).any()


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "floor_div", "remainder", "fmod", "pow"])
@pytest.mark.parametrize(
    "kinds", [("int64", "int32"), ("uint8", 3), ("int64", 2.5), ("float32", "bool"), ("bool", "bool")]
)
def test_dtypes_are_numpys(name, kinds):
    """Of arrays of two dtypes, and of arrays and numbers."""
    x = draw(7, dtype=kinds[0]) if kinds[0] != "uint8" else np.arange(7, dtype="u1")
    y = (abs(draw(7, dtype=kinds[1])) % 3 + 1).astype(kinds[1]) if isinstance(kinds[1], str) else kinds[1]
    try:
        with np.errstate(all="ignore"):
            expected = getattr(plain_kernels.elementwise, name)(x, y)
    except TypeError:
        raises(TypeError, "", lambda: getattr(elementwise, name)(from_host(x), from_host(y)))
        return
    if expected.dtype not in DTYPES:
        pytest.skip(f"no tensor is {expected.dtype}: NumPy's {name} of bool")
    found = to_host(getattr(elementwise, name)(from_host(x), from_host(y) if isinstance(y, np.ndarray) else y))
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["floor_div", "remainder", "fmod", "pow", "maximum", "minimum"])
def test_zeros_infinities_and_nan(name):
    values = np.array([0.0, -0.0, 1, -1, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e30], np.float32)
    x, y = values[:, None], values[None]
    with np.errstate(all="ignore"):
        expected = getattr(plain_kernels.elementwise, name)(x, y)
    found = to_host(getattr(elementwise, name)(from_host(x), from_host(y)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    if not name.startswith("m"):  # which of two zeros is the larger one NumPy leaves open
        np.testing.assert_array_equal(np.signbit(found)[expected == 0], np.signbit(expected)[expected == 0])


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_integers(dtype):
    x, y = np.meshgrid(np.arange(-7, 8, dtype=dtype), np.array([-3, -2, -1, 1, 2, 5], dtype))
    for name in ("floor_div", "remainder", "fmod", "pow"):
        found = to_host(getattr(elementwise, name)(from_host(x), from_host(y)))
        np.testing.assert_array_equal(found, getattr(plain_kernels.elementwise, name)(x, y), err_msg=name)
    raises(ValueError, "Integers to negative integer powers", lambda: elementwise.pow(from_host(x), -1))
    for name in ("floor_div", "remainder", "fmod"):
        for divisor in (0, from_host(y - 5), False):
            raises(ZeroDivisionError, "integer division by 0", getattr(elementwise, name), from_host(x), divisor)


def test_numbers_beyond_float32():
    for number in (1e39, -1e39, 3.4028235677973365e38, np.nan, np.inf):
        found = to_host(elementwise.mul(from_host(np.ones(2, np.float32)), number))
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(found, np.float32(number))


def test_numbers_that_an_integer_dtype_cannot_hold():
    x = np.arange(5, dtype=np.uint8)
    # Also where no kernel runs.
    raises(OverflowError, "Python integer 300 out of bounds for uint8", lambda: elementwise.add(from_host(x[:0]), 300))
    for name, compare in (("lt", operator.lt), ("ge", operator.ge), ("eq", operator.eq), ("ne", operator.ne)):
        for number in (300, -1, 2**70):
            np.testing.assert_array_equal(to_host(getattr(comparison, name)(from_host(x), number)), compare(x, number))
            np.testing.assert_array_equal(to_host(getattr(comparison, name)(number, from_host(x))), compare(number, x))


def test_writing_into_memory_that_is_read():
    base = draw(6, 5)
    x = from_host(base)
    elementwise.add_into(x[1:], x[:-1])
    elementwise.assign(x[:, 1:], x[:, :-1])
    expected = base.copy()
    expected[1:] += expected[:-1].copy()
    expected[:, 1:] = expected[:, :-1].copy()
    np.testing.assert_array_equal(to_host(x), expected)
    elementwise.add_into(x, x)
    np.testing.assert_array_equal(to_host(x), 2 * expected)
    y = from_host(base)
    elementwise.add_into(y.transpose()[::2], 1)
    base.T[::2] += 1
    np.testing.assert_array_equal(to_host(y), base)


def test_shapes_that_do_not_fit():
    x, y = from_host(draw(2)), from_host(draw(3, 2))
    raises(ValueError, r"could not broadcast input array from shape .* into shape \(2,\)", elementwise.assign, x, y)
    raises(ValueError, r"could not be broadcast together .* into \(2,\)", elementwise.add_into, x, y)
    raises(TypeError, "takes arrays of the device and numbers, not ndarray", elementwise.add, x, draw(2))


def test_a_formula_returns_one_array():
    raises(TypeError, "<lambda> returns a tuple; .* one array", formulas.of_formula(lambda x: (x, -x)), np.float32)


def test_numbers_that_a_formula_chooses_keep_their_dtype():
    found = to_host(elementwise.fused(lambda k, x: k.where(k.gt(x, 1), 1, 0), from_host(np.arange(4, dtype="f4"))))
    assert found.dtype == np.int64 and found.tolist() == [0, 0, 1, 1]


def test_gradients_are_one_launch(launched):
    x, dy = from_host(draw(4, 6)), from_host(draw(4, 6))
    for approximate in ("tanh", "none"):
        gelu.backward(dy, x, approximate)
    for op, *numbers in ((ops.Elu, 1.5), (ops.LeakyRelu, 0.1), (ops.Softplus, 2.0, 20.0)):
        elementwise.fused(op.formulas[1], dy, x, *numbers)
    assert len(launched) == 5


def test_gelu_keeps_its_digits_where_it_is_tiny():
    x = np.array([-12, -9, -5, -3], np.float32)
    found = to_host(gelu.forward(from_host(x), "none"))
    np.testing.assert_allclose(found, [-2.1317784e-32, -1.0157279e-18, -1.4332578e-06, -0.0040496940], rtol=1e-5)


def test_two_threads_may_need_a_kernel_at_once(monkeypatch):
    """Each would declare it, and a second kernel of the name is refused."""
    larger = pointwise.like(np.maximum)
    operation = pointwise.Pointwise("needed_at_once", lambda real: rules.larger_of, larger, 2, lazy=())
    both_here = threading.Barrier(2, timeout=0.2)
    made = pointwise.Variant.__init__

    def slow(self, *arguments):
        with contextlib.suppress(threading.BrokenBarrierError):
            both_here.wait()
        made(self, *arguments)

    monkeypatch.setattr(pointwise.Variant, "__init__", slow)
    kinds = (np.dtype(np.int32),) * 2
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(operation.variant, [kinds] * 2)
    assert first is second
