"""What ``minigrad.distributed`` offers, and where it is: for type checkers, and for ``__init__.py``, which loads it."""

from .comm.calls import CommStats as CommStats, ReduceOp as ReduceOp, Work as Work
from .comm.comm_errors import (
    CollectiveMismatchError as CollectiveMismatchError,
    CommError as CommError,
    CommTimeoutError as CommTimeoutError,
    CommunicatorBrokenError as CommunicatorBrokenError,
    PeerLostError as PeerLostError,
    RendezvousError as RendezvousError,
)
from .comm.communicator import (
    Communicator as Communicator,
    CommunicatorGroup as CommunicatorGroup,
    NoOpCommunicator as NoOpCommunicator,
    all_gather_bytes as all_gather_bytes,
)
from .comm.launchers import Place as Place, discover_place as discover_place, restarts as restarts
from .comm.mpi.mpi import MpiCommunicator as MpiCommunicator
from .comm.nccl.nccl import NcclCommunicator as NcclCommunicator
from .comm.threads.faults import Fault as Fault, FaultPlan as FaultPlan, RankKilledError as RankKilledError
from .comm.threads.thread import ThreadCommunicator as ThreadCommunicator, run_threads as run_threads
from .job.rendezvous import DistributedTrainConfig as DistributedTrainConfig, init_process_group as init_process_group
from .job.store import Store as Store
from .mirrors.atomr.data_parallel import DataParallelTrainer as DataParallelTrainer
from .mirrors.atomr.parameter_server import (
    AsyncParameterServer as AsyncParameterServer,
    RemoteParameterServer as RemoteParameterServer,
    ServerStats as ServerStats,
    StaleGradientError as StaleGradientError,
)
from .mirrors.atomr.replicas import (
    ProcessReplica as ProcessReplica,
    RankReplicas as RankReplicas,
    ReplicaProtocol as ReplicaProtocol,
    ReplicaStep as ReplicaStep,
    ReplicaStepResult as ReplicaStepResult,
    ThreadReplica as ThreadReplica,
    compute_step as compute_step,
    serve_replica as serve_replica,
)
from .mirrors.flodl.builder import DdpBuilder as DdpBuilder
from .mirrors.flodl.coordinator import ReplicaStuckError as ReplicaStuckError
from .mirrors.flodl.ddp import Ddp as Ddp, DdpConfig as DdpConfig
from .mirrors.flodl.el_che import AutoBalancer as AutoBalancer, ElChe as ElChe
from .mirrors.flodl.policies import (
    ApplyPolicy as ApplyPolicy,
    AverageBackend as AverageBackend,
    AveragingPolicy as AveragingPolicy,
)
from .mirrors.flodl.replica_group import replica_communicators as replica_communicators
from .mirrors.flodl.replica_threads import (
    DdpHandle as DdpHandle,
    Replica as Replica,
    ReplicaFailedError as ReplicaFailedError,
    record_scalar as record_scalar,
)
from .mirrors.flodl.timeline import (
    Event as Event,
    EventKind as EventKind,
    IdleGap as IdleGap,
    Timeline as Timeline,
    TimelineSummary as TimelineSummary,
)
from .mirrors.flodl.trained_state import RunReport as RunReport, TrainedState as TrainedState
from .mirrors.flodl.trainer import HasGraph as HasGraph, Trainer as Trainer
from .mirrors.flodl.workload import EpochMetrics as EpochMetrics, ReplicaEpoch as ReplicaEpoch
from .parallel.mesh import Mesh as Mesh, Part as Part, Split as Split
from .parallel.mesh_trainer import MeshTrainer as MeshTrainer
from .parallel.tensor_layers import (
    ColumnParallelLinear as ColumnParallelLinear,
    RowParallelLinear as RowParallelLinear,
    VocabParallelEmbedding as VocabParallelEmbedding,
    vocab_parallel_cross_entropy as vocab_parallel_cross_entropy,
)
from .parallel.trainers import (
    PipelineParallelTrainer as PipelineParallelTrainer,
    TensorParallelTrainer as TensorParallelTrainer,
)
from .train.amp_trainer import AmpTrainer as AmpTrainer, MixedPrecisionConfig as MixedPrecisionConfig
from .train.block_trainer import BlockDistributedTrainer as BlockDistributedTrainer
from .train.blocks import BlockLayout as BlockLayout, NonFiniteBlockGradientError as NonFiniteBlockGradientError
from .train.buckets import (
    BFloat16Compression as BFloat16Compression,
    CommHook as CommHook,
    GradientBucketManager as GradientBucketManager,
    all_reduce_hook as all_reduce_hook,
)
from .train.checkpoint import (
    AsyncCheckpointer as AsyncCheckpointer,
    load_distributed_checkpoint as load_distributed_checkpoint,
    random_state as random_state,
    restore_random_state as restore_random_state,
    save_distributed_checkpoint as save_distributed_checkpoint,
    save_sharded_checkpoint as save_sharded_checkpoint,
)
from .train.config import (
    NonFiniteLossError as NonFiniteLossError,
    TrainingConfig as TrainingConfig,
    TrainingMetrics as TrainingMetrics,
)
from .train.distributed_trainer import (
    BucketedTrainer as BucketedTrainer,
    DistributedTrainer as DistributedTrainer,
    FusedDistributedOptimizer as FusedDistributedOptimizer,
    FusedOptimizerConfig as FusedOptimizerConfig,
)
from .train.grad_sync import (
    ReplicaMismatchError as ReplicaMismatchError,
    agree_on_settings as agree_on_settings,
    all_reduce_grads as all_reduce_grads,
    assert_replicas_identical as assert_replicas_identical,
    broadcast_params as broadcast_params,
    mean_over_ranks as mean_over_ranks,
    shard_batches as shard_batches,
)
from .train.sharded_trainer import (
    ShardedTrainer as ShardedTrainer,
    Zero2Trainer as Zero2Trainer,
    Zero3Trainer as Zero3Trainer,
    ZeroTrainer as ZeroTrainer,
)
from .train.simple_trainer import SimpleTrainer as SimpleTrainer
from .train.train_kinds import (
    LossKind as LossKind,
    OptimizerKind as OptimizerKind,
    StepStats as StepStats,
    TrainerConfig as TrainerConfig,
    TrainSample as TrainSample,
)
from .train.trainer_errors import (
    FinalStageDroppedReplyError as FinalStageDroppedReplyError,
    NoReplicasError as NoReplicasError,
    NoShardsError as NoShardsError,
    NoStagesError as NoStagesError,
    ReplicaDroppedReplyError as ReplicaDroppedReplyError,
    ReplicaError as ReplicaError,
    ShardDroppedReplyError as ShardDroppedReplyError,
    StageDroppedReplyError as StageDroppedReplyError,
    TrainerError as TrainerError,
    ZeroSamplesError as ZeroSamplesError,
)
