"""Elementwise functions by programs: NumPy's bits or values, whatever the layout, the dtype, the number of threads."""

import os

import numpy as np
import pytest
from processes import python
from refusals import raises

from minigrad import cpu_kernels, dtypes, plain_kernels
from minigrad.cpu_kernels.toolbox import array_program
from minigrad.cpu_kernels.toolbox.array_program import Program
from minigrad.cpu_kernels.toolbox.formula import FEW, Formula
from minigrad.cpu_kernels.toolbox.tracing import NoProgramError, kind_of

RNG = np.random.default_rng(0)
ROWS, COLUMNS = 517, 771  # no multiple of a chunk
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38)


def values(dtype, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> np.ndarray:
    """Numbers around 0, with those that formulas go wrong for."""
    with np.errstate(over="ignore"):  # in float16
        x = np.asarray(RNG.normal(0, 4, shape)).astype(dtype)
        if x.dtype.kind == "f":
            x.reshape(-1)[: len(SPECIAL)] = np.asarray(SPECIAL).astype(dtype)
    return x


NUMBERS = {"slope": 0.1, "alpha": 0.7, "beta": 1.5, "threshold": 20.0, "nan": 0.5, "low": -1, "high": 1.5}
NUMBERS |= {"posinf": None, "neginf": -2.0, "approximate": "tanh"}
FAMILIES = ("elementwise", "comparison", "trigonometry", "gelu")
APART = ("add_into", "assign", "cast", "fused", "supports_half")
APPROXIMATE = "exp expm1 log log1p sin cos tan tanh sigmoid silu elu softplus mish forward backward erf".split()
HALVES = np.dtype(np.float16), np.dtype(dtypes.bfloat16)
FUNCTIONS = [(f, n) for f in FAMILIES for n in vars(getattr(plain_kernels, f)) if n[0] != "_" and n not in APART]


def inputs_of(family: str, name: str, dtype):
    function = getattr(getattr(plain_kernels, family), name)
    if isinstance(ufunc := getattr(function, "__wrapped__", function), np.ufunc):
        return [values(dtype) for _ in range(ufunc.nin)]
    names = ufunc.__code__.co_varnames[: ufunc.__code__.co_argcount]
    if "bit" in name or "shift" in name:
        return [np.abs(values(np.int64)) % 7 for _ in names]
    return [values(bool) if n == "condition" else NUMBERS[n] if n in NUMBERS else values(dtype) for n in names]


def same(found: np.ndarray, expected: np.ndarray, tolerance: float = 0) -> None:
    assert (found.dtype, found.shape, found.strides) == (expected.dtype, expected.shape, expected.strides)
    if found.dtype.itemsize == 2:
        found, expected, tolerance = found.astype(np.float32), expected.astype(np.float32), 2**13 * tolerance
    if tolerance:
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(found, expected)


OTHERS = "int32", "uint8", "float16", dtypes.bfloat16, ">f4"
DTYPES = "float32", "float64", "int64", *(pytest.param(dtype, marks=pytest.mark.long) for dtype in OTHERS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "name"), FUNCTIONS)
def test_every_function_has_the_bits_of_the_plain_one(family: str, name: str, dtype) -> None:
    plain = getattr(getattr(plain_kernels, family), name)
    inputs = inputs_of(family, name, dtype)
    half = np.dtype(dtype) if np.dtype(dtype) in HALVES else None  # is computed in float32, and rounded once
    try:
        with np.errstate(all="ignore"):
            expected = plain(*(x.astype(np.float32) if half and getattr(x, "dtype", 0) == half else x for x in inputs))
            expected = expected.astype(half) if half and expected.dtype == np.float32 else expected
    except (TypeError, ZeroDivisionError, ValueError, OverflowError) as error:
        raises(type(error), "", lambda: getattr(getattr(cpu_kernels, family), name)(*inputs))
        return
    function = getattr(getattr(cpu_kernels, family), name)
    with np.errstate(all="ignore"):
        found = function(*inputs)
        same(found, expected, (4e-15 if dtype == "float64" else 2e-6) if name.split("_b")[0] in APPROXIMATE else 0)
        few = function(*(x[:5, :70] if isinstance(x, np.ndarray) else x for x in inputs))
    same(few, np.ascontiguousarray(found[:5, :70]))  # the same bits for any size
    assert few.base is None and found.base is None  # no views: these must not be written in place


@pytest.mark.parametrize(("family", "name"), FUNCTIONS)
def test_floats_have_a_program(family: str, name: str) -> None:
    if "bit" in name or "shift" in name:
        kinds = [np.dtype(np.int64)] * (1 if name == "bitwise_not" else 2)
    else:
        kinds = [kind_of(x) for x in inputs_of(family, name, "float32")]
    assert Program(getattr(getattr(plain_kernels, family), name), tuple(kinds)).work > array_program.MEMORY


LAYOUTS = {
    "a row": lambda x: (x, x[0]), "short rows": lambda x: (x[:, :768].reshape(-1, 48), x[0, :48]),
    "rows before": lambda x: (x[0, :48].reshape(8, 6), x[:, :768].reshape(-1, 8, 6)),
    "a column": lambda x: (x, x[:, :1]), "a number": lambda x: (x, 0.3), "a scalar": lambda x: (np.float32(0.3), x),
    "transposed": lambda x: (x.T, x.T.copy()), "both transposed": lambda x: (x.T, (x + 1).T),
    "every other": lambda x: (x[:, :-1:2], x[:, 1::2]), "reversed": lambda x: (x[::-1, ::-1], x),
    "outer": lambda x: (x.reshape(-1, 1, 1)[:9000], x[:5, :3]),
    "cube": lambda x: (x[:512, :768].reshape(8, 64, 768).transpose(1, 0, 2), x[0, :768]),
    "one dimension": lambda x: (x.reshape(-1), x.reshape(-1)),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", [np.subtract, np.maximum, np.less, lambda x, y: x * y - x / 2])
def test_layouts(function, layout: str) -> None:
    x, y = LAYOUTS[layout](values(np.float32))
    with np.errstate(all="ignore"):
        expected = function(x, y)
    program = Program(function, tuple(a.dtype if isinstance(a, np.ndarray | np.generic) else type(a) for a in (x, y)))
    same(program.run((x, y)), expected)
    x, y = LAYOUTS[layout](values(dtypes.bfloat16))
    wide = function(*(a.astype(np.float32) if isinstance(a, np.ndarray) else a for a in (x, y)))
    found = Formula(function)(x, y)
    assert found.dtype == (dtypes.bfloat16 if wide.dtype == np.float32 and layout != "a scalar" else wide.dtype)
    np.testing.assert_array_equal(found.astype(np.float32), wide.astype(found.dtype).astype(np.float32))


def test_sums_in_place_and_memory_that_is_shared() -> None:
    x, y = values(np.float32), values(np.float32)
    with np.errstate(all="ignore"):
        for other in (lambda total: y, lambda total: y[0], lambda total: total, lambda total: total[::-1]):
            total = x.copy()
            cpu_kernels.elementwise.add_into(total, other(total))
            np.testing.assert_array_equal(total, x + other(x))
            assert cpu_kernels.elementwise.add_into.prepare(total, other(total)) is not None


@pytest.mark.parametrize("target", [np.float16, dtypes.bfloat16, np.float64, np.int64, np.int32, np.uint8, bool])
@pytest.mark.parametrize("source", [np.float32, np.float16, dtypes.bfloat16, np.float64, np.int64, bool])
def test_conversions(source, target) -> None:
    x = values(np.float32)
    with np.errstate(all="ignore"):
        x = x.astype(source)
        found, expected = cpu_kernels.elementwise.cast(x, np.dtype(target)), x.astype(target)
    if expected.dtype.itemsize == 2:
        found, expected = found.view(np.uint16), expected.view(np.uint16)
    same(found, expected)


def test_every_float32_rounds_to_bfloat16_as_ml_dtypes_does() -> None:
    bits = RNG.integers(0, 2**32, 1 << 20, dtype=np.uint32)
    x = bits.view(np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            cpu_kernels.elementwise.cast(x, dtypes.bfloat16).view(np.uint16), x.astype(dtypes.bfloat16).view(np.uint16)
        )


def test_shapes_that_do_not_broadcast_and_numbers_out_of_range_are_refused_as_by_numpy() -> None:
    x = values(np.float32)
    with pytest.raises(ValueError, match=r"could not be broadcast together with shapes \(517,771\) \(517,770\)"):
        cpu_kernels.elementwise.add(x, x[:, :-1])
    raises(OverflowError, "300", lambda: cpu_kernels.elementwise.add(np.zeros((ROWS, COLUMNS), np.uint8), 300))
    assert cpu_kernels.comparison.lt(np.zeros((ROWS, COLUMNS), np.uint8), 300).all()


def test_what_asks_for_values_has_no_program_and_runs_as_it_is() -> None:
    def halved(x: np.ndarray) -> np.ndarray:
        return x / 2 if (x > 1e30).any() else x / 4

    raises(NoProgramError, "", lambda: Program(halved, (np.dtype("float32"),)))
    x = values(np.float32)
    same(Formula(halved)(x), halved(x))


def test_objects_numbers_alone_and_complex_arrays_run_as_they_are() -> None:
    x = np.ones(200_000, np.float32)
    same(cpu_kernels.elementwise.select(x > 1, x), plain_kernels.elementwise.select(x > 1, x))
    for odd in (x.astype(complex), x.astype(object), x.astype(np.longdouble)):
        same(cpu_kernels.elementwise.mul(odd, odd), odd * odd)
    integers = np.arange(200_000)
    same(cpu_kernels.elementwise.sigmoid(integers), plain_kernels.elementwise.sigmoid(integers))
    same(cpu_kernels.elementwise.exp2(x[::-1] / 3), np.exp2(x[::-1] / 3))
    total = x.copy()
    cpu_kernels.elementwise.add_into(total, np.arange(200_000.0))
    same(total, x + np.arange(200_000.0, dtype=np.float32))
    same(cpu_kernels.elementwise.cast(x, "f8"), x.astype("f8"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_adds_large_arrays_without_the_pool() -> None:
    program = (
        "import os, minigrad as mg; x = mg.ones(600, 600); x + x; pid = os.fork()\n"
        "if not pid: os._exit(0 if (x + x).sum().item() == 720000 else 7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert python("-W", "ignore", "-c", program).stdout.split() == ["0"]


def test_where_numba_compiles_nothing_the_kernels_are_plain() -> None:
    program = "import minigrad as mg; x = mg.ones(9, 9); x += x; print(x.sum().item(), 'sgd' in mg.plain_families())"
    assert python("-c", program, env={"NUMBA_DISABLE_JIT": "1"}).stdout.split() == ["162.0", "True"]


def test_small_arrays_and_large_ones_take_their_way_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(Program, "run", lambda self, inputs, out=None: ran.append(inputs[0].size) or inputs[0])
    one, two = Formula(np.add), Formula(lambda x, y: np.add(x, y) * 2)
    first, second = (-(-array_program.WORTH // (array_program.MEMORY + steps)) for steps in (1, 2))
    for size in (FEW, second - 1, second, first - 1, first):
        x = np.ones(size, np.float32)
        one(x, x[:1])  # x alone would be one call of the loop, which divides itself
        two(x, x[:1])
    assert ran == [second, first - 1, first, first]


def slope(k, x, dy, n):
    return k.mul(dy, k.add(k.mul(k.sigmoid(x), n), 1))


def test_an_expression_of_kernels_is_one_pass_with_the_same_values() -> None:
    x, column = values(np.float32), values(np.float32, (ROWS, 1))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = plain_kernels.elementwise.fused(slope, x, column, 0.25)
    same(Formula(lambda *inputs: slope(plain_kernels.elementwise, *inputs))(x, column, 0.25), expected, 2e-6)
    signed = Formula(lambda x, y: np.copysign(x, y) * 2)
    same(signed(x[:1], 0.0), -signed(x[:1], -0.0))  # numbers that are equal, and have other bits


@pytest.mark.parametrize("name", ["remainder", "floor_div"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_quotients_of_integers_have_numpys_bits(name: str, dtype) -> None:
    least, most, bits = np.iinfo(dtype).min, np.iinfo(dtype).max, np.iinfo(dtype).bits
    x, y = (RNG.integers(least, most, (99, 999), dtype, True) >> RNG.integers(0, bits, 999, dtype) for _ in range(2))
    special = np.array([least, least + 1, most, most - 1, most // 2, 1, 2, -1]).astype(dtype)
    x[0, :64], y[0, :64], y[y == 0] = np.repeat(special, 8), np.tile(special, 8), 7
    function, plain = getattr(cpu_kernels.elementwise, name), getattr(plain_kernels.elementwise, name)
    for few in (0, 1):
        x[9:] -= x[9:] % y[9:] + np.asarray(few, dtype)  # multiples, and one less
        same(function(x, y), plain(x, y))
    raises(ZeroDivisionError, "", lambda: function(x, y * (y != 7)))


@pytest.mark.parametrize("name", ["fmod", "remainder", "floor_div"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_have_numpys_bits_for_quotients_of_any_size(name: str, dtype) -> None:
    ufunc = {"fmod": np.fmod, "remainder": np.remainder, "floor_div": np.floor_divide}[name]
    special = np.array([*SPECIAL, -5.0, 0.75, 3.0, -0.75], dtype)
    x, y = values(dtype), values(dtype)
    x[2:] *= np.asarray(10.0 ** RNG.integers(-12, 13, (ROWS - 2, COLUMNS)), dtype)
    x[1], y[1] = np.rint(x[1]), np.rint(y[1])  # whole quotients
    n = len(special) ** 2
    x.reshape(-1)[:n], y.reshape(-1)[:n] = np.repeat(special, len(special)), np.tile(special, len(special))
    for a, b in ((x, y), (x, -0.75), (y[:, ::2], x[:, ::2]), (x, y[0])):
        with np.errstate(all="ignore"):
            expected = ufunc(a, b)
        found = getattr(cpu_kernels.elementwise, name)(a, b)
        same(found, expected)
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(expected)[number])
