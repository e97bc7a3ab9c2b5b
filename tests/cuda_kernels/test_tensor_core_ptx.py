"""The instructions of tensor cores in the simulator: where values lie, and what a forgotten wait or barrier does."""

import contextlib

import ml_dtypes
import numpy as np
import pytest
from refusals import raises
from simulated import ordered, run

from minigrad.cuda_kernels.platform.language import cuda, libdevice
from minigrad.cuda_kernels.ptx import ptx
from minigrad.cuda_kernels.simulator import tensor_core_sums
from minigrad.cuda_kernels.simulator.simulated_memory import SimulationError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    ("name", "dtype", "depth"),
    [("mma_bfloat16", ml_dtypes.bfloat16, 16), ("mma_float16", np.float16, 16), ("mma_tf32", np.float32, 8)],
)
def test_mma_is_a_matrix_product(name: str, dtype, depth: int, seed: int | None) -> None:
    """The positions are those of the PTX manual, written down here a second time: group = l // 4, member = l % 4."""
    a, b = RNG.standard_normal((16, depth)), RNG.standard_normal((depth, 8))
    c = RNG.standard_normal((16, 8)).astype(np.float32)
    if dtype is np.float32:
        a, b = (np.float32(x).astype(ml_dtypes.bfloat16) for x in (a, b))  # exact in tf32
    a, b = a.astype(dtype), b.astype(dtype)
    wide = depth == 16
    a_words, b_words = np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32)
    c_words = np.zeros((32, 4), np.float32)
    for lane in range(32):
        group, member = lane // 4, lane % 4
        for r in range(4):
            row, k = group + 8 * (r % 2), (member * 2 + 8 * (r // 2)) if wide else member + 4 * (r // 2)
            a_words[lane, r] = np.ascontiguousarray(a[row, k : k + 1 + wide]).view(np.uint32)[0]
            c_words[lane, r] = c[group + 8 * (r // 2), 2 * member + r % 2]
        for r in range(2):
            k = (member * 2 + 8 * r) if wide else member + 4 * r
            b_words[lane, r] = np.ascontiguousarray(b[k : k + 1 + wide, group]).view(np.uint32)[0]
    mma = getattr(ptx, name)

    def multiply(y, a, b, c) -> None:
        t = cuda.threadIdx.x
        ptx.store4(y, 4 * t, mma(ptx.load4(a, 4 * t), ptx.load2(b, 2 * t), ptx.load4(c, 4 * t)))

    y = np.zeros((32, 4), np.float32)
    with ordered(seed):
        run(multiply, y, a_words, b_words, c_words, threads=32)
    expected = a.astype("f8") @ b.astype("f8") + c
    for lane in range(32):
        for r in range(4):
            found = expected[lane // 4 + 8 * (r // 2), 2 * (lane % 4) + r % 2]
            np.testing.assert_allclose(y[lane, r], found, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_deals_out_four_matrices(transposed: bool) -> None:
    """Matrix m's row r begins at the address of lane 8 m + r; here the rows lie in a shuffled order."""
    x = np.arange(32 * 8, dtype=np.uint16)
    order = RNG.permutation(32)
    load = ptx.ldmatrix_transposed if transposed else ptx.ldmatrix

    def deal(y, x, order) -> None:
        tile = cuda.shared.array(32 * 8, np.uint16, alignment=16)
        t = cuda.threadIdx.x
        ptx.store8(tile, 8 * t, ptx.load8(x, 8 * t))
        cuda.syncthreads()
        ptx.store4(y, 4 * t, load(ptx.shared_address(tile, 0) + 16 * order[t]))

    y = np.zeros((32, 4), np.uint32)
    run(deal, y, x, order, threads=32)
    matrices = x.reshape(32, 8)[order].reshape(4, 8, 8)
    if transposed:
        matrices = matrices.swapaxes(1, 2)
    expected = np.ascontiguousarray(matrices).view(np.uint32).reshape(4, 32).T
    np.testing.assert_array_equal(y, expected)


def copied(wait, barrier: bool, reader: int = 33) -> np.ndarray:
    """What a thread reads of 16 bytes that thread 0 copied in the first of two groups."""

    def copy(y, x) -> None:
        tile = cuda.shared.array(64, np.float32, alignment=16)
        t = cuda.threadIdx.x
        if t == 0:
            ptx.cp_async(ptx.shared_address(tile, 4), x, 8, 12)
        ptx.cp_async_commit()
        if t == 0:
            ptx.cp_async(ptx.shared_address(tile, 8), x, 0, 16)
        ptx.cp_async_commit()
        wait()
        if barrier:
            cuda.syncthreads()
        if t == reader:
            ptx.store4(y, 0, ptx.load4(tile, 4))

    y, x = np.zeros(4, np.float32), np.arange(1, 17, dtype=np.float32)
    run(copy, y, x)
    return y


@pytest.mark.parametrize("wait", [ptx.cp_async_wait0, ptx.cp_async_wait1])
def test_copies_are_there_after_a_wait_and_a_barrier(wait) -> None:
    np.testing.assert_array_equal(copied(wait, True), [9, 10, 11, 0])
    np.testing.assert_array_equal(copied(wait, False, reader=0), [9, 10, 11, 0])


@pytest.mark.parametrize("wait", [ptx.made.waiter(2), lambda: None])
def test_a_forgotten_wait_is_found(wait) -> None:
    raises(SimulationError, "before thread 0 has waited for its asynchronous copy", copied, wait, True)


def test_a_forgotten_barrier_is_found() -> None:
    with pytest.raises(SimulationError, match="race: thread 33 reads shared element 4 that thread 0 used"):
        copied(ptx.cp_async_wait0, False)


@pytest.mark.parametrize("barrier", [True, False])
def test_a_buffer_may_be_filled_again_after_a_barrier(barrier: bool) -> None:
    def refill(y, x) -> None:
        tile = cuda.shared.array(128, np.float32, alignment=16)
        t = cuda.threadIdx.x
        for turn in range(2):
            if t < 32:
                ptx.cp_async(ptx.shared_address(tile, 4 * t), x, 4 * t, 16)
            ptx.cp_async_commit()
            ptx.cp_async_wait0()
            cuda.syncthreads()
            y[64 * turn + t] = tile[127 - t]
            if barrier:
                cuda.syncthreads()

    y, x = np.zeros(128, np.float32), np.arange(128, dtype=np.float32)
    race = pytest.raises(SimulationError, match="race: thread .* without a barrier between")
    with ordered(2), contextlib.nullcontext() if barrier else race:
        run(refill, y, x)
        np.testing.assert_array_equal(y.reshape(2, 64), [x[:63:-1]] * 2)


def test_addresses_that_a_gpu_would_refuse() -> None:
    def copy(offset: int, i: int, nbytes: int):
        def function(x) -> None:
            tile = cuda.shared.array(16, np.float32, alignment=16)
            ptx.cp_async(ptx.shared_address(tile, 0) + offset, x, i, nbytes)

        return function

    x = np.zeros(16, np.float32)
    run(copy(0, 99, 0), x, threads=1)  # nothing is read
    for offset, i, nbytes, problem in (
        *[(4, 0, 16, "not a multiple of 16"), (0, 1, 16, "expected a multiple of 16")],
        *[(0, 16, 4, "outside the memory"), (64, 0, 16, "outside a shared array"), (0, 0, 20, "0 to 16 bytes")],
        (1 << 24, 0, 16, "no address in shared memory"),
    ):
        raises(SimulationError, problem, run, copy(offset, i, nbytes), x, threads=1)


def test_shared_memory_is_aligned_as_declared() -> None:
    """Wide accesses of an array that is declared without them work by chance on a GPU."""

    def load(size: int, alignment: int | None):
        def function(x) -> None:
            tile = cuda.shared.array(size, np.float32, alignment)
            ptx.store4(tile, 4, ptx.load4(x, 0))

        return function

    x = np.zeros(16, np.float32)
    for size in (16, 0):  # 0: of the size that the launch asks for
        run(load(size, 16), x, threads=1, shared=64)
        for alignment in (None, 8):
            with pytest.raises(SimulationError, match="a vector access of 16 bytes .*: not aligned"):
                run(load(size, alignment), x, threads=1, shared=64)


def test_sums_that_cut_bits_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the hardware: of small terms nothing is left, and sums are rounded towards 0."""
    small = np.full((1, 16), 2.0**-13)
    for truncates, tiny, nearest in ((False, 1 + 2.0**-22, 1 + 2.0**-23), (True, 1.0, 1.0)):
        monkeypatch.setattr(tensor_core_sums, "TRUNCATES", truncates)
        for sign in (1.0, -1.0):
            c = np.full((1, 1), sign, np.float32)
            assert tensor_core_sums.add_products(c, sign * small, small) == sign * tiny  # 16 terms of 2^-26
            half = np.full((1, 1), sign * 1.5 * 2.0**-24)
            assert tensor_core_sums.add_products(c, half, np.ones((1, 1))) == sign * nearest
        infinite = tensor_core_sums.add_products(c, np.full((1, 1), np.inf), np.ones((1, 1)))
        assert infinite == np.inf and infinite.dtype == np.float32


def test_conversions() -> None:
    values = np.array([1.0, -1.00390625, 3.14159265, 1e-40, 65519.0, np.inf], np.float32)
    for dtype, pack in ((ml_dtypes.bfloat16, ptx.pack_bfloat16), (np.float16, ptx.pack_float16)):
        for low, high in zip(values, values[::-1], strict=True):
            assert pack(low, high) == np.array([low, high]).astype(dtype).view(np.uint32)[0]
    assert ptx.round_tf32(np.float32(1 + 2**-11)).view(np.float32) == 1 + 2**-10  # halves away from 0
    assert ptx.round_tf32(np.float32(-1 - 2**-11)).view(np.float32) == -1 - 2**-10
    assert ptx.round_tf32(np.float32(1 + 2**-12)).view(np.float32) == 1
    assert np.isinf(ptx.round_tf32(np.float32(np.inf)).view(np.float32))


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_vector_accesses(width: int) -> None:
    """n neighbours at once; an address that is no multiple of the access is an error, as on a GPU."""
    dtype = {2: np.float64, 4: np.float32, 8: np.uint16, 16: np.uint8}[width]
    load, store = ptx.made.loader(width), ptx.made.storer(width)
    x, y = np.arange(4 * width).astype(dtype), np.zeros(4 * width, dtype)

    def move(start: int):
        def kernel(x, y) -> None:
            store(y, width * cuda.threadIdx.x, load(x, start + width * cuda.threadIdx.x)[::-1])

        return kernel

    run(move(width), x, y, threads=3)
    expected = np.concatenate([x[width * i : width * (i + 1)][::-1] for i in (1, 2, 3)])
    np.testing.assert_array_equal(y[: 3 * width], expected)
    assert not y[3 * width :].any()
    raises(SimulationError, "", lambda: run(move(1), x, y, threads=1))


def test_approximations_bits_and_atomics() -> None:
    for x in (-3.5, 0.0, 0.7, 127.0):
        assert ptx.exp2_approx(x) == pytest.approx(2.0**x, rel=1e-6)
        assert libdevice.int_as_float(libdevice.float_as_int(x)) == np.float32(x)
    assert libdevice.float_as_int(1.0) == 0x3F800000

    def extremes(x) -> None:
        ptx.atomic_max(x, 0, np.int32(cuda.threadIdx.x))
        ptx.atomic_min(x, 1, -np.int32(cuda.threadIdx.x))

    x = np.array([-5, 5], np.int32)
    run(extremes, x, threads=32)
    np.testing.assert_array_equal(x, [31, -31])
