"""BucketedTrainer: the all-reduce runs while backward still computes (boostr's ``BucketedTrainer``)."""

from __future__ import annotations

from minigrad.optim.grad_accumulator import check_weight
from minigrad.tensor import Tensor

from .config import TrainingMetrics
from .distributed_trainer import DistributedTrainer
from .params import Params
from .reducers import Overlapped


class BucketedTrainer(DistributedTrainer):
    """A DistributedTrainer that calls ``backward`` itself, so that it can send a bucket as soon as it is full.

    ::

        metrics = trainer.backward_and_step(model.loss(x, y), model.named_parameters())

    ``step`` with gradients that are already there works as well, without the overlap.
    """

    _reducer = Overlapped

    def backward_and_step(self, loss: Tensor, params: Params, weight: float = 1.0) -> TrainingMetrics | None:
        """``loss.backward()`` and ``step`` in one; arguments, result and errors are those of ``step``.

        In the last micro-batch of a window the gradients are sent while backward still computes.
        """
        check_weight(weight)  # before anything is sent
        return self._step.backward_and_take(params, loss, weight)
