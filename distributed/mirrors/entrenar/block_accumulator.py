"""entrenar's ``PerBlockGradientAccumulator``."""

from __future__ import annotations

from minigrad.grad_store import GradStore
from minigrad.optim import GradAccumulator

from ...train.blocks import BlockGradientSet, BlockLayout


class PerBlockGradientAccumulator(GradAccumulator):
    """A GradAccumulator that shows the sums of its window block by block."""

    def __init__(self, layout: BlockLayout, accum_steps: int = 1) -> None:
        super().__init__(accum_steps)
        self.layout = layout

    @property
    def accumulated_count(self) -> int:
        """Micro-batches in the present window (entrenar's name for ``current_step``)."""
        return self.current_step

    def block_grads(self) -> list[BlockGradientSet]:
        """The sums, in the layout's order and shared with the window; groups without any gradient are left out."""
        return self.layout.sets(GradStore(self._sums.copy()))

    def has_non_finite(self) -> bool:
        """Whether any sum holds an infinity or NaN."""
        return any(one.has_non_finite() for one in self.block_grads())

    def average(self) -> None:
        """Divide sums and loss by the weight of the window, which then has the weight 1: a second call does nothing."""
        if self._weight in (0.0, 1.0):
            return
        for one in self.block_grads():
            one.scale(1.0 / self._weight)
        self._loss_sum, self._weight = self._loss_sum / self._weight, 1.0
