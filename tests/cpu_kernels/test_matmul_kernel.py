"""The matrix product against NumPy in float64: every size, stride, batch and bias, on any number of threads.

Also of operands that are rounded to bfloat16, and who may choose that.
"""

import platform

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from ml_dtypes import bfloat16
from processes import python
from refusals import raises

import minigrad as mg
from minigrad.cpu_kernels import linear
from minigrad.cpu_kernels.matmul import matmul, product
from minigrad.cpu_kernels.toolbox import bfloat16_product, product_loops, register_tile
from minigrad.nn import functional as F

DTYPES = [np.float32, np.float64]
RNG = np.random.default_rng(0)
needs_bfloat16 = pytest.mark.skipif(not bfloat16_product.AVAILABLE, reason="this CPU has no avx512_bf16")
KINDS = pytest.mark.parametrize(
    ("dtype", "precision"),
    [*((dtype, "highest") for dtype in DTYPES), pytest.param(np.float32, "medium", marks=needs_bfloat16)],
    indirect=["precision"],
)
MEDIUM = pytest.mark.parametrize("precision", [pytest.param("medium", marks=needs_bfloat16)], indirect=True)


@pytest.fixture(autouse=True)
def precision(request: pytest.FixtureRequest):
    """That of float32 products: the test's parameter, or the highest."""
    chosen = getattr(request, "param", "highest")
    mg.set_float32_matmul_precision(chosen)
    yield chosen
    mg.set_float32_matmul_precision("highest")


def assert_product(y, a, b, bias=None):
    """Each element is a sum of k products: its error is at most about k roundings of the sum of their magnitudes.

    (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1; + 2 for the bias and NumPy's own float64.)
    With precision "medium" float32 operands are rounded, of products that are not thin, and pairs are added.
    """
    halves = mg.get_float32_matmul_precision() == "medium" and y.dtype == np.float32
    if halves and min(y.shape[-2:]) > product_loops.THIN_ROWS:
        a, b = a.astype(bfloat16).astype(np.float32), b.astype(bfloat16).astype(np.float32)
    wide = [x.astype(np.float64) for x in (a, b)]
    expected, magnitude = np.matmul(*wide), np.matmul(*map(np.abs, wide))
    if bias is not None:
        expected, magnitude = expected + bias, magnitude + np.abs(bias)
    assert y.shape == expected.shape
    assert y.dtype == a.dtype
    assert y.flags.c_contiguous
    bound = (a.shape[-1] + 2 + 2 * halves) * np.finfo(a.dtype).eps * magnitude
    assert np.all(np.abs(y - expected) <= bound)


def contiguous(x):
    return x


def transposed(x):
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def stepped(x):
    return np.repeat(np.repeat(x, 2, axis=-2), 3, axis=-1)[..., ::2, ::3]


def reversed_(x):
    return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]


def one_row(x):
    return np.broadcast_to(x[..., :1, :], x.shape)


def one_column(x):
    return np.broadcast_to(x[..., :1], x.shape)


def unaligned(x):
    buffer = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    buffer[...] = x
    return buffer


LAYOUTS = [contiguous, transposed, stepped, reversed_, one_row, one_column, unaligned]
SIZE = st.one_of(st.integers(0, 10), st.integers(0, 100))


@KINDS
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    m=SIZE, n=SIZE, k=SIZE, layout_a=st.sampled_from(LAYOUTS), layout_b=st.sampled_from(LAYOUTS), has_bias=st.booleans()
)
def test_any_shape_and_strides(m, n, k, layout_a, layout_b, dtype, precision, has_bias):
    a, b = layout_a(RNG.normal(size=(m, k)).astype(dtype)), layout_b(RNG.normal(size=(k, n)).astype(dtype))
    bias = RNG.normal(size=n).astype(dtype) if has_bias else None
    before = a.copy(), b.copy()
    assert_product(matmul(a, b, bias), a, b, bias)
    np.testing.assert_array_equal(a, before[0])
    np.testing.assert_array_equal(b, before[1])


SEVERAL_BLOCKS = [
    (product_loops.ROW_BLOCK + 1, product_loops.COLUMN_BLOCK_TRANSPOSED + 1, product_loops.DEPTH_BLOCK + 1),
    (2 * product_loops.ROW_BLOCK, 2 * product_loops.COLUMN_BLOCK, 2 * product_loops.DEPTH_BLOCK),
    (bfloat16_product.ROW_BLOCK + 1, bfloat16_product.COLUMN_BLOCK + 1, bfloat16_product.DEPTH_BLOCK + 1),
    (2 * bfloat16_product.ROW_BLOCK, bfloat16_product.COLUMN_BLOCK, 2 * bfloat16_product.DEPTH_BLOCK),
    (2, 2 * product_loops.THIN_COLUMN_BLOCK + 5, 600),
    (900, 2, 600),
    (1, 5000, 300),
    (5000, 1, 300),
]


@KINDS
@pytest.mark.parametrize(("m", "n", "k"), SEVERAL_BLOCKS)
def test_shapes_of_several_blocks(m, n, k, dtype, precision):
    a, b, bias = (RNG.normal(size=shape).astype(dtype) for shape in ((m, k), (k, n), (n,)))
    for layout_a in (contiguous, transposed):
        for layout_b in (contiguous, transposed):
            assert_product(matmul(layout_a(a), layout_b(b), bias), a, b, bias)


BATCHES = [
    *[((3, 4, 5), (5, 6)), ((4, 5), (3, 5, 6)), ((2, 1, 7, 40), (3, 40, 33)), ((2, 3, 1, 40), (2, 1, 40, 90))],
    *[((2, 3, 90, 40), (3, 40, 2)), ((1, 2, 8, 8), (5, 1, 8, 8)), ((0, 4, 5), (5, 6)), ((3, 0, 5), (3, 5, 6))],
    *[((3, 4, 0), (3, 0, 6)), ((500, 3, 9), (500, 9, 3))],
]


@KINDS
@pytest.mark.parametrize(("a_shape", "b_shape"), BATCHES)
def test_batches(a_shape, b_shape, dtype, precision):
    a, b = RNG.normal(size=a_shape).astype(dtype), RNG.normal(size=b_shape).astype(dtype)
    for layout_a in (contiguous, transposed, stepped):
        for layout_b in (contiguous, transposed):
            assert_product(matmul(layout_a(a), layout_b(b)), a, b)
    if len(b_shape) == 2:
        bias = RNG.normal(size=b_shape[-1]).astype(dtype)
        assert_product(matmul(a, b, bias), a, b, bias)


@KINDS
def test_bits_do_not_depend_on_neighbours(dtype, precision):
    a, b = RNG.normal(size=(300, 700)).astype(dtype), RNG.normal(size=(700, 333)).astype(dtype)
    y = matmul(a, b)
    np.testing.assert_array_equal(matmul(a[11:30], b), y[11:30])
    np.testing.assert_array_equal(matmul(a, b[:, 3:]), y[:, 3:])
    if precision == "medium":
        np.testing.assert_array_equal(matmul(transposed(a), transposed(b)), y)


@KINDS
@pytest.mark.parametrize("layout", [contiguous, transposed, stepped])
def test_nan_and_infinity_propagate(dtype, precision, layout):
    a, b = np.ones((20, 41), dtype), np.ones((41, 50), dtype)
    a[3, 5], a[4, 6], a[5, 7], a[6, 40] = np.nan, np.inf, 0, -np.inf
    b[7, 8] = np.inf
    with np.errstate(invalid="ignore"):
        expected = a @ b
    np.testing.assert_array_equal(matmul(layout(a), layout(b)), expected)
    np.testing.assert_array_equal(matmul(layout(a)[3:6], layout(b)), expected[3:6])


@pytest.mark.long(but=2)
@pytest.mark.parametrize("dtype", ["int64", ">f4", "uint8", "int16", "int32", "uint64", "bool", "complex64", "float16"])
def test_other_dtypes_are_numpys(dtype):
    a, b = RNG.integers(0, 90, (3, 4)).astype(dtype), RNG.integers(0, 90, (4, 5)).astype(dtype)  # uint8 wraps
    y = matmul(a, b)
    np.testing.assert_array_equal(y, a @ b)
    assert y.dtype == (a @ b).dtype
    z = matmul(a, b.real.astype(float), np.ones(5))  # of two dtypes
    assert z.dtype == np.result_type(a, float)
    np.testing.assert_array_equal(z, a @ b.real.astype(float) + 1)


OTHER_VECTORS = """
import numpy as np
from minigrad.cpu_kernels import attention, matmul
from minigrad.cpu_kernels.toolbox import register_tile
from minigrad.ops.attention import Options
from minigrad.plain_kernels import attention as plain
rng = np.random.default_rng(0)
for m, n, k in ((1, 1, 1), (7, 9, 5), (50, 70, 90), (2, 300, 40)):
    a, b = rng.normal(size=(m, k)).astype(np.float32), rng.normal(size=(k, n)).astype(np.float32)
    for x in (a, np.asfortranarray(a)):
        for y in (b, np.asfortranarray(b)):
            np.testing.assert_allclose(matmul.matmul(x, y), a @ b, atol=1e-4)
q, k, v, dy = rng.normal(size=(4, 1, 2, 45, 11)).astype(np.float32)
def run(kernels):
    y, lse = kernels.forward(q, k, v, Options(True, 0.3))
    return y, *kernels.backward(dy, q, k, v, y, lse, Options(True, 0.3))
for actual, expected in zip(run(attention), run(plain)):
    np.testing.assert_allclose(actual, expected, atol=1e-4)
print(register_tile.VECTOR_BYTES)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("cpu", "features", "vector_bytes"),
    [("generic", "", 16), ("haswell", "+avx,+avx2,+fma,+sse4.2,+popcnt,+bmi,+bmi2", 32)],
)
def test_other_vector_widths(cpu, features, vector_bytes):
    """Compiled for an x86 CPU with shorter vectors."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("the other CPUs of this test are x86")
    if vector_bytes > register_tile.VECTOR_BYTES:
        pytest.skip("this CPU has no AVX2")
    environment = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features, "NUMBA_NUM_THREADS": "1"}  # without helpers
    result = python("-c", OTHER_VECTORS, env=environment, returncode=0)
    assert int(result.stdout) == vector_bytes


ROWS = [
    *((rows, 33, 20) for rows in (127, 128, 129, 254, 1023, 1024, 1025)), (1023, 600, 513), (1024, 65, 600),
    (600, 2100, 513),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "outputs", "inputs"), ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_gradient_of_any_number_of_rows(rows, outputs, inputs, dtype):
    shapes = (rows, outputs), (rows, inputs), (outputs, inputs)
    dy, x, weight = (RNG.normal(size=shape).astype(dtype) for shape in shapes)
    _, dweight, dbias = linear.backward(dy, x, weight, (True, True, True))
    total = np.ones_like(weight)
    linear.add_weight_gradient(total, dy, x)
    assert_product(dweight, dy.T, x, None)
    np.testing.assert_allclose(total - 1, dweight, rtol=0, atol=100 * np.finfo(dtype).eps * np.sqrt(rows))
    np.testing.assert_allclose(dbias, dy.sum(0, dtype=np.float64), rtol=0, atol=100 * np.finfo(dtype).eps * rows)


# Operands that are rounded to bfloat16 --------------------------------------------------------------------------------


@MEDIUM
@pytest.mark.parametrize("layout", [contiguous, transposed, stepped])
def test_rounding_is_to_nearest_ties_to_even(layout, precision):
    """Products with the identity are the rounded operand itself, on both sides and in each way of packing."""
    bits = RNG.integers(0, 0x7F7F0000, 64 * 64, dtype=np.uint32) | (RNG.integers(0, 2, 64 * 64, dtype=np.uint32) << 31)
    one = np.eye(64, dtype=np.float32)
    for x in (bits, bits & 0xFFFF0000 | 0x8000):  # the latter are ties
        x = x.view(np.float32).reshape(64, 64)
        x = np.where(np.abs(x) < 1e-30, np.float32(1), x)
        for y in (matmul(layout(x), one), matmul(one, layout(x))):
            np.testing.assert_array_equal(y, x.astype(bfloat16).astype(np.float32))
    nans = np.full((20, 41), 0x7F800001, np.uint32).view(np.float32)  # cutting off their lower halves gives infinities
    assert np.isnan(matmul(layout(nans), layout(np.ones((41, 50), np.float32)))).all()


@MEDIUM
def test_the_largest_number_becomes_infinite_and_denormal_ones_count_as_zero(precision):
    largest, one = np.full((3, 1), np.finfo(np.float32).max), np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(matmul(largest, one), np.inf)
    np.testing.assert_array_equal(matmul(np.full((3, 3), np.float32(1e-39)), np.full((3, 3), np.float32(1e38))), 0)


COMPILED_FOR_AMX = """
import numpy as np
from minigrad.cpu_kernels.toolbox.bfloat16_product import multiply_cells
one, places = np.zeros(1, np.float32), np.zeros(1, np.int64)
multiply_cells._compile(None, (one, one, one, False, one, places, places, (1,) * 6, (1,) * 3, (1, 1)))
(code,) = multiply_cells.kernel.inspect_asm().values()
print(*(name in code for name in ("ldtilecfg", "tdpbf16ps", "tilerelease", "vdpbf16ps")))
"""


@pytest.mark.long
def test_a_cpu_with_amx_multiplies_tiles(tmp_path):
    """Compiled for one, whatever this CPU is; where it has AMX, all the others of these tests run that code."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("AMX is x86's")
    features = "+avx,+avx2,+fma,+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512bf16"
    for amx, expected in ((",+amx-tile,+amx-bf16", "True True True False"), ("", "False False False True")):
        environment = {"NUMBA_CPU_NAME": "sapphirerapids", "NUMBA_CPU_FEATURES": features + amx}
        environment |= {"NUMBA_NUM_THREADS": "1", "MINIGRAD_CACHE_DIR": str(tmp_path)}
        result = python("-c", COMPILED_FOR_AMX, env=environment, returncode=0)
        assert result.stdout.split() == expected.split()


@needs_bfloat16
def test_products_of_bfloat16_are_those_of_its_float32():
    rng, a = np.random.default_rng(0), np.random.default_rng(1).normal(size=(3, 17, 301)).astype(bfloat16)
    for x in (rng.normal(size=(3, 301, 40)), rng.normal(size=(3, 40, 301)).swapaxes(1, 2)):
        wide = product(a.astype(np.float32), x.astype(bfloat16).astype(np.float32), None, True)
        np.testing.assert_array_equal(matmul(a, x.astype(bfloat16)), wide.astype(bfloat16))


@MEDIUM
def test_all_products_of_a_linear_layer_are_of_rounded_operands(precision):
    """The gradient of the bias is exact."""
    x, w, b = (mg.tensor(RNG.normal(size=s).astype(np.float32), requires_grad=True) for s in ((9, 33), (21, 33), (21,)))
    dy = RNG.normal(size=(9, 21)).astype(np.float32)
    y = F.linear(x, w, b)
    grads = y.backward(mg.tensor(dy))
    wide, weight = x.detach().numpy(), w.detach().numpy()
    assert_product(y.detach().numpy(), wide, weight.T, b.detach().numpy())
    assert_product(grads[x].numpy(), dy, weight)
    assert_product(grads[w].numpy(), dy.T, wide)
    np.testing.assert_allclose(grads[b].numpy(), dy.sum(0), rtol=1e-5, atol=1e-5)


def test_other_words_are_refused_and_high_is_float32_on_a_cpu():
    """CPUs have no TensorFloat-32; a script for GPUs runs on them as it is."""
    raises(ValueError, 'expected "highest", "high" or "medium"', mg.set_float32_matmul_precision, "bfloat16")
    assert mg.get_float32_matmul_precision() == "highest"
    x = RNG.standard_normal((33, 70)).astype(np.float32)
    expected = matmul(x, x.T)
    mg.set_float32_matmul_precision("high")
    assert mg.get_float32_matmul_precision() == "high"
    np.testing.assert_array_equal(matmul(x, x.T), expected)


def test_a_cpu_without_the_instruction_says_so():
    program = "import minigrad as mg\nmg.set_float32_matmul_precision('medium')"
    result = python("-c", program, env={"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""})
    assert result.returncode == 1 and "RuntimeError" in result.stderr and "avx512_bf16" in result.stderr
