"""The families of kernels for the rooms below them: ``families.elementwise.add(x, y)``.

The package sets ``find`` when it is imported, so that nothing here names what is above.
"""

from collections.abc import Callable
from typing import Any

find: Callable[[str], Any]


def __getattr__(name: str) -> Any:
    """The family of this name, imported when it is first used."""
    return globals()["find"](name)
