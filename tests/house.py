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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("minigrad", "cuda_kernels", "distributed")
Graph = Mapping[str, set[str]]


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
        40_420,
        "a house is small if it has few lines; 1,000 are the plain kernels, 400 settings of the train command, groups "
        "of ranks, checkpoints beside training, flodl's checks, and what a GPU needs before its first day",
    ),
    "wings: lines of code": Budget(3_000, 3_000, "the course and the dashboard, which nothing below imports"),
    "distributed: rooms": Budget(6, 6, "what is met at a folder's top is what a user can name"),
    "distributed: floors": Budget(6, 6, "communicators, job, trainers, parts of models and mirrors"),
    "cuda_kernels: rooms": Budget(38, 38, "the families and the sub-folders"),
    "cuda_kernels: floors": Budget(9, 9, "from PTX to the families"),
    "files of a plain GPT-2 step": Budget(30, 38, "the way of a reader with a debugger"),
    "files of a fast GPT-2 step": Budget(35, 44, "the same, with the CPU's kernels and the fast plans"),
    "CUDA product: hops": Budget(9, 9, "functions on the way from a @ b to the launch"),
    "CUDA product: returns": Budget(0, 0, "a room that was left is not needed again"),
    "class changes of backward_and_step": Budget(3, 3, "a trainer is composed, so its step is read in one place"),
    "exceptions of the find-it rule": Budget(0, 0, "one name for a family in every folder"),
    "circles between folders": Budget(0, 0, "a room can be read without those above it"),
    "circles of files": Budget(1, 1, "Tensor and its methods: the price of explicit methods"),
    "tests: lines of code": Budget(32_000, 39_000, "tests are read, too; 500 are those of the same"),
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


def source_lines() -> int:
    """Lines of code of the library, without the wings."""
    wings = set(files(*WINGS))
    return sum(lines_of(path) for path in files(*SOURCES) if path not in wings)


def wing_lines() -> int:
    return sum(lines_of(path) for path in files(*WINGS))


def test_lines() -> int:
    return sum(lines_of(path) for path in files("tests"))


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

    total = sum(lines_of(ROOT / row["path"]) for row in ROW.finditer(page))
    count = len(ROW.findall(page))
    page = SUM.sub(lambda row: exact(row, total).replace(f"{row['files']} files", f"{count} files"), page)
    return ROW.sub(lambda row: exact(row, lines_of(ROOT / row["path"])), page)


def core_files() -> int:
    return len(core())


def core_lines() -> int:
    return sum(lines_of(path) for path in core())


# Imports --------------------------------------------------------------------------------------------------------------


def module_of(path: Path) -> str:
    """``distributed/comm/calls.py`` is ``minigrad.distributed.comm.calls``, as it is installed."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] != "minigrad":
        parts = ("minigrad", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, package: str) -> Iterator[tuple[str, str]]:
    """(module, name) of every import, lazy ones and those for type checkers too; the name is "" for ``import a``.

    A constant given to ``import_module`` counts as an import.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                yield module, alias.name
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value, ""


def is_face(path: Path) -> bool:
    """Whether a file only passes names on: under 40 lines, no function and no class."""
    body = ast.parse(text(path)).body
    defined = any(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) for node in body)
    return len(text(path).splitlines()) < 40 and not defined


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """For each module of the library the modules that it imports. A name that a face passes on is its home's."""
    paths = {module_of(path): path for path in files(*SOURCES)}
    wanted = {
        name: list(imported(text(path), name if path.name == "__init__.py" else name.rpartition(".")[0]))
        for name, path in paths.items()
    }
    faces = {name for name, path in paths.items() if path.name == "__init__.py"}

    def home(module: str, name: str) -> str | None:
        if f"{module}.{name}" in paths:
            return f"{module}.{name}"
        if name and module in faces:
            for passed, known in wanted[module]:
                if known == name and passed != module:
                    return home(passed, name)
        return module if module in paths else None

    graph = {}
    for name, pairs in wanted.items():
        graph[name] = {found for pair in pairs if (found := home(*pair)) is not None} - {name}
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """The groups of nodes that reach each other: strongly connected components of two and more (Tarjan, 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            start = stack.index(node)
            group = sorted(stack[start:])
            del stack[start:]
            if len(group) > 1:
                found.append(group)

    for node in graph:
        if node not in number:
            visit(node)
    return sorted(found)


# Rooms ----------------------------------------------------------------------------------------------------------------


def rooms(folder: str) -> dict[str, set[str]]:
    """The files and sub-folders at the top of a folder, each with those that it imports. Faces are no rooms."""
    top = module_of(ROOT / folder / "__init__.py")
    members = {module_of(path): path for path in files(folder)}

    def room(module: str) -> str | None:
        if module not in members:
            return None
        if module == top:
            return None if is_face(members[module]) else "__init__"
        first = module.removeprefix(f"{top}.").partition(".")[0]
        alone = members[module].parent == ROOT / folder
        return None if alone and is_face(members[module]) else first

    found: dict[str, set[str]] = defaultdict(set)
    for module, others in import_graph().items():
        here = room(module)
        if here is not None:
            found[here] |= {there for other in others if (there := room(other)) not in (None, here)}  # type: ignore[misc]
    return dict(found)


def room_count(folder: str) -> int:
    return len(rooms(folder))


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


TENSOR = "minigrad.tensor"  # and its methods: the one circle that explicit methods cost


def circles_between_folders() -> list[list[str]]:
    """Rooms that import each other, lazily or for type checkers too, without those of Tensor and its methods."""
    return [circle for folder in SOURCES for circle in circles(rooms(folder)) if "tensor" not in circle]


def circles_of_files() -> list[list[str]]:
    """Files that import each other, lazily or for type checkers too."""
    return circles(import_graph())


def find_it_exceptions() -> list[str]:
    """Families that not all kernel folders have, in a file or declared plain, and operations without a family."""
    ops, cpu, cuda = (
        {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}
        for folder in ("minigrad/ops", "minigrad/cpu_kernels", "cuda_kernels")
    )
    ops |= {path.parent.name for path in (ROOT / "minigrad/ops").glob("*/__init__.py")}
    cpu |= set(importlib.import_module("minigrad.cpu_kernels").PLAIN_ONLY)
    cuda |= set(importlib.import_module("minigrad.cuda_kernels").PLAIN_ONLY)
    return sorted((cpu ^ cuda) | (ops - cpu))


# Functions ------------------------------------------------------------------------------------------------------------

# The decorators of what Numba compiles: its length is that of straight-line arithmetic, its parameters are pointers.
COMPILERS = {"njit", "jit", "kernel", "task_kernel", "parallel_kernel", "device_function", "intrinsic", "overload"}
COMPILERS |= {"inline", "_device"}
# Signatures that mirror those of another library.
MIRRORED = {
    "minigrad/nn/functional.py:scaled_dot_product_attention": "PyTorch's",
    "distributed/job/rendezvous.py:init_process_group": "PyTorch's",
    "distributed/mirrors/entrenar/block_trainer.py:__init__": "entrenar's",
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

    def visit(node: ast.AST) -> Iterator[Shape | int]:
        """Shapes of the functions below, and the lengths of the outermost compiled ones."""
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from visit(child)
                continue
            names = {ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in child.decorator_list}
            if {name.rpartition(".")[2] for name in names} & COMPILERS:
                yield length(child)
                continue
            inside = list(visit(child))
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
    """The files that a step of a small GPT-2 runs through: loss, backward and AdamW's step, after two others."""
    import minigrad
    from minigrad.models import GPT2, GPT2Config
    from minigrad.optim import AdamW

    minigrad.set_num_threads(min(2, minigrad.get_num_threads()))
    model = GPT2(GPT2Config(vocab_size=65, block_size=32, n_layer=2, n_head=2, n_embd=64))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    x, y = minigrad.randint(0, 65, (4, 32)), minigrad.randint(0, 65, (4, 32))

    def step() -> None:
        optimizer.step(model.loss(x, y).backward())

    step()
    step()
    return sorted({str(ours(frame)) for frame in calls_of(step)})


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
    "core: files": core_files,
    "core: lines of code": core_lines,
    "library: lines of code": source_lines,
    "wings: lines of code": wing_lines,
    "distributed: rooms": lambda: room_count("distributed"),
    "distributed: floors": lambda: floors("distributed"),
    "cuda_kernels: rooms": lambda: room_count("cuda_kernels"),
    "cuda_kernels: floors": lambda: floors("cuda_kernels"),
    "files of a plain GPT-2 step": lambda: len(walk("gpt2_step", MINIGRAD_KERNELS="plain", MINIGRAD_FAST="0")),
    "files of a fast GPT-2 step": lambda: len(walk("gpt2_step", MINIGRAD_KERNELS="", MINIGRAD_FAST="")),
    "CUDA product: hops": lambda: len(walk("cuda_matmul", NUMBA_ENABLE_CUDASIM="1")["hops"]),
    "CUDA product: returns": lambda: len(walk("cuda_matmul", NUMBA_ENABLE_CUDASIM="1")["returns"]),
    "class changes of backward_and_step": lambda: len(walk("backward_and_step")) - 1,
    "exceptions of the find-it rule": lambda: len(find_it_exceptions()),
    "circles between folders": lambda: len(circles_between_folders()),
    "circles of files": lambda: len(circles_of_files()),
    "tests: lines of code": test_lines,
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
