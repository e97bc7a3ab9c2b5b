"""Every kernel, compiled without a GPU, keeps its budget; and one that does not is found."""

import importlib.util
import os
import re
import subprocess
import sys
import textwrap

import pytest

PACKAGES = ("numba_cuda", "nvidia")


@pytest.fixture(scope="module", autouse=True)
def needs_the_tools() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f'{" and ".join(missing)} not installed: pip install "minigrad-cuda[inspect]"')


def python(*arguments: str, typed: str = "", simulator: str = "0") -> subprocess.CompletedProcess[str]:
    """Run Python, without the simulator, which cannot compile, on what is ``typed``."""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": simulator}
    command = [sys.executable, *arguments]
    return subprocess.run(command, input=typed, capture_output=True, text=True, env=environment, check=False)


def script(source: str, folder) -> subprocess.CompletedProcess[str]:
    """Run this source, which must succeed."""
    file = folder / "script.py"
    file.write_text(textwrap.dedent(source))
    done = python(str(file))
    assert done.returncode == 0, done.stderr
    return done


def inspect(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "minigrad.cuda_kernels.inspect", *arguments)


@pytest.mark.long  # whole minutes; this file by its name runs it
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_every_kernel_keeps_its_budget(arch: str) -> None:
    done = inspect("--arch", arch, "--sass")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("kernels, 0 over budget")
    lines = done.stdout.splitlines()
    ordered = [i for i, line in enumerate(lines) if line.startswith(("flash", "tensor_core.", "epilogue.", "hopper."))]
    for i in ordered:  # sums are made in one order only, so that the bits are the same at each run
        assert lines[i + 1].startswith("    ") and not re.search(r"(^ +|, )(ATOM|RED)", lines[i + 1]), lines[i]
    assert len(ordered) > 40
    hopper = [line for line in lines if line.startswith("hopper.")]
    assert len(hopper) == (8 if arch == "sm_90" else 0)
    for line in hopper:  # 4 steps of 16 along k; a box of each operand, or one for 64 of its rows
        boxes = {"kk": 1 + 1, "ko": 1 + 4, "ok": 2 + 1, "oo": 2 + 4}[line.split()[0][-2:]]
        assert " sm_90a " in line and re.search(rf" MMA +4 .* TMA +{boxes} ", line), line


TOO_NEW = """
    from minigrad.cuda_kernels.platform import compiler

    try:
        compiler.assemble(".version 99.0\\n.target sm_80\\n.address_size 64\\n", "sm_80")
    except RuntimeError as error:
        print(error)
    words = "line 1; fatal   : Unsupported .version 8.8; current version is '8.7'"
    print(compiler._remedy(words, {"nvidia-cuda-nvcc-cu12": "12.9.86", "nvidia-nvjitlink-cu12": "12.8.61"}, (12, 8)))
    print(compiler._remedy(words, {}, (13, 0)))
    print([compiler._remedy("line 6; error   : Not a name of any known instruction: 'foo'", {}, (13, 0))])
"""


def test_an_assembler_that_is_too_old_says_what_to_install(tmp_path) -> None:
    *_, real, _, cuda12, _, without_wheels, nothing = script(TOO_NEW, tmp_path).stdout.splitlines()
    assert "is older than NVVM, which wrote PTX 99.0 (installed: nvidia-nvvm " in real
    assert re.search(r'nvidia-nvjitlink [\d.]+\): pip install --upgrade "nvidia-nvjitlink>=1\d\.\d+,<1\d"', real)
    assert cuda12 == (
        "nvJitLink 12.8 is older than NVVM, which wrote PTX 8.8 (installed: nvidia-cuda-nvcc-cu12 12.9.86, "
        'nvidia-nvjitlink-cu12 12.8.61): pip install --upgrade "nvidia-nvjitlink-cu12>=12.9,<13"'
    )
    assert without_wheels.endswith(
        '(installed: none of their wheels): pip install --upgrade "nvidia-nvjitlink>=13.1,<14"'
    )
    assert nothing == "['']"


BAD = """
    import warnings
    import numpy as np
    from minigrad.cuda_kernels import inspect
    from minigrad.cuda_kernels.platform import compiler
    from minigrad.cuda_kernels.products import hopper
    from minigrad.cuda_kernels.ptx import hopper_ptx, ptx
    from minigrad.cuda_kernels.platform.language import FULL_WARP, cuda, math
    from minigrad.cuda_kernels.platform.launch import kernel

    multiply, zeros = hopper_ptx.wgmma("bfloat16", 64, "kk"), hopper_ptx.zeros(64)

    @kernel("float32*", "int64", "int64", threads=128, registers=128, capability=(9, 0), only=True)
    def sums_read_too_early(x, a, b):
        sums = zeros()
        hopper_ptx.wgmma_fence()
        sums = multiply(sums, a, b)
        x[cuda.threadIdx.x] = sums[3]
        sums = multiply(sums, a, b)
        hopper_ptx.wgmma_commit()
        x[cuda.threadIdx.x + 128] = hopper_ptx.wgmma_wait0(sums)[5]

    @kernel("float32*", "int64", threads=256, registers=4)
    def many_registers(x, n):
        i = cuda.grid(1)
        if i < n:
            x[i] = math.sin(x[i]) + math.exp(x[i + 1])

    @kernel("float32*", "int64", threads=256, registers=255)
    def local_memory(x, n):
        values = cuda.local.array(64, np.float32)
        for k in range(64):
            values[k] = x[k]
        for k in range(n):
            x[k] = values[k % 64]

    @kernel("float32*", "int64", threads=256, registers=255)
    def float64_arithmetic(x, n):
        i = cuda.grid(1)
        if i < n:
            x[i] = x[i] * 1.1

    @kernel("float32*", "int64", threads=256, registers=255, vector_loads=True)
    def narrow_loads(x, n):
        i = cuda.grid(1)
        if i < n:
            x[i] = x[i] + x[i]

    @kernel("float32*", "int64", threads=256, registers=64, instructions=("LDG", "HMMA"))
    def no_matrix_product(x, n):
        i = cuda.grid(1)
        if i < n:
            x[i] = x[i] + x[i]

    @kernel("float32*", "int64", threads=256, registers=64, vector_loads=True)
    def good(x, n):
        i = cuda.grid(1)
        if i < n:
            a, b, c, d = ptx.load4(x, 4 * i)
            ptx.store4(x, 4 * i, (d, c, b, a))

    def sum_of_some(limit):
        @kernel("float32*", "int64", threads=256, registers=64, name=f"sum_of_{limit}")
        def some(x, n):
            t = cuda.threadIdx.x
            if t < limit:
                x[t] += cuda.shfl_xor_sync(FULL_WARP, x[t], 1)
            for i in range(t >> 5, n, 8):
                if x[256 + i]:
                    x[t] += cuda.shfl_xor_sync(FULL_WARP, x[t], 2)
            cuda.syncthreads()
            x[t] = cuda.shfl_xor_sync(FULL_WARP, x[t], 4)
        return some

    @kernel("float32*", "int64", threads=256, registers=64)
    def sum_in_uneven_loop(x, n):
        t = cuda.threadIdx.x
        for i in range(x[t]):
            x[i] += cuda.shfl_xor_sync(FULL_WARP, x[t], 1)

    kernels = [many_registers, local_memory, float64_arithmetic, narrow_loads, no_matrix_product, good]
    kernels += [sum_in_uneven_loop, sum_of_some(33), sum_of_some(64)]
    for found in inspect.reports(kernels, (8, 0)) + inspect.reports([sums_read_too_early], (9, 0)):
        print(found.kernel.name.partition(".")[2], found.faults())
    for made in (sums_read_too_early, hopper.tiles_of("bfloat16", "bfloat16", 256, "oo")):
        with warnings.catch_warnings(record=True) as caught:
            compiler.assemble(compiler.to_ptx(made, (9, 0)), "sm_90a")  # by nvJitLink, as for a launch
        print(f"nvjitlink_{made.threads[0]}", [str(warning.message) for warning in caught])
"""


def test_a_bad_kernel_is_found(tmp_path) -> None:
    found = dict(line.split(" ", 1) for line in script(BAD, tmp_path).stdout.splitlines())
    assert "registers, 4 are stated" in found["many_registers"]
    assert "bytes of local memory" in found["local_memory"]
    assert "float64 instructions" in found["float64_arithmetic"]
    assert "no 128-bit load" in found["narrow_loads"]
    assert found["no_matrix_product"] == "['no HMMA']"
    for name in ("sums_read_too_early", "nvjitlink_128"):
        assert "wgmma.mma_async instructions are serialized" in found[name]
    assert found["nvjitlink_288"] == "[]"
    assert found["good"] == found["sum_of_64"] == "[]"  # whole warps take either way
    for name in ("sum_of_33", "sum_in_uneven_loop"):
        assert found[name] == "['not all lanes of a warp may come to shfl.sync.bfly.b32']"


def test_arguments() -> None:
    assert inspect("no_such_kernel").returncode == 2
    done = inspect("hopper", "--arch", "sm_80")
    assert done.returncode == 2 and "none of these kernels is for sm_80" in done.stderr
    done = inspect("--arch", "hopper")
    assert done.returncode == 2 and "expected a name like sm_80" in done.stderr
    done = python("-m", "minigrad.cuda_kernels.inspect", simulator="1")
    assert done.returncode == 2 and "the simulator compiles nothing" in done.stderr


def test_the_cache_is_filled_ahead(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIGRAD_CACHE_DIR", str(tmp_path))
    made = []
    for home in ("", "/elsewhere"):  # it is the same on a machine whose toolkit is in another place
        monkeypatch.setenv("CUDA_HOME", home)
        done = inspect("--warm", "ladder_reduction", "--arch", "sm_86", "sm_90")
        files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cuda/*.cubin")}
        assert done.stdout == f"{len(files)} compiled kernels in {tmp_path / 'cuda'}\n" and len(files) >= 8, done.stderr
        made.append(files)
    assert made[0] == made[1]


MACHINE_CODE = """
    from minigrad.cuda_kernels import inspect
    from minigrad.cuda_kernels.platform import compiler

    kernel = next(iter(inspect.load_all().values()))
    made = compiler.to_cubin(kernel, (9, 0))
    assert made[:4] == b"\\x7fELF" and kernel.symbol.encode() in made
    assert compiler.to_cubin(kernel, (8, 0)) != made
    ptx = compiler.to_ptx(kernel, (9, 0))
    compiler.to_ptx = compiler.assemble = None  # from here on nothing is compiled
    assert compiler.to_cubin(kernel, (9, 0)) == made
    print(ptx)
"""

REFUSED = """
    import sys
    from minigrad.cuda_kernels.platform import compiler

    try:
        compiler.assemble(sys.stdin.read(), "sm_90")
    except RuntimeError as error:
        print(error)
"""


def test_machine_code_is_made_without_a_driver_and_kept(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIGRAD_CACHE_DIR", str(tmp_path))
    done = script(MACHINE_CODE, tmp_path)
    assert len(list(tmp_path.glob("cuda/*.cubin"))) == 2
    newer = re.sub(r"\.version .*", ".version 99.0", done.stdout)
    done = python("-c", textwrap.dedent(REFUSED), typed=newer)
    assert "assembling for sm_90: " in done.stdout and "Unsupported .version 99.0" in done.stdout, done.stderr
