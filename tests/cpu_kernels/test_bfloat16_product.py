"""The product of operands rounded to bfloat16, against exact products, and who may choose it."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import python

import minigrad as mg
from minigrad.cpu_kernels.matmul import THIN_ROWS, matmul
from minigrad.cpu_kernels.toolbox import bfloat16_product, threads
from minigrad.nn import functional as F

needs_bfloat16 = pytest.mark.skipif(not bfloat16_product.AVAILABLE, reason="this CPU has no avx512_bf16")
RNG = np.random.default_rng(0)
EPS = float(np.finfo(np.float32).eps)
U = 2.0**-8  # the unit roundoff of bfloat16


@pytest.fixture
def medium():
    mg.set_float32_matmul_precision("medium")
    yield
    mg.set_float32_matmul_precision("highest")


def rounded(x):
    """The nearest bfloat16 by another implementation, as float64."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def assert_product(y, a, b, bias=0.0):
    """Rounding the operands costs (1 + u)^2 - 1 of |a| |b|; the sums round as float32 ones, twice for a pair."""
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    summing = (a.shape[-1] + 4) * EPS * (1.01 * magnitude + np.abs(bias))
    assert y.dtype == np.float32
    assert y.flags.c_contiguous
    assert np.all(np.abs(y - (rounded(a) @ rounded(b) + bias)) <= summing)
    exact = a.astype(np.float64) @ b.astype(np.float64) + bias
    assert np.all(np.abs(y - exact) <= (2 * U + U * U) * magnitude + summing)


def contiguous(x):
    return x


def transposed(x):
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def stepped(x):
    return np.repeat(np.repeat(x, 2, axis=-2), 3, axis=-1)[..., ::2, ::3]


LAYOUTS = [contiguous, transposed, stepped]
SIZE = st.one_of(st.integers(THIN_ROWS + 1, 10), st.integers(THIN_ROWS + 1, 100))
DEPTH = st.one_of(st.integers(0, 10), st.integers(1, 100))


@needs_bfloat16
@settings(max_examples=200)
@given(SIZE, SIZE, DEPTH, st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), st.booleans())
def test_any_shape_and_strides(m, n, k, layout_a, layout_b, has_bias):
    mg.set_float32_matmul_precision("medium")
    try:
        a, b = (RNG.normal(size=shape).astype(np.float32) for shape in ((m, k), (k, n)))
        bias = RNG.normal(size=n).astype(np.float32) if has_bias else None
        assert_product(matmul(layout_a(a), layout_b(b), bias), a, b, 0.0 if bias is None else bias)
    finally:
        mg.set_float32_matmul_precision("highest")


@needs_bfloat16
@pytest.mark.usefixtures("medium")
def test_shapes_of_several_blocks():
    kernel = bfloat16_product
    for m, n, k in (
        (kernel.ROW_BLOCK + 1, kernel.COLUMN_BLOCK + 1, kernel.DEPTH_BLOCK + 1),
        (2 * kernel.ROW_BLOCK, kernel.COLUMN_BLOCK, 2 * kernel.DEPTH_BLOCK),
    ):
        a, b, bias = (RNG.normal(size=shape).astype(np.float32) for shape in ((m, k), (k, n), (n,)))
        for layout_a in (contiguous, transposed):
            for layout_b in (contiguous, transposed):
                assert_product(matmul(layout_a(a), layout_b(b), bias), a, b, bias)


@needs_bfloat16
@pytest.mark.usefixtures("medium")
def test_batches():
    for a_shape, b_shape in (((3, 4, 5), (5, 6)), ((2, 1, 7, 40), (3, 40, 33)), ((70, 9, 65), (70, 65, 9))):
        a, b = (RNG.normal(size=shape).astype(np.float32) for shape in (a_shape, b_shape))
        assert_product(matmul(transposed(a), stepped(b)), a, b)


@needs_bfloat16
@pytest.mark.usefixtures("medium")
def test_rounding_is_to_nearest_ties_to_even():
    """Products with the identity are the rounded operand itself, on both sides and in each way of packing."""
    bits = RNG.integers(0, 0x7F7F0000, 64 * 64, dtype=np.uint32) | (RNG.integers(0, 2, 64 * 64, dtype=np.uint32) << 31)
    ties = bits & 0xFFFF0000 | 0x8000
    for x in (bits, ties):
        x = x.view(np.float32).reshape(64, 64)
        x = np.where(np.abs(x) < 1e-30, np.float32(1), x)
        for layout in LAYOUTS:
            np.testing.assert_array_equal(matmul(layout(x), np.eye(64, dtype=np.float32)), rounded(x))
            np.testing.assert_array_equal(matmul(np.eye(64, dtype=np.float32), layout(x)), rounded(x))


@needs_bfloat16
@pytest.mark.usefixtures("medium")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_special_values(layout):
    """NaN and infinities propagate as in float32; float32's largest becomes infinite; denormals count as zero."""
    a, b = np.ones((20, 41), np.float32), np.ones((41, 50), np.float32)
    a[3, 5], a[4, 6], a[5, 7], a[6, 40] = np.nan, np.inf, 0, -np.inf
    b[7, 8] = np.inf
    with np.errstate(invalid="ignore"):
        expected = a @ b
    np.testing.assert_array_equal(matmul(layout(a), layout(b)), expected)
    nans = np.full((20, 41), 0x7F800001, np.uint32).view(np.float32)  # cutting off their lower halves gives infinities
    assert np.isnan(matmul(layout(nans), layout(b))).all()
    largest, one = np.full((3, 1), np.finfo(np.float32).max), np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(matmul(largest, one), np.inf)
    np.testing.assert_array_equal(matmul(np.full((3, 3), np.float32(1e-39)), np.full((3, 3), np.float32(1e38))), 0)


@needs_bfloat16
@pytest.mark.usefixtures("medium")
def test_bits_depend_neither_on_threads_nor_on_neighbours():
    a, b = RNG.normal(size=(300, 700)).astype(np.float32), RNG.normal(size=(700, 333)).astype(np.float32)
    y, count = matmul(a, b), threads.get_num_threads()
    np.testing.assert_array_equal(matmul(a, b), y)
    np.testing.assert_array_equal(matmul(transposed(a), transposed(b)), y)
    np.testing.assert_array_equal(matmul(a[11:30], b[:, 3:]), y[11:30, 3:])
    threads.set_num_threads(1)
    try:
        np.testing.assert_array_equal(matmul(a, b), y)
    finally:
        threads.set_num_threads(count)


@needs_bfloat16
@pytest.mark.usefixtures("medium")
def test_thin_products_and_other_dtypes_are_as_before():
    a, b = RNG.normal(size=(40, 50)).astype(np.float32), RNG.normal(size=(50, 60)).astype(np.float32)
    results = [
        matmul(a[:2], b),
        matmul(a, b[:, :2]),
        matmul(a[:, ::-1][:2], b[:, ::2]),
        matmul(a.astype(float), b * 1.0),
    ]
    mg.set_float32_matmul_precision("highest")
    for y, x, w in zip(results, (a[:2], a, a[:, ::-1][:2], a.astype(float)), (b, b[:, :2], b[:, ::2], b * 1.0)):
        np.testing.assert_array_equal(y, matmul(x, w))


@needs_bfloat16
@pytest.mark.usefixtures("medium")
def test_linear_forward_and_backward():
    """The value and all gradients of a linear layer are products of rounded operands, the bias's gradient is exact."""
    x, w, b = (mg.tensor(RNG.normal(size=s).astype(np.float32), requires_grad=True) for s in ((9, 33), (21, 33), (21,)))
    dy = RNG.normal(size=(9, 21)).astype(np.float32)
    y = F.linear(x, w, b)
    grads = y.backward(mg.tensor(dy))
    assert_product(y.detach().numpy(), x.detach().numpy(), w.detach().numpy().T, b.detach().numpy())
    assert_product(grads[x].numpy(), dy, w.detach().numpy())
    assert_product(grads[w].numpy(), dy.T, x.detach().numpy())
    np.testing.assert_allclose(grads[b].numpy(), dy.sum(0), rtol=1e-5, atol=1e-5)
    z = (x @ w.T).detach().numpy()
    assert_product(z, x.detach().numpy(), w.detach().numpy().T)
    assert np.abs(z - x.detach().numpy() @ w.detach().numpy().T).max() > 1e-4  # float32 would be nearer


def test_other_words_are_refused():
    assert mg.get_float32_matmul_precision() == "highest"
    with pytest.raises(ValueError, match='expected "highest", "high" or "medium"'):
        mg.set_float32_matmul_precision("bfloat16")
    mg.set_float32_matmul_precision("highest")
    assert mg.get_float32_matmul_precision() == "highest"


def test_high_is_float32_on_a_cpu():
    """CPUs have no TensorFloat-32; a script for GPUs runs on them as it is."""
    x = mg.tensor(RNG.standard_normal((33, 70)).astype(np.float32))
    expected = (x @ x.T).numpy()
    mg.set_float32_matmul_precision("high")
    try:
        assert mg.get_float32_matmul_precision() == "high"
        np.testing.assert_array_equal((x @ x.T).numpy(), expected)
    finally:
        mg.set_float32_matmul_precision("highest")


def test_a_cpu_without_the_instruction_says_so():
    program = "import minigrad as mg\nmg.set_float32_matmul_precision('medium')"
    result = python("-c", program, env={"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""})
    assert result.returncode == 1
    assert "RuntimeError" in result.stderr
    assert "avx512_bf16" in result.stderr
