"""Tests whose body runs on every rank of a group of threads."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from minigrad.distributed import run_threads

Test = Callable[..., None]


def in_threads(
    n: int | str, timeout: float = 30, **options: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test on ``n`` ranks, or on as many as its argument of that name says, with its communicator first."""

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**arguments: Any) -> None:
            run_threads(
                arguments[n] if isinstance(n, str) else n, functools.partial(test, **arguments), timeout, **options
            )

        signature = inspect.signature(test)
        run.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
        return run

    return decorate
