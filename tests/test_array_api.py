"""minigrad.array_api beside NumPy, which follows the same standard; array-api-compat and einops where they are."""

import importlib
import sys

import numpy as np
import pytest
from refusals import raises

import minigrad
from minigrad import array_api as xp

SPECIAL = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-45, -3e38]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["copysign", "nextafter", "hypot"])
def test_what_only_the_namespace_has(name, dtype):
    a, b = (x.ravel() for x in np.meshgrid(np.array(SPECIAL, dtype), np.array(SPECIAL, dtype)))
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(a, b)
        found = getattr(xp, name)(xp.asarray(a), xp.asarray(b)).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=4e-7 if name == "hypot" else 0)  # a quotient, a root, a product
    rest = ~np.isnan(expected)
    assert (np.signbit(found) == np.signbit(expected))[rest].all()


def test_0_d_tensors_promote_in_functions_and_not_in_operators():
    a, b = xp.asarray(1, dtype=xp.int64), xp.asarray([2], dtype=xp.int32)
    assert xp.add(a, b).dtype == xp.int64 == xp.result_type(a, b)
    assert (a + b).dtype == xp.int32  # PyTorch's rule
    assert xp.add(b, 1).dtype == xp.int32
    assert xp.multiply(b, 0.5).dtype == xp.float32


def test_reductions_over_no_several_and_all_dimensions():
    array = np.arange(1.0, 25.0).reshape(2, 3, 4)
    for name in ("sum", "prod", "max", "min", "mean", "std", "var", "any", "all"):
        for axis in (None, (), (0, -1), 1):
            for keepdims in (False, True):
                found = getattr(xp, name)(xp.asarray(array), axis=axis, keepdims=keepdims).numpy()
                expected = getattr(np, name)(array, axis=axis, keepdims=keepdims)
                np.testing.assert_allclose(found, expected, rtol=1e-13, err_msg=f"{name} {axis}")


def test_unique_all_says_where_each_value_occurs_first():
    array = np.array([[3, 1, 3], [2, 1, 3]])
    found = xp.unique_all(xp.asarray(array))
    for part, expected in zip(found, np.unique(array, return_index=True, return_inverse=True, return_counts=True)):
        np.testing.assert_array_equal(part.numpy(), expected)


def test_gradients_flow_through_the_namespace():
    x = minigrad.tensor([1.0, 2.0], requires_grad=True)
    y = x.__array_namespace__(api_version="2024.12").sum(xp.multiply(x, x))
    assert y.backward()[x].tolist() == [2.0, 4.0]


def test_array_api_compat_recognises_tensors():
    compat = pytest.importorskip("array_api_compat", reason="needs array-api-compat")
    x = xp.ones((2, 3))
    assert compat.is_array_api_obj(x)
    assert compat.array_namespace(x, x) is xp
    assert compat.to_device(x, "cpu") is x


def test_without_einops_its_backend_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "einops", None)
    monkeypatch.delitem(sys.modules, "minigrad.compat.einops", raising=False)
    raises(ModuleNotFoundError, "pip install einops", importlib.import_module, "minigrad.compat.einops")


def test_einops_takes_tensors():
    einops = pytest.importorskip("einops", reason="needs einops")
    import minigrad.compat.einops

    x = minigrad.randn(2, 3, 4, requires_grad=True)
    a = x.detach().numpy()
    y = einops.reduce(x, "a (b b2) (c c2) -> b c a", "max", b=3, c2=2)
    np.testing.assert_array_equal(y.detach().numpy(), a.reshape(2, 3, 2, 2).max(-1).transpose(1, 2, 0))
    assert einops.repeat(x, "a b c -> a n b c", n=2).shape == (2, 2, 3, 4)
    assert y.sum().backward()[x].numpy().sum() == y.numel()
