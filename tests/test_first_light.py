"""``benchmarks/first_light.py`` without a GPU: failures of each kind, and going on where it was cut off."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from refusals import raises

pytestmark = pytest.mark.long
BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"

# The process is as unusable as a CUDA context after an illegal address: what follows a failure would fail as well.
TESTS = """
import os, time
import pytest

broken = False

@pytest.mark.parametrize("name", ["first", "an illegal address", "next", "ends", "last"])
def test_kernel(name):
    global broken
    if name == "ends":
        os._exit(3)
    broken |= name == "an illegal address"
    assert not broken, "CUDA_ERROR_ILLEGAL_ADDRESS"

@pytest.mark.skip(reason="needs two GPUs")
def test_skipped():
    pass

def test_hangs():
    print("waits for the other rank")
    time.sleep(600)

@pytest.mark.parametrize("i", range(5))
def test_out_of_memory(i):
    raise MemoryError("CUDA_ERROR_OUT_OF_MEMORY")
"""


@pytest.fixture
def first_light(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("first_light")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "test_gpu.py").write_text(TESTS)
    return module


def group(first_light, name: str, seconds: float = 120.0):
    return first_light.test_stage(f"tests: {name}", first_light.collect("test_gpu.py", "-k", name), seconds)


def test_what_fails_ends_neither_its_group_nor_the_others(first_light, tmp_path, capsys):
    out = tmp_path / "report.json"
    missing = "import sys; print('NVVM is not found: pip install nvidia-nvvm'); sys.exit(1)"
    chosen = [
        first_light.command_stage("environment", 60, sys.executable, "-c", missing),
        *(group(first_light, name) for name in ("kernel", "skipped")),
        group(first_light, "hangs", 5.0),
        group(first_light, "memory"),
        first_light.command_stage("training", 1, sys.executable, "-c", "import time; time.sleep(600)"),
    ]
    report = first_light.run_stages(chosen, out, 10)
    assert report == json.loads(out.read_text())
    outcomes = report["tests: kernel"]["tests"]
    assert list(outcomes.values()) == ["PASSED", "FAILED", "PASSED", "CRASHED with code 3", "PASSED"]
    assert list(report["tests: memory"]["tests"].values()) == ["FAILED"] * first_light.MOST_FAILURES
    assert report["tests: memory"]["not run"] == 2
    assert report["tests: hangs"]["tests"] == {"test_gpu.py::test_hangs": "HUNG"}
    assert len(report) == 6
    assert [name for name, result in report.items() if result["status"] != "failed"] == ["tests: skipped"]
    assert report["tests: skipped"]["status"] == "passed"
    text = out.with_suffix(".md").read_text()
    assert "1 crashed with code 3, 1 failed, 3 passed" in text
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in text and "## test_gpu.py::test_kernel[an illegal address]" in text
    assert "NVVM is not found: pip install nvidia-nvvm" in text
    assert "tests: skipped: passed" in capsys.readouterr().out
    before = out.read_bytes()
    first_light.run_stages(chosen, out, 10)  # all is over: nothing runs again
    assert out.read_bytes() == before


def test_it_goes_on_where_it_was_cut_off(first_light, tmp_path):
    (tmp_path / "test_gpu.py").write_text(
        "import pathlib, time\n"
        "def test_a():\n    with open('ran', 'a') as file: file.write('a')\n"
        "def test_b():\n    pathlib.Path('hangs').exists() and time.sleep(600)\n"
    )
    (tmp_path / "hangs").touch()
    out = tmp_path / "report.json"
    stage = group(first_light, "test")
    report = first_light.run_stages([stage], out, 5 / 60)["tests: test"]
    assert report["status"] == "cut off" and report["tests"] == {"test_gpu.py::test_a": "PASSED"}
    (tmp_path / "hangs").unlink()
    report = first_light.run_stages([stage], out, 10)["tests: test"]
    assert report["status"] == "passed" and list(report["tests"].values()) == ["PASSED"] * 2
    assert (tmp_path / "ran").read_text() == "a"


@pytest.mark.short
def test_bad_options_and_a_machine_without_a_gpu(first_light, monkeypatch, tmp_path, capsys):
    out = ["--out", str(tmp_path / "report.json")]
    monkeypatch.setattr(first_light, "refusal", lambda: "there is no GPU to measure: no NVIDIA driver")
    monkeypatch.setattr(first_light, "stages", lambda out, rehearse: [first_light.Stage("training: graph", 1, None)])
    for options, message in [
        ([], "there is no GPU to measure: no NVIDIA driver"),
        (["--minutes", "0"], "--minutes is 0, expected a number above 0"),
        (["--rehearse", "--only", "tests"], "no stage's name contains 'tests'; there are training: graph"),
    ]:
        raises(SystemExit, "", lambda options=options: first_light.main([*out, *options]))
        assert message in capsys.readouterr().err
