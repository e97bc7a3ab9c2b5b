"""``pytest --every-kernel`` fails if a CUDA kernel that exists from the start was run by no test, and names it.

For the whole suite of the simulator, in any number of processes: each sends the first the names of those that it ran.
"""

import pytest

from minigrad.cuda_kernels import inspect, simulated
from minigrad.cuda_kernels.platform import launch


class Launches:
    """A plugin of pytest. ``kernels``: those of ``inspect.py`` but those that are made when first used."""

    def __init__(self, config: pytest.Config) -> None:
        if not simulated():
            raise pytest.UsageError("--every-kernel counts what the simulator runs: set NUMBA_ENABLE_CUDASIM=1")
        self.of_worker = getattr(config, "workeroutput", None)  # of pytest-xdist
        self.kernels: set[str] = set(inspect.load_all())
        assert self.kernels
        self.run: set[str] = set()
        run_simulated = launch.Kernel._run_simulated

        def record(kernel: launch.Kernel, *arguments) -> None:
            self.run.add(kernel.name)
            run_simulated(kernel, *arguments)

        launch.Kernel._run_simulated = record

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        self.run |= set(getattr(node, "workeroutput", {}).get("kernels_run", ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.of_worker is not None:
            self.of_worker["kernels_run"] = sorted(self.run)
        elif self.kernels - self.run and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter) -> None:
        missing = sorted(self.kernels - self.run)
        terminalreporter.section("kernels")
        terminalreporter.line(f"of {len(self.kernels)} kernels no test ran {len(missing)}")
        for name in missing:
            terminalreporter.line(f"    {name}")
