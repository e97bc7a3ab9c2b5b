"""Data-parallel training: communicators, trainers and engines, for one process or many.

The names are those of ``__init__.pyi``, which type checkers read; each is loaded from its room when it is first asked
for. The folder ``distributed/`` is installed as ``minigrad.distributed``; the base install has no top-level
``distributed``, which is the name of Dask's package.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from minigrad import hints

_HOMES = {
    alias.name: f"{__name__}.{node.module}"
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise hints.missing(__name__, name, __all__, f"module {__name__!r}")
    value = globals()[name] = hints.with_hints(getattr(import_module(_HOMES[name]), name), __name__)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
