"""Task kernels: each task runs once, arguments of all kinds arrive, a failure in the pool is raised."""

import itertools

import numba
import numpy as np
import pytest
from processes import python
from refusals import raises

from minigrad.cpu_kernels.toolbox import threads
from minigrad.cpu_kernels.toolbox.threads import Launches, task_kernel


@task_kernel
def _record(task, tasks, x, factor, sizes, nested, flag):
    for i in range(task * len(x) // tasks, (task + 1) * len(x) // tasks):
        x[i] += factor * (sizes[0] + nested[1][0]) + (1000 * task if flag else 0)


@task_kernel
def _allocate(task, tasks, x, count):
    workspace = np.empty(count if task == tasks - 1 else 1, x.dtype)
    workspace[0] = task
    x[task] = workspace[0]


@pytest.mark.parametrize("tasks", [1, 2, 3, 16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_task_runs_once(tasks, dtype):
    x = np.zeros(20, dtype)
    _record.launch(x.dtype, tasks, x, 2.0, (3, 4), ((1, 2), (5, 6)), True)
    expected = np.concatenate([np.full((t + 1) * 20 // tasks - t * 20 // tasks, 1000 * t) for t in range(tasks)])
    np.testing.assert_array_equal(x, expected + 16)


@task_kernel
def _next(task, tasks, x, y):
    n, late = x.shape[0], 0.0
    for k in range(0 if task else 3000):  # the first task is the last to write
        late += np.sqrt(late + k)
    for i in range(task * n // tasks, (task + 1) * n // tasks):
        y[i] += x[(i + n // 2) % n] + 1 + 0 * late


def _chain(size, length):
    """Arrays, and launches in each of which a task reads what other tasks of the launch before have written."""
    arrays = [np.zeros(size) for _ in range(length + 1)]
    pairs = itertools.pairwise(arrays)
    return arrays, [_next.prepared(np.float64, 1 + i % 7, pair) for i, pair in enumerate(pairs)]


@pytest.mark.parametrize("count", range(1, min(4, numba.config.NUMBA_NUM_THREADS) + 1))
def test_a_launch_of_a_list_finds_what_the_one_before_has_written(set_threads, count):
    set_threads(count)
    for _ in range(50):
        arrays, launches = _chain(64, 40)
        Launches(launches).run()
        np.testing.assert_array_equal(arrays, np.repeat(np.arange(41), 64).reshape(41, 64))


def test_one_thread_of_several_does_all_if_the_others_come_late():
    arrays, launches = _chain(64, 40)
    all_of_them = Launches(launches)
    progress = np.zeros((40, threads.WORDS), np.int64)
    for member in (2, 0, 1):
        assert threads._share(all_of_them._table, progress, member, 3) == 0
        np.testing.assert_array_equal(arrays[-1], np.full(64, 40))


@pytest.mark.parametrize("tasks", [1, 4])
def test_no_memory_is_an_error(tasks):
    x = np.zeros(4)
    _allocate.launch(x.dtype, tasks, x, 8)
    raises(MemoryError, "", lambda: _allocate.launch(x.dtype, tasks, x, 1 << 59))
    raises(MemoryError, "", Launches([_allocate.prepared(x.dtype, tasks, (x, 1 << 59))] * 3).run)


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("given", "expected"), [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_threads_wait_shortly_unless_the_environment_says_how_long(monkeypatch, given, expected):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    # libgomp reads the variable when it is loaded, so nothing may have loaded it before.
    program = (
        "import os, sys; import numba; maps = open('/proc/self/maps').read() if sys.platform == 'linux' else ''\n"
        "assert 'libgomp' not in maps; import minigrad.cpu_kernels; print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    assert python("-c", program, env=given).stdout.split() == [expected]
