"""Products on tensor cores against NumPy in float64: layouts, edges, batches, divided sums, epilogues, banks, waits."""

import itertools

import numpy as np
import pytest
from product_cases import RNG, bf16, check_epilogues, check_on_tensor_cores as check, f16, f32, product, stored
from refusals import raises
from simulated import ordered

import minigrad
from minigrad.cuda_kernels import matmul, simulated
from minigrad.cuda_kernels.platform import array, choices, memory
from minigrad.cuda_kernels.products import choose, simt, tensor_core
from minigrad.cuda_kernels.products.record import BIAS, broadcast, problem
from minigrad.cuda_kernels.ptx import ptx
from minigrad.cuda_kernels.simulator import simulated_cuda, simulated_memory, simulator


def draw(*shape: int, dtype=bf16) -> np.ndarray:
    """Normal numbers; float32 ones have 8 bits, which tf32 keeps."""
    return RNG.standard_normal(shape).astype(bf16 if dtype is f32 else dtype).astype(dtype)


def multiply(a, b, bias=None, dtype=None):
    """The product by tensor cores whatever its size, as an array of ``dtype``."""
    a, b, shape = broadcast(a, b)
    y = array.empty(shape, dtype or a.dtype)
    if y.size:
        for part in choose.parts(problem(y, a, b, bias, epilogue=0 if bias is None else BIAS), 2):
            tensor_core.multiply(part)
    return y


def use(monkeypatch: pytest.MonkeyPatch, side: int, splits: int = 1) -> None:
    monkeypatch.setattr(tensor_core, "plan", lambda *_: (side, splits))


LAYOUTS = list(itertools.product(("rows", "columns"), repeat=2))
CASES = [(dtype, f32, 64, *layouts) for dtype in (bf16, f32) for layouts in LAYOUTS]
CASES += [(dtype, dtype, 128, *layouts) for dtype in (bf16, f32) for layouts in LAYOUTS]
CASES += [(bf16, f32, 128, *layouts) for layouts in LAYOUTS]
CASES += [(f16, f32, 64, "rows", "columns"), (f16, f32, 64, "columns", "rows")]


@pytest.mark.parametrize(("dtype", "out", "side", "layout_a", "layout_b"), CASES)
def test_layouts(dtype, out, side, layout_a, layout_b, launched, monkeypatch) -> None:
    """Operands of any transposition are read where they are; tiles reach over the edges; all warps have work."""
    use(monkeypatch, side)
    a, b = draw(side // 2 + 16, 72, dtype=dtype), draw(72, side + 8, dtype=dtype)
    with ordered(1):
        y = multiply(stored(a, layout_a), stored(b, layout_b), dtype=out)
    check(y, product(a, b))
    kinds = {"rows": "k", "columns": "o"}[layout_a] + {"rows": "o", "columns": "k"}[layout_b]
    assert launched == [f"tensor_core.tiles_{np.dtype(dtype).name}_{np.dtype(out).name}_{side}_{kinds}"]


@pytest.mark.parametrize("dtype", [bf16, f16, f32])
def test_any_sizes_and_strides(dtype) -> None:
    """What does not begin at multiples of 16 bytes is copied to where it does."""
    for M, N, K, layout_a, layout_b in (
        *[(1, 1, 1, "rows", "rows"), (3, 5, 7, "columns", "columns"), (17, 2, 33, "neither", "neither")],
        *[(2, 33, 3, "rows", "columns"), (5, 9, 40, "columns", "rows")],
    ):
        a, b = draw(M, K, dtype=dtype), draw(K, N, dtype=dtype)
        check(multiply(stored(a, layout_a), stored(b, layout_b)), product(a, b))
    a = draw(4, 24, dtype=dtype)
    check(multiply(stored(a)[:, 1:], stored(a)[:, 1:].T), product(a[:, 1:], a[:, 1:].T))
    empty, bias = draw(3, 0, dtype=dtype), draw(3, dtype=dtype)
    check(multiply(stored(empty), stored(empty.T), stored(bias)), np.broadcast_to(bias, (3, 3)))
    assert multiply(stored(empty.T), stored(a[:3])).shape == (0, 24)


def test_batches() -> None:
    for shape_a, shape_b in (
        ((2, 3, 5, 8), (8, 16)),
        ((2, 1, 5, 7), (3, 7, 4)),
        ((2, 1, 1, 3, 4), (2, 1, 4, 2)),
        ((2, 1, 1, 2, 2, 8), (2, 2, 1, 8, 2)),
    ):
        a, b = draw(*shape_a), draw(*shape_b)
        check(multiply(stored(a), stored(b, "columns")), product(a, b))


@pytest.mark.parametrize("dtype", [bf16, f16, f32])
def test_divided_sums_have_the_same_bits_at_each_run(dtype, launched, monkeypatch) -> None:
    """The gradient of a weight: dy^T x over many rows, added to what there is."""
    use(monkeypatch, 64, 3)
    word = np.dtype(dtype).name
    dy, x, bias = draw(150, 8, dtype=dtype), draw(150, 6, dtype=dtype), draw(6, dtype=dtype)
    y = multiply(stored(dy).T, stored(x), stored(bias))
    check(y, product(dy.T, x) + bias.astype("f8"))
    assert launched[-2:] == [f"tensor_core.tiles_{word}_float32_64_oo", f"epilogue.sum_parts_{word}_{word}"]
    with ordered(3):
        again = multiply(stored(dy).T, stored(x), stored(bias))
    np.testing.assert_array_equal(array.to_host(again), array.to_host(y))
    before = RNG.standard_normal((8, 6)).astype(f32)
    total = array.from_host(before)
    monkeypatch.setattr(choices, "precision", "high")  # float32 too
    monkeypatch.setattr(simt, "SMALL", 0)
    matmul.add_matmul(total, stored(dy).T, stored(x))
    check(total, before + product(dy.T, x))
    assert launched[-1] == f"epilogue.sum_parts_{word}_float32"


@pytest.mark.parametrize(
    ("dtype", "N", "splits"), [(bf16, 8, 1), (f16, 40, 1), (bf16, 6, 1), (f16, 8, 2), (bf16, 5, 2)]
)
def test_epilogues(dtype, N: int, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 64, splits)
    K = 72 if splits > 1 else 24
    check_epilogues(check, *(draw(*shape, dtype=dtype) for shape in ((9, K), (K, N), (N,), (9, N))))


def test_values_of_the_ends() -> None:
    """Infinite and NaN products, and GELU of large numbers."""
    a = np.array([[np.inf], [np.nan], [-200.0], [200.0], [0.0]]).astype(bf16)
    y, before = map(array.to_host, matmul.matmul_gelu(stored(a), stored(np.ones((1, 1), bf16))))
    np.testing.assert_array_equal(before.astype("f4")[:, 0], [np.inf, np.nan, -200, 200, 0])
    np.testing.assert_array_equal(y.astype("f4")[:, 0], [np.inf, np.nan, 0, 200, 0])


def test_tf32_rounds_to_10_bits() -> None:
    a = np.array([[1 + 2**-10 + 2**-12, 1 + 2**-11]], f32)
    y = array.to_host(multiply(stored(a), stored(np.eye(2, dtype=f32))))
    np.testing.assert_array_equal(y, [[1 + 2**-10, 1 + 2**-10]])


def test_what_stays_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """With "high": few rows, small products and older cards; everything with "highest"."""
    monkeypatch.setattr(simt, "SMALL", 0)
    a, b = RNG.standard_normal((8, 32)).astype(f32), RNG.standard_normal((32, 8)).astype(f32)
    x, y = minigrad.tensor(a, device="cuda"), minigrad.tensor(b, device="cuda")
    exact = product(a, b)

    def error(found) -> float:
        return float(np.abs(found.numpy(force=True) - exact[: len(found)]).max())

    minigrad.set_float32_matmul_precision("high")
    try:
        assert error(x @ y) > 1e-4
        assert error(x[:2] @ y) < 1e-5
        with monkeypatch.context() as old:
            old.setattr(memory, "capability", lambda _: (7, 5))
            assert error(x @ y) < 1e-5
        with monkeypatch.context() as small:
            small.setattr(simt, "SMALL", 1 << 19)
            assert error(x @ y) < 1e-5
        assert error(x @ y) > 1e-4
    finally:
        minigrad.set_float32_matmul_precision("highest")
    assert error(x @ y) < 1e-5


def test_errors() -> None:
    a, b = stored(draw(2, 3)), stored(draw(3, 4))
    for error, words, call in (
        (ValueError, "expected .* same K", lambda: matmul.matmul(a, a)),
        (TypeError, "got bfloat16 and float16 to bfloat16", lambda: multiply(a, stored(draw(3, 4, dtype=f16)))),
        (TypeError, "to float16", lambda: multiply(a, b, dtype=f16)),
        (ValueError, "expected a C-contiguous array", lambda: matmul.add_matmul(stored(draw(4, 2)).T, a, b)),
    ):
        raises(error, words, call)


@pytest.mark.parametrize("capability", [(8, 0), (7, 5)])
@pytest.mark.parametrize("dtype", [bf16, f16])
def test_operations_on_halves(dtype, capability, launched, monkeypatch) -> None:
    """linear and its gradient reach the tensor cores where there are some; older devices compute in float32."""
    monkeypatch.setattr(memory, "capability", lambda _: capability)
    arrays = [draw(*shape, dtype=dtype) for shape in ((6, 8), (5, 8), (6, 5))]
    x, weight, dy = (minigrad.tensor(a, device="cuda", dtype=dtype, requires_grad=True) for a in arrays)
    y = minigrad.nn.functional.linear(x, weight)
    grads = minigrad.backward(y, dy.detach())
    check(y.data, product(arrays[0], arrays[1].T))
    check(grads[x].data, product(arrays[2], arrays[1]))
    check(grads[weight].data, product(arrays[2].T, arrays[0]))
    assert any(name.startswith("tensor_core.tiles_") for name in launched) is (capability >= (8, 0))


# What only the simulator can see --------------------------------------------------------------------------------------

needs_simulator = pytest.mark.skipif(not simulated(), reason="NUMBA_ENABLE_CUDASIM=1 selects the simulator")


@needs_simulator
@pytest.mark.parametrize(
    ("dtype", "layout", "side"),
    [(bf16, "rows", 64), (bf16, "columns", 64), (bf16, "columns", 128), (f32, "columns", 64)],
)
def test_no_bank_conflicts(dtype, layout: str, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 8 places of 16 bytes that shared memory serves at a time lie in its 8 groups of 4 banks, one in each."""
    use(monkeypatch, side)
    written: dict[int, list[int]] = {}
    read: dict[int, list[int]] = {}

    def record(places: dict[int, list[int]], original):
        def instruction(address, *rest):
            places.setdefault(simulator.block().current.number, []).append(int(address) // 16 % 8)
            return original(address, *rest)

        return instruction

    monkeypatch.setattr(ptx, "cp_async", record(written, ptx.cp_async))
    monkeypatch.setattr(ptx, "ldmatrix", record(read, ptx.ldmatrix))
    monkeypatch.setattr(ptx, "ldmatrix_transposed", record(read, ptx.ldmatrix_transposed))
    a, b = draw(side, 40, dtype=dtype), draw(40, side, dtype=dtype)
    other = "rows" if layout == "columns" else "columns"  # so both operands are read along k, or neither
    check(multiply(stored(a, layout), stored(b, other), dtype=f32), product(a, b))
    assert written
    assert read or (dtype is f32 and layout == "columns")
    for places in (written, read):
        for first in range(0, 2 * side if places else 0, 8):
            for together in zip(*(places[first + i] for i in range(8)), strict=True):
                assert sorted(together) == list(range(8))


@needs_simulator
@pytest.mark.parametrize(("owner", "name"), [(ptx, "cp_async_wait1"), (simulated_cuda.cuda, "syncthreads")])
def test_without_a_wait_or_a_barrier_it_fails(owner, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, lambda: None)
    found = "has waited for its asynchronous copy|race: thread"
    raises(simulated_memory.SimulationError, found, multiply, stored(draw(64, 96)), stored(draw(96, 64)))
