"""Whether the tests notice a wrong line: breaks the sources in one place at a time and runs their tests.

``python tests/mutation_check.py [AREA ...]`` works on a copy of the sources. It rewrites the syntax tree: a gradient is
negated or doubled, a factor, a term or a call is dropped, two arguments are exchanged, a condition is turned round.
Each break is one run of the tests that ``AREAS`` names for the file. A break is noticed if the tests fail, or do not
end in ``--limit`` seconds. ``--breaks`` of them are drawn for each file, with a seed. ``--only`` selects files by their
stem. It prints each break and the share that was noticed. With ``--short`` a break that the short set of these tests
does not notice is tried with all of them, and it prints both shares.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# Exchanging their operands changes nothing.
SYMMETRIC = {"swapaxes", "mul", "add", "maximum", "minimum", "eq", "ne", "logical_and", "logical_or"}
BINARY = {"mul", "div", "add", "sub"}
UNARY = {"neg", "square", "logical_not", "sign", "exp", "log"}
INDEXING = {"range", "prange", "min", "max", "len", "empty", "zeros", "reshape", "tuple", "sorted", "sum"}


Place = list[Any]  # the fields, and positions in lists, that lead from a function to a node


class Break(NamedTuple):
    """One wrong version of a file: where, what was changed, and the text."""

    path: Path  # relative to the root
    function: str
    what: str
    source: str


# Which functions ------------------------------------------------------------------------------------------------------


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions and methods of a file by dotted name."""
    owners = [("", tree), *((f"{node.name}.", node) for node in tree.body if isinstance(node, ast.ClassDef))]
    return {name + one.name: one for name, owner in owners for one in owner.body if isinstance(one, ast.FunctionDef)}


def called(function: ast.FunctionDef) -> set[str]:
    """Names of the functions, and of the methods of self, that a function calls."""
    called = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {name.removeprefix("self.") for name in called if "." not in name.removeprefix("self.")}


def backward_functions(tree: ast.Module) -> list[str]:
    """The backward methods of a file of operations, and what they call of it besides ``forward``."""
    known = functions(tree)
    # Of a function of one number the decorated derivative stands alone.
    derivatives = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    chosen = [name for name in known if name.rpartition(".")[2] in ("backward", "backward_into")] + derivatives
    for name in chosen:  # grows
        needed = called(known[name])
        chosen += [n for n in known if n.rpartition(".")[2] in needed and n not in chosen and "forward" not in n]
    return chosen


def kernel_functions(tree: ast.Module) -> list[str]:
    """The functions of a kernel file that compute gradients."""
    return [name for name in functions(tree) if "backward" in name]


def every_function(tree: ast.Module) -> list[str]:
    """All functions and methods but those that only describe."""
    return [name for name in functions(tree) if not name.endswith(("__repr__", "__str__"))]


# Which breaks ---------------------------------------------------------------------------------------------------------


def call_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def replacements(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    """Wrong versions of one expression or statement, each with a name."""
    if isinstance(node, ast.Call):
        name, args = call_name(node), node.args
        if name in BINARY and len(args) == 2:
            yield f"only the first operand of {name}", args[0]
        if name in UNARY and len(args) == 1:
            yield f"{name} dropped", args[0]
        if name == "select" and len(args) > 1:
            yield "select dropped", args[1]
        if name in ("add", "sub") and isinstance(node.func, ast.Attribute):
            turned = ast.Attribute(node.func.value, "sub" if name == "add" else "add", ast.Load())
            yield f"{name} turned round", ast.Call(turned, args, node.keywords)
        plain = len(args) >= 2 and not any(isinstance(a, ast.Starred) for a in args[:2])
        if plain and name not in SYMMETRIC | INDEXING and ast.dump(args[0]) != ast.dump(args[1]):
            yield f"arguments of {name} exchanged", ast.Call(node.func, [args[1], args[0], *args[2:]], node.keywords)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        word = type(node.op).__name__.lower()
        yield f"only the first operand of {word}", node.left
        if isinstance(node.op, ast.Add | ast.Sub):
            other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            yield f"{word} turned round", ast.BinOp(node.left, other, node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield "minus dropped", node.operand
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Subscript):
        yield "+= turned round", ast.AugAssign(node.target, ast.Sub(), node.value)


def logic_replacements(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    """Wrong versions of a statement or expression that decides or acts; those of ``replacements`` too."""
    yield from replacements(node)
    if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Constant):
        yield "condition turned round", type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield f"call of {call_name(node.value)} dropped", ast.Pass()
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.Gt | ast.LtE | ast.GtE):
        other = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}[type(node.ops[0])]()
        yield "comparison off by one", ast.Compare(node.left, [other, *node.ops[1:]], node.comparators)


def sites(function: ast.FunctionDef) -> Iterator[tuple[Place, ast.AST]]:
    """The places of a function that may be broken, as paths from the function; not those that compute indices."""

    def visit(node: ast.AST, path: Place) -> Iterator[tuple[Place, ast.AST]]:
        yield path, node
        left = {"slice", "annotation", "returns", "decorator_list"}
        left |= {"test"} if isinstance(node, ast.IfExp | ast.If) else {"iter"} if isinstance(node, ast.For) else set()
        left |= {"args"} if isinstance(node, ast.Call) and call_name(node) in INDEXING else set()
        for field, value in ast.iter_fields(node):
            for i, item in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(item, ast.AST) and field not in left:
                    yield from visit(item, [*path, field] if i is None else [*path, field, i])

    return visit(function, [])


def replaced(tree: ast.Module, name: str, path: Place, new: ast.AST) -> str:
    """The source with what is at ``path`` of function ``name`` replaced."""
    changed = copy.deepcopy(tree)
    owner: Any = functions(changed)[name]
    for step in path[:-1]:
        owner = owner[step] if isinstance(owner, list) else getattr(owner, step)
    put = owner.__setitem__ if isinstance(owner, list) else functools.partial(setattr, owner)
    put(path[-1], new)
    return ast.unparse(ast.fix_missing_locations(changed))


def with_changed_result(tree: ast.Module, name: str, which: int, factor: int) -> str:
    """The source with one of the gradients that a backward method returns multiplied."""
    changed = copy.deepcopy(tree)
    owner = next(n for n in changed.body if isinstance(n, ast.ClassDef) and n.name == name.partition(".")[0])
    right = functions(changed)[name]
    right.name = "right_" + right.name
    if name.endswith("backward_into"):
        text = f"def backward_into(self, dy, *dx):\n    self.{right.name}({factor} * dy, *dx)"
    else:
        text = (
            f"def backward(self, dy):\n    result = self.{right.name}(dy)\n"
            "    grads = list(result) if isinstance(result, tuple) else [result]\n"
            f"    i = [i for i, g in enumerate(grads) if g is not None][{which}]\n"
            f"    grads[i] = grads[i] * grads[i].dtype.type({factor})\n    return tuple(grads)"
        )
    owner.body.append(ast.parse(text).body[0])
    return ast.unparse(ast.fix_missing_locations(changed))


def breaks_of(path: Path, area: Area) -> list[Break]:
    """All breaks of a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = []
    for name in area.choose(tree):
        function = functions(tree)[name]
        for at, node in sites(function):
            for what, new in area.replacements(node) if at else ():
                where = f"line {getattr(node, 'lineno', function.lineno)}: {what}"
                found.append(Break(path, name, where, replaced(tree, name, at, new)))
        if area.choose is backward_functions and name.endswith((".backward", ".backward_into")):
            found.append(Break(path, name, "first gradient negated", with_changed_result(tree, name, 0, -1)))
            found.append(Break(path, name, "last gradient doubled", with_changed_result(tree, name, -1, 2)))
    return found


# The areas ------------------------------------------------------------------------------------------------------------


class Area(NamedTuple):
    """Sources that are broken in the same way."""

    folder: str  # its files, and those of its sub-folders
    choose: Callable[[ast.Module], list[str]]
    replacements: Callable[[ast.AST], Iterator[tuple[str, ast.expr | ast.stmt]]]
    tests: tuple[str, ...]  # patterns under tests/, where {stem} is the file's; all that exist are run
    environment: dict[str, str] = {}  # noqa: RUF012  # never changed
    select: str = ""  # pytest's -k


_OPERATION = "ops/test_{stem}.py"
_OF_THE_CPU = "cpu_kernels/test_{stem}*.py", "cpu_kernels/test_thread_counts.py", "plain_kernels/test_families.py"
_SIMULATED = {"NUMBA_ENABLE_CUDASIM": "1"}
_TRAINERS = "*trainer*", "buckets", "grad_sync", "boostr_*", "reproducible", "silent_damage"
_FILES = "test_crash_safety.py", "test_saving.py", "test_safetensors_format.py", "test_serialization.py"
_ERRORS = "test_error_messages.py"
_COMMUNICATORS = "communicator", "thread", "faults", "nccl", "mpi", "rendezvous", "grad_sync", "tensor_parallel"


def of_ranks(*names: str) -> tuple[str, ...]:
    return tuple(f"distributed/test_{name}.py" for name in names)


AREAS = {
    "operations": Area("minigrad/ops", backward_functions, replacements, (_OPERATION, "cpu_kernels/test_{stem}*.py")),
    "plain": Area(
        "minigrad/plain_kernels", every_function, replacements, ("ops/test_*.py",), {"MINIGRAD_KERNELS": "plain"}
    ),
    "cpu": Area("minigrad/cpu_kernels", kernel_functions, replacements, (_OPERATION, *_OF_THE_CPU)),
    "cuda": Area(
        "cuda_kernels", kernel_functions, replacements, (_OPERATION, "cuda_kernels/test_{stem}.py"), _SIMULATED, "cuda"
    ),
    "trainers": Area("distributed/train", every_function, logic_replacements, (*of_ranks(*_TRAINERS), _ERRORS)),
    "files": Area("minigrad/files", every_function, logic_replacements, _FILES),
    "communicators": Area(
        "distributed/comm", every_function, logic_replacements, of_ranks(*_COMMUNICATORS, "histories")
    ),
    "jobs": Area(
        "distributed/job", every_function, logic_replacements, (*of_ranks("launch", "rendezvous", "store"), _ERRORS)
    ),
}


def test_files(area: Area, path: Path) -> list[str]:
    stem = path.parts[2] if path.parts[:2] == ("minigrad", "ops") else path.name  # all of ops/elementwise/ is one
    patterns = [pattern.format(stem=Path(stem).stem) for pattern in area.tests]
    found = {file for pattern in patterns for file in (ROOT / "tests").glob(pattern)}
    return [str(file.relative_to(ROOT)) for file in sorted(found)]


# The runs -------------------------------------------------------------------------------------------------------------


def make_copy(folder: Path) -> Path:
    """A tree in which Python finds the package by its import name, tests beside it; returns the package's folder."""
    ignore = shutil.ignore_patterns("__pycache__")
    package = folder / "lib/minigrad"
    shutil.copytree(ROOT / "minigrad", package, ignore=ignore)
    for name in ("distributed", "cuda_kernels"):
        shutil.copytree(ROOT / name, package / name, ignore=ignore)
    for name in ("tests", "examples", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return package


def environment(package: Path) -> dict[str, str]:
    # PYTHONPATH comes before the finder of an editable install.
    return os.environ | {
        "PYTHONPATH": str(package.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MINIGRAD_CACHE_DIR": str(package.parents[1] / "cache"),
    }


def source_hash(package: Path) -> str:
    """The name of the kernel cache's folder that the copy uses."""
    command = [sys.executable, "-c", "from minigrad.cpu_kernels.toolbox import jit; print(jit.CACHE_DIRECTORY)"]
    run = subprocess.run(command, cwd=package.parent, env=environment(package), capture_output=True, text=True)
    return run.stdout.strip()


def run_tests(package: Path, area: Area, path: Path, limit: float, *options: str) -> tuple[str, str]:
    """``passed``, ``failed`` or ``too long``, and what pytest printed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *test_files(area, path)]
    command += [*options, *(["-k", area.select] if area.select else [])]
    variables = environment(package) | area.environment
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen(command, cwd=package.parents[1], env=variables, **pipes) as run:
        try:
            output = run.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)  # with the ranks and replicas that the test has started
            return "too long", ""
    if run.returncode in (2, 3, 4, 5):
        raise SystemExit(f"the tests of {path} could not run:\n{output[-3000:]}")
    return "passed" if run.returncode == 0 else "failed", output


def try_break(package: Path, area: Area, made: Break, limit: float, runs: list[list[str]]) -> int:
    """Which of the runs, each with options of its own, is the first that notices the break; their number if none does.

    The break is in the copy, and is mended afterwards.
    """
    inside = made.path.relative_to("minigrad") if made.path.parts[0] == "minigrad" else made.path
    file = package / inside
    old, stamp = file.read_text(encoding="utf-8"), file.stat()
    compiled = source_hash(package) if "cpu_kernels" in made.path.parts else ""
    file.write_text(made.source, encoding="utf-8")
    if compiled and Path(compiled).is_dir():
        # What other files compiled is still right; Numba compiles this one anew by its time and size.
        shutil.copytree(compiled, source_hash(package), dirs_exist_ok=True)
    first = 0
    while first < len(runs) and run_tests(package, area, made.path, limit, *runs[first])[0] == "passed":
        first += 1
    if compiled:
        shutil.rmtree(source_hash(package), ignore_errors=True)
    file.write_text(old, encoding="utf-8")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", help=f"of {', '.join(AREAS)} (default: all)")
    parser.add_argument("--only", nargs="*", help="stems of files")
    parser.add_argument("--breaks", type=int, default=2, help="breaks drawn for each file; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="ask the short set first, then all tests")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one run of the tests")
    args = parser.parse_args()
    if unknown := [name for name in args.areas if name not in AREAS]:
        parser.error(f"there is no area {unknown[0]}; there are {', '.join(AREAS)}")

    runs = [["--short"], []] if args.short else [[]]
    noticed, survivors, right = [0] * (len(runs) + 1), [], set()  # by the run that noticed first; none: the last
    with tempfile.TemporaryDirectory() as name:
        package = make_copy(Path(name))
        for area in (AREAS[name] for name in args.areas or AREAS):
            for path in sorted((ROOT / area.folder).rglob("*.py")):
                path = path.relative_to(ROOT)
                made = breaks_of(path, area) if not args.only or path.stem in args.only else []
                if not made or not (files := tuple(test_files(area, path))):
                    continue
                outcome, said = ("passed", "") if files in right else run_tests(package, area, path, 4 * args.limit)
                if outcome != "passed":
                    raise SystemExit(f"the tests of {path} do not pass without a break: {outcome}\n{said[-3000:]}")
                right.add(files)
                count = min(args.breaks or len(made), len(made))
                for one in random.Random(f"{args.seed} {path}").sample(made, count):
                    started = time.perf_counter()
                    first = try_break(package, area, one, args.limit, runs)
                    line = f"{path} {one.function}, {one.what}"
                    noticed[first] += 1
                    verdict = "SURVIVED" if first == len(runs) else "LONG" if first else "noticed"
                    print(f"{verdict:9}{time.perf_counter() - started:6.1f} s  {line}", flush=True)
                    survivors += [line] if first == len(runs) else []
    total, found = sum(noticed), sum(noticed[:-1])
    print(f"\n{found} of {total} breaks noticed ({100 * found / max(total, 1):.1f} %)")
    if args.short:
        print(f"the short set notices {noticed[0]} of them ({100 * noticed[0] / max(found, 1):.1f} %)")
    for line in survivors:
        print(f"survived: {line}")


if __name__ == "__main__":
    main()
