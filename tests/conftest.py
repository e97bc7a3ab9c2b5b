"""What all tests share: ``pytest`` alone runs the short set, ``gpu`` tests are skipped where there is no GPU and
``compiled`` ones with plain kernels, Hypothesis draws the same cases always, and engines of products that were measured
on this machine choose nothing.
"""

import gc
import importlib
import os
import signal
import sys

import hypothesis
import pytest
import short_set

# No deadline: the first call of a kernel compiles it.
hypothesis.settings.register_profile("minigrad", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("minigrad")
# Else numbers in the sources decide what is drawn, and each process reads all sources first.
if providers := sys.modules.get("hypothesis.internal.conjecture.providers"):  # of newer versions
    providers.is_local_module_file = lambda path: False

# A job of a shell in the background ignores Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Else the products.json of the user's cache says which kernels a test checks.
os.environ.setdefault("MINIGRAD_GEMM", "numba")


# A file is whole in one process: what takes long begins early, so that at the end neither process waits for the other.
LONG = {
    *("test_train_char_gpt.py", "test_pretrained_examples.py", "test_sample.py", "test_train_char_gpt_ddp.py"),
    *("test_small_models.py", "test_cli.py", "test_documents.py", "test_gpu_report.py"),
    *("test_mpi.py", "test_faults.py", "test_launch.py", "test_kernel_cache.py"),
    # in the simulator
    *("test_flash_tensor_core.py", "test_cuda_train_gpt2.py", "test_optimizers.py", "test_training.py"),
    *("test_cross_entropy.py", "test_reduce.py", "test_attention.py", "test_losses.py", "test_group_norm.py"),
}


@pytest.fixture(autouse=True)
def environment():
    """What a script that runs within a test sets is not left to the next one."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def set_threads():
    """``set_num_threads``, for a test after which the number is what it was."""
    minigrad = importlib.import_module("minigrad")
    before = minigrad.get_num_threads()
    yield minigrad.set_num_threads
    minigrad.set_num_threads(before)


@pytest.fixture
def seeds(request: pytest.FixtureRequest):
    """``seeds(n)``: those of ``--seeds A:B``, or the first n."""
    given = request.config.getoption("--seeds")
    return lambda n: range(*map(int, given.split(":"))) if given else range(n)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", dest="all_tests", action="store_true", help="all tests, not only the short set")
    parser.addoption("--short", action="store_true", help="the short set also of what is chosen by name, -k or -m")
    parser.addoption("--seeds", metavar="A:B", help="seeds from A to B - 1 for the tests that draw what goes wrong")
    parser.addoption("--every-kernel", action="store_true", help="fail if no test ran a CUDA kernel (simulator)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--every-kernel", default=False):
        config.pluginmanager.register(importlib.import_module("kernel_launches").Launches(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[short_set.WHOLE] = list(items)
    if short_set.is_short(config):
        chosen = short_set.short(items)
        config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
        items[:] = chosen  # in the order of files, so that kernels are compiled before other processes need them
    else:
        items.sort(key=lambda item: item.path.name not in LONG)
    gc.freeze()  # no collection of garbage looks at thousands of tests again
    if os.environ.get("MINIGRAD_KERNELS") == "plain":
        for item in items:
            if item.get_closest_marker("compiled"):
                item.add_marker(pytest.mark.skip(reason="about compiled kernels, and MINIGRAD_KERNELS=plain"))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        backend = importlib.import_module("minigrad.cuda_kernels")
        usable, reason = backend.availability()
        if backend.simulated():
            usable, reason = False, "NUMBA_ENABLE_CUDASIM is set, and the simulator is no GPU"
        for item in [] if usable else marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session):
    """Below pytest's last line: what did not run."""
    yield
    if short_set.is_short(session.config) and not hasattr(session.config, "workerinput"):
        session.config.get_terminal_writer().line(short_set.LAST_WORDS)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """An error such as an illegal address leaves a process without CUDA: the tests after it need another process."""
    memory = sys.modules.get("minigrad.cuda_kernels.platform.memory")
    if not report.failed or memory is None:
        return
    backend = importlib.import_module("minigrad.cuda_kernels")
    if backend.simulated() or not backend.availability()[0]:
        return
    try:
        memory.synchronize()
    except Exception as error:
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(1)  # pytest-xdist names the test and starts another
        pytest.exit(f"this process cannot use CUDA any more ({error}): --deselect {report.nodeid} for the others", 1)
