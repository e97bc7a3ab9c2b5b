"""What only a GPU shows: ``pytest -m gpu``. Large sizes against float64 on the CPU, streams, memory shared with other
libraries, the compiled cache, errors of the driver, and NVIDIA's own checker of races and addresses."""

import importlib
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from in_threads import outcomes
from refusals import raises

import minigrad as mg
from minigrad import cuda_kernels

pytestmark = pytest.mark.gpu

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

if cuda_kernels.availability()[0]:
    import gpu_cases
    import gpu_ladders
    import gpu_worker
    from gpu_case import Sizes
    from product_cases import check_epilogues, product, stored

    from minigrad.cuda_kernels import matmul
    from minigrad.cuda_kernels.platform import array, choices, libcuda, memory
    from minigrad.cuda_kernels.platform.language import cuda
    from minigrad.cuda_kernels.platform.launch import kernel
    from minigrad.cuda_kernels.products import cublaslt, hopper

    ALIGNED = Sizes(8192, 1024, 50304, 512, 2048, 2, 4, 1024, 64, (1 << 22, 1024, 64))
    ODD = Sizes(16387, 769, 50257, 257, 1029, 2, 3, 1025, 48, ((1 << 22) + 5, 769, 3, 1))
    CASES = {case.name: case for case in gpu_cases.CASES}
    RUNGS = {case.name: case for case in gpu_ladders.cases()}

    @kernel("float32*", "int64", threads=64, registers=16)
    def write_at(x, i) -> None:
        if cuda.grid(1) == 0:
            x[i] = np.float32(1)
else:
    CASES = RUNGS = {}


def kernels():
    return mg.Device("cuda").kernels


def found(name: str):
    """The case; its test is skipped on a machine that lacks what it needs."""
    reason = CASES[name].missing(kernels())
    if reason is not None:
        pytest.skip(reason)
    return CASES[name]


def python(source: str, *wrapper: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS), **variables}
    command = [*wrapper, sys.executable, "-c", source]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=560, check=False)


# Values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", ["ALIGNED", "ODD"])
@pytest.mark.parametrize("name", CASES)
def test_large_sizes_against_float64(name, sizes):
    """The error is relative to the largest value; sums of values that cancel have a smaller result to relate it to."""
    case = found(name)
    error = gpu_worker.largest_error(case, globals()[sizes], kernels())
    assert error < (1e-4 if name == "sum all" else case.tolerance)


@pytest.mark.parametrize("name", RUNGS)
def test_rungs_at_large_sizes(name):
    """The bound is that of a float32 sum of three million values, one after the other."""
    assert gpu_worker.largest_error(RUNGS[name], ODD, kernels()) < (3e-3 if "one_thread" in name else 1e-5)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if n != "cast to bfloat16" and c.tolerance <= 1e-5])
def test_float64(name):
    sizes = Sizes(1003, 515, 1009, 129, 301, 2, 3, 129, 48, (100003, 515, 3))
    assert gpu_worker.largest_error(found(name), sizes, kernels(), np.float64) < 1e-11


@pytest.mark.parametrize("name", CASES)
def test_two_runs_give_the_same_bits(name):
    case = found(name)
    host = case.inputs(ODD, np.random.default_rng(0))

    def run() -> list[bytes]:
        found = case.ours(kernels(), *(array.from_host(x) for x in host))()
        return [
            np.asarray(array.to_host(y) if isinstance(y, array.DeviceArray) else y).tobytes()
            for y in (found if isinstance(found, tuple) else (found,))
        ]

    assert run() == run()


@pytest.fixture
def engine(request: pytest.FixtureRequest):
    """Products by one engine; skipped where it is missing."""
    if request.param == "cublaslt":
        try:
            cublaslt.library()
        except OSError as error:
            pytest.skip(str(error))
    if request.param == "hopper" and not hopper.supports_device(0):
        pytest.skip("wgmma needs compute capability 9.0")
    before = choices.gemm()
    mg.cuda.set_gemm(request.param)
    yield request.param
    mg.cuda.set_gemm(before)
    mg.set_float32_matmul_precision("highest")


ERRORS = {"bfloat16": 2**-7, "float16": 2**-10, "float32": 2e-5, "tf32": 2e-3, "float64": 1e-12}  # of the largest value


@pytest.mark.parametrize("engine", ["numba", "hopper", "cublaslt"], indirect=True)
@pytest.mark.parametrize("word", ERRORS)
@pytest.mark.parametrize("sizes", [(512, 768, 3072), (264, 520, 1032), (131, 77, 259), (16, 24, 40_000), (3, 515, 64)])
def test_products_and_epilogues_of_every_engine(engine, word, sizes):
    """All transpositions; bias, GELU, its derivative, residual, addition; batches; and the same bits in two runs."""
    if word == "tf32":
        mg.set_float32_matmul_precision("high")
    dtype = np.float32 if word == "tf32" else mg.dtypes.as_dtype(word)
    (M, N, K), rng = sizes, np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    def near(y, expected: np.ndarray) -> None:
        error = np.abs(array.to_host(y).astype(np.float64) - expected).max()
        assert error <= ERRORS[word] * np.abs(expected).max(), (error, np.abs(expected).max())

    a, b, bias, other = draw(M, K), draw(K, N), draw(N), draw(M, N)
    h = product(a, b)
    for left, right in itertools.product(*[[stored(x), stored(x, "columns")] for x in (a, b)]):
        near(matmul.matmul(left, right), h)
        first, again = (array.to_host(matmul.matmul(left, right)).tobytes() for _ in range(2))
        assert first == again
    check_epilogues(near, a, b, bias, other)
    raw_b = stored(b)
    stacked = array.from_host(np.stack([a, a[::-1]]))
    near(matmul.matmul(stacked, raw_b), np.stack([h, h[::-1]]))
    near(matmul.matmul(stacked, array.from_host(np.stack([b, 2 * b]))), np.stack([h, 2 * h[::-1]]))


@pytest.mark.parametrize("engine", ["numba", "hopper", "cublaslt"], indirect=True)
def test_halves_add_into_float32(engine):
    rng = np.random.default_rng(0)
    dy, x = (rng.standard_normal((20_000, n)).astype(mg.dtypes.bfloat16) for n in (96, 72))
    total = array.from_host(np.ones((96, 72), np.float32))
    matmul.add_matmul(total, array.from_host(dy).T, array.from_host(x))
    expected = 1 + dy.T.astype(np.float64) @ x.astype(np.float64)
    # Tensor cores cut bits off as they add: 2e-5 in one chain of additions, less if they are split.
    np.testing.assert_allclose(array.to_host(total), expected, rtol=0, atol=5e-5 * np.abs(expected).max())


def test_more_than_two_to_the_31_elements():
    n = (1 << 31) + 12
    if memory.mem_get_info(0)[0] < 5 * 4 * n:
        pytest.skip("less than 43 GB of device memory are free")
    k = kernels()
    x = k.full((n,), 2, np.float32)
    k.elementwise.fill(x[n - 3 :], 5.0)
    y = k.elementwise.neg(x)
    for start in (0, (1 << 30) - 2, (1 << 31) - 2, n - 6):
        np.testing.assert_array_equal(array.to_host(y[start : start + 3]), [-2.0] * 3)
    np.testing.assert_array_equal(array.to_host(y[n - 3 :]), [-5.0] * 3)
    np.testing.assert_allclose(float(array.to_host(k.reduce.sum(x, (0,), False))), 2 * n + 9, rtol=1e-6)
    del x, y
    memory.empty_cache(0)


# Streams --------------------------------------------------------------------------------------------------------------


def test_streams_are_ordered_by_events_only():
    k = kernels()
    a = array.from_host(np.random.default_rng(0).standard_normal((1024, 1024)) / 32)
    expected = array.to_host(a)
    streams = [mg.cuda.Stream() for _ in range(3)]
    y = a
    memory.synchronize()
    keep = []
    for step in range(12):
        here, before = streams[step % 3], streams[(step - 1) % 3]
        with here:
            assert memory.current_stream() == here.handle.ptr
            if step:
                here.wait_stream(before)
            y = k.matmul.matmul(y, a)
            keep.append(y)
        expected = expected @ array.to_host(a)
    streams[2].synchronize()
    assert streams[2].query()
    np.testing.assert_allclose(array.to_host(y), expected, rtol=0, atol=1e-12)


def test_events_take_the_time():
    k = kernels()
    x = k.zeros((1 << 26,), np.float32)
    start, end = mg.cuda.Event(enable_timing=True), mg.cuda.Event(enable_timing=True)
    k.elementwise.neg(x)
    start.record()
    for _ in range(10):
        k.elementwise.neg(x)
    end.record()
    milliseconds = start.elapsed_time(end)
    assert end.query() and 0.1 < milliseconds < 1000  # 5.4 GB


def test_threads_launch_beside_each_other():
    k = kernels()
    wrong = []

    def work(number: int) -> None:
        x = k.full((1 << 12,), number, np.float32)
        for step in range(300):
            y = k.elementwise.add(x, float(step))
            if step % 50 == 0 and not (array.to_host(y) == number + step).all():
                wrong.append((number, step))

    assert outcomes(range(4), work) == dict.fromkeys(range(4)) and not wrong


# Memory ---------------------------------------------------------------------------------------------------------------


def test_pinned_memory_is_copied_as_part_of_the_stream():
    x = mg.from_numpy(np.random.default_rng(0).standard_normal((512, 1000), np.float32)).pin_memory()
    there = x.to("cuda", non_blocking=True)
    back = (there + 1).to("cpu", non_blocking=True)
    mg.cuda.synchronize()
    assert x.is_pinned() and back.is_pinned()
    np.testing.assert_array_equal(back.numpy(), x.numpy() + 1)


def library_on_gpu(name: str):
    """The library; the test is skipped where it is missing or has no CUDA."""
    found = pytest.importorskip(name, reason=f"{name} is not installed: nothing to share memory with")
    if name == "torch" and not found.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    if name == "jax" and not any(device.platform == "gpu" for device in found.devices()):
        pytest.skip("this JAX has no CUDA")
    return found


SHAPES = [(), (3,), (2, 5), (0, 4)]


@pytest.mark.parametrize("library", ["cupy", "torch", "jax"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dlpack_both_ways(library, shape):
    other = library_on_gpu(library)
    host = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    x = mg.from_numpy(host.copy()).to("cuda")
    theirs = other.dlpack.from_dlpack(x) if library == "jax" else other.from_dlpack(x)
    ours = mg.from_dlpack(theirs)
    assert ours.device.type == "cuda" and tuple(theirs.shape) == shape
    np.testing.assert_array_equal(ours.numpy() if ours.device is mg.CPU else ours.cpu().numpy(), host)
    if host.size:
        assert ours.data.pointer == x.data.pointer
        if library != "jax":  # whose arrays do not change
            theirs += 1
            mg.cuda.synchronize()
            np.testing.assert_array_equal(x.cpu().numpy(), host + 1)


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cuda_array_interface(library, shape):
    other = library_on_gpu(library)
    host = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    x = array.from_host(host.T)
    theirs = other.asarray(x.T) if library == "cupy" else other.as_tensor(x.T, device="cuda")
    found = theirs.get() if library == "cupy" else theirs.cpu().numpy()
    np.testing.assert_array_equal(found, host)
    if host.size:
        assert theirs.__cuda_array_interface__["data"][0] == x.pointer
    tensor = mg.Tensor.wrap(x.T, mg.Device("cuda"))
    again = other.asarray(tensor) if library == "cupy" else other.as_tensor(tensor, device="cuda")
    np.testing.assert_array_equal(again.get() if library == "cupy" else again.cpu().numpy(), host)


# Compiling, errors, tools ---------------------------------------------------------------------------------------------

RESULT = """
import numpy, minigrad
x = minigrad.from_numpy(numpy.arange(12, dtype=numpy.float32).reshape(3, 4)).to("cuda")
print(((x @ x.T + 1) * 0.01).softmax(1).sum(0).cpu().tolist())
"""

NO_COMPILER = """
from minigrad.cuda_kernels.platform import compiler
def refuse(*_): raise SystemExit("it compiles")
compiler.to_ptx = compiler.assemble = refuse
"""


def test_a_second_process_compiles_nothing(tmp_path):
    first = python(RESULT, MINIGRAD_CACHE_DIR=str(tmp_path))
    assert first.returncode == 0, first.stderr
    second = python(NO_COMPILER + RESULT, MINIGRAD_CACHE_DIR=str(tmp_path))
    assert second.returncode == 0 and second.stdout == first.stdout, second.stderr
    elsewhere = python(NO_COMPILER + RESULT, MINIGRAD_CACHE_DIR=str(tmp_path / "empty"))
    assert "it compiles" in elsewhere.stderr


def test_debug_level_2_prints_a_line_for_each_launch():
    source = "import minigrad as mg; x = mg.ones(1 << 22, device='cuda'); (x + x).sum().item()"
    done = python(source, MINIGRAD_DEBUG="2")
    lines = [line for line in done.stderr.splitlines() if line.startswith("minigrad: ")]
    assert done.returncode == 0 and len(lines) >= 3, done.stderr
    for line in lines:
        assert " grid (" in line and " us, " in line and line.endswith(" % of this card's copy"), line


def test_a_refused_launch_names_its_kernel():
    x = array.zeros((8,), np.float32)
    words = r"launching test_gpu\.write_at\(float32\[8\], 0\) on a grid of \(1, 1, 1\)"
    raises(libcuda.CudaError, words, write_at.launch, 1, x, 0, threads=4096)
    write_at.launch(1, x, 3)
    assert array.to_host(x).tolist() == [0, 0, 0, 1, 0, 0, 0, 0]


FAILS = """
import importlib.util, sys, numpy
spec = importlib.util.spec_from_file_location("test_gpu", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
x = module.array.zeros((8,), numpy.float32)
module.write_at.launch(1, x, 1 << 45)
module.memory.synchronize()
"""


def test_a_failed_kernel_is_named_by_debug_level_2():
    done = python(FAILS.replace("sys.argv[1]", repr(__file__)), MINIGRAD_DEBUG="2")
    assert done.returncode != 0
    assert f"running test_gpu.write_at(float32[8], {1 << 45}) on a grid of (1, 1, 1)" in done.stderr


SMALL_RUN = """
import numpy
import gpu_case, gpu_cases, gpu_worker
import minigrad
sizes = gpu_case.Sizes(37, 100, 133, 5, 67, 1, 2, 70, 32, (300, 5))
kernels = minigrad.Device("cuda").kernels
for case in gpu_cases.CASES:
    if case.missing(kernels) is None:
        error = gpu_worker.largest_error(case, sizes, kernels)
        assert error < case.tolerance, (case.name, error)
"""


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_compute_sanitizer_finds_nothing(tool):
    path = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    if path is None:
        pytest.skip("compute-sanitizer, of NVIDIA's CUDA toolkit, is not installed")
    done = python(SMALL_RUN, path, "--tool", tool, "--error-exitcode", "9")
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_the_report_knows_this_card():
    assert importlib.import_module("gpu_report").refusal() is None
    entry = next(e for e in gpu_worker.entries() if e.name == "copy rate")
    assert 1e10 < gpu_worker.answer(entry, gpu_worker.REAL)["bytes_per_second"] < 1e14
