"""What can go wrong between a trainer and its workers, one exception for each cause, with atomr-accel-train's words.

After any of them no weight has changed.
"""


class TrainerError(RuntimeError):
    """Base of the errors of the trainers that mirror atomr-accel-train's.

    ``rank`` is the replica, stage or shard to blame, where that is known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank: int | None = rank


class NoReplicasError(TrainerError):
    """There is nobody to give the batch to; call ``set_replicas``."""


class ReplicaDroppedReplyError(TrainerError):
    """A replica's thread or process is gone, or has not answered within the deadline."""


class ReplicaError(TrainerError):
    """A replica's own exception, forwarded: ``kind`` is its type's name, ``trace`` its traceback as text.

    The exception itself is the ``__cause__`` where the replica lives in this process.
    """

    def __init__(self, message: str, rank: int | None = None, kind: str = "", trace: str = "") -> None:
        super().__init__(message, rank)
        self.kind = kind
        self.trace = trace

    @classmethod
    def of(cls, rank: int, error: BaseException) -> "ReplicaError":
        """The error for what a replica raised, perhaps itself one that was forwarded from another rank."""
        kind, trace = type(error).__name__, ""
        if isinstance(error, ReplicaError):
            kind, trace = error.kind, error.trace
        return cls(f"replica {rank} raised {kind}: {error}; no weight was changed", rank, kind, trace)


class ZeroSamplesError(TrainerError):
    """The batch, or what the replicas made of it, has no samples, so there is no mean."""


class NoStagesError(TrainerError):
    """A rank of a pipeline has no stage."""


class StageDroppedReplyError(TrainerError):
    """A stage is gone or silent, in forward, in backward, or before the update."""


class FinalStageDroppedReplyError(StageDroppedReplyError):
    """The last stage is, the one that computes the loss."""


class NoShardsError(TrainerError):
    """The model has no layer that is split over the ranks."""


class ShardDroppedReplyError(TrainerError):
    """A rank that holds a part of the layers is gone or silent."""
