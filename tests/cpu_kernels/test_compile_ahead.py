"""Helpers compile what a program will need; what they do never changes a result, and none outlives its program."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigrad.cpu_kernels.toolbox.compile_ahead import known_kernels
from minigrad.cpu_kernels.toolbox.jit import TEAM

# A step of a layer, which needs kernels that the list knows.
SCRIPT = """
import minigrad
from minigrad.cpu_kernels.toolbox.jit import TEAM
minigrad.manual_seed(0)
layer = minigrad.nn.{}
x = minigrad.randn(32, 16)
for gradient in layer(x).square().sum().backward().values():
    print(gradient.numpy().tobytes().hex())
print(len(TEAM._helpers), sum(helper.poll() is None for helper in TEAM._helpers.values()), file=sys.stderr)
"""


def start(cache: Path, layer: str, **environment: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "MINIGRAD_CACHE_DIR": str(cache), "NUMBA_NUM_THREADS": "2", **environment}
    command = [sys.executable, "-X", "dev", "-c", "import sys" + SCRIPT.format(layer)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_list_names_kernels_that_exist() -> None:
    for key in known_kernels():
        kernel, types = TEAM.find(key)
        assert kernel.py_func.__code__.co_argcount == len(types), f"run benchmarks/known_kernels.py: {key}"


@pytest.mark.long
def test_bits_are_those_of_a_process_without_helpers(tmp_path: Path) -> None:
    outputs = []
    for threads in ("2", "1"):
        process = start(tmp_path / threads, "LayerNorm(16)", NUMBA_NUM_THREADS=threads)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert err.splitlines()[-1].startswith("0" if threads == "1" else "2"), err
        assert re.match(r"compiling \d\d CPU kernels, for this and later runs: about \d+ s\n", err)  # before it does
        outputs.append(out)
    assert outputs[0] == outputs[1] != ""


def helpers(cache: Path) -> list[int]:
    """The processes that compile into a cache."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"help_others" in (path / "cmdline").read_bytes()
                and os.fsencode(cache) in (path / "environ").read_bytes()
            ):
                found.append(int(path.name))
        except OSError:  # it has ended
            continue
    return found


@pytest.mark.long(but=1)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes as Linux shows them")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_helpers_end_with_their_program(tmp_path: Path, number: int) -> None:
    process = start(tmp_path, "Linear(16, 8)")  # which takes long
    until = time.monotonic() + 120
    while not helpers(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert helpers(tmp_path)
    process.send_signal(number)
    process.communicate(timeout=300)
    # Where Ctrl-C falls into a callback of LLVM, Numba loses it.
    assert process.returncode != 0 or number == signal.SIGINT
    while helpers(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert helpers(tmp_path) == []
