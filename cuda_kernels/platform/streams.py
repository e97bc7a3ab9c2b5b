"""Streams and events: CuPy's, so that all libraries of a process mean the same ones.

What one stream is given happens in that order; other streams run beside it. An event marks a place in a stream, to wait
for and to take the time at. In the simulator everything has happened when a call returns.
"""

from __future__ import annotations

import time
from typing import Any

from . import memory, recording
from .language import SIMULATED, cupy


class _Awaited:
    handle: Any = None  # CuPy's stream or event

    def synchronize(self) -> None:
        """Wait until the stream is empty, or has come to the event."""
        recording.refuse(*recording.WAIT)
        if self.handle is not None:
            self.handle.synchronize()

    def query(self) -> bool:
        """Whether the stream is empty, or has come to the event."""
        return self.handle is None or bool(self.handle.done)


class Stream(_Awaited):
    """A queue of work on a device (default: the current one). Within ``with stream:`` kernels and copies go there.

    Memory that one stream still uses may be given to another when its tensor is freed: keep the tensor until
    ``wait_stream`` or ``synchronize``.
    """

    def __init__(self, device: int | None = None) -> None:
        self.device: int = memory.current_device() if device is None else device
        self._entered: list[memory.on_device] = []  # a stream may be entered again within itself
        if not SIMULATED:
            with memory.on_device(self.device):
                self.handle: Any = cupy.cuda.Stream(non_blocking=True)

    def __enter__(self) -> Stream:
        self._entered.append(memory.on_device(self.device))
        self._entered[-1].__enter__()
        if self.handle is not None:
            self.handle.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.handle is not None:
            memory.set_device(self.device)  # CuPy takes the stream from the current device, which operations change
            self.handle.__exit__(*exception)
        self._entered.pop().__exit__(*exception)

    def wait_event(self, event: Event) -> None:
        """Let what the stream is given from now on wait for ``event``."""
        if self.handle is not None:
            self.handle.wait_event(event.handle)

    def wait_stream(self, other: Stream) -> None:
        """Let what the stream is given from now on wait for what ``other`` was given until now."""
        self.wait_event(other.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Mark this place in the stream by an event (default: a new one)."""
        with memory.on_device(self.device):  # an event belongs to the device where it is made
            event = event or Event()
            event.record(self)
        return event


class Event(_Awaited):
    """A place in a stream. ``enable_timing`` allows ``elapsed_time``."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self._when: float | None = None
        if not SIMULATED:
            self.handle: Any = cupy.cuda.Event(disable_timing=not enable_timing)

    def record(self, stream: Stream | None = None) -> None:
        """Put the event at the end of a stream (default: the current one)."""
        self._when = time.perf_counter()
        if self.handle is not None:
            self.handle.record(None if stream is None else stream.handle)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to ``end``. RuntimeError if one was not recorded or does not take the time."""
        if not (self.enable_timing and end.enable_timing):
            raise RuntimeError("elapsed_time: both events need enable_timing=True")
        if self._when is None or end._when is None:
            raise RuntimeError("elapsed_time: both events must be recorded first")
        if self.handle is None:
            return (end._when - self._when) * 1e3
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(self.handle, end.handle))
