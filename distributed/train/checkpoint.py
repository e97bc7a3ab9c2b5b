"""Checkpoints of several ranks: rank 0 writes and reads, nobody goes on before it has, and all learn if it fails.

Replicas hold the same weights and moments, so one copy is enough and any number of ranks can go on from it. It reaches
the other ranks through the communicator: no shared disk is needed, and no rank can resume from another file.
AsyncCheckpointer writes the files beside the training (boostr's ``AsyncCheckpointer``).

A sharded checkpoint is written by all ranks, each of which has files of its own, into one folder that all of them see:

    rank 0   step [ copy ] step step step            rank 0 waits for the others' records,
               [ write model-rank-0-of-2 ]  [ wait ] [ state, manifest, rename ]
    rank 1   step [ copy ] step step step
               [ write model-rank-1-of-2, its record ]

Ranks that are gone leave a folder without a manifest, which is no checkpoint.
"""

import copy
import functools
import itertools
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import minigrad
from minigrad import serialization
from minigrad.files import durable, shares
from minigrad.files.durable import StrPath
from minigrad.files.safetensors_format import Arrays, encode
from minigrad.modes import Closing
from minigrad.nn import Module
from minigrad.serialization import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint

from ..comm.communicator import Communicator, all_gather_json, part_of
from ..comm.launchers import restarts
from ..comm.place import bytes_of, copied, on_device, on_host
from .distributed_trainer import DistributedTrainer
from .grad_sync import LATER, agree_on_values
from .sharded_trainer import Shares

Tensors = Mapping[str, Mapping[str, Any]]  # by file, then by name
Meta = Mapping[str, Any]  # what becomes JSON


def save_distributed_checkpoint(
    communicator: Communicator, folder: StrPath, tensors: Tensors, state: Meta, keep: int | None = 2,
    compare: bool = True,
) -> Path:  # fmt: skip
    """``minigrad.serialization.save_checkpoint`` by rank 0, whose arguments alone count; a collective of all ranks.

    What the trainer that made the last step with this ``communicator`` holds now must have the same bits on all ranks:
    its parameters, and what the optimizer keeps of them. Else all raise ReplicaMismatchError, which names rank and
    tensor, and nothing is saved. Buffers may differ. A program whose rank 0 alone has changed its weights, to save an
    average say, passes ``compare=False`` on all ranks.

    Returns the checkpoint's folder when it is safely on rank 0's disk. Raises CheckpointError on every rank if that
    failed; earlier checkpoints are then intact.
    """
    _compare(communicator, compare)
    return Path(by_rank_0(communicator, lambda: str(save_checkpoint(folder, tensors, state, keep)), "save", folder))


def _compare(communicator: Communicator, wanted: bool) -> None:
    if wanted and communicator.world_size > 1:
        agree_on_values(communicator, communicator._held(), f"{LATER}; compare=False saves it all the same")


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


def restore_random_state(communicator: Communicator, state: Meta) -> None:
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
    others CheckpointError, as does rank 0 where the system refused something."""
    failure: Exception | None = None
    value = None
    if communicator.rank == 0:
        try:
            value = work()
        except Exception as error:  # raised below, when the others know
            failure = error
    value, problem = all_gather_json(communicator, [value, None if failure is None else str(failure)])[0]
    if failure is not None and not isinstance(failure, OSError):
        raise failure
    if problem is not None:
        raise CheckpointError(f"rank 0 could not {what}: {problem}", Path(folder)) from failure
    return value


GONE = 2.0  # seconds in which the shares of ranks that are lost may still appear


class RankShare:
    """This rank's part of a checkpoint, on the host: on a CPU views, of a device arrays of their own.

    To make one is a collective of all ranks.
    """

    def __init__(
        self, folder: StrPath, model: Module, trainer: DistributedTrainer, state: Meta, keep: int | None
    ) -> None:
        if not isinstance(trainer, DistributedTrainer):
            text = "save what its state_dict gives with save_checkpoint, or save_distributed_checkpoint"
            raise TypeError(f"shares are those of a DistributedTrainer, not of a {type(trainer).__name__}; {text}")
        self.communicator: Communicator = trainer.communicator
        trainer.assert_replicas_identical(model.named_parameters())
        self.keep: int | None = keep
        self.hurried: threading.Event = threading.Event()
        """Set when nobody waits for the checkpoint any more."""
        params, whole, state = dict(model.named_parameters()), model.state_dict(), dict(state)

        def part(array: Any) -> Any:
            return array.reshape(-1)[slice(*part_of(array.size, trainer.communicator))]

        moments, state["trainer"] = trainer.state_dict(params.items(), part)
        pieces = trainer._step.reducer.pieces() if isinstance(trainer._step.reducer, Shares) else {}
        held = {name: pieces[p.id] for name, p in params.items() if p.id in pieces}
        raw = {name: held[name].data if name in held else part(x.data) for name, x in whole.items()}
        weights = {name: x.device.kernels.to_host(raw[name]) for name, x in whole.items()}
        named = {trainer.optimizer.name_of(p): p for group in trainer.optimizer.param_groups for p in group["params"]}
        # Beside the optimizer's there may be arrays of a window, in a world of one rank.
        likes = {key: named[key.split(".", 2)[2]] if key.startswith("optimizer.") else x for key, x in moments.items()}
        moments = {key: x if x.ndim == 1 else x.reshape(-1) for key, x in moments.items()}
        self.files: dict[str, tuple[Arrays, dict[str, str]]] = {
            file: (mine, {name: json.dumps(x.shape) for name, x in all_of.items()})
            for file, mine, all_of in (("model", weights, whole), ("trainer", moments, likes))
        }

        def begin() -> list[Any]:
            step = serialization.checked_step(state, keep)
            self.state: bytes = serialization.encode_state(state)
            return [step, str(serialization.temporary_folder(Path(folder).absolute(), step))]

        step, temporary = by_rank_0(trainer.communicator, begin, "save", folder)
        self.step: int = step
        self.temporary: Path = Path(temporary)

    def write(self) -> Path:
        """Write it; on rank 0 also what all others have written, as one checkpoint, when they have."""
        if self.communicator.rank == 0:
            return serialization.write_checkpoint(self.temporary, self.step, self.state, self._write_all, self.keep)
        self._wait_for(self.temporary, "rank 0 has begun")
        record = self._record(self.communicator.rank)
        durable.replace_file(record, [json.dumps(self._write_mine()).encode()])
        return record

    def result(self, writing: Future[Path]) -> Path:
        """The checkpoint's folder, when all ranks have written. CheckpointError on all of them if one could not."""
        while True:
            done = writing.done()
            failure = writing.exception() if done else None
            mine = [str(writing.result()) if done and failure is None else None, failure and str(failure)]
            told = all_gather_json(self.communicator, mine)
            if failed := [f"rank {rank}: {text}" for rank, (_, text) in enumerate(told) if text is not None]:
                self.hurried.set()
                raise CheckpointError("; ".join(failed), self.temporary.parent) from failure
            if all(path is not None for path, _ in told):
                return Path(told[0][0])
            time.sleep(0.01)

    def _write_mine(self) -> dict[str, tuple[int, str]]:
        name_of = functools.partial(shares.name_of, rank=self.communicator.rank, ranks=self.communicator.world_size)
        files = {name_of(stem): encode(*content) for stem, content in self.files.items()}
        return {name: durable.write_new_file(self.temporary / name, views) for name, views in files.items()}

    def _write_all(self, temporary: Path) -> dict[str, tuple[int, str]]:
        records = self._write_mine()
        for rank in range(1, self.communicator.world_size):
            self._wait_for(self._record(rank), f"rank {rank} has written its share")
            records |= {name: (size, sha) for name, (size, sha) in json.loads(self._record(rank).read_bytes()).items()}
            os.unlink(self._record(rank))
        return records

    def _record(self, rank: int) -> Path:
        return self.temporary / f"rank-{rank}.json"

    def _wait_for(self, path: Path, what: str) -> None:
        """Wait for a file or folder; as long as the communicator waits, but not for ranks that are known to be lost."""
        deadline = time.monotonic() + self.communicator.timeout
        while not path.exists():
            if self.communicator._error is not None or self.hurried.is_set():
                deadline = min(deadline, time.monotonic() + GONE)
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited in vain until {what}")
            time.sleep(0.005)


def save_sharded_checkpoint(
    folder: StrPath, model: Module, trainer: DistributedTrainer, state: Meta, keep: int | None = 2
) -> Path:
    """A checkpoint that each rank writes its share of; a collective of all ranks, which must see one ``folder``.

    The tensors are those of ``model`` and ``trainer``, ``state`` with ``trainer`` added. Of what a ShardedTrainer's
    ranks share, each writes what it has, without gathering; of what all have, an equal part. So it loads as any other:
    by any trainer, in any stage, on any number of ranks, also by ``minigrad.serialization.load_checkpoint``.

    Returns and raises as ``save_distributed_checkpoint``. ``folder``, ``state`` and ``keep`` of rank 0 alone count.
    """
    share = RankShare(folder, model, trainer, state, keep)
    with ThreadPoolExecutor(1, "checkpoint") as thread:
        return share.result(thread.submit(share.write))


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
        self._share: RankShare | None = None
        """Of the checkpoint that is being written, if all ranks write it."""

    def save(self, folder: StrPath, tensors: Tensors, state: Meta, keep: int | None = 2) -> None:
        """Begin ``minigrad.serialization.save_checkpoint`` of what the tensors hold now."""
        self.wait()
        copies = {file: {name: copied(x) for name, x in named.items()} for file, named in tensors.items()}
        self._writing = self._thread.submit(save_checkpoint, folder, copies, copy.deepcopy(dict(state)), keep)

    def save_distributed(
        self, communicator: Communicator, folder: StrPath, tensors: Tensors, state: Meta, keep: int | None = 2,
        compare: bool = True,
    ) -> None:  # fmt: skip
        """``save`` by rank 0, whose arguments alone count. A collective: what rank 0 raises, all ranks learn.

        They ``compare`` what they hold, as for ``save_distributed_checkpoint``."""
        _compare(communicator, compare)
        by_rank_0(communicator, lambda: self.save(folder, tensors, state, keep), "save", folder)

    def save_sharded(
        self, folder: StrPath, model: Module, trainer: DistributedTrainer, state: Meta, keep: int | None = 2
    ) -> None:
        """Begin ``save_sharded_checkpoint``; a collective, as are ``wait`` and ``close`` after it."""
        self.wait()
        self._share = RankShare(folder, model, trainer, state, keep)
        for mine, _ in self._share.files.values():
            mine.update({name: np.array(array) for name, array in mine.items() if array.base is not None})
        self._writing = self._thread.submit(self._share.write)

    def wait(self) -> Path | None:
        """Return the folder of the checkpoint that was saved last, when it is on the disk; None if none was begun since
        the last call.
        """
        writing, self._writing = self._writing, None
        share, self._share = self._share, None
        return None if writing is None else writing.result() if share is None else share.result(writing)

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.close()
        else:  # which goes on; the other ranks may never come
            if self._share is not None:
                self._share.hurried.set()
            self._thread.shutdown()

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
