"""Which functions of the library each test runs, for ``mutation_check.py``: a plugin of pytest.

``RECORD_CALLS=FOLDER pytest --all -p record_calls`` leaves a file of each process in the folder. The library is read
with one statement more in each function, which notes the call; compiled kernels are left as they are. A process that a
test starts finds this file as its ``sitecustomize``, and what it runs counts for the test.
"""

import ast
import atexit
import builtins
import importlib.machinery
import json
import os
import shutil
import uuid
from collections import defaultdict
from pathlib import Path
from types import CodeType

ROOT = os.environ.setdefault("RECORD_ROOT", str(Path(__file__).resolve().parents[1]))  # this file has copies
SOURCES = tuple(f"{ROOT}/{name}/" for name in ("minigrad", "distributed", "cuda_kernels"))
FOLDER = Path(os.environ["RECORD_CALLS"]).resolve()

names: list[str] = []  # ``path:line`` of each function
seen = builtins.__seen__ = bytearray(50_000)  # whether it was called since a test began
calls: dict[str, list[str]] = defaultdict(list)  # the tests that run a function
seconds: dict[str, float] = defaultdict(float)  # of each test; infinite if it did not pass
short: list[str] = []  # the tests of the short set
get_code = importlib.machinery.SourceFileLoader.get_code


def noting(loader: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
    """``SourceFileLoader.get_code``, whose functions note that they are called."""
    path = loader.get_filename(name)
    if not path.startswith(SOURCES):
        return get_code(loader, name)
    tree = ast.parse(loader.get_data(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not (
            "_kernels/" in path and (node.decorator_list or "/toolbox/" in path or "/memory/" in path)
        ):
            note = ast.parse(f"__seen__[{len(names)}] = 1").body[0]
            node.body.insert(int(ast.get_docstring(node) is not None), ast.copy_location(note, node.body[-1]))
            names.append(f"{os.path.relpath(path, ROOT)}:{min(x.lineno for x in [node, *node.decorator_list])}")
    return compile(ast.fix_missing_locations(tree), path, "exec")


importlib.machinery.SourceFileLoader.get_code = noting


def pytest_runtest_logfinish(nodeid):
    at = seen.find(1)
    while at >= 0:
        calls[names[at]].append(nodeid)
        at = seen.find(1, at + 1)


def pytest_sessionfinish():
    if calls:
        (FOLDER / f"{uuid.uuid4()}.json").write_text(json.dumps({"calls": calls, "seconds": seconds, "short": short}))


def pytest_configure(config):
    (found := FOLDER / "path").mkdir(parents=True, exist_ok=True)
    shutil.copy(__file__, found / "sitecustomize.py")
    os.environ["PYTHONPATH"] = f"{found}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"


def pytest_collection_modifyitems(items):
    import short_set

    short[:] = [item.nodeid for item in short_set.short(items)]


def pytest_runtest_logstart():
    seen[:] = bytes(len(seen))


def pytest_runtest_logreport(report):
    seconds[report.nodeid] += report.duration if report.outcome == "passed" else float("inf")


if __name__ == "sitecustomize" and (test := os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]):
    atexit.register(lambda: (pytest_runtest_logfinish(test), pytest_sessionfinish()))
