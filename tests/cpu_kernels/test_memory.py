"""memory: the malloc settings are applied once at import, kept out by the environment, and spare page faults."""

import os
import platform
import subprocess
import sys

import pytest

from minigrad.cpu_kernels import memory

PROGRAM = """
import resource
import sys
import numpy as np
from minigrad.cpu_kernels import memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(2):
    x = np.ones(10_000_000)
    del x
before = faults()
for _ in range(5):
    x = np.ones(10_000_000)  # 80 MB: 19531 pages of 4 KiB, or 38 huge ones
    del x
print(memory.enabled, faults() - before)
"""


def run(setting):
    environment = {**os.environ, "MINIGRAD_MALLOPT": setting, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    enabled, faults = done.stdout.split()
    return enabled == "True", int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_blocks_are_reused_without_page_faults():
    enabled, faults = run("1")
    assert enabled
    assert faults < 20
    enabled, faults_without = run("0")
    assert not enabled
    assert faults_without > faults


def test_enabled_says_what_happened():
    expected = platform.libc_ver()[0] == "glibc" and os.environ.get("MINIGRAD_MALLOPT") != "0"
    assert memory.enabled is expected
