"""A plain family for a GPU's arrays: they are copied to the host, and what it returns is copied back."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .array import Array, from_host, to_host


class OnHost:
    """The functions of the plain family ``name``, but for those that write to their arguments."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._family: Any = getattr(importlib.import_module("minigrad.plain_kernels"), name)

    def __getattr__(self, function: str) -> Callable[..., Any]:
        compute = getattr(self._family, function)

        def run(*arguments: Any) -> Any:
            found = compute(*[to_host(x) if isinstance(x, Array) else x for x in arguments])
            if found is None:
                raise NotImplementedError(f"{self._name}.{function} writes in place, and the family is in PLAIN_ONLY")
            return tuple(map(_back, found)) if isinstance(found, tuple) else _back(found)

        return run


def _back(x: Any) -> Any:
    return from_host(np.asarray(x)) if isinstance(x, np.ndarray | np.generic) else x
