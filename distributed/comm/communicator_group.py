"""CommunicatorGroup: the ranks of a job as a block of data x pipeline x tensor."""

from __future__ import annotations

from minigrad.errors import check_int

from .communicator import Communicator


class CommunicatorGroup:
    """The communicators of a rank that is one of ``data`` x ``pipeline`` x ``tensor`` (boostr's ``CommunicatorGroup``).

    Rank (d, p, t) is number (d * pipeline + p) * tensor + t of ``world``. The attributes are communicators, those of
    one rank included:

        data      the ranks with this one's p and t, which hold the same part of the model
        pipeline  those with its d and t: the stages, in order
        tensor    those with its d and p: the parts of a stage's layers
        model     those with its d: the parts of one model

    To make one is a collective of all ranks. Raises ValueError for sizes that do not multiply to the world's.
    """

    def __init__(self, world: Communicator, *, data: int = 1, pipeline: int = 1, tensor: int = 1) -> None:
        for name, size in (("data", data), ("pipeline", pipeline), ("tensor", tensor)):
            check_int(name, size, 1)
        if data * pipeline * tensor != world.world_size:
            raise ValueError(f"{data} x {pipeline} x {tensor} ranks (data, pipeline, tensor) of {world.world_size}")
        stage, t = divmod(world.rank, tensor)
        d, p = divmod(stage, pipeline)
        self.world: Communicator = world
        self.data: Communicator = self._part(p * tensor + t)
        self.pipeline: Communicator = self._part(d * tensor + t)
        self.tensor: Communicator = self._part(stage)
        self.model: Communicator = self._part(d)

    def _part(self, color: int) -> Communicator:
        part = self.world.split(color)
        assert part is not None
        return part

    def close(self) -> None:
        """Close all but ``world``, whose owner closes it."""
        for part in (self.model, self.tensor, self.pipeline, self.data):
            part.close()
