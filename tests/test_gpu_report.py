"""``benchmarks/gpu_report.py`` without a GPU: all that it measures runs once in the simulator; its file and table."""

import importlib
import json
import os
import sys
from pathlib import Path

import pytest
from processes import python
from refusals import raises

from minigrad.cuda_kernels.platform import compiler

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("gpu_report")


def command(*arguments: str, simulated: bool):
    paths = os.pathsep.join(map(str, (BENCHMARKS, BENCHMARKS.parent / "tests/cuda_kernels")))  # of fake_cublaslt
    return python(*arguments, env={"NUMBA_ENABLE_CUDASIM": "1" if simulated else "0", "PYTHONPATH": paths})


def test_it_refuses_to_measure_what_is_no_gpu(report, tmp_path):
    script, out = str(BENCHMARKS / "gpu_report.py"), tmp_path / "report.json"
    done = command(script, "--out", str(out), simulated=True)
    assert done.returncode == 2 and "NUMBA_ENABLE_CUDASIM is set" in done.stderr and not out.exists()
    done = command(script, "--help", simulated=False)
    assert done.returncode == 0 and "--only WORD" in done.stdout


def test_it_says_what_the_machine_lacks(report, monkeypatch, tmp_path, capsys):
    cuda_kernels = importlib.import_module("minigrad.cuda_kernels")
    monkeypatch.setattr(cuda_kernels, "simulated", lambda: False)
    monkeypatch.setattr(cuda_kernels, "availability", lambda: (False, "no NVIDIA driver"))
    raises(SystemExit, "", lambda: report.main(["--out", str(tmp_path / "report.json")]))
    assert "there is no GPU to measure: no NVIDIA driver" in capsys.readouterr().err


REHEARSAL = """
import json, sys
import gpu_worker
from fake_cublaslt import FakeCublasLt
from minigrad.cuda_kernels.products import cublaslt

library = FakeCublasLt()
cublaslt.library = lambda: library
scale = gpu_worker.rehearsal(gpu_worker.once)
for entry in gpu_worker.entries():
    print(json.dumps([entry.part, entry.name, gpu_worker.answer(entry, scale)]), flush=True)
print(json.dumps(["", "usable", {"usable": gpu_worker.usable()}]))
"""

NOT_IN_THE_SIMULATOR = {
    "copy rate": "the simulator has no copy rate",
    "GPT-2 124M, PyTorch eager": "PyTorch with CUDA is not installed",
    "GPT-2 124M bf16, PyTorch eager": "PyTorch with CUDA is not installed",
    "GPT-2 124M bf16, torch.compile": "PyTorch with CUDA is not installed",
}


@pytest.mark.long
def test_everything_that_is_measured_runs_and_is_right():
    file = compiler.cache_folder() / "products.json"
    chosen = file.read_bytes() if file.exists() else b""
    done = command("-c", REHEARSAL, simulated=True)
    assert done.returncode == 0, done.stderr
    results = {name: (part, result) for part, name, result in map(json.loads, done.stdout.splitlines())}
    assert results.pop("usable")[1] == {"usable": True}
    for name, (part, result) in results.items():
        if name in NOT_IN_THE_SIMULATOR:
            assert NOT_IN_THE_SIMULATOR[name] == result["skipped"]
            continue
        assert "error" not in result, (name, result)
        if part in ("kernels", "ladders"):
            assert result["right"], (name, result)
            if not any(word in name for word in ("bf16", "fp16", "tf32")):
                assert result["max_rel_err"] < 1e-6, (name, result)
            assert result["ms"] == 1.0 and (result["bytes"] or result["flops"]), (name, result)
    assert len(results) > 60
    for name in ("GPT-2 124M", "GPT-2 124M bf16", "GPT-2 124M bf16, CUDA graph"):
        result = results[name][1]
        assert result["losses"][-1] < result["losses"][0] and result["batch"] == "2 x 8"
    tuned = results["engines of bfloat16"][1]["products"]
    assert set(tuned["bfloat16 nt 2 128 64 x1"]["ms"]) == {"numba", "hopper", "cublaslt"}
    assert (file.read_bytes() if file.exists() else b"") == chosen  # a rehearsal chooses nothing


TORCH = """
import numpy as np, torch
from gpu_case import TINY
from gpu_cases import CASES
from gpu_worker import is_floating, relative_error, tensor_of

for case in CASES:
    if case.torch is None or case.name.endswith(("wgmma", "cuBLASLt")):
        continue
    host = case.inputs(TINY, np.random.default_rng(0))
    found = case.torch(torch, *(tensor_of(torch, x.copy()) for x in host))()
    wide = [x.astype(np.float64) if is_floating(x.dtype) else x for x in host]
    expected = case.exact(*wide)
    if case.name in ("dropout", "AdamW", "gradient scale"):  # other draws; in place
        continue
    if case.name.startswith("cross_entropy"):
        expected = expected[1:]
    pairs = zip(found, expected) if isinstance(found, (tuple, list)) else [(found, expected)]
    for y, e in pairs:
        y = y.detach().float().numpy() if isinstance(y, torch.Tensor) else np.asarray(y)
        bound = 1e-6 if case.tolerance < 1e-3 else case.tolerance
        assert relative_error(y, np.asarray(e, np.float64)) < bound, case.name
print("compared")
"""


def test_pytorch_is_asked_for_the_same():
    pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    done = command("-c", TORCH, simulated=True)
    assert done.stdout.strip() == "compared", done.stderr


@pytest.mark.long
def test_the_rehearsal(tmp_path):
    """``--rehearse``: no GPU is needed, and what the simulator lacks is skipped."""
    path, script = tmp_path / "report.json", str(BENCHMARKS / "gpu_report.py")
    done = command(script, "--out", str(path), "--rehearse", "--only", "matmul bf16 square", simulated=False)
    made = json.loads(path.read_text())
    by_name = {entry["name"]: entry for entry in made["entries"]}
    assert made["machine"]["gpu"] == "simulator"
    assert by_name["copy rate"]["skipped"] and done.returncode == 0, done.stdout
    assert by_name["matmul bf16 square"]["right"] and by_name["matmul bf16 square, wgmma"]["right"]
    assert "matmul bf16 square, cuBLASLt: skipped: cuBLASLt computes on GPUs" in done.stdout
    assert "gpu simulator" in done.stdout and made["machine"]["numpy"]
    done = command(script, "--out", str(path), "--rehearse", "--only", "no such thing", simulated=False)
    assert done.returncode == 2 and "no entry's part or name contains 'no such thing'" in done.stderr


TIMED = """
import time
import gpu_timing

gpu_timing.HEAD_START = 16
counts = [0, 0]

def wait(i):
    counts[i] += 1
    time.sleep(2e-3)

print(gpu_timing.median_seconds([lambda: wait(0), lambda: wait(1)], seconds=0.02), *counts)
"""


def test_the_median_is_of_one_call(report):
    done = command("-c", TIMED, simulated=True)
    seconds, first, second = map(float, done.stdout.split())
    assert 2e-3 <= seconds < 0.1 and first == second == 1 + 1 + 5, done.stderr


ENTRIES = {
    "machine": {"gpu": "card"},
    "copy rate": {"bytes_per_second": 4e12},
    "matrix rate": {"flops_per_second": 50e12, "by": "cuBLAS"},
    "launch": {"us": 4.25, "goal_us": 5.0},
    "add": {"max_rel_err": 1e-7, "bytes": 4 * 10**8, "flops": None, "ms": 0.125, "torch_ms": 0.25},
    "matmul": {"max_rel_err": 2e-6, "bytes": None, "flops": 10**11, "ms": 4.0, "torch_error": "Error: no"},
    "broken": {"error": "MissingKernelError: there are none"},
    "first results": {"cold_seconds": 9.0, "cached_seconds": 0.5, "kernels": 6},
    "GPT-2": {"batch": "16 x 1024", "ms": 400.0, "tokens_per_second": 40960.0, "peak_gib": 60.0}
    | {"losses": [10.8, 9.5], "version": "1"},
}
PARTS = {"machine": "machine", "copy rate": "limits", "matrix rate": "limits", "launch": "host"}
PARTS |= {"first results": "compile", "GPT-2": "training"}


def test_rates_table_and_file(report, tmp_path):
    goals = {"add": 75.0, "matmul": 80.0, "broken": 90.0}
    chosen = [(PARTS.get(name, "kernels"), name, goals.get(name)) for name in ENTRIES]
    path = tmp_path / "report.json"
    seen = []

    def ask(name: str, seconds: float):
        seen.append(json.loads(path.read_text())["entries"] if path.exists() else None)
        return ENTRIES[name]

    made = report.measure_all(chosen, ask, report.writer(path), report.LIMITS)
    assert [len(entries) for entries in seen[1:]] == list(range(8))  # written after each entry
    assert json.loads(path.read_text()) == made and list(tmp_path.iterdir()) == [path]
    by_name = {entry["name"]: entry for entry in made["entries"]}
    add, matmul = by_name["add"], by_name["matmul"]
    assert add["gb_per_second"] == pytest.approx(3200) and add["percent"] == pytest.approx(80) and add["met"]
    assert add["torch_ratio"] == 2.0
    assert matmul["tflops"] == pytest.approx(25) and matmul["percent"] == pytest.approx(50) and not matmul["met"]
    lines = report.table(made).splitlines()
    assert [line.split() for line in lines if line.startswith(("add ", "matmul "))] == [
        ["add", "0.125", "3200", "-", "80", "75", "0.250", "2.00", "1.0e-07"],
        ["matmul", "4.000", "-", "25.0", "50", "80", "-", "-", "2.0e-06", "below", "its", "goal"],
    ]
    for line in (
        *["gpu card", "launch: 4.25 us of the host, goal 5"],
        *["first results: 9.0 s when 6 kernels are compiled, 0.5 s from the cache", "1 of 2 goals reached"],
        *["broken: MissingKernelError: there are none", "matmul: PyTorch: Error: no"],
    ):
        assert line in lines
    assert any(line.startswith("GPT-2: 40,960 tokens/s, 400.0 ms a step") for line in lines)


FAKE_WORKER = """
import json, os, sys, time
for line in sys.stdin:
    name = line.strip()
    if name == "die":
        print("the GPU is on fire", file=sys.stderr)
        os._exit(7)
    if name == "hang":
        time.sleep(60)
    print("a library says something")
    print("entry " + json.dumps({"pid": os.getpid(), "lost_gpu": name == "lose"}), flush=True)
"""


def test_a_worker_that_dies_or_hangs_is_replaced(report):
    worker = report.Worker([sys.executable, "-c", FAKE_WORKER])
    try:
        first = worker.ask("x", 20)
        assert worker.ask("x", 20) == first
        assert worker.ask("die", 20) == {"error": "the process ended with code 7: the GPU is on fire"}
        second = worker.ask("lose", 20)
        assert second["pid"] != first["pid"]
        assert worker.ask("x", 20)["pid"] != second["pid"]  # a failed kernel leaves nothing to work with
        assert worker.ask("hang", 0.5)["error"] == "took more than 0 s"
        assert "pid" in worker.ask("x", 20)
    finally:
        worker.close()
