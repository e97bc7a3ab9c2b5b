"""Whether the tests notice a wrong line: breaks the sources in one place at a time and runs their tests.

``python tests/mutation_check.py CALLS [AREA ...]`` rewrites the syntax tree: a result is negated, a factor, a term or a
call is dropped, two arguments are exchanged, a condition is turned round. Each break is tried with the tests that run
the broken function, the quickest first, as far as ``--budget`` seconds go. The folder CALLS says which these are: if it
is empty, all tests run once, and it is filled (``record_calls.py``). For a compiled function, whose calls are not seen,
they are those that run another function of the file.

Breaks are made in a copy of the sources. One is noticed if a test fails that passes in another copy, or if the tests do
not end in ``--limit`` seconds. ``--breaks`` are drawn for each file, with a seed; ``--only`` selects files by stem. It
prints each break and the share that was noticed. With ``--short`` the short set is asked first, then the other tests.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
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
    """One wrong version of a file: where, what was changed, and what makes the text."""

    path: Path  # relative to the root
    function: str
    line: int  # the function's first
    what: str
    source: Callable[[], str]


# Which functions ------------------------------------------------------------------------------------------------------


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions and methods of a file by dotted name."""
    owners = [("", tree), *((f"{node.name}.", node) for node in tree.body if isinstance(node, ast.ClassDef))]
    return {name + one.name: one for name, owner in owners for one in owner.body if isinstance(one, ast.FunctionDef)}


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
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple | ast.Call):
        first, *others = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        negated = ast.UnaryOp(ast.USub(), first)
        yield "first result negated", ast.Return(ast.Tuple([negated, *others], ast.Load()) if others else negated)


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


def breaks_of(path: Path, area: str) -> list[Break]:
    """All breaks of a file; not in what only describes."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = []
    for name, function in functions(tree).items():
        if name.endswith(("__repr__", "__str__")):
            continue
        this = path, name, min(one.lineno for one in [function, *function.decorator_list])
        for at, node in sites(function):
            for what, new in AREAS[area][1](node) if at else ():
                where = f"line {getattr(node, 'lineno', function.lineno)}: {what}"
                found.append(Break(*this, where, functools.partial(replaced, tree, name, at, new)))
    return found


# The areas ------------------------------------------------------------------------------------------------------------


Replacements = Callable[[ast.AST], Iterator[tuple[str, ast.expr | ast.stmt]]]
AREAS: dict[str, tuple[str, Replacements]] = {  # a folder, with its sub-folders, and how its files are broken
    "operations": ("minigrad/ops", replacements),
    "plain": ("minigrad/plain_kernels", replacements),
    "cpu": ("minigrad/cpu_kernels", replacements),
    "cuda": ("cuda_kernels", replacements),
    "modules": ("minigrad/nn", logic_replacements),
    "optimizers": ("minigrad/optim", logic_replacements),
    "data": ("minigrad/data", logic_replacements),
    "files": ("minigrad/files", logic_replacements),
    "trainers": ("distributed/train", logic_replacements),
    "communicators": ("distributed/comm", logic_replacements),
    "jobs": ("distributed/job", logic_replacements),
}


# Which tests ----------------------------------------------------------------------------------------------------------


class Tests:
    """What ``record_calls.py`` has written: the tests that run a function, and how long they take."""

    def __init__(self, folder: Path) -> None:
        self.calls: dict[str, set[str]] = defaultdict(set)
        self.seconds: Counter[str] = Counter()
        self.short: set[str] = set()
        for file in folder.glob("*.json"):
            known = json.loads(file.read_text(encoding="utf-8"))
            for function, tests in known["calls"].items():
                self.calls[function] |= {test for test in tests if str(ROOT) not in test}  # its name in a copy differs
            self.seconds.update(known["seconds"])
            self.short |= set(known["short"])

    def of(self, made: Break) -> list[str]:
        """The tests that run the broken function, or else its file; the quickest first, without those that failed."""
        found = self.calls.get(f"{made.path}:{made.line}") or set().union(
            *(tests for function, tests in self.calls.items() if function.startswith(f"{made.path}:"))
        )
        return sorted(
            (test for test in found if self.seconds.get(test, math.inf) < math.inf), key=self.seconds.__getitem__
        )

    def within(self, budget: float, tests: list[str]) -> list[str]:
        """As many of the tests as the seconds allow, at least one; file by file."""
        chosen, left = [], budget
        for test in tests:
            left -= self.seconds[test]
            chosen += [test] if left >= 0 or not chosen else []
        files = list(dict.fromkeys(test.partition("::")[0] for test in chosen))
        return sorted(chosen, key=lambda test: files.index(test.partition("::")[0]))


def record(folder: Path) -> None:
    """Fill ``folder`` by one run of all tests."""
    command = [sys.executable, "-m", "pytest", "-q", "--all", "-p", "record_calls"]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"RECORD_CALLS": str(folder)})


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
        "MINIGRAD_CACHE_DIR": str(package.parents[2] / "cache"),
    }


def source_hash(package: Path) -> str:
    """The name of the kernel cache's folder that the copy uses."""
    command = [sys.executable, "-c", "from minigrad.cpu_kernels.toolbox import jit; print(jit.CACHE_DIRECTORY)"]
    run = subprocess.run(command, cwd=package.parent, env=environment(package), capture_output=True, text=True)
    return run.stdout.strip()


def run_tests(package: Path, tests: list[str], limit: float) -> tuple[str, str]:
    """``passed``, ``failed`` or ``too long``, and what pytest printed."""
    root = package.parents[1]
    (root / "chosen").write_text("\n".join(tests), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "@chosen"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen(command, cwd=root, env=environment(package), **pipes) as run:
        try:
            output = run.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)  # with the ranks and replicas that the test has started
            return "too long", ""
    return "passed" if run.returncode == 0 else "failed", output


@functools.cache
def pass_in(whole: Path, tests: tuple[str, ...], limit: float) -> bool:
    """Whether the tests pass without a break."""
    return run_tests(whole, [*tests], limit)[0] == "passed"


def notices(broken: Path, whole: Path, tests: list[str], limit: float) -> str:
    """The first test that fails with the break, and passes without; or a word for none of them, or all."""
    left = list(tests)
    while left:
        outcome, output = run_tests(broken, left, limit)
        if outcome == "passed":
            return ""
        named = [test for test in left if f"FAILED {test}" in output or f"ERROR {test}" in output]
        suspects = [max(named, key=len)] if named else left  # none: nothing was collected, or the tests do not end
        if pass_in(whole, tuple(suspects), limit):
            return suspects[0] if named else outcome
        if not named:
            raise SystemExit(f"the tests do not run without the break either:\n{output[-3000:]}")
        left.remove(suspects[0])
    return ""


def try_break(broken: Path, whole: Path, made: Break, limit: float, runs: list[list[str]]) -> tuple[int, str]:
    """Which of the runs is the first that notices the break, by which test; the number of runs if none does.

    The break is in the copy, and is mended afterwards.
    """
    inside = made.path.relative_to("minigrad") if made.path.parts[0] == "minigrad" else made.path
    file = broken / inside
    compiled = source_hash(broken) if "cpu_kernels" in made.path.parts else ""
    file.write_text(made.source(), encoding="utf-8")
    if compiled and Path(compiled).is_dir() and (changed := source_hash(broken)):  # none of what cannot be imported
        # What other files compiled is still right; Numba compiles this one anew by its time and size.
        shutil.copytree(compiled, changed, dirs_exist_ok=True)
    first, test = 0, ""
    while first < len(runs) and not (test := notices(broken, whole, runs[first], limit)):
        first += 1
    if compiled:
        shutil.rmtree(source_hash(broken), ignore_errors=True)
    shutil.copy2(whole / inside, file)
    return first, test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", type=Path, help="folder of what the tests run")
    parser.add_argument("areas", nargs="*", help=f"of {', '.join(AREAS)} (default: all)")
    parser.add_argument("--only", nargs="*", help="stems of files")
    parser.add_argument("--breaks", type=int, default=2, help="breaks drawn for each file; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="ask the short set first, then the other tests")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of the tests of one run")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one run of the tests")
    args = parser.parse_args()
    if unknown := [name for name in args.areas if name not in AREAS]:
        parser.error(f"there is no area {unknown[0]}; there are {', '.join(AREAS)}")
    if not list(args.calls.glob("*.json")):
        record(args.calls)
    tests = Tests(args.calls)

    found, survivors = defaultdict(Counter), []
    with tempfile.TemporaryDirectory() as name:
        broken, whole = make_copy(Path(name, "broken")), make_copy(Path(name, "whole"))
        for area in args.areas or AREAS:
            for path in sorted((ROOT / AREAS[area][0]).rglob("*.py")):
                path = path.relative_to(ROOT)
                breaks = breaks_of(path, area) if not args.only or path.stem in args.only else []
                count = min(args.breaks or len(breaks), len(breaks))
                for made in random.Random(f"{args.seed} {path}").sample(breaks, count):
                    started, every = time.perf_counter(), tests.of(made)
                    parts = [[t for t in every if (t in tests.short) == short] for short in (True, False)]
                    runs = [tests.within(args.budget, part) for part in (parts if args.short else [every])]
                    first, by = try_break(broken, whole, made, args.limit, runs)
                    verdict = "SURVIVED" if first == len(runs) else "LONG" if first else "noticed"
                    found[area][verdict] += 1
                    line = f"{path} {made.function}, {made.what}"
                    print(f"{verdict:9}{time.perf_counter() - started:6.1f} s  {line}  {by}", flush=True)
                    survivors += [line] if first == len(runs) else []
    for area, of in found.items():
        print(f"{area}: {of.total()} breaks, noticed {of['noticed'] + of['LONG']}, not by the first run {of['LONG']}")
    for line in survivors:
        print(f"survived: {line}")


if __name__ == "__main__":
    main()
