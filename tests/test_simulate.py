"""The counts of ``simulate`` are those of the model in docs/simulator.md, counted by hand; no variable need be set."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import cuda as numba_cuda
from processes import python
from refusals import raises

from minigrad.cuda_kernels.ptx.ptx_twins import ldmatrix
from minigrad.cuda_kernels.simulator import SimulationError, cuda, occupancy, simulate, simulator
from minigrad.cuda_kernels.simulator.instrument import trace


def floats(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


def strided(step: int, first: int = 0):
    return lambda x, y: y.__setitem__(cuda.grid(1), x[first + step * cuda.grid(1)])


def shared_column(pitch: int, dtype: type = np.float32):
    numba_dtype = numba.from_dtype(np.dtype(dtype))

    def kernel(x, y):
        tile = cuda.shared.array((32, pitch), numba_dtype)
        t = cuda.threadIdx.x
        for k in range(32):
            tile[k, t] = dtype(t)
        cuda.syncthreads()
        y[t] = tile[t, 0].real

    return kernel


def matrices(x, y):
    y[cuda.threadIdx.x] = ldmatrix(simulator.shared_address(cuda.shared.array(128, np.uint32, 16), 4 * cuda.laneid))[0]


def dynamic(x, y):
    cuda.shared.array(0, np.float32)[y.size - 1] = 1


def histogram(x, y):
    bins = cuda.shared.array(4, np.float32)
    t = cuda.threadIdx.x
    if t < 4:
        bins[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(bins, t // 16, x[t])
    cuda.syncthreads()
    if t < 4:
        cuda.atomic.add(y, t, bins[t])


def ragged(x, y):
    t, s = cuda.threadIdx.x, np.float32(0)
    for row in range(2):
        for k in range(t):  # lane t has t turns: 3 requests for 4 lanes, of 3, 2 and 1
            s += x[4 * row + k]
    y[t] = s


def alternating(x, y):
    t, k = cuda.threadIdx.x, 0
    while k < 4:
        if t % 2 == k % 2: y[t] = x[t]  # by half of the lanes, in each turn  # noqa: E701  # fmt: skip
        k += 1


def on_one_line(x, y):
    for k in range(3): y[cuda.threadIdx.x] = x[k] if cuda.threadIdx.x < 8 else x[0]  # noqa: E701  # fmt: skip


# kernel, threads, kind: requests, lanes, bytes, cost, least. All in one block.
COUNTS = [
    (strided(1), 64, "global load", (2, 64, 256, 8, 8)),
    (strided(1, first=1), 64, "global load", (2, 64, 256, 10, 8)),
    (strided(0), 64, "global load", (2, 64, 256, 2, 2)),
    (shared_column(32), 32, "shared load", (1, 32, 128, 32, 1)),
    (shared_column(33), 32, "shared load", (1, 32, 128, 1, 1)),
    (shared_column(32, np.float64), 32, "shared store", (32, 1024, 8192, 64, 64)),
    (shared_column(32, np.float64), 32, "shared load", (1, 32, 256, 32, 2)),
    (shared_column(32, np.complex128), 32, "shared load", (1, 32, 512, 32, 4)),
    (matrices, 32, "shared load", (1, 32, 512, 4, 4)),
    (histogram, 32, "shared atomic", (1, 32, 128, 16, 1)),
    (histogram, 32, "global atomic", (1, 4, 16, 1, 1)),
    (ragged, 4, "global load", (6, 12, 48, 6, 6)),
    (alternating, 32, "global load", (4, 64, 256, 16, 8)),
    (on_one_line, 32, "global load", (6, 96, 384, 6, 6)),
]


@pytest.mark.parametrize(("kernel", "threads", "kind", "counts"), COUNTS)
def test_counts(kernel, threads, kind, counts) -> None:
    report = simulate(kernel, 1, threads, floats(300), np.zeros(64, np.float32))
    assert report.traffic(kind) == counts and report.races == []


def test_divergence_barriers_and_results() -> None:
    x, y = floats(64), np.zeros(64, np.float32)
    report = simulate(histogram, 2, 32, x, y)
    assert y[:4].tolist() == [2 * x[:16].sum(), 2 * x[16:32].sum(), 0, 0] and report.barriers == 4
    first = histogram.__code__.co_firstlineno
    assert {line - first: n for (_, line), n in report.divergent.items()} == {4: 2, 9: 2}
    assert [sum(simulate(f, 1, 32, x, y).divergent.values()) for f in (alternating, on_one_line)] == [4, 6]
    assert "divergence: 4 of 18 steps" in str(simulate(alternating, 1, 32, x, y))


def test_races_name_both_lines() -> None:
    def neighbour(y, barrier):
        tile = cuda.shared.array(64, np.float32)
        t = cuda.threadIdx.x
        tile[t] = t
        if barrier:
            (cuda.syncwarp, cuda.syncthreads)[barrier - 1]()
        y[t] = tile[63 - t if barrier else t ^ 1]

    def together(y, by_block):
        y[cuda.blockIdx.x if by_block else 0] = cuda.blockIdx.x

    y = np.zeros(64, np.float32)
    (race,) = simulate(neighbour, 1, 64, y, 0).races
    assert re.search(r"on shared array 1\[\d+\]: .* writes it at .* `tile\[t\] = t`, and .* `y\[t\] = tile", race), race
    assert [len(simulate(neighbour, 1, 64, y, barrier).races) for barrier in (1, 2)] == [1, 0]
    assert [len(simulate(together, 2, 1, y, by_block).races) for by_block in (0, 1)] == [1, 0]


@numba_cuda.jit
def beyond(y):
    y[numba_cuda.grid(1)] += 1


def unknown(y):
    y[0] = numba_cuda.popc(3)


exec("from numba import cuda\nplace = lambda: cuda.grid(1)\ncompiled = cuda.jit(device=True)(place)", ELSEWHERE := {})
exec("def imported():\n    from numba import cuda\n    return cuda.grid(1)", ELSEWHERE)
exec("from numba.cuda import gridDim, grid as place\ndef own(y):\n    y[place(1)] = gridDim.x - 1", IMPORTED := {})
WRONG = [
    ((beyond, 3, 32), r"cuda.grid\(1\)\] \+= 1`: index 64 is outside"),
    ((beyond, 1, 1025), "1 to 1024 threads"),
    ((beyond, "a", 4), "a grid of 'a' blocks of 4 threads: 1 to 3 numbers each"),
    ((3, 1, 4), "with 3 as kernel: 3 is not a callable object"),
    ((shared_column(32), 3, 32, floats(1)), "more than 100 steps and requests"),
    ((unknown, 1, 4), r"popc\(3\)`: AttributeError: the simulator has no cuda.popc"),
]


PLACES = [lambda: numba.cuda.grid(1), *map(ELSEWHERE.get, ["place", "compiled", "imported"])]


@pytest.mark.parametrize("kernel", [*(lambda y, at=at: y.__setitem__(at(), 1) for at in PLACES), IMPORTED["own"]])
def test_numbas_words_wherever_they_are(kernel) -> None:
    y = np.zeros(64, np.float32)
    simulate(kernel, 2, 16, y)
    assert y.tolist() == [1] * 32 + [0] * 32


@pytest.mark.parametrize(("launch", "words"), WRONG)
def test_errors_name_the_line_and_leave_numba_as_it_was(launch, words, monkeypatch) -> None:
    before, call = numba_cuda.grid, type(ELSEWHERE["compiled"]).__call__
    monkeypatch.setattr(trace, "MOST", trace.MOST // 5000)  # of 500,000
    raises(SimulationError, words, lambda: simulate(*launch, np.zeros(64, np.float32)))
    assert numba_cuda.grid is before and type(ELSEWHERE["compiled"]).__call__ is call


def test_occupancy() -> None:
    cases = [(256, 32, 0), (256, 64, 0), (96, 32, 0), (256, 255, 0), (32, 32, 0), (256, 32, 48 * 1024)]
    limits = ["warps", "registers", "warps", "registers", "blocks", "shared memory"]
    assert [occupancy(*case) for case in cases] == list(zip([64, 32, 63, 8, 32, 32], limits))
    report = simulate(dynamic, 1, 256, floats(1), floats(64), registers=64, shared_bytes=65536)
    assert (report.shared_bytes, report.registers, report.occupancy, report.limit) == (65536, 64, 24, "shared memory")


def test_the_page_has_the_steps_of_a_warp() -> None:
    report = simulate(shared_column(32), 2, 32, floats(64), np.zeros(64, np.float32))
    (data,) = re.findall(r"^const data = (.*);$", report.html(block=(1, 0, 0)), re.MULTILINE)
    steps = json.loads(data)["steps"]
    assert [step["kind"] for step in steps] == ["shared store"] * 32 + ["shared load", "global store"]
    assert steps[32]["cost"] == 32 and len(steps[32]["lanes"]) == 32 and "&lt;svg" in report._repr_html_()


@pytest.mark.skipif(shutil.which("node") is None, reason="the page's script is not run: node is not installed")
def test_the_page_draws_a_step_at_a_time() -> None:
    report = simulate(shared_column(32), 2, 32, floats(64), np.zeros(64, np.float32))
    script = report.html().partition("<script>")[2].partition("</script>")[0]
    page = "const parts = {}, document = {getElementById: id => parts[id] ??= {value: 0, setAttribute() {}}};"
    moves = "let k = 33; while (k--) parts.next.onclick(); parts.back.onclick(); console.log(JSON.stringify(parts))"
    parts = json.loads(subprocess.check_output(["node", "-e", page + script + moves]))
    assert parts["place"]["textContent"] == "33 of 34" and "32 passes over the banks" in parts["cost"]["innerHTML"]
    assert parts["picture"]["innerHTML"].count("<line ") == 32 and "tile[t, 0]" in parts["line"]["textContent"]


@pytest.mark.long
def test_a_kernel_of_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "0")
    command = "-m", "minigrad.cuda_kernels.inspect", "--simulate"
    done = python(*command, "ladder_reduction.tree")
    assert re.search(r"global loads +64 requests +2048 lanes .* 4.00 a request", done.stdout), done.stderr
    assert re.search(r"shared loads +200 .*\n.*\n.* 0, barriers 72\n", done.stdout), done.stdout
    assert "no kernel has such a name" in python(*command, "nothing").stderr
    found = re.findall(r"^(\w+\.\w+): grid", python(*command, "adamw", "embedding", "gelu", "softmax").stdout, re.M)
    assert {"multi_tensor.adamw_float32", "gather_scatter.take_128_bits", "gelu.forward_erf_float32"} <= {*found}
    assert found.index("softmax.forward_rows_4_float32") < found.index("ladder_softmax.row_per_thread")
    (tmp_path / "mine.py").write_text("import minigrad as mg\nmg.ones(40, device='cuda').exp()", encoding="utf-8")
    assert "elementwise.exp_float32: grid (1, 1, 1)" in python(*command, "exp_", tmp_path / "mine.py").stdout
