"""``python -m minigrad.env`` reports whatever optional package is broken; the CUDA package says what it lacks."""

import os
import re
from pathlib import Path

import pytest
from processes import python

from minigrad import cuda_kernels, env
from minigrad.cuda_kernels.platform import availability, libcuda


@pytest.fixture(autouse=True)
def no_simulator(monkeypatch):
    """The driver is asked for GPUs, also where the tests run with the simulator."""
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)


def complete(monkeypatch: pytest.MonkeyPatch, driver=lambda: cuda_kernels.Driver((13, 1), 8)) -> None:
    """The machine has all that is imported, and a driver."""
    monkeypatch.setattr(availability, "driver", driver)
    monkeypatch.setattr(availability, "_import_problem", lambda name: None)
    monkeypatch.setattr(availability.np, "__version__", "2.4.6")


@pytest.mark.long
def test_report_names_what_is_there():
    report = python("-m", "minigrad.env")
    assert (report.returncode, report.stderr) == (0, "")
    titles = [line for line in report.stdout.splitlines() if not line.startswith(" ")]
    assert titles == ["versions", "cpu", "threads", "kernel cache", "devices", "extras (optional)"]
    rows = {line.split()[0] for line in report.stdout.splitlines() if line.startswith("  ")}
    named = "minigrad Python numpy numba llvmlite features vectors layer count BLAS folder size cpu cuda torch"
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    extras = re.findall(r"\n(\w+) = \[", project.partition("optional-dependencies]")[2].partition("\n[")[0])
    assert len(extras) > 9 and rows >= {*extras, *named.split()}
    for name in ("cupy", "numba_cuda"):
        assert len(re.findall(rf"needs {name}\b|\b{name} is not installed", report.stdout)) <= 1


def test_broken_optional_packages_are_reported_with_reason_and_remedy(tmp_path):
    broken = {
        "mpi4py": "raise RuntimeError('cannot load MPI library')",
        "cupy": "raise SystemExit('CUDA path could not\\nbe detected')",
        "matplotlib": "this is no Python",
        "torch": "import os; os._exit(134)",
        "hypothesis": "import attrs_that_nobody_has",
        "numba_cuda": "import cuda_piece_that_nobody_has",
    }
    for name, source in broken.items():
        (tmp_path / f"{name}.py").write_text(source)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    report = python("-m", "minigrad.env", env={"PYTHONPATH": path}, returncode=0)
    assert "Traceback" not in report.stdout + report.stderr
    for reason in (
        "mpi          not usable: mpi4py cannot be imported (RuntimeError: cannot load MPI library)",
        "cupy cannot be imported (SystemExit: CUDA path could not be detected)",
        "matplotlib cannot be imported (SyntaxError: ",
        "torch cannot be imported (it ended Python with exit code 134)",
        "test         not usable: pytest needs attrs_that_nobody_has",
        "numba_cuda needs cuda_piece_that_nobody_has",
        "numba_cuda cannot be imported (No module named 'cuda_piece_that_nobody_has')",
        "inspect      not usable: as above",
        *(f'pip install -e ".[{extra}]"' for extra in ("inspect", "mpi", "cuda12", "cuda13", "plot", "test")),
    ):
        assert reason in report.stdout
    assert report.stdout.count("cuda_piece_that_nobody_has") == 2 and "minigrad-cuda[" not in report.stdout


def test_a_probe_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(env, "PROBE_TIMEOUT", 0.5)
    status = env._probe("sleepy", "import time; time.sleep(60)")
    assert not status.usable and status.detail == "sleepy cannot be imported (no answer within 0.5 s)"


def test_cache_counts_files_and_bytes(tmp_path):
    code = (
        "from minigrad.cpu_kernels.toolbox import jit; (jit.CACHE_DIRECTORY / 'kernel').write_bytes(bytes(300_000));"
        "from minigrad import env; print(*env.kernel_cache().values(), sep='\\n')"
    )
    result = python("-c", code, env={"MINIGRAD_CACHE_DIR": str(tmp_path)})
    folder, size = result.stdout.splitlines()
    assert folder.startswith(str(tmp_path)) and size == "0.3 MB in 2 files"  # and the empty file of locks


def test_cuda_extra_names_a_wrong_wheel_and_a_driver_that_is_too_old(monkeypatch):
    monkeypatch.setattr(cuda_kernels, "driver", lambda: cuda_kernels.Driver((12, 4), 2))
    monkeypatch.setattr(env, "_version", lambda name: "14.2.0" if name == "cupy-cuda12x" else None)
    packages = [env.Status(name, True, f"{name} 1") for name in ("numba_cuda", "cupy", "NCCL")]
    assert env._cuda_extra(12, packages) == env.Status(
        "cuda12", True, "numba_cuda 1, cupy 1, NCCL 1, driver for CUDA 12.4, 2 device(s)"
    )
    monkeypatch.setattr(cuda_kernels, "driver", lambda: cuda_kernels.Driver((12, 0), 1))
    assert env._cuda_extra(12, packages).usable  # the oldest driver of the series
    monkeypatch.setattr(cuda_kernels, "driver", lambda: cuda_kernels.Driver((12, 4), 2))
    other = env._cuda_extra(13, packages)
    assert not other.usable
    assert "not as cupy-cuda13x" in other.detail
    assert "supports CUDA 12.4, not 13.0" in other.detail
    assert other.remedy.startswith('pip install "minigrad-cuda[cuda13]" and update the driver')


@pytest.mark.parametrize(("cuda", "extra"), [((12, 4), "cuda12"), ((13, 0), "cuda13")])
def test_availability_names_the_extra_that_the_driver_supports(monkeypatch, cuda, extra):
    monkeypatch.setattr(availability, "driver", lambda: cuda_kernels.Driver(cuda, 1))
    monkeypatch.setattr(availability, "_import_problem", lambda name: f"{name} is not installed")
    usable, reason = cuda_kernels.availability()
    assert not usable and "numba_cuda is not installed; cupy is not installed" in reason
    assert f'pip install "minigrad-cuda[{extra}]"' in reason


def test_availability_names_a_missing_driver(monkeypatch):
    def no_driver() -> cuda_kernels.Driver:
        raise OSError("no NVIDIA driver (libcuda.so.1)")

    monkeypatch.setattr(availability, "driver", no_driver)
    usable, reason = cuda_kernels.availability()
    assert not usable and reason.startswith("no NVIDIA driver (libcuda.so.1)")


def test_availability_names_a_numpy_that_is_too_new(monkeypatch):
    complete(monkeypatch)
    monkeypatch.setattr(availability.np, "__version__", "2.5.1")
    usable, reason = cuda_kernels.availability()
    assert not usable and "needs numpy<2.5" in reason


@pytest.mark.parametrize("found", [True, False])
def test_nvvm_is_looked_for_where_nvcc_is(monkeypatch, tmp_path, found):
    """And where it is nowhere, the extra that brings it is named before anything is compiled."""
    homes: list[str | None] = []

    class Search:
        def NVVM(self) -> None:
            homes.append(os.environ.get("CUDA_HOME"))
            if not found:
                raise RuntimeError('Failure finding "libnvvm.so"\n  listdir')

    for folder in ("bin", *["nvvm"] * found):
        (tmp_path / "cuda" / folder).mkdir(parents=True)
    complete(monkeypatch)
    monkeypatch.setattr(availability, "TOOLKIT", tmp_path / "nowhere")
    monkeypatch.setattr(availability.shutil, "which", lambda name: str(tmp_path / "cuda/bin/nvcc"))
    monkeypatch.setattr(availability.importlib, "import_module", lambda name: Search())
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    usable, reason = cuda_kernels.availability()
    assert usable == found and homes == [str(tmp_path / "cuda") if found else None]
    if not found:
        assert reason == (
            'NVVM, which compiles kernels, is not found (Failure finding "libnvvm.so"): '
            'pip install "minigrad-cuda[cuda13]"'
        )


def test_a_missing_kernel_family_raises_and_names_family_and_device():
    with pytest.raises(cuda_kernels.MissingKernelError, match=r"'no_such_family' .*'cuda'"):
        _ = cuda_kernels.no_such_family
    with pytest.raises(NotImplementedError, match="no_such_family"):
        from minigrad.cuda_kernels import no_such_family  # noqa: F401
    assert not hasattr(cuda_kernels, "__wrapped__")  # what inspection tools ask for is absent as usual


def test_a_kernel_family_that_cannot_be_imported_is_not_called_missing(monkeypatch):
    def no_cupy(name: str) -> None:
        raise ModuleNotFoundError("No module named 'cupy'", name="cupy")

    monkeypatch.setattr(cuda_kernels.importlib, "import_module", no_cupy)
    with pytest.raises(ModuleNotFoundError, match="cupy"):
        _ = cuda_kernels.softmax


class FakeDriver:
    """libcuda.so.1, as far as it is asked: the version and the number of devices, or the error of a call."""

    def __init__(self, version: int = 12040, devices: int = 1, **errors: int) -> None:
        self.errors, self.values = errors, {"cuDriverGetVersion": version, "cuDeviceGetCount": devices}

    def __getattr__(self, call: str):
        def answer(argument) -> int:
            if call in self.values:
                argument._obj.value = self.values[call]
            return self.errors.get(call, 0)

        return answer


def test_what_the_driver_answers(monkeypatch):
    for library, usable, reason in [
        (FakeDriver(), True, "1 device(s), the driver supports CUDA 12.4"),
        (FakeDriver(13010, 8), True, "8 device(s), the driver supports CUDA 13.1"),
        (FakeDriver(cuInit=100), False, "shows no device"),
        (FakeDriver(devices=0), False, "shows no device"),
        (FakeDriver(cuInit=803), False, "the NVIDIA driver does not start (cuInit returned CUDA error 803)"),
        (FakeDriver(11080), False, "supports CUDA 11.8, 12.0 is needed"),
        (FakeDriver(12000), True, "the driver supports CUDA 12.0"),
    ]:
        complete(monkeypatch, availability.driver)
        monkeypatch.setattr(libcuda, "library", lambda library=library: library)
        found, text = cuda_kernels.availability()
        assert found is usable
        assert reason in text


def test_importing_minigrad_imports_no_optional_package():
    code = (
        "import sys, minigrad\n"
        "assert 'minigrad.cuda_kernels' not in sys.modules, 'minigrad.cuda_kernels'\n"
        "import minigrad.distributed, minigrad.cuda_kernels\n"
        "minigrad.distributed.init_process_group()\n"
        "optional = {'cupy', 'numba_cuda', 'numba.cuda', 'mpi4py', 'matplotlib', 'torch'}\n"
        "print(sorted(optional & set(sys.modules)))\n"
    )
    result = python("-c", code)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
