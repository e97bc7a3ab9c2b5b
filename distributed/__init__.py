"""Data-parallel training: communicators, trainers and engines, for one process or many.

The folder ``distributed/`` is installed as ``minigrad.distributed``; the base install has no top-level ``distributed``,
which is the name of Dask's package.
"""

from .amp_trainer import AmpTrainer, MixedPrecisionConfig
from .auto_balance import AutoBalancer
from .block_config import DistributedTrainConfig
from .block_grads import BlockGradientSet, BlockLayout, PerBlockGradientAccumulator, shard_batches
from .block_trainer import BlockDistributedTrainer, NonFiniteBlockGradientError
from .bucketed_trainer import BucketedTrainer
from .buckets import CommHook, GradientBucketManager, all_reduce_hook
from .builder import DdpBuilder
from .calls import CommStats, ReduceOp, Work
from .checkpoint import (
    load_distributed_checkpoint,
    random_state,
    restore_random_state,
    save_distributed_checkpoint,
)
from .comm_errors import (
    CollectiveMismatchError,
    CommError,
    CommTimeoutError,
    CommunicatorBrokenError,
    PeerLostError,
    RendezvousError,
)
from .communicator import Communicator
from .compression import BFloat16Compression
from .coordinator import ReplicaStuckError
from .data_parallel import DataParallelTrainer
from .ddp import Ddp, DdpConfig
from .ddp_handle import DdpHandle, ReplicaFailedError
from .distributed_trainer import DistributedTrainer
from .el_che import ElChe
from .epoch_metrics import EpochMetrics, ReplicaEpoch
from .faults import Fault, FaultPlan, RankKilledError
from .fused_optimizer import FusedDistributedOptimizer, FusedOptimizerConfig
from .grad_sync import (
    ReplicaMismatchError,
    agree_on_settings,
    all_gather_bytes,
    all_reduce_grads,
    assert_replicas_identical,
    broadcast_params,
    mean_over_ranks,
)
from .mpi import MpiCommunicator  # mpi4py itself only when one is made
from .nccl import NcclCommunicator  # CuPy and NCCL themselves only when one is made
from .noop import NoOpCommunicator
from .parameter_server import AsyncParameterServer, ServerStats, StaleGradientError
from .pipeline_parallel import PipelineParallelTrainer
from .policies import AverageBackend, AveragingPolicy
from .rendezvous import Place, discover_place, init_process_group
from .replica_group import replica_communicators
from .replica_process import ProcessReplica
from .replica_threads import Replica
from .replicas import (
    ReplicaProtocol,
    ReplicaStep,
    ReplicaStepResult,
    ThreadReplica,
    compute_step,
)
from .simple_trainer import NonFiniteLossError, SimpleTrainer, TrainingConfig, TrainingMetrics
from .store import Store
from .tensor_layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from .tensor_parallel import TensorParallelTrainer
from .thread import ThreadCommunicator, run_threads
from .timeline import Event, EventKind, IdleGap, Timeline, TimelineSummary
from .train_kinds import LossKind, OptimizerKind, StepStats, TrainerConfig, TrainSample
from .trained_state import RunReport, TrainedState
from .trainer import HasGraph, Trainer
from .trainer_errors import (
    FinalStageDroppedReplyError,
    NoReplicasError,
    NoShardsError,
    NoStagesError,
    ReplicaDroppedReplyError,
    ReplicaError,
    ShardDroppedReplyError,
    StageDroppedReplyError,
    TrainerError,
    ZeroSamplesError,
)

__all__ = [
    # communicators
    "CommStats",
    "Communicator",
    "MpiCommunicator",
    "NcclCommunicator",
    "NoOpCommunicator",
    "ReduceOp",
    "ThreadCommunicator",
    "Work",
    "replica_communicators",
    "run_threads",
    # how ranks find each other
    "Place",
    "Store",
    "discover_place",
    "init_process_group",
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
    # gradients and parameters of several ranks
    "BFloat16Compression",
    "CommHook",
    "GradientBucketManager",
    "ReplicaMismatchError",
    "agree_on_settings",
    "all_gather_bytes",
    "all_reduce_grads",
    "all_reduce_hook",
    "assert_replicas_identical",
    "broadcast_params",
    "load_distributed_checkpoint",
    "mean_over_ranks",
    "random_state",
    "restore_random_state",
    "save_distributed_checkpoint",
    # replicas by hand, and one loop for one or several
    "Ddp",
    "DdpConfig",
    "HasGraph",
    # replicas whose loop is the builder's
    "AverageBackend",
    "AveragingPolicy",
    "DdpBuilder",
    "DdpHandle",
    "EpochMetrics",
    "Event",
    "EventKind",
    "IdleGap",
    "Replica",
    "ReplicaEpoch",
    "ReplicaFailedError",
    "ReplicaStuckError",
    "RunReport",
    "Timeline",
    "TimelineSummary",
    "TrainedState",
    # ranks that are not equally fast
    "AutoBalancer",
    "ElChe",
    # block by block
    "BlockDistributedTrainer",
    "BlockGradientSet",
    "BlockLayout",
    "DistributedTrainConfig",
    "NonFiniteBlockGradientError",
    "PerBlockGradientAccumulator",
    "shard_batches",
    # trainers
    "AmpTrainer",
    "BucketedTrainer",
    "DistributedTrainer",
    "FusedDistributedOptimizer",
    "FusedOptimizerConfig",
    "MixedPrecisionConfig",
    "NonFiniteLossError",
    "SimpleTrainer",
    "Trainer",
    "TrainingConfig",
    "TrainingMetrics",
    # replicas, stages and shards (atomr-accel-train's surface)
    "AsyncParameterServer",
    "ColumnParallelLinear",
    "DataParallelTrainer",
    "FinalStageDroppedReplyError",
    "LossKind",
    "NoReplicasError",
    "NoShardsError",
    "NoStagesError",
    "OptimizerKind",
    "PipelineParallelTrainer",
    "ProcessReplica",
    "ReplicaDroppedReplyError",
    "ReplicaError",
    "ReplicaProtocol",
    "ReplicaStep",
    "ReplicaStepResult",
    "RowParallelLinear",
    "ServerStats",
    "ShardDroppedReplyError",
    "StageDroppedReplyError",
    "StaleGradientError",
    "StepStats",
    "TensorParallelTrainer",
    "ThreadReplica",
    "TrainSample",
    "TrainerConfig",
    "TrainerError",
    "ZeroSamplesError",
    "VocabParallelEmbedding",
    "compute_step",
    "vocab_parallel_cross_entropy",
]
