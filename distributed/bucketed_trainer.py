"""BucketedTrainer: the all-reduce runs while backward still computes (boostr's ``BucketedTrainer``)."""

from __future__ import annotations

from collections.abc import Callable

from minigrad.engine import BackwardHook
from minigrad.grad_store import GradStore, TensorId
from minigrad.optim import GradAccumulator
from minigrad.optim.grad_accumulator import check_weight
from minigrad.tensor import Tensor

from .buckets import GradientBucketManager
from .distributed_trainer import DistributedTrainer
from .params import Named, Params
from .simple_trainer import TrainingMetrics


class BucketedTrainer(DistributedTrainer):
    """A DistributedTrainer that calls ``backward`` itself, so that it can send a bucket as soon as it is full.

    ::

        metrics = trainer.backward_and_step(model.loss(x, y), model.named_parameters())

    ``step`` with gradients that are already there works as well, without the overlap.
    """

    def backward_and_step(self, loss: Tensor, params: Params, weight: float = 1.0) -> TrainingMetrics | None:
        """``loss.backward()`` and ``step`` in one; arguments, result and errors are those of ``step``.

        In the last micro-batch of a window each gradient is added to the window's sum and goes into its bucket as soon
        as it is final. The micro-batches before that only add up.
        """
        check_weight(weight)  # before anything is sent
        last = self._accumulator.current_step + 1 >= self.config.grad_accum_steps and not self._holding
        if self._communicator.world_size == 1 or not last:
            return self.step(params, self._backward(loss), loss.item(), weight)
        self._settle()
        named = self._agree(params, weight)
        return self._overlap(named, loss, loss.item, weight / self._weight_unit)

    def _overlap(self, named: Named, loss: Tensor, value: Callable[[], float], weight: float) -> TrainingMetrics | None:
        """``backward`` of a window's last micro-batch, whose buckets are sent meanwhile, and the end of the window."""
        buckets = self._bucket_manager(named)
        with self._dropping_on_error(buckets):
            self._backward(loss, _Filler(buckets, self._accumulator, weight))
            for _, p in reversed(named):  # those with gradients in earlier micro-batches only
                earlier = self._accumulator.pop(p)
                if earlier is not None:
                    buckets.mark_grad_ready(p.id, earlier)
            self._accumulator.add(GradStore(), value(), weight=weight)
        return self._reduce_and_update(named, buckets, 0.0)

    def _record_micro_batch(self, named: Named, loss: Tensor) -> None:
        last = self._accumulator.current_step + 1 >= self.config.grad_accum_steps
        if self._communicator.world_size == 1 or not last:
            super()._record_micro_batch(named, loss)
        else:
            self._overlap(named, loss, float, 1.0)

    def _backward(self, loss: Tensor, hook: BackwardHook | None = None) -> GradStore:
        return loss.backward(hook=hook)


class _Filler:
    """Told by ``backward`` about each finished gradient: adds the window's earlier ones, and fills the buckets."""

    def __init__(self, buckets: GradientBucketManager, accumulator: GradAccumulator, weight: float) -> None:
        self._buckets, self._accumulator, self._weight = buckets, accumulator, weight

    def on_leaf_grad_ready(self, id: TensorId, grad: Tensor) -> None:
        if id not in self._buckets or not self._weight:
            return
        kernels = grad.device.kernels
        if self._weight != 1.0:
            kernels.grad_norm.scale_([grad.data], self._weight)
        earlier = self._accumulator.pop(id)
        if earlier is not None:
            kernels.elementwise.add_into(grad.data, earlier.data)
        self._buckets.mark_grad_ready(id, grad)
