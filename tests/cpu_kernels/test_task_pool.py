"""Task kernels: each task runs once, arguments of all kinds arrive, a failure in the pool is raised."""

import numpy as np
import pytest
from processes import python
from refusals import raises

from minigrad.cpu_kernels.toolbox.threads import task_kernel


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


@pytest.mark.parametrize("tasks", [1, 4])
def test_no_memory_is_an_error(tasks):
    x = np.zeros(4)
    _allocate.launch(x.dtype, tasks, x, 8)
    raises(MemoryError, "", lambda: _allocate.launch(x.dtype, tasks, x, 1 << 59))


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
