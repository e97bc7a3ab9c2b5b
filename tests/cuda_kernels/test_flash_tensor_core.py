"""Attention of half floats on tensor cores against NumPy in float64, and where other kernels compute it."""

import ml_dtypes
import numpy as np
import pytest
from simulated import ordered

import minigrad
from minigrad.cuda_kernels import attention
from minigrad.cuda_kernels.platform import array, memory
from minigrad.ops.attention import Options
from minigrad.plain_kernels import attention as plain

RNG = np.random.default_rng(0)


FORWARDS = [
    (ml_dtypes.bfloat16, 2, 1, 67, 67, 64, True, False),  # grouped queries, rows and keys past the last tile
    (np.float16, 1, 1, 66, 66, 40, True, True),  # a head that its tile does not fill, in a packed projection
    (np.float16, 1, 1, 3, 130, 128, False, False),
    (ml_dtypes.bfloat16, 1, 1, 70, 20, 72, True, False),  # more queries than keys
]


@pytest.mark.parametrize(("dtype", "H", "Hkv", "Tq", "Tk", "D", "causal", "packed"), FORWARDS)
def test_forward(
    dtype, H: int, Hkv: int, Tq: int, Tk: int, D: int, causal: bool, packed: bool,
    launched: list[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(attention, "SMALL", 0)
    shapes = ((Tq, H, D), (Tk, Hkv, D), (Tk, Hkv, D))
    rows = [RNG.standard_normal((1, *shape)).astype(dtype) for shape in shapes]
    raw = [array.from_host(x) for x in rows]
    if packed:
        qkv = array.from_host(np.stack(rows, 2))
        raw = [qkv[:, :, i] for i in range(3)]
    scale = D**-0.5
    with ordered(1):
        y, lse = attention.forward(*(x.swapaxes(1, 2) for x in raw), Options(causal, scale))
    expected, expected_lse = plain.forward(*(x.swapaxes(1, 2).astype("f8") for x in rows), Options(causal, scale))
    tolerance = 2**-7 if dtype is ml_dtypes.bfloat16 else 2**-10
    np.testing.assert_allclose(array.to_host(y).astype("f8"), expected, atol=tolerance)
    np.testing.assert_allclose(array.to_host(lse), expected_lse, atol=2e-6)
    assert lse.dtype == np.float32
    assert launched[0] == f"flash_tensor_core.forward_{np.dtype(dtype).name}_{64 if D <= 64 else 128}"


@pytest.mark.parametrize("scale", [-0.5, 0.0])
def test_scales_that_turn_the_order(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the diagonal hides stays hidden."""
    monkeypatch.setattr(attention, "SMALL", 0)
    rows = [RNG.standard_normal((1, 1, 5, 8)).astype(np.float16) for _ in range(3)]
    y, _ = attention.forward(*map(array.from_host, rows), Options(True, scale))
    expected, _ = plain.forward(*(x.astype("f8") for x in rows), Options(True, scale))
    np.testing.assert_allclose(array.to_host(y).astype("f8"), expected, atol=2e-3)


F16, BF16 = minigrad.float16, minigrad.bfloat16


GRADIENTS = [
    (BF16, (8, 0), 0, ((2, 19, 64), (2, 19, 64)), True),  # rounded to 8 bits between the products
    (BF16, (8, 0), 0, ((2, 19, 128), (2, 19, 128)), True),
    (F16, (8, 0), 0, ((2, 3, 16), (1, 3, 16)), False),  # two heads share keys
    (F16, (8, 0), 0, ((1, 66, 8), (1, 66, 8)), True),  # two tiles each way
    (F16, (8, 0), 0, ((1, 3, 64), (1, 67, 64)), True),  # keys that no query sees
    (F16, (8, 0), 0, ((2, 33, 128), (1, 33, 128)), True),  # tiles of 32 rows
    (F16, (8, 0), 0, ((1, 3, 72), (1, 34, 72)), False),
    (F16, (8, 0), 1 << 18, ((1, 5, 8), (1, 5, 8)), True),  # too small for tiles
    (F16, (7, 5), 1 << 18, ((1, 5, 8), (1, 5, 8)), True),  # a device without the instructions
]


@pytest.mark.parametrize(("dtype", "capability", "small", "shapes", "causal"), GRADIENTS)
def test_gradients(
    dtype, capability: tuple[int, int], small: int, shapes: tuple[tuple[int, ...], ...], causal: bool,
    launched: list[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of the operation: halves in and out, whichever kernels compute."""
    monkeypatch.setattr(memory, "capability", lambda _: capability)
    monkeypatch.setattr(attention, "SMALL", small)
    queries, keys = shapes
    arrays = [RNG.standard_normal((1, *shape)).astype(dtype) for shape in (queries, keys, keys, queries)]
    results = []
    for device, computed in (("cuda", dtype), ("cpu", minigrad.float64)):
        q, k, v, dy = (minigrad.tensor(x, device=device, dtype=computed, requires_grad=True) for x in arrays)
        y = minigrad.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        grads = minigrad.backward(y, dy.detach())
        results.append([x.numpy(force=True) for x in (y, *(grads.get(x) for x in (q, k, v)))])
    for found, expected in zip(*results, strict=True):
        assert found.dtype == dtype
        tolerance = (1e-3 if dtype == F16 else 2**-7) * max(1, np.abs(expected).max())
        np.testing.assert_allclose(found.astype("f8"), expected, atol=tolerance)
    used = {name.partition(".")[0] for name in launched if name.startswith("flash")}
    assert used == ({"flash_tensor_core", "flash_tensor_core_gradient"} if small == 0 else set())
    if dtype == BF16:
        kernels = {name.partition(".")[2] for name in launched if name.startswith("flash_tensor_core_gradient")}
        assert kernels == {f"queries_bfloat16_{queries[2]}", f"keys_bfloat16_{queries[2]}"}
