"""Memory of the CPU: freed blocks are used again, can be given back, and what they held before is never seen."""

import os
import platform
import re

import processes
import pytest

import minigrad as mg
from minigrad.cpu_kernels import memory

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")


def python(source, **environment):
    return processes.python("-c", source, env=environment, returncode=0)


ALIGNED = """
import numpy as np
import minigrad.cpu_kernels
kept = [make(size) for size in (0, 1, 7, 100, 5000, 70_000, 3_000_000) for make in (np.empty, np.zeros, np.ones) * 3]
assert not any(x.ctypes.data % 64 for x in kept), [x.ctypes.data % 64 for x in kept]
assert not any(x.any() for x in kept[1::3]) and all(x.all() for x in kept[2::3])
grown = np.arange(10)
for size in (10_000, 20, 2_000_000, 15):
    grown.resize(size, refcheck=False)
    assert grown[:10].tolist() == [*range(10)] and not grown[10:].any() and not grown.ctypes.data % 64
assert np.fromiter(range(100_000), np.int64).sum() == 4_999_950_000
for order in (np.arange(5_000).reshape(50, 100)[:, ::-1], np.arange(50.0)[::-1], np.zeros((3, 0))):
    assert (np.take_along_axis(order, order.argsort(-1), -1) == np.sort(order, -1)).all()  # frees what it has not taken
"""


@needs_glibc
def test_arrays_begin_with_a_cache_line():
    python(ALIGNED, MINIGRAD_MALLOPT="1", MINIGRAD_POISON="", MINIGRAD_DEBUG="")


def test_enabled_says_what_happened():
    expected = platform.libc_ver()[0] == "glibc" and os.environ.get("MINIGRAD_MALLOPT") != "0"
    assert memory.enabled is expected


GPT = """
import hashlib
import numba
import numpy as np
import minigrad as mg
from minigrad.models import GPT2, GPT2Config
from minigrad.optim import AdamW, clip_grad_norm

mg.manual_seed(0)
model = GPT2(GPT2Config(33, 48, 2, 4, 64, dropout=0.1))
optimizer = AdamW(model.named_parameters(), lr=1e-2)
rng = np.random.default_rng(0)

def step():
    tokens = mg.from_numpy(rng.integers(0, 33, (9, 49)))
    loss = model.loss(tokens[:, :-1], tokens[:, 1:])
    grads = loss.backward()
    clip_grad_norm(grads, 1.0)
    optimizer.step(grads)
    return loss.item()

@numba.njit
def forgets():
    return np.empty(100_000, np.float32).max()

losses = [step() for _ in range(3)]
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
np.ones(100_000, np.float32)  # freed at once: numbers that look right
unwritten = np.empty(3), mg.empty(500, 500).numpy(), np.empty((2, 3), np.float16)[1, 2]
print(*(np.isnan(x).all() for x in unwritten), forgets() == 1, mg.zeros(9).sum().item())
print(losses, digest.hexdigest())
for _ in range(6):
    before = mg.memory_stats()["page_faults"]
    step()
    print(mg.memory_stats()["page_faults"] - before)
"""


def test_no_result_depends_on_what_memory_held_before():
    """Steps of a transformer have the same bits if all memory is NaN before it is written."""
    plain, poisoned = (python(GPT, MINIGRAD_POISON=poison).stdout.splitlines() for poison in ("0", "1"))
    if memory.enabled:  # a warm step takes no memory from the system, but for Python's own objects now and then
        assert min(map(int, plain[2:])) <= 2
    assert poisoned[0] == "True True True False 0.0"
    assert plain[1] == poisoned[1]
    assert "nan" not in plain[1]


@needs_glibc
def test_memory_is_given_back_on_request():
    kept = mg.ones(1000)
    tensors = [mg.ones(1 << 20) for _ in range(50)]
    barrier = mg.ones(1000)  # lies above them, so that they are not at the heap's end
    held = mg.memory_stats()
    assert held["heap_used"] >= 50 << 22 and held["resident"] >= 50 << 22
    del tensors
    freed = mg.memory_stats()
    assert freed["heap_used"] <= held["heap_used"] - (50 << 22)
    if memory.enabled:
        assert freed["resident"] >= 50 << 22
        assert mg.release_memory() >= 45 << 22
    assert mg.memory_stats()["resident"] <= held["resident"] - (45 << 22)
    assert mg.memory_stats()["peak"] >= held["resident"] - (1 << 22)  # Linux counts pages in batches
    assert (kept + barrier).sum().item() == 2000


HITS = """
import numpy as np
import minigrad as mg
mg.ones(3).exp()
for _ in range(20):
    x = np.empty(1_000_000)
    del x
kept = [np.empty(1_000_000) for _ in range(20)]
"""


@pytest.mark.long
@needs_glibc
def test_debug_shows_how_much_memory_was_used_before():
    """20 arrays of 8 MB in one place, 20 in places of their own: about half are hits."""
    said = python(HITS, MINIGRAD_DEBUG="1").stderr
    found = re.search(r"(\d+) arrays of ([\d.]+) MB, ([\d.]+)% of it hits", said)
    assert found and "minigrad: memory:" in said and "page faults, peak" in said
    assert python(HITS, MINIGRAD_DEBUG="0").stderr == ""
    arrays, megabytes, share = map(float, found.groups())
    assert arrays >= 40 and 320 <= megabytes < 400
    assert 45 < share < 65
    huge = (
        "import numpy as np, minigrad as mg\nmg.ones(3)\nfor _ in range(5): np.empty(200_000_000)"  # mapped, given back
    )
    assert "0.0% of it hits" in python(huge, MINIGRAD_DEBUG="1").stderr
    assert "hits" not in python(HITS, MINIGRAD_DEBUG="1", MINIGRAD_MALLOPT="0").stderr


def test_a_level_that_is_no_number_is_named():
    done = processes.python("-c", "import minigrad as mg; mg.ones(3)", env={"MINIGRAD_DEBUG": "yes"}, returncode=1)
    assert "MINIGRAD_DEBUG=yes" in done.stderr


IDLE = """
import time
import numpy as np
import minigrad as mg
from minigrad.cpu_kernels.memory import heap

heap.release_when_idle(0.3)
blocks = [np.ones(1_000_000) for _ in range(30)]  # 240 MB
del blocks
full, end = mg.memory_stats()["resident"], time.monotonic() + 1.5
while time.monotonic() < end:
    sum(range(1000))
busy, end = mg.memory_stats()["resident"], time.monotonic() + 30
while mg.memory_stats()["resident"] > full - 200e6 and time.monotonic() < end:
    time.sleep(1)  # longer than what must be idle, so that looking is no work
print(full - busy, full - mg.memory_stats()["resident"])
"""


@pytest.mark.long
@needs_glibc
def test_an_idle_process_gives_its_free_memory_back_and_a_busy_one_does_not():
    while_busy, when_idle = map(int, python(IDLE, MINIGRAD_MALLOPT="1").stdout.split())
    assert while_busy < 20e6
    assert when_idle > 200e6
