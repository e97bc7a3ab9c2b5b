"""What holds for all sources: imports run downwards, names match, no data becomes code, public names are documented."""

import ast
import functools
import importlib
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import house
import pytest
from processes import python

import minigrad
from minigrad import cpu_kernels, cuda_kernels, plain_kernels
from minigrad.methods import comparison, math

ROOT = Path(__file__).resolve().parents[1]
STDLIB = set(sys.stdlib_module_names)
PUBLIC_PACKAGES = ["minigrad"]
PUBLIC_PACKAGES += [f"minigrad.{name}" for name in ("nn", "models", "optim", "data", "distributed", "cuda_kernels")]


def sources(*folders: str):
    """(path relative to the root, text) of the Python files under the folders."""
    for path in house.files(*folders):
        yield path.relative_to(ROOT).as_posix(), house.text(path)


MODULES = {house.module_of(path) for path in house.files(*house.SOURCES)}


@functools.cache
def imports(source: str, path: str) -> list[tuple[str, int, bool, bool]]:
    """The modules that a file imports, and those of the library that strings name, each with its line, whether it is
    loaded later than the file, and whether only type checkers load it.

    ``from a import b`` is ``a.b`` where that is a module, or may be one of another library.
    """
    found = []
    for module, name, line, lazy, typing in house.imports(source, Path(path), MODULES):
        full = f"{module}.{name}" if name else module
        known = full in MODULES or not within(module, "minigrad")
        found.append((full if known else module, line, lazy, typing))
    return found


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def forbidden_imports(source: str, path: str) -> list[str]:
    """The imports of a file that break a rule of the layers, each with the rule."""
    broken = []
    for module, line, lazy, typing in imports(source, path):
        if typing:
            continue
        root = module.partition(".")[0]
        rule = None
        if path.startswith("minigrad/plain_kernels/"):
            if not (root in STDLIB or root == "numpy" or within(module, "minigrad.plain_kernels")):
                rule = "plain kernels import the standard library, NumPy and each other"
        elif path.startswith("minigrad/cpu_kernels/"):
            ours = within(module, "minigrad.cpu_kernels", "minigrad.plain_kernels")
            if not (root in STDLIB or root in ("numpy", "numba", "llvmlite", "tqdm") or ours):
                rule = "CPU kernels import the standard library, NumPy, Numba, tqdm, plain kernels and each other"
        elif path.startswith("cuda_kernels/"):
            allowed = STDLIB | {"numpy", "ml_dtypes", "numba", "llvmlite", "cupy", "cuda", "tqdm"}  # cuda.bindings
            simulating = root == "greenlet" and path == "cuda_kernels/simulator/simulator.py"
            # These are not imported when simulated.
            files = "platform/language", "ptx/ptx_intrinsics", "ptx/hopper_intrinsics"
            compiling = path in [f"cuda_kernels/{file}.py" for file in files]
            ours = within(module, "minigrad.cuda_kernels", "minigrad.plain_kernels")
            if not (root in allowed or simulating or ours):
                rule = "CUDA kernels import the standard library, NumPy, Numba, CuPy, plain kernels and each other"
            elif root in ("cupy", "cuda", "greenlet") and not lazy:
                rule = f"CUDA kernels import {root} when it is first used: they compile, or are simulated, without it"
            elif within(module, "numba.cuda") and not (lazy or compiling):
                rule = "numba.cuda comes from .language, which has the simulator's names where there is no GPU"
        elif path.startswith("minigrad/"):
            if within(module, "minigrad.distributed", "distributed", "cuda_kernels"):
                rule = "minigrad never imports minigrad.distributed, and its kernels only by their installed name"
            elif within(module, "minigrad.cuda_kernels") and not (lazy or path.startswith("minigrad/learn/")):
                rule = "minigrad imports the CUDA kernels when they are first used"
            elif root in ("cupy", "numba_cuda", "torch") and path != "minigrad/compat/torch.py":
                rule = "minigrad reaches a device through device.kernels, and needs no torch"
        for wing in house.WINGS:
            outside = not path.startswith(f"{wing}/") and not (path == "minigrad/__main__.py" and lazy)
            if outside and within(module, wing.replace("/", ".")):
                rule = f"only minigrad/__main__.py imports {wing}, when a command asks for it"
        if root in ("examples", "benchmarks", "tests"):
            rule = "nothing that is installed imports examples, benchmarks or tests"
        if root == "mpi4py" and not (path == "distributed/comm/mpi/mpi_runtime.py" and lazy):
            rule = "only distributed/comm/mpi/mpi_runtime.py imports mpi4py, when it is first used"
        ours = within(module, "minigrad.distributed.comm.nccl") or (path == "distributed/comm/nccl/nccl.py" and lazy)
        if re.search(r"\bnccl\b", module) and not ours:
            rule = "only distributed/comm/nccl/nccl.py imports NCCL, when it is first used"
        if root == "cupyx" and "distributed" in module:
            rule = "cupyx.distributed deadlocks; NCCL is used directly"
        if rule:
            broken.append(f"{path}:{line} imports {module}: {rule}")
    return broken


UNSAFE_MODULES = ("pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib")


def unsafe_code(source: str, path: str) -> list[str]:
    """Uses of what turns data into code: pickle and its kin, eval and exec, ``allow_pickle=True``."""
    imported = [(module, line) for module, line, *_ in imports(source, path)]
    found = [f"{path}:{line} imports {name}" for name, line in imported if name.partition(".")[0] in UNSAFE_MODULES]
    for node in ast.walk(house.parse(source)):
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


# The layers -----------------------------------------------------------------------------------------------------------


def test_imports_run_downwards():
    broken = [line for path, text in sources(*house.SOURCES) for line in forbidden_imports(text, path)]
    assert not broken, "\n".join(broken)


FORBIDDEN = {
    "minigrad/plain_kernels/arrays.py": ["def f():\n    import numba", "from ..cpu_kernels import softmax"],
    "minigrad/cpu_kernels/softmax.py": ["from .. import tensor", "def f():\n    import scipy"],
    "cuda_kernels/softmax.py": [
        "from minigrad import Tensor",
        "import torch",
        "from numba import cuda",
        "def f():\n    import greenlet",
    ],
    "cuda_kernels/platform/recording.py": ["CAPTURES = f'{OURS}.nn.', 'x'", "CAPTURES = 'minigrad.nn.functional'"],
    "cuda_kernels/platform/memory.py": ["import cupy"],
    "cuda_kernels/simulator/simulator.py": ["import greenlet"],
    "minigrad/nn/linear.py": ["from ..distributed import ThreadCommunicator", "import distributed.mpi"],
    "minigrad/data/text.py": ["from examples.train import main"],
    "minigrad/device.py": [
        "from . import cuda_kernels",
        "import importlib\nimportlib.import_module('minigrad.cuda_kernels')",
    ],
    "minigrad/random.py": ["def f():\n    import cupy", "from .learn import course"],
    "minigrad/__main__.py": ["from .tools.watch import command"],
    "distributed/train/command.py": ["def f():\n    from minigrad.tools.watch.runs import Run"],
    "distributed/comm/mpi/mpi_runtime.py": ["from mpi4py import MPI"],
    "distributed/comm/threads/thread.py": ["def f():\n    from mpi4py import MPI"],
    "distributed/comm/nccl/nccl.py": ["from cupy.cuda import nccl", "def f():\n    import cupyx.distributed"],
    "distributed/comm/communicator.py": ["def f():\n    from cupy.cuda import nccl"],
    "distributed/mirrors/flodl/trainer.py": ["if True:\n    import benchmarks.common"],
}


@pytest.mark.parametrize(("path", "source"), [(path, source) for path in FORBIDDEN for source in FORBIDDEN[path]])
def test_an_injected_upward_import_is_caught(path, source):
    assert forbidden_imports(source, path)


def test_an_injected_circle_of_imports_is_caught() -> None:
    one, two, three = (Path(f"minigrad/{name}.py") for name in ("a/one", "b/two", "b/three"))
    up = {Path("minigrad/a/__init__.py"): "", Path("minigrad/b/__init__.py"): "", one: "from ..b import two"}
    for text in ("from ..a import one", "from ..a.one import f", "NAME = 'minigrad.a.one'", "NAME = f'{OURS}.a.one'"):
        graph = house.graph_of({**up, two: text})
        assert house.circles(graph) == [["minigrad.a.one", "minigrad.b.two"]], text
        assert house.circles(house.folders_of(graph, ("minigrad",))) == [["minigrad.a", "minigrad.b"]], text
    graph = house.graph_of({**up, two: "import math", three: "from ..a import one"})
    assert house.circles(graph) == []
    assert house.circles(house.folders_of(graph, ("minigrad",))) == [["minigrad.a", "minigrad.b"]]


# A Module and the Function that it calls, and a family's interface, have one name; so does what mirrors two libraries.
SHARED_CLASSES = {"Event", "Table", "elementwise", "reduce"}


def repeated_classes(named) -> list[str]:
    """Names of public classes that several modules define, but for a Function in ``ops`` with the name of a Module."""
    places: dict[str, list[str]] = {}
    for module, text in named:
        if module.startswith("minigrad/learn/chapters/"):  # a learner's classes have the names of the library's
            continue
        for node in ast.walk(house.parse(text)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    pairs = {name: sorted(m.split("/")[1] for m in found) for name, found in places.items() if len(found) > 1}
    return [name for name, rooms in sorted(pairs.items()) if rooms != ["nn", "ops"] and name not in SHARED_CLASSES]


def test_a_class_name_means_one_thing() -> None:
    assert repeated_classes(sources(*house.SOURCES)) == []


def test_no_data_becomes_code():
    found = [x for path, text in sources(*house.SOURCES, "examples", "benchmarks") for x in unsafe_code(text, path)]
    allowed = {
        # The kernel cache is Numba's pickle, in a folder that nobody else can write.
        r"minigrad/cpu_kernels/toolbox/jit\.py:\d+ imports pickle": 1,
        # Numba takes no *args: a kernel for n inputs is written out by pointwise_source.source, from n and constants,
        # and a device function from the steps of a plain kernel.
        r"cuda_kernels/pointwise/formulas\.py:\d+ calls exec": 1,
        # A function of n inputs, with which of them are numbers written out, since that is quicker than to look.
        r"minigrad/cpu_kernels/toolbox/array_program\.py:\d+ calls exec": 1,
        # The code of a page of the course, and the calls that an exercise's cases make: shipped with it.
        r"minigrad/learn/page\.py:\d+ calls exec": 1,
        r"minigrad/learn/exercise\.py:\d+ calls eval": 1,
    }
    rest = [line for line in found if not any(re.fullmatch(pattern, line) for pattern in allowed)]
    for pattern, count in allowed.items():
        assert len([line for line in found if re.fullmatch(pattern, line)]) == count, pattern
    assert not rest, "\n".join(rest)


def test_injected_unsafe_code_is_caught():
    for source in [
        *["import pickle", "def f():\n    from pickle import loads", "eval('1')"],
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import importlib\nimportlib.import_module('pickle')",
    ]:
        assert unsafe_code(source, "minigrad/serialization.py")
        assert not unsafe_code("model.eval()\nnp.load(path, allow_pickle=False)", "minigrad/serialization.py")


# The names ------------------------------------------------------------------------------------------------------------


def test_plain_families_are_declared_and_have_no_file_of_their_own() -> None:
    for name in cpu_kernels.PLAIN_ONLY:
        assert getattr(cpu_kernels, name) is getattr(plain_kernels, name)
    for name in house.FAMILIES - set(cpu_kernels.PLAIN_ONLY):
        assert getattr(cpu_kernels, name) is not getattr(plain_kernels, name), f"{name} is imported from plain_kernels"
    assert not house.stems("minigrad/cpu_kernels") & set(cpu_kernels.PLAIN_ONLY)
    assert not house.stems("cuda_kernels") & set(cuda_kernels.PLAIN_ONLY)


def unchecked(test: str) -> bool:
    """Whether an operation's tests leave out the harness: every check on every Op, parametrised."""
    calls = [node for node in ast.walk(house.parse(test)) if isinstance(node, ast.Call)]
    given = [ast.unparse(argument) for call in calls for argument in call.args[:2]]
    by_name = any(ast.unparse(call).startswith("every_check(OPS") for call in calls)
    return not (by_name or {"'check'", "CHECKS", "'op'", "OPS"} <= set(given))


def test_every_operation_goes_through_the_harness():
    files = [ROOT / f"tests/ops/test_{stem}.py" for stem in sorted(house.OPERATIONS)]
    assert files
    broken = [path.name for path in files if unchecked(path.read_text(encoding="utf-8"))]
    assert not broken, f"without the checks of tests/harness.py: {broken}"


def test_an_injected_test_without_the_harness_is_caught():
    both = '@parametrize("check", CHECKS)\n@parametrize("op", OPS)\ndef test_op(op, check): ...'
    assert not unchecked(both) and not unchecked("test_op = every_check(OPS)")
    assert unchecked(both.replace("CHECKS", "[check_values]"))
    assert unchecked(both.replace('("op", OPS)', "()"))
    assert unchecked("def test_values(): ...")


# What each backend offers, by family: a function's parameters, the number of an elementwise operation's operands.
INTERFACES = """
import inspect, json, sys
import numpy as np
from minigrad import cpu_kernels, cuda_kernels, plain_kernels
from minigrad.cuda_kernels.pointwise.pointwise import Pointwise

def described(value):
    value = inspect.unwrap(value)
    if inspect.isfunction(value) and value.__module__.startswith("minigrad"):
        parameters = inspect.signature(value).parameters.values()
        return [str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters]
    return value.nin if isinstance(value, np.ufunc) else value.inputs if isinstance(value, Pointwise) else None

def interface(family):
    named = {name: getattr(family, name) for name in dir(family) if not name.startswith("_")}
    return {name: found for name, value in named.items() if (found := described(value)) is not None}

storage = interface(plain_kernels)
found = []
for backend in (plain_kernels, cpu_kernels, cuda_kernels):
    homes = {name: plain_kernels if name in backend.PLAIN_ONLY else backend for name in sys.argv[1:]}
    families = {name: interface(getattr(home, name)) for name, home in homes.items()}
    families[""] = {name: described(getattr(backend, name)) for name in storage}
    found.append(families)
print(json.dumps(found))
"""


def unlike(plain: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> list[str]:
    """The functions of plain families that the others lack, or have with other parameters (but ``device``)."""
    broken = []
    for family, functions in plain.items():
        for name, wanted in functions.items():
            found = other.get(family, {}).get(name)
            if isinstance(wanted, list) and isinstance(found, list):
                same = wanted == [parameter for parameter in found if parameter != "device=None"]
            else:
                counts = [len(x) if isinstance(x, list) else x for x in (wanted, found)]
                same = counts[0] == counts[1]
            if not same:
                broken.append(f"{family}.{name}: {wanted} in plain kernels, {found} here")
    return broken


def test_all_backends_have_the_same_functions():
    simulated = {"NUMBA_ENABLE_CUDASIM": "1"}  # so that the CUDA families can be imported anywhere
    done = python("-c", INTERFACES, *house.FAMILIES, env=simulated, returncode=0)
    plain, cpu, cuda = json.loads(done.stdout)
    assert len(plain) > 20 and sum(map(len, plain.values())) > 120
    broken = [*unlike(plain, cpu), *unlike(plain, cuda)]
    assert not broken, "\n".join(broken)


def test_an_injected_other_parameter_is_caught():
    cpu = {"gelu": {"forward": ["x", "y=1"], "exp": 1}}
    assert unlike(cpu, {"gelu": {"forward": ["x", "y=1"], "exp": 1, "more": 2}}) == []
    assert unlike(cpu, {"gelu": {"forward": ["x", "device=None", "y=1"], "exp": ["x"]}}) == []
    for forward in (["x", "y=2"], ["x", "z=1"], ["x"], None):
        assert unlike(cpu, {"gelu": {"forward": forward, "exp": 1}})
    for exp in (2, ["x", "y"]):
        assert unlike(cpu, {"gelu": {"forward": ["x", "y=1"], "exp": exp}})
    assert unlike(cpu, {})


def test_methods_of_each_element_are_functions_and_listed():
    """The methods of arithmetic and comparison are functions; those of one tensor are named among the features."""
    both = {**vars(math.MathMethods), **vars(comparison.ComparisonMethods)}
    methods = {name: method for name, method in both.items() if not name.startswith("_")}
    missing = methods.keys() - {*minigrad.__all__}
    assert not missing, f"without a line in functions.py, or not in __all__ of minigrad/__init__.py: {missing}"
    of_one = {name for name, method in methods.items() if len(inspect.signature(method).parameters) == 1}
    listed = {"absolute", "negative", "bitwise_not", *re.findall(r"\w+", house.text(ROOT / "docs/features.md"))}
    assert not of_one - listed, f"not in docs/features.md: {of_one - listed}"


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
    missing = [line for name in module.__all__ for line in undocumented(f"{package}.{name}", getattr(module, name))]
    assert not missing, "\n".join(missing)


def test_every_module_says_what_it_is():
    missing = [
        path
        for path, text in sources(*house.SOURCES, "examples", "benchmarks", "tests")
        if not re.match(r'(#.*\n)*"""\s*\S', text)
    ]
    assert not missing, "\n".join(missing)
