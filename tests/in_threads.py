"""Tests whose body runs on every rank of a group of threads, and ranks that are threads without a group."""

import functools
import inspect
import socket
import threading
import time
from collections.abc import Callable, Iterable

from minigrad.distributed import run_threads

Test = Callable[..., None]


def in_threads(n: int | str, timeout: float = 30, **options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test on ``n`` ranks, or on as many as its argument of that name says, with its communicator first."""

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**arguments) -> None:
            ranks = arguments[n] if isinstance(n, str) else n
            run_threads(ranks, functools.partial(test, **arguments), timeout, **options)

        signature = inspect.signature(test)
        run.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
        return run

    return decorate


def outcomes(ranks: Iterable[int], fn, seconds: float = 60):
    """What ``fn(rank)`` returns or raises, by rank, each in a thread; TimeoutError for one that hangs."""
    out = {}

    def one(rank: int) -> None:
        try:
            out[rank] = fn(rank)
        except BaseException as error:
            out[rank] = error

    threads = {rank: threading.Thread(target=one, args=(rank,), daemon=True) for rank in ranks}
    for thread in threads.values():
        thread.start()
    for rank, thread in threads.items():
        thread.join(seconds)
        if thread.is_alive():
            out[rank] = TimeoutError(f"rank {rank} hangs")
    return {rank: out[rank] for rank in threads}


def good(out):
    """What the ranks returned, if none has raised; else raises that."""
    for value in out:
        if isinstance(value, BaseException):
            raise value
    return out


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Return as soon as the condition holds; AssertionError if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.001)


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
