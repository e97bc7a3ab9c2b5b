"""``set_float32_matmul_precision``: float32 products on tensor cores, by the operations, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from product_cases import draw

import minigrad as mg
from minigrad.cuda_kernels.platform import memory
from minigrad.cuda_kernels.products import simt

BOUND = 2**-10 + 2**-22  # of |a| |b|: each operand is off by at most 2^-11 of itself


@pytest.fixture(autouse=True)
def high(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Precision "high"; every product is too large for the small kernel."""
    monkeypatch.setattr(simt, "SMALL", 0)
    mg.set_float32_matmul_precision("high")
    yield
    mg.set_float32_matmul_precision("highest")


def close(y: Any, a: np.ndarray, b: np.ndarray, start: Any = 0.0) -> None:
    """y is a b + start within the bound of rounded operands, and further from it than float32 would be."""
    a, b = a.astype("f8"), b.astype("f8")
    error = np.abs(y.numpy(force=True) - (a @ b + start))
    size = np.abs(a) @ np.abs(b)
    assert (error <= (BOUND + 1e-6) * size + 1e-6 * np.abs(start)).all()
    assert error.max() > 2e-6 * size.max()


LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize(("transpose_a", "transpose_b"), LAYOUTS)
@pytest.mark.parametrize("sizes", [(20, 12, 24), (7, 9, 21)])
def test_matmul_in_all_transpositions(
    sizes: tuple[int, int, int], transpose_a: bool, transpose_b: bool, launched: list[str]
) -> None:
    """Forward and both gradients, at sizes that begin at multiples of 16 bytes and at others."""
    M, N, K = sizes
    a, b, dy = draw(M, K), draw(K, N), draw(M, N)
    x = mg.tensor(a.T if transpose_a else a, device="cuda", requires_grad=True)
    w = mg.tensor(b.T if transpose_b else b, device="cuda", requires_grad=True)
    y = (x.T if transpose_a else x) @ (w.T if transpose_b else w)
    grads = mg.backward(y, mg.tensor(dy, device="cuda"))
    close(y, a, b)
    dx, dw = grads[x], grads[w]
    close(dx.T if transpose_a else dx, dy, b.T)
    close(dw.T if transpose_b else dw, a.T, dy)
    products = [name for name in launched if name.startswith(("simt", "tensor_core", "hopper"))]
    assert len(products) == 3 and all(name.startswith("tensor_core.tiles_float32") for name in products)


def test_what_stays_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows, small products, older cards, and everything with "highest"."""
    a, b = draw(8, 32), draw(32, 8)
    x, y = mg.tensor(a, device="cuda"), mg.tensor(b, device="cuda")
    exact = a.astype("f8") @ b

    def error(product: Any) -> float:
        return float(np.abs(product.numpy(force=True) - exact[: len(product)]).max())

    assert error(x @ y) > 1e-4
    assert error(x[:2] @ y) < 1e-5
    with monkeypatch.context() as old:
        old.setattr(memory, "capability", lambda _: (7, 5))
        assert error(x @ y) < 1e-5
    with monkeypatch.context() as small:
        small.setattr(simt, "SMALL", 1 << 19)
        assert error(x @ y) < 1e-5
    mg.set_float32_matmul_precision("highest")
    assert error(x @ y) < 1e-5
    mg.set_float32_matmul_precision("high")
    assert error(x @ y) > 1e-4
