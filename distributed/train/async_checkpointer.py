"""AsyncCheckpointer: checkpoints whose files are written beside the training (boostr's ``AsyncCheckpointer``)."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from minigrad.serialization import save_checkpoint
from minigrad.tensor import Tensor

from ..comm.communicator import Communicator
from ..comm.place import on_host
from .checkpoint import by_rank_0


class AsyncCheckpointer:
    """Saves in a thread what it has copied to the host; one checkpoint at a time.

    ::

        with AsyncCheckpointer() as checkpoints:
            for x, y in batches:
                ...
                if trainer.global_step % 100 == 0:
                    arrays, meta = trainer.state_dict(model.named_parameters())
                    tensors = {"model": model.state_dict(), "trainer": arrays}
                    checkpoints.save(folder, tensors, {"step": trainer.global_step, "trainer": meta})

    ``save`` returns when the values are copied. Every call waits first for the checkpoint before it, and raises the
    CheckpointError of its writing; so does the end of the ``with`` block.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[Path] | None = None

    def save(
        self,
        folder: str | os.PathLike[str],
        tensors: Mapping[str, Mapping[str, Any]],
        state: Mapping[str, Any],
        keep: int | None = 2,
    ) -> None:
        """Begin ``minigrad.serialization.save_checkpoint`` of what the tensors hold now."""
        self.wait()
        copies = {file: {name: _copied(x) for name, x in named.items()} for file, named in tensors.items()}
        self._writing = self._thread.submit(save_checkpoint, folder, copies, copy.deepcopy(dict(state)), keep)

    def save_distributed(
        self,
        communicator: Communicator,
        folder: str | os.PathLike[str],
        tensors: Mapping[str, Mapping[str, Any]],
        state: Mapping[str, Any],
        keep: int | None = 2,
    ) -> None:
        """``save`` by rank 0, whose arguments alone count. A collective: what rank 0 raises, all ranks learn."""

        def save() -> dict[str, Any]:
            self.save(folder, tensors, state, keep)
            return {}

        by_rank_0(communicator, save, "save", folder)

    def wait(self) -> Path | None:
        """Return the folder of the checkpoint that was saved last, when it is on the disk; None if none was begun since
        the last call.
        """
        writing, self._writing = self._writing, None
        return None if writing is None else writing.result()

    def __enter__(self) -> AsyncCheckpointer:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def _copied(x: Any) -> np.ndarray:
    return np.array(on_host(x.detach()) if isinstance(x, Tensor) else x)
