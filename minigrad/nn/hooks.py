"""Functions that are called whenever a module is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

_ids = itertools.count()


class RemovableHandle:
    """Takes a hook back: by ``remove()``, or at the end of a ``with`` block."""

    def __init__(self, hooks: dict[int, Callable[..., Any]], hook: Callable[..., Any]) -> None:
        self._hooks, self._id = hooks, next(_ids)
        hooks[self._id] = hook

    def remove(self) -> None:
        """Forget the hook; again is no error."""
        self._hooks.pop(self._id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.remove()
