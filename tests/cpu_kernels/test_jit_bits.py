"""A kernel gives the same bits in every process, whatever that process compiled or took from the cache before."""

import pytest
from numba.core import codegen, untyped_passes
from processes import python

import minigrad
from minigrad.cpu_kernels.toolbox import jit

SCRIPT = """
import sys
import numpy as np
from minigrad.cpu_kernels import layer_norm, softmax

dy, x = np.random.default_rng(0).standard_normal((2, 32, 16), np.float32)
weight, mean, rstd = np.ones(16, np.float32), x.mean(1), 1 / x.std(1)
kernels = {
    "layer_norm": lambda: layer_norm.backward(dy, x, weight, mean, rstd),
    "softmax": lambda: [softmax.backward(dy, softmax.forward(x, 1), 1)],
}
results = {name: [array.tobytes().hex() for array in kernels[name]()] for name in sys.argv[1:]}
print(sorted(results.items()))
"""


def bits(cache, *names: str) -> str:
    """With one thread, so that no helper compiles what is not asked for."""
    environment = {"MINIGRAD_CACHE_DIR": str(cache), "NUMBA_NUM_THREADS": "1"}
    return python("-c", SCRIPT, *names, env=environment, check=True).stdout


@pytest.mark.long
def test_bits_depend_neither_on_the_cache_nor_on_what_was_loaded_first(tmp_path):
    compiled = bits(tmp_path, "layer_norm", "softmax")
    assert bits(tmp_path, "softmax", "layer_norm") == compiled  # from the cache, in the other order
    assert bits(tmp_path / "other", "softmax", "layer_norm") == compiled  # compiled in the other order


@pytest.mark.compiled
def test_the_cache_keeps_every_kernel():
    """None has an address of its process: such a one would be compiled anew in each."""
    ((minigrad.ones(300, 300) + 1).sum() + 1).item()
    assert not any(made.library.has_dynamic_globals for x in jit.TEAM.kernels.values() for made in x.overloads.values())


def test_what_is_overridden_exists_in_numba() -> None:
    """They are Numba's own business: a release that renames one would go on as if it had not been overridden."""
    hooks = [name for name in vars(jit.KernelLibrary) if name.startswith("_") and not name.startswith("__")]
    assert [name for name in hooks if not hasattr(codegen.JITCodeLibrary, name)] == []
    assert "inline_function" in untyped_passes.InlineInlinables._do_work.__code__.co_names
