"""Long runs take no more memory, file descriptors or threads than short ones, and leave no node of a graph.

``python tests/test_flat_memory.py 100000 training`` makes a run of 100,000 steps, prints what it held, and fails if
that grew.
"""

import contextlib
import ctypes
import gc
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import processes
import pytest

import minigrad as mg
from minigrad import distributed as dist
from minigrad.models import GPT2, GPT2Config
from minigrad.serialization import load_checkpoint, save_checkpoint

TURNS = 5
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


class Mallinfo2(ctypes.Structure):
    """What glibc's malloc says of itself."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in ("a", "b", "c", "d", "mapped", "e", "f", "used", "g", "h"))


def held() -> dict[str, int]:
    """What this process has: Python's blocks, bytes of malloc and of memory, nodes of graphs, descriptors, threads."""
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo2
    malloc, pages = libc.mallinfo2(), int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "blocks": sys.getallocatedblocks(),
        "malloc": malloc.used + malloc.mapped,
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
        "nodes": sum(issubclass(type(x), mg.Function) for x in gc.get_objects()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def mlp() -> mg.nn.Module:
    mg.manual_seed(0)
    return mg.nn.Sequential(mg.nn.Linear(4, 6), mg.nn.Tanh(), mg.nn.Dropout(0.1), mg.nn.Linear(6, 2))


def training(steps: int, comm=None) -> dict[str, list[int]]:
    """Accumulation, clipping, AdamW, and with two ranks buckets and comparisons."""
    config = dist.TrainingConfig(grad_accum_steps=2, max_grad_norm=1.0, compare_every=10)
    trainer = dist.SimpleTrainer(config) if comm is None else dist.DistributedTrainer(config, comm)
    model, x = mlp(), mg.from_numpy(X)

    def step() -> None:
        trainer.backward_and_step((model(x) ** 2).mean(), model.named_parameters())

    return measured(step, steps, comm)


def ranks(steps: int) -> dict[str, list[int]]:
    return dist.run_threads(2, lambda comm: training(steps, comm), timeout=60)[0]


class Torn(mg.Function):
    def forward(self, x):
        return x * 1

    def backward(self, dy):
        raise KeyError("torn")


def torn(steps: int) -> dict[str, list[int]]:
    """Exceptions in the middle of backward."""
    model, x = mlp(), mg.from_numpy(X)

    def step() -> None:
        with contextlib.suppress(KeyError):
            model[3](Torn.apply(model[1](model[0](x)))).sum().backward()
            raise AssertionError("backward went on")

    return measured(step, steps)


def generation(steps: int) -> dict[str, list[int]]:
    """Each call captures its decoding anew, as a graph."""
    model = GPT2(GPT2Config(11, 8, 1, 2, 8)).eval()
    return measured(lambda: model.generate(mg.tensor([[1, 2]]), 3), steps)


def checkpoints(steps: int) -> dict[str, list[int]]:
    def step() -> None:
        save_checkpoint(folder, {"model": {"w": X}}, {"step": 1})
        load_checkpoint(folder)

    with tempfile.TemporaryDirectory() as folder:
        return measured(step, steps)


def measured(step, steps: int, comm=None) -> dict[str, list[int]]:
    """What was held after a warm-up of a fifth, and after each further fifth of so many steps."""
    looks = []
    for _ in range(TURNS + 1):
        for _ in range(steps // TURNS):
            step()
        if comm is not None:
            comm.barrier()
        looks.append(held() if comm is None or comm.rank == 0 else looks[:1])
        if comm is not None:
            comm.barrier()  # meanwhile the other rank waits
    return {key: [look[key] for look in looks] for key in looks[0] or ()}


STEPS = {training: 10_000, ranks: 2_000, torn: 1_000, generation: 500, checkpoints: 500}


def check(steps: int, looks: dict[str, list[int]]) -> None:
    """Caches and free lists fill up ever more slowly, so the least growth of a fifth counts."""
    least = {key: min(b - a for a, b in itertools.pairwise(values)) for key, values in looks.items()}
    turn = steps / TURNS
    exact = 1.0 if turn >= 1000 else 0.02  # the fewer steps, the more of them fill caches
    assert least["malloc"] <= 1.024 * turn / exact, looks  # 1 KB in 1,000 steps
    assert least["blocks"] <= turn / 50 / exact, looks  # of about 50 bytes
    for key in ("nodes", "descriptors", "threads"):
        assert len({*looks[key]}) == 1, (key, looks)


@pytest.mark.long
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="what malloc holds is asked of glibc")
@pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)
def test_steps_leave_nothing_behind(kind):
    run = processes.python(__file__, STEPS[kind], kind.__name__, env={"PYTHONMALLOC": "pymalloc"})
    assert run.returncode == 0, run.stdout + run.stderr


if __name__ == "__main__":
    for kind in STEPS:
        if kind.__name__ in (sys.argv[2:] or [kind.__name__]):
            looks = kind(int(sys.argv[1]))
            print(json.dumps(looks), flush=True)
            check(int(sys.argv[1]), looks)
