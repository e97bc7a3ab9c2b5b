"""MeshTrainer: one model over all ranks of a Mesh, its optimizer's states shared by its replicas (ZeRO)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from minigrad import GradStore, Tensor, zeros_like
from minigrad.errors import check_int
from minigrad.optim import GradAccumulator, LrSchedule

from ..comm.calls import Work
from ..comm.communicator import all_gather_json, all_gather_rows
from ..comm.place import on_device
from ..train.buckets import DEFAULT_BUCKET_BYTES
from ..train.grad_sync import trained_of
from ..train.sharded_trainer import Shares, ShareUpdater
from ..train.train_kinds import Batch, TrainerConfig
from .mesh import Mesh, Part
from .trainers import PipelineParallelTrainer


class MeshTrainer(PipelineParallelTrainer):
    """Trains the parts of a model that ``Mesh.split`` made: data, pipeline and tensor parallelism together.

    ::

        mesh = Mesh(comm, data=2, pipeline=2, tensor=2)
        trainer = MeshTrainer(config, mesh.split(model), mesh, shard=1)
        for x, y in batches_of_this_replica:                # mesh.data.rank of mesh.data.world_size
            stats = trainer.step((x, y))

    All ranks of a replica pass the same batch, replicas their own, of any sizes. Loss, norm and update are those of one
    process with all samples, but for the order of sums.

    ``shard``: of the replicas' ranks that hold the same part of the model each keeps a share of the optimizer's states
    (1), and of the gradients too (2), as ``ShardedTrainer``'s stages. In 2 the gradients of each micro-batch are
    reduced, all but those of weights that two stages share. ``schedule``, ``pipeline_schedule`` and ``seed`` are as in
    PipelineParallelTrainer: each replica, stage, and part of the heads drops out by itself.

    ``state_dict`` and ``load_state_dict`` are collectives of all ranks, and speak of the whole model: with
    ``Part.whole_state`` a run goes on in any mesh, or in one process. For a rank that is gone or silent the others
    raise PeerLostError or CommTimeoutError, which name ranks of the dimension that waited. Raises, on all ranks,
    ValueError for another ``shard``: weights that are gathered when they are used (3) are ShardedTrainer's.
    """

    def __init__(
        self,
        config: TrainerConfig,
        part: Part,
        mesh: Mesh,
        *,
        shard: int = 0,
        schedule: LrSchedule | None = None,
        pipeline_schedule: str = "1f1b",
        seed: int = 0,
    ) -> None:
        with mesh.alike():
            if not isinstance(part, Part) or part.mesh is not mesh:
                raise TypeError("MeshTrainer: part is not what mesh.split(model) of this mesh returned")
            if check_int("shard", shard, 0, 3) == 3:
                raise ValueError("shard is 3, but stages keep their weights: take 0, 1, 2, or ShardedTrainer(stage=3)")
            if part.classes is not None and config.loss.name == "mse":
                raise ValueError("the loss is mse, which needs whole outputs, but the part's vocabulary is split")
        self.part: Part = part
        self.shard = shard
        super().__init__(config, part, mesh, schedule=schedule, pipeline_schedule=pipeline_schedule, seed=seed)
        self.split_classes: int | None = part.classes
        self._shares: Shares | None = None
        if shard and self._replicas > 1:
            self._shares = self._step.reducer = Shares(mesh.data, DEFAULT_BUCKET_BYTES, shard)
            self._step.updater = ShareUpdater(self._shares, mesh.world, self._counts)
        self._tied = [(tie, [p for p in params if p.requires_grad]) for tie, params in part.ties]
        tied = {p.id for _, params in self._tied for p in params}
        self._sent_early = [p for _, p in reversed(self._named) if p.requires_grad and p.id not in tied]

    @contextmanager
    def _naming_the_lost(self) -> Iterator[None]:
        yield  # the error names a rank of one dimension, which is no stage's number

    def _counts(self, p: Tensor) -> bool:
        return p.id not in self.part.repeated and super()._counts(p)

    # ------------------------------------------------------------------ gradients of micro-batches

    def _gradients(self, batch: Batch) -> tuple[GradStore, float, float]:
        if self.shard == 2 and self._shares is not None:  # before anything is sent
            self._shares.buckets(trained_of(self._shares.begin(self._step, self._named, 1.0)))
        self._sent = 0
        grads, loss, weight = super()._gradients(batch)
        while self._sent < self._rounds - 1:  # another replica has more micro-batches
            self._send(GradAccumulator(1))
        for tie, params in self._tied:
            rows = all_gather_rows(tie, np.array([grads.contains(p) for p in params], bool))
            for p in (p for p, there in zip(params, rows.T.tolist()) if any(there)):
                grad = grads.remove(p)
                tie.all_reduce(grad := zeros_like(p.detach()) if grad is None else grad)
                grads.insert(p, grad)
        return grads, loss, weight

    def _backward(self, weight: float, x: Tensor, y: Tensor, mean: GradAccumulator) -> list[Work]:
        sends = super()._backward(weight, x, y, mean)
        if mean.current_step < self._rounds:
            self._send(mean)
        return sends

    def _send(self, mean: GradAccumulator) -> None:
        """Reduce the gradients of a micro-batch, which is not the step's last."""
        self._sent += 1
        if self.shard == 2 and self._shares is not None:
            self._shares.reduce_now(mean, self._sent_early, self._weight / self._shares.unit)

    # ------------------------------------------------------------------ states of the whole model

    def state_dict(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What an exact resume needs beside the weights, of the whole model: as SimpleTrainer's."""
        shares = self._shares
        if shares is not None:
            shares.join_states(self._step, shares.manager)
        arrays, meta = super().state_dict()
        if shares is not None and shares.manager is not None:
            shares.optimizer_of(self._step)
        parts = all_gather_json(self._communicator, meta["optimizer"])
        groups = [group for part in parts for group in part["param_groups"]]
        trained = {name for group in groups for name in group["params"]}
        names = [name for name in self.part.order if name in trained]
        steps = {name: count for part in parts for name, count in part["steps"].items()}
        meta["optimizer"] |= {"steps": steps, "param_groups": [{**group, "params": names} for group in groups[:1]]}
        tensors = {key: on_device(array, self._communicator.device) for key, array in arrays.items()}
        return self.part.whole(tensors, 2), meta

    def load_state_dict(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Take over what ``state_dict``, or that of another trainer of the model, returned. ValueError, on all ranks,
        for what does not fit."""
        own = {name for name, p in self._named if p.requires_grad}
        mine = {}
        with self.part.mesh.alike():
            if strange := [key for key in arrays if key.split(".", 2)[-1] not in self.part.order]:
                raise ValueError(f"array {strange[0]!r} belongs to no parameter of the model")
            for key, array in arrays.items():
                if (name := key.split(".", 2)[-1]) in own:
                    layer, dim = self.part.cuts.get(name, (None, None))
                    mine[key] = array if layer is None else layer.cut(Tensor(array), dim).numpy()
            saved = dict(meta["optimizer"])
            saved["steps"] = {name: count for name, count in saved["steps"].items() if name in own}
            groups = saved["param_groups"] if own else []
            saved["param_groups"] = [{**g, "params": [n for n in g["params"] if n in own]} for g in groups]
            super().load_state_dict(mine, {**meta, "optimizer": saved})
