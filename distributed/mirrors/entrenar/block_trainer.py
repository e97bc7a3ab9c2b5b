"""BlockDistributedTrainer: data parallelism block by block (entrenar's ``DistributedCudaTrainer``)."""

from __future__ import annotations

import os
from collections.abc import Callable

from minigrad.errors import check_int
from minigrad.nn import Module
from minigrad.optim import GradScaler, LrSchedule, Optimizer
from minigrad.tensor import Tensor

from ...comm.communicator import Communicator
from ...job.train_place import DistributedTrainConfig
from ...train.block_trainer import BlockTrainer
from ...train.blocks import BlockLayout
from ...train.buckets import CommHook, all_reduce_hook
from ...train.config import TrainingConfig
from ...train.step_log import StepLog

LossFn = Callable[..., Tensor]


class BlockDistributedTrainer(BlockTrainer):
    """Trains a model on several ranks; the gradients of a block are sent when its backward has ended.

    ::

        trainer = BlockDistributedTrainer(model, communicator, TrainingConfig(learning_rate=3e-4))
        for x, y in this_ranks_batches:
            metrics = trainer.train_batch(x, y)

    To make one is a collective of all ranks, which takes rank 0's weights and buffers to the others. Means are taken
    over the samples of all ranks, whatever each one has. After a step, floating buffers that the model saves are the
    ranks' mean, weighted alike, and the others their maximum: statistics and counts of batches. A step that fails
    changes no weight and no buffer.

    Args:
        model: on the communicator's device.
        communicator: of threads, MPI or NCCL, or NoOpCommunicator; where gradients are reduced they never leave its
            device.
        training: learning rate, clipping, and micro-batches per step.
        config: checked against the communicator; None: what the communicator says.
        optimizer, schedule, hook: as DistributedTrainer's.
        loss_fn: called with the batch's tensors; None: ``model.loss``. Returns the mean over the batch's samples.
        blocks: name of the ModuleList that holds the blocks; None: the only one.
        scaler: for gradients that pass through float16; a step that overflows on any rank is left out on all.
        log: rank 0 appends a JSON line to this file every ``log_every`` steps, with the global loss, the gradient norm,
            tokens (elements of the batch's last array) per second of all ranks, and the seconds of communication
            and those in which a rank waited for it, the largest of any rank, since the line before.
        max_steps: what ``reached_max_steps`` compares with; None: never reached.

    Raises ValueError for a configuration that contradicts the communicator.
    """

    def __init__(
        self,
        model: Module,
        communicator: Communicator,
        training: TrainingConfig | None = None,
        config: DistributedTrainConfig | None = None,
        optimizer: Optimizer | None = None,
        schedule: LrSchedule | None = None,
        *,
        loss_fn: LossFn | None = None,
        blocks: str | None = None,
        scaler: GradScaler | None = None,
        log: str | os.PathLike[str] | None = None,
        log_every: int = 1,
        max_steps: int | None = None,
        hook: CommHook = all_reduce_hook,
    ) -> None:
        place = (communicator.rank, communicator.world_size)
        if config is None:
            config = DistributedTrainConfig(place[1], place[0], backend=communicator.device.type)
        if (config.rank, config.world_size, config.backend) != (*place, communicator.device.type):
            raise ValueError(
                f"the configuration is that of rank {config.rank} of {config.world_size} with backend "
                f"{config.backend!r}, the communicator's that of rank {place[0]} of {place[1]} on {communicator.device}"
            )
        log_of_steps = StepLog(communicator, log, log_every)
        layout = BlockLayout.of(model, blocks)
        super().__init__(model, communicator, training, optimizer, schedule, layout=layout, log=log_of_steps, hook=hook)
        self.use(loss_fn, scaler)
        self.max_steps: int | None = None if max_steps is None else check_int("max_steps", max_steps, 1)
        self.dist_config: DistributedTrainConfig = config

    @property
    def is_coordinator(self) -> bool:
        """Whether this is rank 0."""
        return self.dist_config.is_coordinator

    @property
    def reached_max_steps(self) -> bool:
        """Whether ``max_steps`` steps have been made."""
        return self.max_steps is not None and self.global_step >= self.max_steps
