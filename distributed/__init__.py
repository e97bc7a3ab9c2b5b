"""Data-parallel training: communicators, trainers and engines, for one process or many.

The folder ``distributed/`` is installed as ``minigrad.distributed``; the base install has no top-level ``distributed``,
which is the name of Dask's package.
"""

from .comm_errors import (
    CollectiveMismatchError,
    CommError,
    CommTimeoutError,
    CommunicatorBrokenError,
    PeerLostError,
    RendezvousError,
)
from .communicator import CommStats, Communicator, NoOpCommunicator, ReduceOp, Work
from .faults import Fault, FaultPlan, RankKilledError
from .simple_trainer import NonFiniteLossError, SimpleTrainer, TrainingConfig, TrainingMetrics
from .thread import ThreadCommunicator, run_threads

__all__ = [
    # communicators
    "CommStats",
    "Communicator",
    "NoOpCommunicator",
    "ReduceOp",
    "ThreadCommunicator",
    "Work",
    "run_threads",
    # what can go wrong between ranks
    "CollectiveMismatchError",
    "CommError",
    "CommTimeoutError",
    "CommunicatorBrokenError",
    "Fault",
    "FaultPlan",
    "PeerLostError",
    "RankKilledError",
    "RendezvousError",
    # trainers
    "NonFiniteLossError",
    "SimpleTrainer",
    "TrainingConfig",
    "TrainingMetrics",
]
