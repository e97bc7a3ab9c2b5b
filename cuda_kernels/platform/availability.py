"""What is there to run CUDA kernels on. Importing this imports neither numba-cuda nor CuPy."""

import importlib
import os
import shutil
from pathlib import Path

import numpy as np

from .libcuda import driver

TOOLKIT = Path("/usr/local/cuda")


def availability() -> tuple[bool, str]:
    """Whether this machine can run CUDA kernels, and the reason: what is missing with its remedy, or what was found."""
    if simulated():
        problem = _import_problem("greenlet")
        if problem:
            return False, f'{problem}, which the simulator needs: pip install "minigrad-cuda[test]"'
        return True, "2 devices of the simulator (NUMBA_ENABLE_CUDASIM=1)"
    missing = []
    extra = "cuda12"
    try:
        found = driver()
        extra = "cuda13" if found.cuda >= (13, 0) else "cuda12"
        if not found.devices:
            missing.append("the NVIDIA driver shows no device (is CUDA_VISIBLE_DEVICES set?)")
        elif found.cuda < (12, 0):
            missing.append(f"the NVIDIA driver supports CUDA {found.cuda[0]}.{found.cuda[1]}, 12.0 is needed")
    except OSError as error:
        missing.append(str(error))
    compiler = _import_problem("numba_cuda") or nvvm_problem()
    packages = [problem for problem in (compiler, _import_problem("cupy")) if problem]
    if np.lib.NumpyVersion(np.__version__) >= "2.5.0.dev0":
        packages.append(f"numba-cuda compiles no kernel with NumPy {np.__version__}, it needs numpy<2.5")
    if packages:
        missing.append(f'{"; ".join(packages)}: pip install "minigrad-cuda[{extra}]"')
    if missing:
        return False, "; ".join(missing)
    return True, f"{found.devices} device(s), the driver supports CUDA {found.cuda[0]}.{found.cuda[1]}"


def nvvm_problem() -> str | None:
    """What keeps numba-cuda from NVVM, which compiles the kernels; None if it is there.

    numba-cuda finds a wheel's, that of CUDA_HOME or CUDA_PATH, and the system's. Where these are not set they become
    /usr/local/cuda, or the folder of nvcc.
    """
    if not {"CUDA_HOME", "CUDA_PATH"} & os.environ.keys():
        homes = TOOLKIT, Path(shutil.which("nvcc") or TOOLKIT / "bin/nvcc").resolve().parents[1]
        if found := [home for home in homes if (home / "nvvm").is_dir()]:
            os.environ["CUDA_HOME"] = str(found[0])
    try:
        importlib.import_module("numba.cuda.cudadrv.nvvm").NVVM()
    except Exception as error:  # of the package that searches
        return f"NVVM, which compiles kernels, is not found ({str(error).splitlines()[0]})"
    return None


def _import_problem(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            return f"{module} is not installed"
        return f"{module} cannot be imported ({error})"
    except (Exception, SystemExit) as error:  # a broken CUDA installation may raise anything
        return f"{module} cannot be imported ({type(error).__name__}: {error})"
    return None


def simulated() -> bool:
    """Whether kernels run in the simulator; decided by the environment."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
