"""Each rung of ``benchmarks/ladder_matmul_cpu.py`` is the product, at sizes that no block and no tile divides."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from processes import python

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
RUNGS = ("naive", "ordered", "blocked", "packed", "tile", "threads")
# (M, K, N): one element; less than a tile; blocks of b (512 x 256) and tasks of rows cut at odd places.
SHAPES = [(1, 1, 1), (3, 5, 7), (8, 64, 32), (67, 13, 41), (9, 515, 259), (130, 1027, 33)]


@pytest.fixture
def ladder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("ladder_matmul_cpu")


def test_these_are_the_rungs(ladder):
    assert tuple(ladder.RUNGS) == RUNGS


@pytest.mark.long(but=2)
@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_is_the_product(ladder, rung):
    random = np.random.default_rng(0)
    for M, K, N in SHAPES:
        a, b = random.standard_normal((M, K), np.float32), random.standard_normal((K, N), np.float32)
        y = ladder.multiply(rung, a, b)
        assert y.shape == (M, N) and y.dtype == np.float32
        np.testing.assert_allclose(y, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.long(but=2)
@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_adds_to_y(ladder, rung):
    random = np.random.default_rng(1)
    M, K, N = 9 * ladder.TILE_ROWS, 600, 320  # whole tiles, of 64 or 16 columns: only ``multiply`` pads
    a, b = random.standard_normal((M, K), np.float32), random.standard_normal((K, N), np.float32)
    y = np.ones((M, N), np.float32)
    ladder.RUNGS[rung](a, b, y)
    np.testing.assert_allclose(y, 1 + a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_the_table(tmp_path):
    out = tmp_path / "table.json"
    options = *("--size", 48, "--turns", 1, "--seconds", 0, "--threads", 2), *("--against", "numpy", "--json", out)
    done = python(BENCHMARKS / "ladder_matmul_cpu.py", *options, "--rungs", "naive", "threads", check=True)
    speeds = json.loads(out.read_text())["gflops"]
    assert {"naive", "threads", "minigrad", "numpy"} <= set(speeds)
    assert set(speeds["naive"]) == {"1"} and set(speeds["threads"]) == {"2"} and set(speeds["numpy"]) == {"1", "2"}
    assert all(line in done.stdout for line in ("1 thread", "2 threads", "float32, (48, 48) @ (48, 48), GFLOP/s"))
