"""What holds for all sources: imports run downwards, names match, no data becomes code, public names are documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
STDLIB = set(sys.stdlib_module_names)
PUBLIC_PACKAGES = (
    "minigrad",
    "minigrad.nn",
    "minigrad.models",
    "minigrad.optim",
    "minigrad.data",
    "minigrad.distributed",
    "minigrad.cuda_kernels",
)

# Kernel files that no operation of the same name stands over.
KERNEL_SUPPORT = {
    "jit": "compiles and caches the kernels",
    "threads": "the one thread pool",
    "task_pool": "hands a kernel's tasks to the threads",
    "storage": "allocation and copies, behind Device and Tensor",
    "vector_math": "exp, tanh and erf that LLVM can vectorise",
    "pointers": "arrays as addresses, for multi_tensor and grad_norm",
    "multi_tensor": "many tensors in one launch, for the optimizers",
    "register_tile": "the innermost tile of a product, shared by matmul and attention",
    "product_loops": "the blocks of a product around the register tile, for matmul and linear",
    "product_epilogue": "what happens to rows of a product in the cache, for matmul and linear",
    "linear_cross_entropy": "linear and cross_entropy of rows in the cache, called by the operation LinearCrossEntropy",
    "decode": "a token through a whole model in one call, used by minigrad.models",
    "bfloat16_product": "the product with operands rounded to bfloat16, called by matmul",
    "random": "Philox, shared by dropout, attention and minigrad.random",
    "adamw": "the fused step of AdamW and Adam, used by minigrad.optim",
    "sgd": "the fused step of SGD, used by minigrad.optim",
    "adagrad": "the fused step of AdaGrad, used by minigrad.optim",
    "lamb": "the fused step of LAMB and LARS, used by minigrad.optim",
    "grad_norm": "global-norm clipping, used by minigrad.optim",
    "memory": "reuse of large output buffers",
    "poison": "new memory is NaN, for tests; called by memory",
    "numpy_allocator": "functions in place of NumPy's allocator, for heap and poison",
    "heap": "what memory the process holds, for minigrad.memory_stats",
}

# Those of them that a GPU has no use for.
CPU_ONLY = {"jit", "threads", "task_pool", "storage", "vector_math", "pointers", "register_tile", "poison"}
CPU_ONLY |= {"bfloat16_product", "heap", "numpy_allocator", "product_epilogue", "product_loops"}
# A GPU's step between the products is a launch of its own: the modules' kernels are the way there.
CPU_ONLY |= {"decode"}
# They save what threads wait for each other, and passes over memory between cores: only asked for on the CPU.
CPU_ONLY |= {"transformer_block", "linear_cross_entropy", "positioned_embedding"}

# CUDA kernel files that no CPU kernel file of the same name stands beside. ladder_*.py need no word: they are the steps
# towards a fast kernel, to read and to measure.
CUDA_SUPPORT = {
    "array": "DeviceArray, what storage is on the CPU",
    "attention_rows": "attention with a thread for each row",
    "channels": "sums and formulas by channel, for batch_norm and group_norm",
    "choices": "what the user chose for products",
    "collective": "what a warp or a block computes together",
    "compiler": "compiles and caches the kernels",
    "conversion": "from an element in memory to a number, and back",
    "cross_entropy_row": "how cross_entropy goes over a row of logits",
    "cublaslt": "NVIDIA's library of products",
    "cumprod_gradient": "the gradient of cumprod, for reduce",
    "division": "rounded division and powers, for elementwise",
    "flash": "attention on tiles",
    "flash_tensor_core": "attention of half floats on tiles",
    "flash_tensor_core_gradient": "its gradient",
    "flash_tiles": "the device functions of flash",
    "fold": "sums and other folds, for reduce",
    "hopper_intrinsics": "hopper_ptx on a GPU",
    "hopper_product": "the kernels of matmul_hopper",
    "hopper_ptx": "TMA, mbarriers and wgmma, which Numba has no names for",
    "hopper_twins": "hopper_ptx in the simulator",
    "graphs": "work that is captured once and launched as a whole",
    "index_arrays": "index arrays as places, for indexing",
    "inspect": "what the kernels become, without a GPU",
    "language": "Numba's names, or the simulator's",
    "launch": "declares and starts the kernels",
    "layout": "how elementwise kernels see arrays",
    "libcuda": "the driver's C interface",
    "limits": "what a device was measured to reach",
    "matmul_engines": "which engine computes a product",
    "matmul_operands": "a product as all engines take it",
    "matmul_simt": "matmul without tensor cores",
    "matmul_hopper": "matmul of half floats by TMA and wgmma",
    "master_weights": "steps of half weights with float32 masters, for adamw",
    "matmul_tensor_core": "matmul of half floats and tf32",
    "matmul_tuning": "which engine was measured to be faster",
    "median": "the value of a rank, for reduce",
    "norm": "the kernels of layer_norm and rms_norm",
    "pair_fold": "argmax and logsumexp, for reduce",
    "places": "reading and writing at places, for indexing",
    "pointwise": "elementwise kernels from scalar rules",
    "pointwise_source": "the text of an elementwise kernel",
    "product": "the kernels of matmul",
    "ptx": "vector loads and half floats, which Numba has no names for",
    "ptx_intrinsics": "ptx on a GPU",
    "ptx_twins": "ptx in the simulator",
    "recording": "which graph a thread captures, and what it must not do meanwhile",
    "rows": "what row-wise kernels share",
    "rules": "scalar rules that families share",
    "scan": "cumulative sums and products, for reduce",
    "sharing": "device memory shared with other libraries",
    "signatures": "the words of a kernel's signature",
    "simulated_cuda": "the names of numba.cuda, math and libdevice in the simulator",
    "simulated_memory": "memory in the simulator",
    "simulator": "the programming model on the CPU",
    "sorting": "sorting of rows, for indexing",
    "streams": "streams and events",
    "strided_copy": "copies at any strides, for array and movement",
    "tensor_map": "what TMA knows of an array",
    "tensor_core_epilogue": "what matmul_tensor_core does with sums",
    "tensor_core_product": "the kernels of matmul_tensor_core",
    "tiled_product": "matmul on tiles",
}


# Reading the sources --------------------------------------------------------------------------------------------------


class Import(NamedTuple):
    """One imported module, by its installed name; lazy if it is imported inside a function."""

    module: str
    line: int
    lazy: bool


def module_name(path: str) -> str:
    """``distributed/mpi.py`` -> ``minigrad.distributed.mpi``."""
    parts = Path(path).with_suffix("").parts
    if parts[0] in ("distributed", "cuda_kernels"):
        parts = ("minigrad", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, path: str) -> list[Import]:
    """Every import of a file, relative ones resolved, ``importlib.import_module`` of a constant too.

    ``from a import b`` counts as both ``a`` and ``a.b``; what stands under ``if TYPE_CHECKING`` does not count.
    """
    package = module_name(path) if path.endswith("__init__.py") else module_name(path).rpartition(".")[0]
    found: list[Import] = []

    def visit(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                visit(child, lazy)
            return
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join(parents[: len(parents) - node.level + 1] + ([base] if base else []))
            found.append(Import(base, node.lineno, lazy))
            found.extend(Import(f"{base}.{alias.name}", node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                found.append(Import(node.args[0].value, node.lineno, lazy))
        inside = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(source), False)
    return found


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def forbidden_imports(source: str, path: str) -> list[str]:
    """The imports of a file that break a rule of the layers, each with the rule."""
    broken = []
    for module, line, lazy in imports(source, path):
        root = module.partition(".")[0]
        rule = None
        if path.startswith("minigrad/cpu_kernels/"):
            if not (root in STDLIB or root in ("numpy", "numba", "llvmlite") or within(module, "minigrad.cpu_kernels")):
                rule = "CPU kernels import the standard library, NumPy, Numba and each other"
        elif path.startswith("cuda_kernels/"):
            allowed = STDLIB | {"numpy", "ml_dtypes", "numba", "llvmlite", "cupy", "cuda"}  # of cuda.bindings
            simulating = root == "greenlet" and path == "cuda_kernels/simulator.py"
            files = "language", "ptx_intrinsics", "hopper_intrinsics"  # which are not imported when simulated
            compiling = path in [f"cuda_kernels/{file}.py" for file in files]
            if not (root in allowed or simulating or within(module, "minigrad.cuda_kernels")):
                rule = "CUDA kernels import the standard library, NumPy, ml_dtypes, Numba, CuPy, cuda and each other"
            elif root in ("cupy", "cuda", "greenlet") and not lazy:
                rule = f"CUDA kernels import {root} when it is first used: they compile, or are simulated, without it"
            elif within(module, "numba.cuda") and not (lazy or compiling):
                rule = "numba.cuda comes from .language, which has the simulator's names where there is no GPU"
        elif path.startswith("minigrad/"):
            if within(module, "minigrad.distributed", "distributed", "cuda_kernels"):
                rule = "minigrad never imports minigrad.distributed, and its kernels only by their installed name"
            elif within(module, "minigrad.cuda_kernels") and not lazy:
                rule = "minigrad imports the CUDA kernels when they are first used"
            elif root in ("cupy", "numba_cuda", "torch"):
                rule = "minigrad reaches a device through device.kernels, and needs no torch"
        if root in ("examples", "benchmarks", "tests"):
            rule = "nothing that is installed imports examples, benchmarks or tests"
        if root == "mpi4py" and not (path == "distributed/mpi_runtime.py" and lazy):
            rule = "only distributed/mpi_runtime.py imports mpi4py, when it is first used"
        ours = within(module, "minigrad.distributed.nccl") or (path == "distributed/nccl.py" and lazy)
        if re.search(r"\bnccl\b", module) and not ours:
            rule = "only distributed/nccl.py imports NCCL, when it is first used"
        if root == "cupyx" and "distributed" in module:
            rule = "cupyx.distributed deadlocks; NCCL is used directly"
        if rule:
            broken.append(f"{path}:{line} imports {module}: {rule}")
    return broken


UNSAFE_MODULES = ("pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib")


def unsafe_code(source: str, path: str) -> list[str]:
    """Uses of what turns data into code: pickle and its kin, eval and exec, ``allow_pickle=True``."""
    found = [f"{path}:{item.line} imports {item.module}" for item in imports(source, path)]
    found = [text for text in found if text.rpartition(" ")[2].partition(".")[0] in UNSAFE_MODULES]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
            found.append(f"{path}:{node.lineno} calls {node.func.id}")
        for keyword in node.keywords:
            if keyword.arg == "allow_pickle" and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                found.append(f"{path}:{node.lineno} allows pickle")
    return found


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    """(path relative to the root, text) of the Python files under the folders."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


# The layers -----------------------------------------------------------------------------------------------------------


def test_imports_run_downwards():
    broken = [
        line
        for path, text in sources("minigrad", "distributed", "cuda_kernels")
        for line in forbidden_imports(text, path)
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("minigrad/cpu_kernels/softmax.py", "from minigrad.tensor import Tensor"),
        ("minigrad/cpu_kernels/softmax.py", "from ..tensor import Tensor"),
        ("minigrad/cpu_kernels/softmax.py", "from .. import tensor"),
        ("minigrad/cpu_kernels/softmax.py", "def f():\n    import scipy"),
        ("cuda_kernels/softmax.py", "from minigrad import Tensor"),
        ("cuda_kernels/softmax.py", "import torch"),
        ("cuda_kernels/memory.py", "import cupy"),
        ("cuda_kernels/softmax.py", "from numba import cuda"),
        ("cuda_kernels/softmax.py", "import importlib\ncuda = importlib.import_module('numba.cuda')"),
        ("cuda_kernels/softmax.py", "def f():\n    import greenlet"),
        ("cuda_kernels/simulator.py", "import greenlet"),
        ("minigrad/nn/linear.py", "from ..distributed import ThreadCommunicator"),
        ("minigrad/nn/linear.py", "def f():\n    from minigrad import distributed"),
        ("minigrad/nn/linear.py", "import distributed.mpi"),
        ("minigrad/data/text.py", "from examples.train import main"),
        ("minigrad/device.py", "from . import cuda_kernels"),
        ("minigrad/device.py", "import importlib\nimportlib.import_module('minigrad.cuda_kernels')"),
        ("minigrad/random.py", "def f():\n    import cupy"),
        ("distributed/mpi_runtime.py", "from mpi4py import MPI"),
        ("distributed/thread.py", "def f():\n    from mpi4py import MPI"),
        ("distributed/nccl.py", "from cupy.cuda import nccl"),
        ("distributed/communicator.py", "def f():\n    from cupy.cuda import nccl"),
        ("distributed/nccl.py", "def f():\n    import cupyx.distributed"),
        ("distributed/trainer.py", "if True:\n    import benchmarks.common"),
    ],
)
def test_an_injected_upward_import_is_caught(path, source):
    assert forbidden_imports(source, path)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "minigrad/cpu_kernels/softmax.py",
            "import math\nimport numpy as np\nfrom numba import prange\nfrom .jit import kernel",
        ),
        ("minigrad/cpu_kernels/__init__.py", "from . import softmax"),
        ("cuda_kernels/softmax.py", "import ml_dtypes\nfrom numba import types\nfrom . import launch"),
        ("cuda_kernels/memory.py", "def f():\n    import cupy\n    from numba import cuda"),
        ("cuda_kernels/language.py", "import importlib\ncuda = importlib.import_module('numba.cuda')"),
        ("cuda_kernels/simulator.py", "def f():\n    import greenlet"),
        ("minigrad/device.py", "def f():\n    import importlib\n    importlib.import_module('minigrad.cuda_kernels')"),
        (
            "minigrad/nn/linear.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import minigrad.distributed",
        ),
        ("distributed/mpi_runtime.py", "def f():\n    from mpi4py import MPI"),
        ("distributed/nccl.py", "def f():\n    from cupy.cuda import nccl"),
        ("distributed/rendezvous.py", "from .nccl import NcclCommunicator\nfrom minigrad import Tensor"),
    ],
)
def test_a_rightful_import_is_not_reported(path, source):
    assert forbidden_imports(source, path) == []


def circle(files: Iterable[tuple[str, str]]) -> list[str]:
    """Modules that load each other while they are imported, the first again at the end; [] if there are none.

    It would depend on which is imported first whether names are there. Packages do not count: they load all.
    """
    loads = {
        module_name(path): {item.module for item in imports(text, path) if not item.lazy}
        for path, text in files
        if not path.endswith("__init__.py")
    }
    try:
        TopologicalSorter({name: found & loads.keys() for name, found in loads.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_load_each_other():
    assert circle(sources("minigrad", "distributed", "cuda_kernels")) == []


def test_an_injected_circle_of_imports_is_caught():
    files = {
        "minigrad/tensor.py": "from .methods import indexing",
        "minigrad/methods/indexing.py": "from .. import tensor",
    }
    assert set(circle(files.items())) == {"minigrad.tensor", "minigrad.methods.indexing"}
    files["minigrad/methods/indexing.py"] = "def f():\n    from .. import tensor"
    assert circle(files.items()) == []


def test_no_data_becomes_code():
    folders = ("minigrad", "distributed", "cuda_kernels", "examples", "benchmarks")
    found = [line for path, text in sources(*folders) for line in unsafe_code(text, path)]
    allowed = {
        # The kernel cache is Numba's pickle, in a folder that nobody else can write.
        r"minigrad/cpu_kernels/jit\.py:\d+ imports pickle": 1,
        # Numba takes no *args: a kernel for n inputs is written out by pointwise_source.source, from n and constants.
        r"cuda_kernels/pointwise\.py:\d+ calls exec": 1,
    }
    rest = [line for line in found if not any(re.fullmatch(pattern, line) for pattern in allowed)]
    for pattern, count in allowed.items():
        assert len([line for line in found if re.fullmatch(pattern, line)]) == count, pattern
    assert not rest, "\n".join(rest)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "import torch, marshal",
        "eval('1')",
        "exec(code)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import importlib\nimportlib.import_module('pickle')",
    ],
)
def test_injected_unsafe_code_is_caught(source):
    assert unsafe_code(source, "minigrad/serialization.py")
    assert not unsafe_code("model.eval()\nnp.load(path, allow_pickle=False)", "minigrad/serialization.py")


# The names ------------------------------------------------------------------------------------------------------------


def stems(folder: Path) -> set[str]:
    """The names of a folder's modules and packages."""
    modules = {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}
    return modules | {path.parent.name for path in folder.glob("*/__init__.py")}


def mismatched_stems(ops: set[str], kernels: set[str], tests: set[str], support: set[str]) -> list[str]:
    """Where the find-it rule fails: one name for an operation's file, its kernels and its tests."""
    return (
        [f"minigrad/ops/{stem}.py has no minigrad/cpu_kernels/{stem}.py" for stem in sorted(ops - kernels)]
        + [f"minigrad/ops/{stem}.py has no tests/ops/test_{stem}.py" for stem in sorted(ops - tests)]
        + [f"minigrad/cpu_kernels/{stem}.py belongs to no operation" for stem in sorted(kernels - ops - support)]
        + [f"minigrad/cpu_kernels/{stem}.py is listed as support but missing" for stem in sorted(support - kernels)]
    )


def test_operation_kernel_and_test_have_one_name():
    tests = {stem.removeprefix("test_") for stem in stems(ROOT / "tests/ops")}
    ops, kernels = stems(ROOT / "minigrad/ops"), stems(ROOT / "minigrad/cpu_kernels")
    assert ops
    broken = mismatched_stems(ops, kernels, tests, set(KERNEL_SUPPORT))
    assert not broken, "\n".join(broken)


def unchecked(test: str) -> bool:
    """Whether an operation's tests leave out the harness: every check on every Op, parametrised."""
    calls = [node for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Call)]
    given = [ast.unparse(argument) for call in calls for argument in call.args[:2]]
    return not {"'check'", "CHECKS", "'op'", "OPS"} <= set(given)


def test_every_operation_goes_through_the_harness():
    files = [ROOT / f"tests/ops/test_{stem}.py" for stem in sorted(stems(ROOT / "minigrad/ops"))]
    assert files
    broken = [path.name for path in files if unchecked(path.read_text(encoding="utf-8"))]
    assert not broken, f"without the checks of tests/harness.py: {broken}"


def test_an_injected_test_without_the_harness_is_caught():
    both = '@parametrize("check", CHECKS)\n@parametrize("op", OPS)\ndef test_op(op, check): ...'
    assert not unchecked(both)
    assert unchecked(both.replace("CHECKS", "[check_values]"))
    assert unchecked(both.replace('("op", OPS)', "()"))
    assert unchecked("def test_values(): ...")


def test_an_injected_stray_file_is_caught():
    good = ({"gelu"}, {"gelu", "jit"}, {"gelu"}, {"jit"})
    assert mismatched_stems(*good) == []
    for position in range(4):
        for change in (set.union, set.difference):
            changed = list(good)
            changed[position] = change(good[position], {"relu"} if change is set.union else good[position])
            if (position, change) != (2, set.union):  # a test more than there are operations is welcome
                assert mismatched_stems(*changed), (position, change)


def cuda_stems(cpu: set[str], cuda: set[str], cpu_only: set[str], support: set[str]) -> list[str]:
    """Where the find-it rule fails between the two backends: one name for a family's file in both."""
    return (
        [f"minigrad/cpu_kernels/{stem}.py has no cuda_kernels/{stem}.py" for stem in sorted(cpu - cuda - cpu_only)]
        + [f"cuda_kernels/{stem}.py stands beside no CPU kernels" for stem in sorted(cuda - cpu - support)]
        + [f"cuda_kernels/{stem}.py is listed as support but missing" for stem in sorted(support - cuda)]
        + [f"cuda_kernels/{stem}.py is listed as support, but is a family" for stem in sorted(support & cpu)]
        + [f"cuda_kernels/{stem}.py exists, though only the CPU was to have it" for stem in sorted(cpu_only & cuda)]
    )


def test_both_backends_have_the_same_files():
    cpu = stems(ROOT / "minigrad/cpu_kernels")
    cuda = {stem for stem in stems(ROOT / "cuda_kernels") if not stem.startswith("ladder_")}
    broken = cuda_stems(cpu, cuda, CPU_ONLY, set(CUDA_SUPPORT))
    assert not broken, "\n".join(broken)


def test_an_injected_stray_cuda_file_is_caught():
    good = ({"gelu", "jit"}, {"gelu", "launch"}, {"jit"}, {"launch"})
    assert cuda_stems(*good) == []
    for position in range(4):
        changed = list(good)
        changed[position] = good[position] | {"relu"}
        assert cuda_stems(*changed) or position == 2  # what only the CPU has need not exist
        changed[position] = set()
        assert cuda_stems(*changed)


# What each backend offers, by family: a function's parameters, the number of an elementwise operation's operands.
INTERFACES = """
import inspect, json, sys
import numpy as np
from minigrad import cpu_kernels, cuda_kernels
from minigrad.cuda_kernels.pointwise import Pointwise

def described(value):
    if inspect.isfunction(value):
        parameters = inspect.signature(value).parameters.values()
        return [str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters]
    return value.nin if isinstance(value, np.ufunc) else value.inputs if isinstance(value, Pointwise) else None

def interface(module, own):
    named = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    if own:
        named = {n: v for n, v in named.items() if isinstance(v, np.ufunc) or getattr(v, "__module__", "") == own}
    return {name: found for name, value in named.items() if (found := described(value)) is not None}

cpu, cuda = {"": interface(cpu_kernels, "minigrad.cpu_kernels.storage")}, {}
cuda[""] = {name: described(getattr(cuda_kernels, name)) for name in cpu[""]}
for name in cpu_kernels.__all__:
    if inspect.ismodule(getattr(cpu_kernels, name)) and name not in sys.argv[1:]:
        cpu[name] = interface(getattr(cpu_kernels, name), f"minigrad.cpu_kernels.{name}")
        cuda[name] = interface(getattr(cuda_kernels, name), "")
    else:
        name in sys.argv[1:] or getattr(cuda_kernels, name)
print(json.dumps([cpu, cuda]))
"""


def unlike(cpu: dict[str, dict[str, Any]], cuda: dict[str, dict[str, Any]]) -> list[str]:
    """The functions of CPU families that the CUDA families lack, or have with other parameters (but ``device``)."""
    broken = []
    for family, functions in cpu.items():
        for name, wanted in functions.items():
            found = cuda.get(family, {}).get(name)
            if isinstance(wanted, list) and isinstance(found, list):
                same = wanted == [parameter for parameter in found if parameter != "device=None"]
            else:
                counts = [len(x) if isinstance(x, list) else x for x in (wanted, found)]
                same = counts[0] == counts[1]
            if not same:
                broken.append(f"{family}.{name}: {wanted} on the CPU, {found} on CUDA")
    return broken


def test_both_backends_have_the_same_functions():
    done = subprocess.run(
        [sys.executable, "-c", INTERFACES, *CPU_ONLY],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},  # so that the CUDA families can be imported anywhere
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    cpu, cuda = json.loads(done.stdout)
    assert len(cpu) > 20 and sum(map(len, cpu.values())) > 120
    broken = unlike(cpu, cuda)
    assert not broken, "\n".join(broken)


def test_an_injected_other_parameter_is_caught():
    cpu = {"gelu": {"forward": ["x", "y=1"], "exp": 1}}
    assert unlike(cpu, {"gelu": {"forward": ["x", "y=1"], "exp": 1, "more": 2}}) == []
    assert unlike(cpu, {"gelu": {"forward": ["x", "device=None", "y=1"], "exp": ["x"]}}) == []
    for forward, exp in (
        (["x", "y=2"], 1),
        (["x", "z=1"], 1),
        (["x"], 1),
        (None, 1),
        (["x", "y=1"], 2),
        (2, ["x", "y"]),
    ):
        assert unlike(cpu, {"gelu": {"forward": forward, "exp": exp}})
    assert unlike(cpu, {})


# The docstrings -------------------------------------------------------------------------------------------------------


def undocumented(name: str, value: object) -> list[str]:
    """The public name, or its public methods and properties, that have no docstring. Constants need none."""
    missing = []
    if (inspect.isclass(value) or inspect.isroutine(value)) and not (value.__doc__ or "").strip():
        missing.append(name)
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            method = isinstance(member, (staticmethod, classmethod, property)) or inspect.isroutine(member)
            if not attribute.startswith("_") and method and not inspect.getdoc(getattr(value, attribute)):
                missing.append(f"{name}.{attribute}")
    return missing


@pytest.mark.parametrize("package", PUBLIC_PACKAGES)
def test_public_names_are_documented(package):
    module = importlib.import_module(package)
    assert (module.__doc__ or "").strip(), f"{package} has no docstring"
    missing = []
    for name in module.__all__:
        missing += undocumented(f"{package}.{name}", getattr(module, name))
    assert not missing, "\n".join(missing)


def test_every_module_says_what_it_is():
    missing = [
        path
        for path, text in sources("minigrad", "distributed", "cuda_kernels", "examples", "benchmarks", "tests")
        if not ast.get_docstring(ast.parse(text))
    ]
    assert not missing, "\n".join(missing)


def test_an_injected_missing_docstring_is_caught():
    class Bare:
        """Has a docstring; its members have not."""

        def method(self): ...

        @property
        def attribute(self): ...

        @staticmethod
        def function(): ...

        def _private(self): ...

    assert undocumented("Bare", Bare) == ["Bare.method", "Bare.attribute", "Bare.function"]
    assert undocumented("f", lambda: None) == ["f"]
    assert undocumented("PI", 3.14) == []
