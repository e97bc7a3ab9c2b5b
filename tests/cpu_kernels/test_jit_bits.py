"""A kernel gives the same bits in every process, whatever that process compiled or took from the cache before."""

import pytest
from numba.core.caching import IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from processes import python

from minigrad.cpu_kernels.toolbox import jit

# layer_norm.backward calls its serial kernel directly for few rows, and inside the parallel one for many.
SCRIPT = """
import sys
import numpy as np
from minigrad.cpu_kernels import layer_norm

def digits(N):
    rng = np.random.default_rng(N)
    dy, x = rng.standard_normal((2, N, 16), np.float32)
    weight, mean, rstd = np.ones(16, np.float32), x.mean(1), 1 / x.std(1)
    return [array.tobytes().hex() for array in layer_norm.backward(dy, x, weight, mean, rstd)]

results = {N: digits(N) for N in map(int, sys.argv[1:])}
print([results[N] for N in sorted(results)])
"""


def bits(cache, *rows: int) -> str:
    return python("-c", SCRIPT, *rows, env={"MINIGRAD_CACHE_DIR": str(cache)}, check=True).stdout


@pytest.mark.long
def test_bits_depend_neither_on_the_cache_nor_on_what_was_loaded_first(tmp_path):
    compiled = bits(tmp_path, 8, 32)
    assert bits(tmp_path, 8, 32) == compiled  # from the cache
    assert bits(tmp_path, 32, 8) == compiled  # the parallel kernel first
    assert bits(tmp_path / "other", 32, 8) == compiled  # compiled in the other order


def test_what_is_overridden_exists_in_numba() -> None:
    """They are Numba's own business: a release that renames one would go on as if it had not been overridden."""
    for ours, numbas in ((jit.KernelLibrary, JITCodeLibrary), (jit.DigestedFiles, IndexDataCacheFile)):
        hooks = [name for name in vars(ours) if name.startswith("_") and not name.startswith("__")]
        assert [name for name in hooks if not hasattr(numbas, name)] == []
