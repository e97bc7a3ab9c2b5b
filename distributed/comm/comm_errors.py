"""What can go wrong between ranks, one exception for each cause.

Every error names the operation, its sequence number, the rank that noticed, and the training step, and carries them as
attributes. After any of them the communicator refuses work: nobody knows any more what the others have received.
"""

from collections.abc import Sequence


class CommError(RuntimeError):
    """Base of the errors of communication.

    ``op`` is the operation's name, ``sequence`` its number among those of its communicator (from 1), and ``rank`` the
    rank that raised. ``step`` is the training step if a trainer told the communicator. ``ranks`` are the ranks that are
    to blame or are missing, as far as they are known.
    """

    def __init__(
        self, reason: str, *, op: str | None = None, sequence: int | None = None, rank: int | None = None,
        step: int | None = None, ranks: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.op = op
        self.sequence = sequence
        self.rank = rank
        self.step = step
        self.ranks: tuple[int, ...] = tuple(ranks)
        where = [] if op is None else [op if sequence is None else f"{op} (operation {sequence})"]
        where += [] if rank is None else [f"rank {rank}"]
        where += [] if step is None else [f"step {step}"]
        super().__init__(f"{', '.join(where)}: {reason}" if where else reason)


class RendezvousError(CommError):
    """The processes did not find each other: one is missing, or they disagree about the world."""


class CommTimeoutError(CommError, TimeoutError):
    """An operation did not end before its deadline: another rank is stalled, or never made the call."""


class PeerLostError(CommError, ConnectionError):
    """Another rank's process or thread is gone."""


class CollectiveMismatchError(CommError):
    """The ranks called different operations, or with other shapes, dtypes, roots or in another order."""


class CommunicatorBrokenError(CommError):
    """The communicator is closed, or an earlier operation failed; that error is the ``__cause__``."""
