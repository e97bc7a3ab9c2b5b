"""The engine cuBLASLt with a library that checks and computes with NumPy (``fake_cublaslt.py``), and its choice."""

import ctypes
import gc
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from product_cases import bf16, check_epilogues, draw, f16, f32, f64, product, stored
from refusals import raises

import minigrad as mg
from minigrad.cuda_kernels import matmul, simulated
from minigrad.cuda_kernels.platform import array, choices, launch, libcuda
from minigrad.cuda_kernels.products import choose, cublaslt

sys.path.append(str(Path(__file__).parent))
from fake_cublaslt import FakeCublasLt

pytestmark = pytest.mark.skipif(not simulated(), reason="the memory is the simulator's: NUMBA_ENABLE_CUDASIM=1")

TOLERANCE = {bf16: 2**-8, f16: 2**-11, f32: 1e-6, f64: 1e-13}


def check(y, expected: np.ndarray) -> None:
    tolerance = TOLERANCE[y.dtype.type]
    np.testing.assert_allclose(
        array.to_host(y).astype("f8"), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max(initial=1)
    )


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(choices, "_gemm", None)
    monkeypatch.setenv("MINIGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("MINIGRAD_GEMM", raising=False)
    choose._table.cache_clear()
    yield
    choose._table.cache_clear()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch):
    """The library, and nothing else multiplies."""
    made = FakeCublasLt()
    with monkeypatch.context() as patch:
        patch.setattr(cublaslt, "library", lambda: made)
        patch.setattr(cublaslt, "_workspaces", {})
        patch.setattr(cublaslt, "WORKSPACE", 4096)
        original = launch.Kernel.launch

        def refuse(self, *args, **settings) -> None:
            assert not self.name.startswith(("simt", "tensor_core", "hopper")), self.name
            original(self, *args, **settings)

        patch.setattr(launch.Kernel, "launch", refuse)
        cublaslt._handle.cache_clear()
        choices.set_gemm("cublaslt")
        yield made
        cublaslt.plan_of.cache_clear()
        cublaslt._handle.cache_clear()
        assert not made.problems and made.alive == 0


LAYOUTS = list(itertools.product(("rows", "columns", "wide", "neither"), repeat=2))


@pytest.mark.parametrize(("layout_a", "layout_b"), LAYOUTS)
def test_layouts(layout_a: str, layout_b: str, fake: FakeCublasLt) -> None:
    for M, N, K in ((5, 7, 3), (1, 6, 4), (4, 1, 5), (3, 2, 1), (1, 1, 1)):
        a, b = draw(M, K), draw(K, N)
        check(matmul.matmul(stored(a, layout_a), stored(b, layout_b)), product(a, b))
    assert len(fake.calls) == 5


@pytest.mark.parametrize("dtype", [bf16, f16, f32, f64])
def test_epilogues(dtype, fake: FakeCublasLt) -> None:
    """Fused where the library has it; in a pass of our own elsewhere (6 columns; GELU of float32)."""
    for N in (8, 6):
        check_epilogues(check, *(draw(*shape, dtype=dtype) for shape in ((3, 4), (4, N), (N,), (3, N))))
        fused = [(call["epilogue"], call["beta"]) for call in fake.calls]
        fake.calls.clear()
        half = dtype in (bf16, f16) and N == 8
        steps = [4, 32 | 128 | 4, 32 | 128, 64 | 128] if half else [4 if dtype != f64 else 1, 1, 1, 1]
        bias_step = 1 if dtype == f64 else 4
        ends = [(1, 1.0), (bias_step, 0.0 if dtype == f64 else 1.0), (1, 1.0)]
        assert fused == [(step, 0.0) for step in steps] + ends


def test_halves_into_float32(fake: FakeCublasLt) -> None:
    a, b, y = draw(3, 40, dtype=bf16), draw(40, 8, dtype=bf16), draw(3, 8)
    total = array.from_host(y)
    matmul.add_matmul(total, array.from_host(a), array.from_host(b))
    check(total, product(a, b) + y)


def test_batches(fake: FakeCublasLt) -> None:
    """One call where the leading dimensions merge to one, or to rows; more where they do not."""
    for shape_a, shape_b, calls in (
        *[((2, 3, 4, 5), (2, 3, 5, 6), 1), ((2, 3, 4, 5), (5, 6), 1), ((4, 5), (3, 5, 6), 1)],
        *[((2, 1, 4, 5), (3, 5, 2), 2), ((2, 1, 1, 3, 4), (2, 1, 4, 2), 2)],
    ):
        fake.calls.clear()
        a, b = draw(*shape_a), draw(*shape_b)
        for layout in ("rows", "columns"):
            check(matmul.matmul(stored(a, "rows"), stored(b, layout)), product(a, b))
        assert len(fake.calls) == 2 * calls
    a, b, bias = draw(2, 3, 4, dtype=bf16), draw(2, 4, 8, dtype=bf16), draw(8, dtype=bf16)
    y, before = matmul.matmul_gelu(*map(array.from_host, (a, b, bias)))
    h = product(a, b) + bias.astype("f8")
    check(before, h)
    check(y, mg.plain_kernels.gelu.forward(h, "tanh"))
    assert fake.calls[-1] == {"shape": (2, 8, 3), "epilogue": 164, "beta": 0.0, "compute": 68}


def test_precision(fake: FakeCublasLt) -> None:
    a, b = draw(6, 40), draw(40, 8)
    raw = stored(a, "rows"), stored(b, "columns")
    check(matmul.matmul(*raw), product(a, b))
    mg.set_float32_matmul_precision("high")
    try:
        error = np.abs(array.to_host(matmul.matmul(*raw)) - product(a, b))
    finally:
        mg.set_float32_matmul_precision("highest")
    assert error.max() > 1e-4 and (error <= (2**-10 + 2**-20) * (np.abs(a) @ np.abs(b))).all()
    assert [call["compute"] for call in fake.calls] == [68, 77]
    matmul.matmul(*(stored(x.astype("f8"), "rows") for x in (a, b)))
    assert fake.calls[-1]["compute"] == 70


def test_plans_are_kept_and_follow_alignment(fake: FakeCublasLt) -> None:
    a, b = stored(draw(4, 9), "rows"), stored(draw(9, 4), "rows")
    matmul.matmul(a, b)
    made = len(fake.objects)
    matmul.matmul(a, b)
    assert len(fake.objects) == made
    odd = array.from_host(draw(37))[1:].reshape(4, 9)
    matmul.matmul(odd, b)
    assert len(fake.objects) > made
    assert len(cublaslt._workspaces) == 1


def test_debug_level_2_prints_a_line(fake, monkeypatch, capsys) -> None:
    monkeypatch.setattr(launch, "DEBUG", 2)
    matmul.matmul(stored(draw(3, 2, 5), "rows"), stored(draw(3, 5, 4), "rows"))
    line = "minigrad: cublaslt float32 to float32, 3 of (2, 5) (5, 4) in the simulator\n"
    assert capsys.readouterr().err == line


def test_what_is_numbas_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers, and sums of nothing."""
    monkeypatch.delitem(choose.ENGINES, "cublaslt")
    choices.set_gemm("cublaslt")
    integers = array.from_host(np.ones((2, 2), np.int64))
    np.testing.assert_array_equal(array.to_host(matmul.matmul(integers, integers)), [[2, 2], [2, 2]])
    empty = array.from_host(np.ones((2, 0), f32))
    np.testing.assert_array_equal(array.to_host(matmul.matmul(empty, empty.T)), np.zeros((2, 2)))
    raises(KeyError, "", lambda: matmul.matmul(*[array.from_host(draw(2, 2))] * 2))


def test_a_captured_graph_repeats_the_products(fake: FakeCublasLt) -> None:
    """Its workspace is its own: another graph, or the stream it was captured on, has another."""
    x, w = (mg.tensor(draw(*shape), device="cuda") for shape in ((3, 8), (5, 8)))
    graph = mg.cuda.Graph()
    with graph.capture():
        y = mg.nn.functional.linear(x, w)
    assert not fake.calls and not cublaslt._workspaces and len(cublaslt._workspaces_of_graphs) == 1
    values = draw(3, 8)
    x.copy_(mg.tensor(values, device="cuda"))
    graph.replay()
    np.testing.assert_allclose(y.numpy(force=True), values @ w.numpy(force=True).T, rtol=1e-5, atol=1e-5)
    assert len(fake.calls) == 1
    del y, graph
    gc.collect()
    assert not cublaslt._workspaces_of_graphs


# The choice -----------------------------------------------------------------------------------------------------------


def test_a_missing_library_is_an_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setattr(cublaslt, "library", cublaslt.find_library)
    cublaslt.find_library.cache_clear()
    choices.set_gemm("cublaslt")
    a = array.from_host(draw(2, 2))
    with pytest.raises(OSError, match="cuBLASLt is not found .*pip install nvidia-cublas-cu12, .*MINIGRAD_GEMM=numba"):
        matmul.matmul(a, a)
    monkeypatch.setattr(libcuda, "driver", lambda: libcuda.Driver((13, 0), 1))
    raises(OSError, "pip install nvidia-cublas, or", lambda: mg.cuda.set_gemm("cublaslt"))
    mg.cuda.set_gemm("numba")
    assert mg.cuda.get_gemm() == "numba"
    matmul.matmul(a, a)


def test_the_simulator_has_no_cublaslt() -> None:
    with pytest.raises(OSError, match=r'cuBLASLt computes on GPUs, not in the simulator: .*set_gemm\("numba"\)'):
        mg.cuda.set_gemm("cublaslt")


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mg.cuda.get_gemm() == "tuned"
    monkeypatch.setattr(choices, "_gemm", None)
    monkeypatch.setenv("MINIGRAD_GEMM", "numba")
    assert mg.cuda.get_gemm() == "numba"
    monkeypatch.setattr(choices, "_gemm", None)
    monkeypatch.setenv("MINIGRAD_GEMM", "cublas")
    raises(ValueError, "MINIGRAD_GEMM='cublas': expected one of 'tuned', 'numba', 'cublaslt'", mg.cuda.get_gemm)
    raises(ValueError, "set_gemm 'fast': expected one of", lambda: mg.cuda.set_gemm("fast"))


def test_the_faster_engine_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mg.cuda.set_gemm("tuned")
    used: list[str] = []
    for name in ("numba", "cublaslt"):
        monkeypatch.setitem(choose.ENGINES, name, lambda p, name=name: lambda p: used.append(name))
    a, b = stored(draw(6, 8), "rows"), stored(draw(8, 5), "columns")
    matmul.matmul(a, b)
    assert used == ["numba"]  # there is no file
    entry = {"engine": "cublaslt", "ms": {"numba": 2.0, "cublaslt": 1.0}}
    file = choose.write(0, {"float32 nt 8 8 8 x1": entry})
    choose.write(0, {"float32 nn 8 8 8 x1": {"engine": "numba", "ms": {}}})
    assert file == tmp_path / "cuda" / "products.json"
    assert choose.read()["simulator, CUDA none"]["float32 nt 8 8 8 x1"] == entry
    for x, y in ((a, b), (stored(draw(6, 8), "rows"), stored(draw(8, 5), "rows")), (a[:3], b)):
        matmul.matmul(x, y)
    assert used[1:] == ["cublaslt", "numba", "numba"]
    mg.cuda.set_gemm("numba")
    matmul.matmul(a, b)
    assert used[-1] == "numba"


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"simulator, CUDA none": {"float32 nn 8 8 8 x1": {"engine": "rm -rf"}}}', '{"a": {"b": 1}}']
)
def test_a_malformed_file_is_a_warning(text: str) -> None:
    choose.path().write_text(text)
    with pytest.warns(RuntimeWarning, match=r"products\.json is not a table .*gpu_report\.py --tune"):
        matmul.matmul(*[array.from_host(draw(2, 2))] * 2)
    matmul.matmul(*[array.from_host(draw(2, 2))] * 2)  # warned once
    choose.write(0, {"float32 nn 8 8 8 x1": {"engine": "numba", "ms": {}}})
    assert list(choose.read()) == ["simulator, CUDA none"]


def test_a_file_of_somebody_else_is_refused() -> None:
    file = choose.write(0, {})
    file.chmod(0o666)
    with pytest.raises(PermissionError, match=r"products\.json is owned or writable by somebody else"):
        matmul.matmul(*[array.from_host(draw(2, 2))] * 2)


# The real library -----------------------------------------------------------------------------------------------------


def test_the_real_library_takes_every_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors need no GPU: the installed library accepts all attributes, and says the same when asked."""
    cublaslt.find_library.cache_clear()
    try:
        real = cublaslt.find_library()
    except OSError as error:
        pytest.skip(str(error))
    seen: list[int] = []

    class Mixed:
        """The real library's descriptors; the heuristic and the products are the fake's."""

        def __getattr__(self, name: str):
            return getattr(real, name)

        def cublasLtCreate(self, handle) -> int:
            return 0

        def cublasLtMatmulAlgoGetHeuristic(self, lt, description, *rest) -> int:
            value, size = ctypes.c_uint32(), ctypes.c_size_t()
            status = real.cublasLtMatmulDescGetAttribute(
                description, cublaslt.EPILOGUE, ctypes.byref(value), ctypes.c_size_t(4), ctypes.byref(size)
            )
            assert status == 0
            seen.append(value.value)
            rest[-1]._obj.value = 1
            return 0

        def cublasLtMatmul(self, *arguments) -> int:
            return 0

    monkeypatch.setattr(cublaslt, "library", Mixed)
    choices.set_gemm("cublaslt")
    a, b, bias = (array.from_host(draw(*shape, dtype=bf16)) for shape in ((2, 4, 8), (2, 8, 16), (16,)))
    matmul.matmul_gelu(a, b, bias)
    matmul.matmul_gelu_slope(a, b, matmul.matmul(a, b))
    assert seen == [164, 1, 192]
    cublaslt.plan_of.cache_clear()
