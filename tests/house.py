"""The measures of the sources: what a reader must read, which rooms there are, how they import each other.

``python tests/house.py`` prints today's measures beside the goals and the limits of ``BUDGETS``;
``python tests/house.py --count`` writes the lines of code into docs/reading.md. ``tests/test_house.py`` holds the
limits. A goal is what the project wants, a limit what the check allows.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("minigrad", "cuda_kernels", "distributed")
Graph = Mapping[str, set[str]]
parse = functools.cache(ast.parse)  # a file is read by several rules


class Budget(NamedTuple):
    """The goal of a measure, the limit that the check holds, and why it is so much. Change a limit with its reason."""

    goal: int
    limit: int
    reason: str


# The check holds ``limit``. It is never looser than what was measured by more than 1 %, unless it is within the goal.
BUDGETS = {
    "core: files": Budget(25, 25, "what a reader must read to understand the training of a GPT on the CPU: a weekend"),
    "core: lines of code": Budget(2_500, 2_500, "the same"),
    "library: lines of code": Budget(
        36_500,
        39_995,
        "a house is small if it has few lines; 1,000 are the plain kernels, 500 settings of the train command, groups "
        "of ranks, checkpoints beside training, flodl's checks and overlap, and what a GPU needs before its first day, "
        "1,000 formulas as loops, kernels compiled ahead, starts by hand, replicas on ranks, and captured steps, 450 "
        "loaders, schedulers, stores that add, save and load, 400 a simulator that counts, 350 the same bits for any "
        "number of ranks and ranks that compare hashes, 570 sharded states, 370 meshes, 330 jobs that start again and "
        "checkpoints of shares, 250 a planner, 240 LoRA and PyTorch's state dicts, 230 the profiler, 50 rows "
        "of half floats, and moves along any axis, 50 methods that write in place",
    ),
    "wings: lines of code": Budget(3_000, 3_000, "the course and the dashboard, which nothing below imports"),
    "distributed: rooms": Budget(6, 6, "what is met at a folder's top is what a user can name"),
    "distributed: floors": Budget(6, 6, "communicators, job, trainers, parts of models and mirrors"),
    "cuda_kernels: rooms": Budget(38, 38, "the families and the sub-folders"),
    "cuda_kernels: floors": Budget(9, 9, "from PTX to the families"),
    "files of a plain GPT-2 step": Budget(30, 30, "the way of a reader with a debugger"),
    "files of a fast GPT-2 step": Budget(35, 35, "the same, as a graph of the CPU's kernels"),
    "CUDA product: hops": Budget(9, 9, "functions on the way from a @ b to the launch"),
    "CUDA product: returns": Budget(0, 0, "a room that was left is not needed again"),
    "class changes of backward_and_step": Budget(3, 3, "a trainer is composed, so its step is read in one place"),
    "exceptions of the find-it rule": Budget(0, 0, "one name for a family in every folder"),
    "circles between folders": Budget(0, 0, "a room can be read without those above it"),
    "circles of files": Budget(1, 1, "Tensor and its methods: the price of explicit methods"),
    "tests: lines of code": Budget(
        32_000,
        33_117,
        "tests are read, too; 600 came with what a newcomer, a run and ranks need, 400 with histories drawn from seeds "
        "and memory that stays flat, 110 with the array API and what runs its suite, 250 with sharded states, 800 with "
        "meshes, a planner, and jobs that start again, 70 with what readers of changes found, 60 with the "
        "record of which test runs which function, from which breaks know their tests, 57 with half floats in rows "
        "and places that repeat",
    ),
    "longest function": Budget(60, 60, "a function is seen whole"),
    "most parameters": Budget(8, 8, "more belong into a record"),
}


# Lines ----------------------------------------------------------------------------------------------------------------


def code_lines(source: str) -> int:
    """The lines that hold code: neither blank, nor comments, nor docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docstrings.update(range(value.lineno, (value.end_lineno or 0) + 1))
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in empty:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


@functools.cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def lines_of(path: Path) -> int:
    return code_lines(text(path))


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


# Rooms that come later and have a budget of their own.
WINGS = ("minigrad/learn", "minigrad/tools/watch")


def total(paths: Iterable[Path]) -> int:
    """Lines of code of all."""
    return sum(map(lines_of, paths))


# The core -------------------------------------------------------------------------------------------------------------

READING = ROOT / "docs/reading.md"
ROW = re.compile(r"^\| \d+ \| \[`[^`]+`\]\(\.\./(?P<path>[^)]+)\) \| (?P<lines>[\d,]+) \| .+ \|$", re.MULTILINE)
SUM = re.compile(r"^\| \| (?P<files>\d+) files \| (?P<lines>[\d,]+) \| .+ \|$", re.MULTILINE)


def core() -> list[Path]:
    """The files that docs/reading.md lists as the core, in order of reading."""
    return [ROOT / row["path"] for row in ROW.finditer(text(READING))]


def counted(page: str) -> str:
    """The page of the core with today's numbers of lines in its table."""

    def exact(row: re.Match[str], lines: int) -> str:
        start, end = row.span("lines")
        return page[row.start() : start] + f"{lines:,}" + page[end : row.end()]

    listed = [ROOT / row["path"] for row in ROW.finditer(page)]
    page = SUM.sub(lambda row: exact(row, total(listed)).replace(f"{row['files']} files", f"{len(listed)} files"), page)
    return ROW.sub(lambda row: exact(row, lines_of(ROOT / row["path"])), page)


# Imports --------------------------------------------------------------------------------------------------------------


def module_of(path: Path) -> str:
    """``distributed/comm/calls.py`` is ``minigrad.distributed.comm.calls``, as it is installed."""
    parts = (ROOT / path).relative_to(ROOT).with_suffix("").parts
    if parts[0] != "minigrad":
        parts = ("minigrad", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Import(NamedTuple):
    """``from module import name``; name is "" for ``import module``, and for a module that a string names."""

    module: str
    name: str
    line: int
    lazy: bool  # loaded later than the file
    typing: bool  # loaded by type checkers only


def imports(source: str, path: Path, modules: Collection[str]) -> list[Import]:
    """Every import of a file, relative ones resolved, and every string that is the name of one of ``modules``.

    That is a dotted name, also ``f"{__package__}.b"``, and with the name of the whole package in a constant
    ``f"{OURS}.b"``. It counts as lazy.
    """
    module = module_of(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: list[Import] = []

    def visit(node: ast.AST, lazy: bool, typing: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.body:
                visit(child, lazy, True)
            for child in node.orelse:
                visit(child, lazy, typing)
            return
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, "", node.lineno, lazy, typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            origin = ".".join(filter(None, (base, node.module)))
            found.extend(Import(origin, alias.name, node.lineno, lazy, typing) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                found.append(Import(node.args[0].value, "", node.lineno, lazy, typing))
        elif (text := named_in(node, module, package)) in modules and "." in text:
            found.append(Import(text, "", node.lineno, True, typing))
        inside = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, inside, typing)

    visit(parse(source), False, False)
    return found


def named_in(node: ast.AST, module: str, package: str) -> str:
    """What may be a module's name in a string's node; "" in others."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.rstrip(".")
    match node:
        case ast.JoinedStr(values=[ast.FormattedValue(value=ast.Name(id=start)), ast.Constant(value=rest)]):
            return ({"__name__": module, "__package__": package}.get(start, "minigrad") + rest).rstrip(".")
    return ""


def is_face(source: str) -> bool:
    """Whether a file only passes names on: under 40 lines, no function and no class."""
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return len(source.splitlines()) < 40 and not any(isinstance(node, defined) for node in parse(source).body)


def graph_of(texts: Mapping[Path, str]) -> Graph:
    """Which modules each of these files names in any way: loaded, loaded later, for types, in strings.

    A name that a package's ``__init__`` passes on is its home's.
    """
    modules = {module_of(path): path for path in texts}
    named = {name: imports(texts[path], path, modules) for name, path in modules.items()}

    def home(module: str, name: str) -> str | None:
        if f"{module}.{name}" in modules:
            return f"{module}.{name}"
        if name and module in modules and modules[module].name == "__init__.py":
            for passed in named[module]:
                if passed.name == name and passed.module != module:
                    return home(passed.module, name)
        return module if module in modules else None

    graph = {}
    for name, items in named.items():
        graph[name] = {found for item in items if (found := home(item.module, item.name)) is not None} - {name}
    return graph


@functools.cache
def import_graph() -> Graph:
    """``graph_of`` the library."""
    return graph_of({path: text(path) for path in files(*SOURCES)})


def circles(graph: Graph) -> list[list[str]]:
    """The groups of nodes that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        reached[start], front = set(), set(graph[start])
        while front:
            name = front.pop()
            if name not in reached[start]:
                reached[start].add(name)
                front |= graph.get(name, set())
    groups = {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def folders_of(graph: Graph, tops: tuple[str, ...]) -> Graph:
    """The same between folders. A file at the top of one of ``tops`` counts for itself.

    What a folder's ``__init__`` names does not count: it offers what is below it.
    """

    def folder(module: str) -> str:
        package = module.rpartition(".")[0]
        return module if package in tops else package

    packages = {name.rpartition(".")[0] for name in graph}
    found: dict[str, set[str]] = defaultdict(set)
    for name in graph.keys() - packages:
        found[folder(name)] |= {folder(other) for other in graph[name] - packages} - {folder(name)}
    return found


# Rooms ----------------------------------------------------------------------------------------------------------------


def rooms(folder: str) -> dict[str, set[str]]:
    """The files and sub-folders at the top of a folder, each with those that it imports. Faces are no rooms."""
    top = module_of(ROOT / folder / "__init__.py")
    members = {module_of(path): path for path in files(folder)}

    def room(module: str) -> str | None:
        if module not in members:
            return None
        if module == top:
            return None if is_face(text(members[module])) else "__init__"
        first = module.removeprefix(f"{top}.").partition(".")[0]
        alone = members[module].parent == ROOT / folder
        return None if alone and is_face(text(members[module])) else first

    found: dict[str, set[str]] = defaultdict(set)
    for module, others in import_graph().items():
        here = room(module)
        if here is not None:
            found[here] |= {there for other in others if (there := room(other)) not in (None, here)}  # type: ignore[misc]
    return dict(found)


def floors(folder: str) -> int:
    """The longest chain of imports between rooms. A circle counts as a chain of all its rooms."""
    graph = rooms(folder)
    group = {room: room for room in graph} | {room: circle[0] for circle in circles(graph) for room in circle}
    size = {circle[0]: len(circle) for circle in circles(graph)}
    below: dict[str, set[str]] = defaultdict(set)
    for room, others in graph.items():
        below[group[room]] |= {group[other] for other in others} - {group[room]}

    @functools.cache
    def height(room: str) -> int:
        return size.get(room, 1) + max(map(height, below[room]), default=0)

    return max(map(height, set(group.values())), default=0)


TOPS = ("minigrad", "minigrad.cuda_kernels", "minigrad.distributed")
TENSOR = "minigrad.tensor"  # and its methods: the one circle that explicit methods cost


def circles_between_folders() -> list[list[str]]:
    """Folders, and files at the top, that import each other, without those of Tensor and its methods."""
    return [circle for circle in circles(folders_of(import_graph(), TOPS)) if TENSOR not in circle]


def circles_of_files() -> list[list[str]]:
    """Files that import each other, lazily or for type checkers too."""
    return circles(import_graph())


def stems(folder: str) -> set[str]:
    """The names of a folder's modules."""
    return {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}


# What has kernels beside the operations: the optimizers' steps and random numbers.
WITHOUT_OPERATION = {"adagrad", "adamw", "grad_norm", "lamb", "random", "sgd"}
OPERATIONS = stems("minigrad/ops") | {path.parent.name for path in (ROOT / "minigrad/ops").glob("*/__init__.py")}
FAMILIES = (OPERATIONS - {"activation", "batch_norm"}) | WITHOUT_OPERATION  # which are made of others' kernels


def backends() -> dict[str, set[str]]:
    """By the folder of each backend, the families that it has in a file or declares plain."""
    plain = "minigrad/plain_kernels"  # declares all: its files hold groups of families
    folders = plain, "minigrad/cpu_kernels", "cuda_kernels"
    declared = {f: set(importlib.import_module(module_of(ROOT / f)).PLAIN_ONLY) for f in folders}
    return {f: names if f == plain else names | stems(f) for f, names in declared.items()}


def mismatched_stems(families: set[str], found: Mapping[str, set[str]]) -> list[str]:
    """Where the find-it rule fails: a backend has its families, in files or declared, and nothing else."""
    return [
        f"{folder}/{stem} {'is no family' if stem in own else 'is missing'}"
        for folder, own in found.items()
        for stem in sorted(families ^ own)
    ]


def find_it_exceptions() -> list[str]:
    """The families that not all backends have, and the operations without a file of tests."""
    untested = OPERATIONS - {stem.removeprefix("test_") for stem in stems("tests/ops")}
    return mismatched_stems(FAMILIES, backends()) + [f"tests/ops/test_{name} is missing" for name in sorted(untested)]


# Functions ------------------------------------------------------------------------------------------------------------

# The decorators of what Numba compiles: its length is that of straight-line arithmetic, its parameters are pointers.
COMPILERS = {"njit", "jit", "kernel", "task_kernel", "parallel_kernel", "intrinsic", "overload"}
COMPILERS |= {"inline", "_device", "emits"}
# Where functions within functions are compiled too: kernels call them.
FACTORIES = re.compile(r"cuda_kernels/(?!platform|simulator|inspect)")
# Signatures that mirror those of another library.
MIRRORED = {
    "minigrad/nn/functional.py:scaled_dot_product_attention": "PyTorch's",
    "minigrad/optim/lr_scheduler.py:__init__": "PyTorch's",
    "distributed/job/rendezvous.py:init_process_group": "PyTorch's",
    "distributed/train/block_trainer.py:__init__": "entrenar's",
}


class Shape(NamedTuple):
    """The place of a Python function, its lines without those of compiled functions within, and its parameters."""

    place: str
    lines: int
    parameters: int


def functions(path: Path) -> Iterator[Shape]:
    """The functions of a file that are not compiled."""

    def length(node: ast.AST) -> int:
        return int(node.end_lineno or 0) - int(node.lineno) + 1  # type: ignore[attr-defined]

    factory = FACTORIES.match(path.relative_to(ROOT).as_posix()) is not None

    def visit(node: ast.AST, within: bool = False) -> Iterator[Shape | int]:
        """Shapes of the functions below, and the lengths of the outermost compiled ones."""
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from visit(child, within)
                continue
            names = {ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in child.decorator_list}
            if within or {name.rpartition(".")[2] for name in names} & COMPILERS:
                yield length(child)
                continue
            inside = list(visit(child, factory))
            compiled = sum(item for item in inside if isinstance(item, int))
            given = child.args.posonlyargs + child.args.args + child.args.kwonlyargs
            count = len([argument for argument in given if argument.arg not in ("self", "cls")])
            yield Shape(f"{path.relative_to(ROOT).as_posix()}:{child.name}", length(child) - compiled, count)
            yield from inside

    return (item for item in visit(ast.parse(text(path))) if isinstance(item, Shape))


@functools.cache
def all_functions() -> list[Shape]:
    return [shape for path in files(*SOURCES) for shape in functions(path)]


def longest_function() -> Shape:
    return max(all_functions(), key=lambda shape: shape.lines)


def most_parameters() -> Shape:
    return max((s for s in all_functions() if s.place not in MIRRORED), key=lambda shape: shape.parameters)


# Walks: what runs -----------------------------------------------------------------------------------------------------


def ours(frame: FrameType) -> str | None:
    """The file of a frame, relative to the root, if it is one of the library's."""
    name = frame.f_code.co_filename
    relative = os.path.relpath(name, ROOT) if name.startswith(str(ROOT)) else ""
    return relative if relative.startswith(SOURCES) else None


def calls_of(function: Callable[[], object]) -> list[FrameType]:
    """The frames of the library's functions that a call enters, in order. The call may end early by StopIteration."""
    frames: list[FrameType] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and ours(frame):
            frames.append(frame)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return frames


def walk_gpt2_step() -> list[str]:
    """The files that a step of a small GPT-2 runs through: loss, backward and AdamW's step, after two others.

    Compiled kernels are launched as a graph, plain ones are called.
    """
    import minigrad
    from minigrad.models import GPT2, GPT2Config
    from minigrad.optim import AdamW

    minigrad.set_num_threads(min(2, minigrad.get_num_threads()))
    model = GPT2(GPT2Config(vocab_size=65, block_size=32, n_layer=2, n_head=2, n_embd=64))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    x, y = minigrad.randint(0, 65, (4, 32)), minigrad.randint(0, 65, (4, 32))

    def step(x: minigrad.Tensor, y: minigrad.Tensor) -> None:
        optimizer.step(model.loss(x, y).backward())

    launched = step if os.environ["MINIGRAD_KERNELS"] == "plain" else minigrad.cuda.graphed(step)
    for _ in range(2):
        launched(x, y)
    return sorted({str(ours(frame)) for frame in calls_of(lambda: launched(x, y))})


def walk_cuda_matmul() -> dict[str, list[str]]:
    """A product on CUDA up to its launch: the functions on the way down, and the rooms that are entered again.

    A room is a file or a folder at the top of cuda_kernels. ``platform/`` does not count: every kernel makes its arrays
    there.
    """
    import minigrad

    a = minigrad.ones(4, 4).to("cuda")
    a @ a
    frames = calls_of(lambda: a @ a)
    launch = next(i for i, f in enumerate(frames) if f.f_code.co_name == "launch" and "launch.py" in str(ours(f)))
    hops: list[str] = []
    frame: FrameType | None = frames[launch]
    while frame is not None:
        if (name := ours(frame)) is not None:
            hops.append(f"{name}:{frame.f_code.co_name}")
        frame = frame.f_back
    entered: list[str] = []
    for called in frames[:launch]:
        parts = Path(str(ours(called))).with_suffix("").parts
        if parts[0] == "cuda_kernels" and parts[1] != "platform" and entered[-1:] != [parts[1]]:
            entered.append(parts[1])
    returns = [room for i, room in enumerate(entered) if room in entered[:i]]
    return {"hops": hops[::-1], "rooms": entered, "returns": returns}


def walk_backward_and_step() -> list[str]:
    """The classes whose methods ``BucketedTrainer.backward_and_step`` calls on the trainer and its step, in order."""
    import minigrad
    from minigrad.distributed import BucketedTrainer, ThreadCommunicator, TrainingConfig, run_threads

    def work(comm: ThreadCommunicator) -> list[str]:
        model = minigrad.nn.Linear(3, 2)
        model.weight.data[...] = 0.5  # on all ranks
        model.bias.data[...] = 0.5
        parameters = list(model.named_parameters())
        trainer = BucketedTrainer(TrainingConfig(), comm)
        step = lambda: trainer.backward_and_step(model(minigrad.ones(4, 3)).sum(), parameters)  # noqa: E731
        step()
        parts = [trainer, *(part for part in vars(trainer).values() if type(part).__name__ == "Step")]
        order: list[str] = []
        for frame in calls_of(step):
            part = next((part for part in parts if frame.f_locals.get("self") is part), None)
            name = "" if part is None else defining_class(type(part), frame.f_code)
            if name and order[-1:] != [name]:
                order.append(name)
        return order

    return run_threads(2, work)[0]


def defining_class(kind: type, code: CodeType) -> str:
    """The class among ``kind`` and its bases whose method this is, "" for functions within methods."""
    for cls in kind.__mro__:
        for member in vars(cls).values():
            function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
            if getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None) is code:
                return cls.__name__
    return ""


@functools.cache
def walk(name: str, **environment: str) -> Any:
    """What ``walk_<name>`` finds in a process of its own, with these environment variables."""
    command = [sys.executable, __file__, "--walk", name]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"walk_{name}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


# The table ------------------------------------------------------------------------------------------------------------

MEASURES: dict[str, Callable[[], int]] = {
    "core: files": lambda: len(core()),
    "core: lines of code": lambda: total(core()),
    "library: lines of code": lambda: total({*files(*SOURCES)} - {*files(*WINGS)}),
    "wings: lines of code": lambda: total(files(*WINGS)),
    "distributed: rooms": lambda: len(rooms("distributed")),
    "distributed: floors": lambda: floors("distributed"),
    "cuda_kernels: rooms": lambda: len(rooms("cuda_kernels")),
    "cuda_kernels: floors": lambda: floors("cuda_kernels"),
    "files of a plain GPT-2 step": lambda: len(walk("gpt2_step", MINIGRAD_KERNELS="plain", MINIGRAD_FAST="0")),
    "files of a fast GPT-2 step": lambda: len(walk("gpt2_step", MINIGRAD_KERNELS="", MINIGRAD_FAST="")),
    "CUDA product: hops": lambda: len(walk("cuda_matmul", NUMBA_ENABLE_CUDASIM="1")["hops"]),
    "CUDA product: returns": lambda: len(walk("cuda_matmul", NUMBA_ENABLE_CUDASIM="1")["returns"]),
    "class changes of backward_and_step": lambda: len(walk("backward_and_step")) - 1,
    "exceptions of the find-it rule": lambda: len(find_it_exceptions()),
    "circles between folders": lambda: len(circles_between_folders()),
    "circles of files": lambda: len(circles_of_files()),
    "tests: lines of code": lambda: total(files("tests")),
    "longest function": lambda: longest_function().lines,
    "most parameters": lambda: most_parameters().parameters,
}


def details() -> Iterator[str]:
    """What to look at first, where a measure is above its goal."""
    yield f"longest function: {longest_function()}"
    yield f"most parameters: {most_parameters()}"
    yield from (f"circle between folders: {', '.join(circle)}" for circle in circles_between_folders())
    yield from (f"circle of {len(circle)} files: {', '.join(circle)}" for circle in circles_of_files())
    yield from (f"exception of the find-it rule: {name}" for name in find_it_exceptions())
    yield f"CUDA product: {' > '.join(walk('cuda_matmul', NUMBA_ENABLE_CUDASIM='1')['hops'])}"
    yield f"backward_and_step: {' > '.join(walk('backward_and_step'))}"


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--walk"]:
        print(json.dumps(globals()[f"walk_{arguments[1]}"]()))
    elif arguments == ["--count"]:
        READING.write_text(counted(text(READING)), encoding="utf-8")
    else:
        print(f"{'measure':40} {'today':>7} {'limit':>7} {'goal':>7}")
        for name, measure in MEASURES.items():
            goal, limit, _ = BUDGETS[name]
            today = measure()
            print(f"{name:40} {today:7,} {limit:7,} {goal:7,}{'  above its goal' if today > goal else ''}")
        for line in details():
            print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
