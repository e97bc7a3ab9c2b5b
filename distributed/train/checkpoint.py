"""Checkpoints of several ranks: rank 0 writes and reads, nobody goes on before it has, and all learn if it fails.

Replicas hold the same weights and moments, so one copy is enough and any number of ranks can go on from it. It reaches
the other ranks through the communicator: no shared disk is needed, and no rank can resume from another file.
AsyncCheckpointer writes the files beside the training (boostr's ``AsyncCheckpointer``).
"""

import copy
import itertools
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import minigrad
from minigrad.files.durable import StrPath
from minigrad.modes import Closing
from minigrad.serialization import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint

from ..comm.communicator import Communicator, all_gather_json
from ..comm.launchers import restarts
from ..comm.place import bytes_of, copied, on_device, on_host

Tensors = Mapping[str, Mapping[str, Any]]  # by file, then by name


def save_distributed_checkpoint(
    communicator: Communicator, folder: StrPath, tensors: Tensors, state: Mapping[str, Any], keep: int | None = 2
) -> Path:
    """``minigrad.serialization.save_checkpoint`` by rank 0, whose arguments alone count; a collective of all ranks.

    Returns the checkpoint's folder when it is safely on rank 0's disk. Raises CheckpointError on every rank if that
    failed; earlier checkpoints are then intact.
    """

    return Path(by_rank_0(communicator, lambda: str(save_checkpoint(folder, tensors, state, keep)), "save", folder))


def load_distributed_checkpoint(communicator: Communicator, folder: StrPath, step: int | None = None) -> Checkpoint:
    """``minigrad.serialization.load_checkpoint`` by rank 0, sent to all; a collective of all ranks.

    ``folder`` and ``step`` of rank 0 alone count, and ``path`` of the result is one of its disk. Raises CheckpointError
    on every rank if rank 0 finds no checkpoint or a damaged one. A job that was started again (``restarts``) goes on
    from the newest whole one instead, and warns: nobody may be there to choose.
    """
    found: Checkpoint | None = None

    def load() -> dict[str, Any]:
        nonlocal found
        try:
            found = load_checkpoint(folder, step)
        except CheckpointError as error:
            if not restarts() or error.previous is None:
                raise
            warnings.warn(f"{error.args[0]}: going on from that one", RuntimeWarning, stacklevel=4)
            found = load_checkpoint(error.previous)
        arrays = {
            file: {name: [a.shape, a.dtype.name] for name, a in named.items()} for file, named in found.tensors.items()
        }
        return {"arrays": arrays, "state": found.state, "path": str(found.path), "step": found.step}

    content = by_rank_0(communicator, load, "load", folder)
    tensors: dict[str, dict[str, np.ndarray]] = {file: {} for file in content["arrays"]}
    for file, named in content["arrays"].items():
        for name, (shape, dtype) in named.items():
            array = np.empty(shape, dtype) if found is None else found.tensors[file][name]
            tensors[file][name] = from_rank(communicator, array)
    return Checkpoint(tensors, content["state"], Path(content["path"]), content["step"])


def random_state(communicator: Communicator) -> dict[str, Any]:
    """Every rank's default generator, as JSON values for a checkpoint; a collective of all ranks."""
    return {"generators": all_gather_json(communicator, minigrad.default_generator.state_dict())}


def restore_random_state(communicator: Communicator, state: Mapping[str, Any]) -> None:
    """Go on with the random numbers of ``random_state``.

    With as many ranks as then, each has its own again. A rank that did not exist then gets a seed that no other rank
    has, and the count of the rank that had drawn most. Raises ValueError for a state that is none.
    """
    generators = state.get("generators") if isinstance(state, Mapping) else None
    if not isinstance(generators, list) or not generators:
        raise ValueError(f"expected what random_state returned, got {state!r}")
    if communicator.rank < len(generators):
        minigrad.default_generator.load_state_dict(generators[communicator.rank])
        return
    taken = {generator["seed"] for generator in generators}
    free = (seed % 2**64 for seed in itertools.count(generators[0]["seed"] + 1) if seed % 2**64 not in taken)
    seed = next(itertools.islice(free, communicator.rank - len(generators), None))
    offset = max(generator["offset"] for generator in generators)
    minigrad.default_generator.load_state_dict({"seed": seed, "offset": offset})


def by_rank_0(communicator: Communicator, work: Callable[[], Any], what: str, folder: StrPath) -> Any:
    """The JSON value that ``work()`` of rank 0 returned, on all ranks. If it fails, rank 0 raises its error, and the
    others CheckpointError."""
    failure: Exception | None = None
    value = None
    if communicator.rank == 0:
        try:
            value = work()
        except Exception as error:  # raised below, when the others know
            failure = error
    value, problem = all_gather_json(communicator, [value, None if failure is None else str(failure)])[0]
    if failure is not None:
        raise failure
    if problem is not None:
        raise CheckpointError(f"rank 0 could not {what}: {problem}", Path(folder))
    return value


class AsyncCheckpointer(Closing):
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

    def save(self, folder: StrPath, tensors: Tensors, state: Mapping[str, Any], keep: int | None = 2) -> None:
        """Begin ``minigrad.serialization.save_checkpoint`` of what the tensors hold now."""
        self.wait()
        copies = {file: {name: copied(x) for name, x in named.items()} for file, named in tensors.items()}
        self._writing = self._thread.submit(save_checkpoint, folder, copies, copy.deepcopy(dict(state)), keep)

    def save_distributed(
        self,
        communicator: Communicator,
        folder: StrPath,
        tensors: Tensors,
        state: Mapping[str, Any],
        keep: int | None = 2,
    ) -> None:
        """``save`` by rank 0, whose arguments alone count. A collective: what rank 0 raises, all ranks learn."""

        by_rank_0(communicator, lambda: self.save(folder, tensors, state, keep), "save", folder)

    def wait(self) -> Path | None:
        """Return the folder of the checkpoint that was saved last, when it is on the disk; None if none was begun since
        the last call.
        """
        writing, self._writing = self._writing, None
        return None if writing is None else writing.result()

    def close(self) -> None:
        """Wait for the checkpoint that is being written, raise what stopped it, and write no more."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def from_rank(communicator: Communicator, array: np.ndarray, root: int = 0) -> np.ndarray:
    """Rank ``root``'s array on every rank, which passes one of that shape and dtype, whatever it is: as bytes."""
    tensor = on_device(bytes_of(array), communicator.device)
    communicator.broadcast(tensor, root)
    return on_host(tensor).view(array.dtype).reshape(array.shape)
