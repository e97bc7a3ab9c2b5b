"""vector_math and program_math against float64 libm: error bounds, special values, both precisions."""

import math

import numpy as np
import pytest

from minigrad.cpu_kernels import elementwise
from minigrad.cpu_kernels.toolbox import jit, vector_math
from minigrad.cpu_kernels.toolbox.formula import formula
from minigrad.plain_kernels.elementwise import _phi


@jit.kernel
def _exp_of_negative(x, out):
    for i in range(x.shape[0]):
        out[i] = vector_math.exp_nonpositive(-abs(x[i]))


def evaluate(x):
    out = np.full(x.size, np.nan, x.dtype)
    _exp_of_negative(x, out)
    y = {name: getattr(elementwise, name)(x) for name in ("exp", "sigmoid", "tanh", "erf", "expm1", "log", "log1p")}
    return y | {"exp of -|x|": out, "cdf": formula(lambda x: _phi(x, "none"))(x)}


def reference(x):
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        y = {name: getattr(np, name)(x) for name in ("exp", "expm1", "log", "log1p", "tanh")}
        y |= {"sigmoid": 1 / (1 + np.exp(-x)), "exp of -|x|": np.exp(-np.abs(x))}
        cdf = [0.5 * math.erfc(-math.sqrt(0.5) * v) for v in x]
        return y | {"erf": np.array([math.erf(v) for v in x]), "cdf": np.array(cdf)}


def ulps(y, exact):
    """Distance in units of the last float32 place; overflow must agree and then counts as 0."""
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isinf(y), np.isinf(rounded))
    finite = np.isfinite(rounded)
    return (np.abs(y - exact)[finite] / np.spacing(np.abs(rounded[finite]))).max()


@pytest.fixture(scope="module")
def sample():
    rng = np.random.default_rng(0)
    drawn = rng.uniform(-110, 95, 60_000), rng.normal(size=60_000), rng.uniform(-5, 5, 60_000)
    return np.concatenate([*drawn, np.logspace(-40, 2, 999)]).astype(np.float32)


def test_float32_error_bounds(sample):
    y, exact = evaluate(sample), reference(sample)
    assert ulps(y["exp"], exact["exp"]) <= 2
    assert ulps(y["expm1"], exact["expm1"]) <= 3
    assert ulps(y["tanh"], exact["tanh"]) <= 3
    for name, least in (("log", 0), ("log1p", -1)):
        assert ulps(y[name][sample > least], exact[name][sample > least]) <= 3
        assert np.isnan(y[name][sample < least]).all()
    assert np.abs(y["sigmoid"] - exact["sigmoid"]).max() <= 1e-7
    assert np.abs(y["erf"] - exact["erf"]).max() <= 2e-7
    np.testing.assert_allclose(y["cdf"], exact["cdf"], rtol=0, atol=3e-7)
    normal = np.abs(sample) < 87.3
    assert ulps(y["exp of -|x|"][normal], exact["exp of -|x|"][normal]) <= 2
    assert (y["exp of -|x|"][~normal] < 2**-125).all()
    tail = (sample < 0) & (sample > -12)  # exp(-72) is still a normal number
    np.testing.assert_allclose(y["cdf"][tail], exact["cdf"][tail], rtol=3e-5, atol=0)


def test_exp_underflows_gradually_and_exactly_to_zero():
    x = np.array([-87.5, -95.0, -103.0, -103.9, -104.5, -1e30, -np.inf], np.float32)
    expected = np.exp(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(evaluate(x)["exp"], expected, rtol=0, atol=2**-149)
    assert expected[2] > 0 and evaluate(x)["exp"][2] > 0
    np.testing.assert_array_equal(evaluate(x)["exp"][4:], 0)
    y = evaluate(np.array([0.0, 87.0, 88.1, 1e30, np.inf], np.float32))["exp of -|x|"]
    np.testing.assert_allclose(y, [1, math.exp(-87.0), 0, 0, 0], rtol=2e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values(dtype):
    y = evaluate(np.array([np.nan, np.inf, -np.inf, 0.0, 1e4, -1e4], dtype))
    np.testing.assert_array_equal(y["exp"], np.array([np.nan, np.inf, 0, 1, np.inf, 0], dtype))
    np.testing.assert_array_equal(y["sigmoid"], np.array([np.nan, 1, 0, 0.5, 1, 0], dtype))
    np.testing.assert_array_equal(y["tanh"], np.array([np.nan, 1, -1, 0, 1, -1], dtype))
    zeros = evaluate(np.array([-0.0, -1e-45, 1e-45], dtype))
    for name in ("tanh", "expm1", "log1p", "erf"):
        np.testing.assert_array_equal(np.signbit(zeros[name]), [True, True, False])
        assert zeros[name][1:].all()
    np.testing.assert_array_equal(y["expm1"], np.array([np.nan, np.inf, -1, 0, np.inf, -1], dtype))
    np.testing.assert_array_equal(y["log"][:4], np.array([np.nan, np.inf, np.nan, -np.inf], dtype))
    np.testing.assert_array_equal(y["log1p"][:4], np.array([np.nan, np.inf, np.nan, 0], dtype))
    np.testing.assert_array_equal(y["erf"], np.array([np.nan, 1, -1, 0, 1, -1], dtype))
    np.testing.assert_array_equal(y["cdf"][[0, 1, 2, 4, 5]], np.array([np.nan, 1, 0, 1, 0], dtype))
    np.testing.assert_array_equal(y["exp of -|x|"], np.array([np.nan, 0, 0, 1, 0, 0], dtype))
    assert y["cdf"][3] == pytest.approx(0.5, abs=2e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.filterwarnings("error")
def test_sine_and_cosine_of_any_size(dtype):
    rng = np.random.default_rng(0)
    drawn = rng.normal(0, 2, 9999), rng.uniform(-(2.0**25), 2.0**25, 9999), 10 ** rng.uniform(-44, 37, 9999)
    x = np.concatenate([*drawn, np.arange(-9999, 9999) * (np.pi / 2), [-0.0]]).astype(dtype)
    wide = x.astype(np.longdouble if dtype == np.float64 else np.float64)
    for name, most in (("sin", 2), ("cos", 2), ("tan", 4)):
        y, exact = getattr(elementwise, name)(x), getattr(np, name)(wide)
        assert (np.abs(y - exact) <= most * np.spacing(np.abs(exact.astype(dtype)))).all()
        few = getattr(elementwise, name)(np.array([np.nan, np.inf, -np.inf, *x[-5:]], dtype))
        np.testing.assert_array_equal(few, [np.nan] * 3 + y[-5:].tolist())
        assert name == "cos" or (np.signbit(y[-1]) and y[-1] == 0)


def test_float64_error_bounds(sample):
    x = sample[::50].astype(np.float64) * 6
    y, exact = evaluate(x), reference(x)
    for name, found in y.items():
        rtol = 3e-13 if name == "cdf" else 1e-15 if name == "erf" else 5e-16
        np.testing.assert_allclose(found, exact[name], rtol=rtol, atol=1e-300)
