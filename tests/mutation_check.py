"""Whether the tests notice a wrong derivative: breaks each backward in one place at a time and runs its tests.

``python tests/mutation_check.py`` works on a copy of the sources. For every ``backward`` and ``backward_into`` under
``minigrad/ops``, and the functions that they call in the same file, it makes breaks by rewriting the syntax tree: a
gradient negated or doubled, a factor, a term or a call dropped, two arguments exchanged. ``--per-backward`` of them are
drawn with a seed. Of the backward kernels, each change of which is compiled anew, it draws ``--per-kernel-file``
breaks. Each break is one run of the tests of that file's name under ``tests/ops`` and ``tests/cpu_kernels``. A break is
noticed if the tests fail, or do not end in ``--limit`` seconds. It prints each break and the share that was noticed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

import numba  # noqa: F401  # this and torch are for the forked processes
import pytest

with contextlib.suppress(ImportError):
    import torch  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
SYMMETRIC = {
    "swapaxes",
    "mul",
    "add",
    "maximum",
    "minimum",
    "eq",
    "ne",
    "logical_and",
    "logical_or",
}  # exchanging changes nothing
BINARY = {"mul", "div", "add", "sub"}
UNARY = {"neg", "square", "logical_not", "sign", "exp", "log"}
INDEXING = {"range", "prange", "min", "max", "len", "empty", "zeros", "reshape", "tuple", "sorted", "sum"}


Place = list[tuple[str, int | None]]  # the fields, and positions in lists, that lead from a function to a node


class Break(NamedTuple):
    """One wrong version of a file: where, what was changed, and the text."""

    path: Path  # relative to the root
    function: str
    what: str
    source: str


# Which functions ------------------------------------------------------------------------------------------------------


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions and methods of a file by dotted name."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found.update({f"{node.name}.{item.name}": item for item in node.body if isinstance(item, ast.FunctionDef)})
    return found


def called(function: ast.FunctionDef) -> set[str]:
    """Names of the functions, and of the methods of self, that a function calls."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                names.add(node.func.id)
            elif isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "self":
                names.add(node.func.attr)
    return names


def backward_functions(tree: ast.Module) -> list[str]:
    """The backward methods of a file of operations, and what they call of it besides ``forward``."""
    known = functions(tree)
    chosen = [name for name in known if name.rpartition(".")[2] in ("backward", "backward_into")]
    for name in chosen:  # grows
        needed = called(known[name])
        chosen += [n for n in known if n.rpartition(".")[2] in needed and n not in chosen and "forward" not in n]
    return chosen


def kernel_functions(tree: ast.Module) -> list[str]:
    """The functions of a kernel file that compute gradients."""
    return [name for name in functions(tree) if "backward" in name]


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
        if name == "select":
            yield "select dropped", args[1]
        if name in ("add", "sub") and isinstance(node.func, ast.Attribute):
            other = copy.deepcopy(node)
            cast(ast.Attribute, other.func).attr = "sub" if name == "add" else "add"
            yield f"{name} turned round", other
        plain = len(args) >= 2 and not any(isinstance(a, ast.Starred) for a in args[:2])
        if plain and name not in SYMMETRIC | INDEXING and ast.dump(args[0]) != ast.dump(args[1]):
            other = copy.deepcopy(node)
            other.args[:2] = [other.args[1], other.args[0]]
            yield f"arguments of {name} exchanged", other
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        word = type(node.op).__name__.lower()
        yield f"only the first operand of {word}", node.left
        if isinstance(node.op, ast.Add | ast.Sub):
            turned = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            yield f"{word} turned round", ast.BinOp(node.left, turned, node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield "minus dropped", node.operand
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Subscript):
        yield "+= turned round", ast.AugAssign(node.target, ast.Sub(), node.value)


def sites(function: ast.FunctionDef) -> Iterator[tuple[Place, ast.AST]]:
    """The places of a function that may be broken, as paths from the function; not those that compute indices."""

    def visit(node: ast.AST, path: Place) -> Iterator[tuple[Place, ast.AST]]:
        yield path, node
        for field, value in ast.iter_fields(node):
            if field in ("slice", "annotation", "returns", "decorator_list") or (
                field == "test" and isinstance(node, ast.IfExp | ast.If)
            ):
                continue
            if isinstance(node, ast.Call) and call_name(node) in INDEXING and field == "args":
                continue
            if isinstance(node, ast.For) and field == "iter":
                continue
            if isinstance(value, list):
                for i, item in enumerate(value):
                    if isinstance(item, ast.AST):
                        yield from visit(item, [*path, (field, i)])
            elif isinstance(value, ast.AST):
                yield from visit(value, [*path, (field, None)])

    return visit(function, [])


def replaced(tree: ast.Module, name: str, path: Place, new: ast.AST) -> str:
    """The source with what is at ``path`` of function ``name`` replaced."""
    changed = copy.deepcopy(tree)
    node: ast.AST = functions(changed)[name]
    for field, i in path[:-1]:
        node = getattr(node, field) if i is None else getattr(node, field)[i]
    field, i = path[-1]
    if i is None:
        setattr(node, field, copy.deepcopy(new))
    else:
        getattr(node, field)[i] = copy.deepcopy(new)
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


def breaks_of(path: Path, choose: Callable[[ast.Module], list[str]]) -> dict[str, list[Break]]:
    """All breaks of a file, by function."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found: dict[str, list[Break]] = {}
    for name in choose(tree):
        function = functions(tree)[name]
        made = [
            Break(path, name, f"line {getattr(node, 'lineno', function.lineno)}: {what}", replaced(tree, name, at, new))
            for at, node in sites(function)
            if at
            for what, new in replacements(node)
        ]
        if name.endswith((".backward", ".backward_into")):
            made.append(Break(path, name, "first gradient negated", with_changed_result(tree, name, 0, -1)))
            made.append(Break(path, name, "last gradient doubled", with_changed_result(tree, name, -1, 2)))
        found[name] = made
    return found


# The runs -------------------------------------------------------------------------------------------------------------


def make_copy(folder: Path) -> Path:
    """A tree in which Python finds the package by its import name, tests beside it; returns the package's folder."""
    ignore = shutil.ignore_patterns("__pycache__")
    package = folder / "lib/minigrad"
    shutil.copytree(ROOT / "minigrad", package, ignore=ignore)
    for name in ("distributed", "cuda_kernels"):
        shutil.copytree(ROOT / name, package / name, ignore=ignore)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return package


def source_hash(package: Path) -> str:
    """The name of the kernel cache's folder that the copy uses."""
    command = [sys.executable, "-c", "from minigrad.cpu_kernels import jit; print(jit.CACHE_DIRECTORY)"]
    run = subprocess.run(command, cwd=package.parent, env=environment(package), capture_output=True, text=True)
    return run.stdout.strip()


def environment(package: Path) -> dict[str, str]:
    # PYTHONPATH comes before the finder of an editable install.
    return os.environ | {
        "PYTHONPATH": str(package.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MINIGRAD_CACHE_DIR": str(package.parents[1] / "cache"),
    }


def test_files(stem: str) -> list[str]:
    names = (f"ops/test_{stem}.py", f"cpu_kernels/test_{stem}.py", f"cpu_kernels/test_{stem}_kernel.py")
    return [f"tests/{name}" for name in names if (ROOT / "tests" / name).is_file()]


def run_tests(package: Path, stem: str, limit: float) -> str:
    """``passed``, ``failed`` or ``too long``, in a forked process: what is imported here need not be imported again."""
    folder = package.parents[1]
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.environ.update(environment(package))
            sys.dont_write_bytecode = True
            sys.path.insert(0, str(package.parent))
            os.chdir(folder)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            code = 70
            try:
                code = int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *test_files(stem)]))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        deadline = time.monotonic() + limit
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "too long"
            time.sleep(0.02)
        code = os.waitstatus_to_exitcode(ended[1])
        if code not in (0, 1) and code > 0:
            output.seek(0)
            raise SystemExit(f"the tests of {stem} could not run:\n{output.read()[-3000:].decode()}")
    return "passed" if code == 0 else "failed"


def stem_of(path: Path) -> str:
    """The operation of a source: gelu of ``minigrad/ops/gelu.py``, elementwise of all of ``ops/elementwise/``."""
    return Path(path.parts[2]).stem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stems", nargs="*", help="files or folders under minigrad/ops, without .py (default: all)")
    parser.add_argument("--per-backward", type=int, default=1, help="breaks drawn for each function; 0: all")
    parser.add_argument("--per-kernel-file", type=int, default=2, help="breaks drawn for each kernel file; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one run of the tests")
    args = parser.parse_args()
    sources = [path.relative_to(ROOT) for path in sorted((ROOT / "minigrad/ops").rglob("*.py"))]
    stems = args.stems or sorted({stem_of(path) for path in sources})

    plan: list[Break] = []
    for stem in stems:
        for path in sources:
            for name, all_breaks in breaks_of(path, backward_functions).items() if stem_of(path) == stem else ():
                count = min(args.per_backward or len(all_breaks), len(all_breaks))
                plan += random.Random(f"{args.seed} {stem} {name}").sample(all_breaks, count)
        kernel_file = Path(f"minigrad/cpu_kernels/{stem}.py")
        if args.per_kernel_file and (ROOT / kernel_file).is_file():
            everywhere = [b for made in breaks_of(kernel_file, kernel_functions).values() for b in made]
            count = min(args.per_kernel_file, len(everywhere))
            plan += random.Random(f"{args.seed} {stem}").sample(everywhere, count)

    noticed, survivors, right = 0, [], set()
    with tempfile.TemporaryDirectory() as name:
        package = make_copy(Path(name))
        for made in plan:
            stem = stem_of(made.path)
            if stem not in right:
                if (outcome := run_tests(package, stem, 4 * args.limit)) != "passed":
                    raise SystemExit(f"the tests of {stem} do not pass without a break: {outcome}")
                right.add(stem)
            started = time.perf_counter()
            file = package / made.path.relative_to("minigrad")
            old, stamp = file.read_text(encoding="utf-8"), file.stat()
            whole = source_hash(package) if "cpu_kernels" in made.path.parts else ""
            file.write_text(made.source, encoding="utf-8")
            if whole:  # what other files compiled is still right; Numba compiles this one anew by its time and size
                shutil.copytree(whole, source_hash(package), dirs_exist_ok=True)
            outcome = run_tests(package, stem, args.limit)
            if whole:
                shutil.rmtree(source_hash(package))
            file.write_text(old, encoding="utf-8")
            os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
            noticed += outcome != "passed"
            verdict = "SURVIVED" if outcome == "passed" else "noticed"
            line = f"{made.path.parent.name}/{stem}.py {made.function}, {made.what}"
            print(f"{verdict:9}{time.perf_counter() - started:6.1f} s  {line}", flush=True)
            if outcome == "passed":
                survivors.append(line)
    print(f"\n{noticed} of {len(plan)} breaks noticed ({100 * noticed / max(len(plan), 1):.1f} %)")
    for line in survivors:
        print(f"survived: {line}")


if __name__ == "__main__":
    main()
