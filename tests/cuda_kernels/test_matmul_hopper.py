"""Products by TMA and wgmma against NumPy in float64: layouts, edges, batches, divided sums, epilogues, mistakes."""

import numpy as np
import pytest
from product_cases import RNG, bf16, check_epilogues, check_on_tensor_cores as check, f16, f32, product, stored
from refusals import raises
from simulated import ordered

import minigrad
from minigrad.cuda_kernels import simulated
from minigrad.cuda_kernels.platform import array, choices, memory, tensor_map
from minigrad.cuda_kernels.products import hopper
from minigrad.cuda_kernels.products.record import ADD, problem
from minigrad.cuda_kernels.ptx import hopper_ptx
from minigrad.cuda_kernels.simulator import simulated_memory

if memory.capability(0) != (9, 0):
    pytest.skip("compute capability 9.0 has TMA and wgmma, no other has both", allow_module_level=True)


def draw(*shape: int, dtype=bf16) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def padded(n: int) -> int:
    return -(-n // 8) * 8


def aligned(x: np.ndarray, kind: str):
    """The same where rows (or columns) begin at multiples of 16 bytes, with NaN between them."""
    if kind == "columns":
        return aligned(x.swapaxes(-1, -2), "rows").swapaxes(-1, -2)
    room = np.full((*x.shape[:-1], padded(x.shape[-1])), np.nan, x.dtype)
    room[..., : x.shape[-1]] = x
    return array.from_host(room)[..., : x.shape[-1]]


def compute(p) -> None:
    """The product by the kernels of this engine."""
    assert hopper.supports(p)
    hopper.multiply(p)


def multiply(a, b, dtype=f32, **more):
    """a b into a new array, on arrays of the device."""
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    y = array.empty(shape, dtype, 0)
    compute(problem(y, a, b, **more))
    return y


def use(monkeypatch: pytest.MonkeyPatch, columns: int, splits: int = 1) -> None:
    monkeypatch.setattr(hopper, "plan", lambda *_: (columns, splits))


@pytest.mark.parametrize("dtype", [bf16, f32])
@pytest.mark.parametrize("layouts", ["kk", "ko", "ok", "oo"])
def test_layouts(layouts: str, dtype, launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands of any transposition are read where they are; all boxes of a tile and both consumers have work."""
    use(monkeypatch, 256)
    a, b = draw(72, 136), draw(136, 200)
    a_kind, b_kind = layouts
    left = stored(a, "rows" if a_kind == "k" else "columns")
    right = stored(b, "columns" if b_kind == "k" else "rows")
    with ordered(1):
        check(multiply(left, right, dtype), product(a, b))
    assert launched == [f"hopper.tiles_bfloat16_{np.dtype(dtype).name}_256_{layouts}"]


SIZES = [
    *[(1, 1, 1, "rows", "columns", bf16), (3, 5, 7, "columns", "rows", f16), (17, 33, 65, "rows", "rows", bf16)],
    *[(130, 9, 70, "columns", "columns", bf16), (5, 131, 129, "rows", "columns", f16)],
]


@pytest.mark.parametrize(("M", "N", "K", "a_kind", "b_kind", "dtype"), SIZES)
def test_any_sizes(M: int, N: int, K: int, a_kind: str, b_kind: str, dtype) -> None:
    """What lies beside the operands in memory, NaN here, has no influence."""
    a, b = draw(M, K, dtype=dtype), draw(K, N, dtype=dtype)
    check(multiply(aligned(a, a_kind), aligned(b, b_kind), dtype), product(a, b))


@pytest.mark.parametrize("columns", [128, 256])
def test_the_ring_turns(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More slices than stages, and more tiles than blocks: phases of both parities, across tiles."""
    use(monkeypatch, columns)
    monkeypatch.setattr(hopper, "multiprocessors", lambda _: 1)
    a, b = draw(136, 64 * 5 + 8), draw(8, 64 * 5 + 8)
    with ordered(2):
        check(multiply(stored(a), stored(b).swapaxes(-1, -2)), product(a, b.T))


def test_batches() -> None:
    for shape_a, shape_b in (((3, 5, 8), (3, 8, 16)), ((2, 3, 5, 16), (16, 8)), ((8, 8), (2, 8, 24))):
        a, b = draw(*shape_a), draw(*shape_b)
        left, right = stored(a, "rows"), stored(b, "columns")
        batch = np.broadcast_shapes(shape_a[:-2], shape_b[:-2])
        left, right = (
            x.view((*batch, *x.shape[-2:]), (*(x.strides[:-2] or (0,) * len(batch)), *x.strides[-2:]))
            for x in (left, right)
        )
        check(multiply(left, right), product(a, b))


def test_divided_sums_have_the_same_bits_at_each_run(launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a weight: dy^T x over many rows, added to what there is."""
    use(monkeypatch, 128, 3)
    dy, x = draw(200, 16), draw(200, 24)
    before = RNG.standard_normal((16, 24)).astype(f32)
    totals = []
    for order in (None, 3):
        total = array.from_host(before)
        with ordered(order):
            compute(problem(total, stored(dy).swapaxes(-1, -2), stored(x), other=total, epilogue=ADD))
        totals.append(array.to_host(total))
        check(total, before + product(dy.T, x))
    np.testing.assert_array_equal(*totals)
    assert launched[:2] == ["hopper.tiles_bfloat16_float32_128_oo", "epilogue.sum_parts_bfloat16_float32"]


@pytest.mark.parametrize(("dtype", "N", "splits"), [(bf16, 40, 1), (f16, 5, 1), (bf16, 8, 2)])
def test_epilogues(dtype, N: int, splits: int, launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 128, splits)
    monkeypatch.setattr(choices, "_gemm", "hopper")
    check_epilogues(check, *(draw(*s, dtype=dtype) for s in ((9, 72), (72, N), (N,), (9, N))), ("rows", "columns"))
    assert {name.partition("_")[0] for name in launched} <= {"hopper.tiles", "epilogue.sum"}


def test_values_of_the_ends() -> None:
    """Infinite and NaN products stay in their rows, although the tile's other rows are multiplied too."""
    a = np.zeros((6, 8), bf16)
    a[:, 0] = [np.inf, -np.inf, np.nan, -200, 200, 0]
    y = multiply(stored(a, "rows"), stored(np.ones((8, 8), bf16), "rows"))
    np.testing.assert_array_equal(array.to_host(y)[:, 0], [np.inf, -np.inf, np.nan, -200, 200, 0])


def test_which_products_it_supports(monkeypatch: pytest.MonkeyPatch) -> None:
    def supports(a, b, dtype=bf16) -> bool:
        shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
        return hopper.supports(problem(array.empty(shape, dtype, 0), a, b))

    a, b = array.from_host(draw(16, 24)), array.from_host(draw(24, 32))
    assert supports(a, b) and supports(a, b, f32)
    assert supports(a[:, :23], b[:23]) and supports(a[3:], b) and supports(a[:, 8:], b[8:])
    assert supports(a[:1], b) and supports(a[:, :1], b[:1])
    for left, right, dtype, why in (
        (a[:, 1:], b[1:], bf16, "an address that is no multiple of 16"),
        (array.from_host(draw(16, 23)), b[:23], bf16, "rows that are no multiple of 16 bytes"),
        (a[:, ::2], b[:12], bf16, "no neighbours"),
        (array.from_host(draw(16, 24, dtype=f16)), b, bf16, "two dtypes"),
        (a, b, f16, "another dtype of y"),
        (array.from_host(draw(16, 24, dtype=f32)), array.from_host(draw(24, 32, dtype=f32)), f32, "float32"),
        (a[:, :0], b[:0], bf16, "an empty sum"),
        (a[:0], b, bf16, "nothing"),
        (array.from_host(draw(2, 3, 8, 8)).view((3, 2, 8, 8), (128, 384, 16, 2)),
         array.from_host(draw(3, 2, 8, 8)), bf16, "leading dimensions in two orders"),
    ):  # fmt: skip
        assert not supports(left, right, dtype), why
    monkeypatch.setattr(memory, "capability", lambda _: (10, 0))
    assert not supports(a, b)


def test_the_engine_of_operations(launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """set_gemm("hopper"): what TMA cannot read is multiplied by the other kernels."""
    monkeypatch.setattr(choices, "_gemm", None)
    minigrad.cuda.set_gemm("hopper")
    for K, kernel in ((16, "hopper.tiles_bfloat16_bfloat16_128_kk"), (15, "tensor_core.tiles_bfloat16_bfloat16_64_kk")):
        x, weight = draw(3, K), draw(8, K)
        tensors = (minigrad.tensor(a, device="cuda", dtype=minigrad.bfloat16) for a in (x, weight))
        y = minigrad.nn.functional.linear(*tensors)
        np.testing.assert_allclose(y.numpy(force=True).astype("f8"), product(x, weight.T), rtol=2**-8, atol=1e-5)
        assert kernel in launched
    monkeypatch.setattr(memory, "capability", lambda _: (8, 0))
    raises(ValueError, r"for compute capability \(9, 0\); cuda:0 has \(8, 0\)", minigrad.cuda.set_gemm, "hopper")


def test_a_captured_launch_keeps_its_maps() -> None:
    """A graph computes the product, of what its inputs hold now, although its maps exist nowhere else any more."""
    graph = minigrad.cuda.Graph()
    a, b = draw(24, 72), draw(72, 40)
    left, right, y = stored(a, "rows"), stored(b, "rows"), array.zeros((24, 40), f32)
    with graph.capture():
        compute(problem(y, left, right))
    tensor_map._encoded.cache_clear()
    hopper._read.cache_clear()
    for _ in range(2):
        graph.replay()
        check(y, product(a, b))
        a = draw(24, 72)
        memory.copy_in(left.pointer, a)


def test_plans_fill_the_card() -> None:
    for M, N, K, count, expected in (
        *[(65536, 3072, 768, 1, (256, 1)), (8192, 8192, 8192, 1, (256, 1)), (768, 768, 65536, 1, (256, 7))],
        *[(768, 3072, 65536, 1, (256, 9)), (1024, 64, 1024, 96, (128, 1)), (3, 5, 7, 1, (128, 1))],
    ):
        assert hopper.plan(M, N, K, count) == expected


# What only a GPU can show ---------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("layouts", ["kk", "ko", "ok", "oo"])
@pytest.mark.parametrize(("M", "N", "K"), [(4096, 3072, 1024), (1016, 2056, 4104), (136, 264, 65536)])
def test_large_sizes(M: int, N: int, K: int, layouts: str) -> None:
    """Many rounds of the ring and of tiles; the bound is that of a float32 sum. Two runs give the same bits."""
    a, b = draw(M, K), draw(K, N)
    left = stored(a, "rows" if layouts[0] == "k" else "columns")
    right = stored(b, "columns" if layouts[1] == "k" else "rows")
    y = array.to_host(multiply(left, right))
    rows = RNG.choice(M, 64, replace=False)
    expected = product(a[rows], b)
    assert np.abs(y[rows] - expected).max() <= 1e-5 * np.abs(expected).max()
    np.testing.assert_array_equal(array.to_host(multiply(left, right)), y)


# What only the simulator can see --------------------------------------------------------------------------------------


@pytest.mark.skipif(not simulated(), reason="NUMBA_ENABLE_CUDASIM=1 selects the simulator")
@pytest.mark.parametrize(
    ("name", "instead", "problem"),
    [
        ("mbarrier_wait", lambda *_: None, "before the copy .* has arrived|has had its 1 arrivals|may still read"),
        ("wgmma_wait1", lambda: None, "may still read"),
        ("wgmma_wait0", lambda sums: sums, "read before wgmma_wait0|may still read"),
    ],
)
def test_a_forgotten_wait_is_found(name: str, instead, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 128)
    monkeypatch.setattr(hopper_ptx, name, instead)
    a, b = stored(draw(16, 64 * 7), "rows"), stored(draw(64 * 7, 16), "columns")
    raises(simulated_memory.SimulationError, problem, multiply, a, b)
