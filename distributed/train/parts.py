"""A step of ranks each of which has a part of the gradients: what is asked of all of them."""

import math
from collections.abc import Callable

import numpy as np

from minigrad import GradStore, Tensor
from minigrad.optim import GradScaler, NonFiniteGradientError, clip_grads_with_norm, grad_norm

from ..comm.communicator import Communicator, all_gather_rows
from .grad_sync import not_finite
from .step import Recorder, Step, Updater

Owned = Callable[[Tensor], bool]


class PartOfModelUpdater(Updater):
    """Clips by the norm of the whole model, of which each rank has some parameters; all ranks step together.

    ``owned(p)`` says whether this rank's gradient of ``p`` counts in the norm: for each number of the model exactly one
    rank must say so.
    """

    def __init__(self, communicator: Communicator, owned: Owned = lambda p: True) -> None:
        self._communicator, self._owned = communicator, owned

    def clip(self, step: Step, grads: GradStore, max_norm: float, params: list[Tensor]) -> float:
        """Clip to the norm over all ranks, and return it."""
        if self._communicator.world_size == 1:
            return super().clip(step, grads, max_norm, params)
        mine = grad_norm(grads, [p for p in params if self._owned(p)])
        norms = all_gather_rows(self._communicator, np.array([mine]))[:, 0].tolist()
        norm = math.hypot(*norms)
        if not math.isfinite(norm):
            told = not_finite(norms) or "too large for a float64"
            raise NonFiniteGradientError(f"the gradient norm is {told}; no weight was changed", norm)
        clip_grads_with_norm(grads, max_norm, norm, params)
        return norm


class PartOfModelRecorder(Recorder):
    """Finds that gradients overflowed where those of any rank did."""

    def __init__(self, communicator: Communicator) -> None:
        super().__init__()
        self._communicator = communicator

    def unscale(self, scaler: GradScaler, grads: GradStore) -> bool:
        """Unscale this rank's gradients; returns whether those of all ranks are finite."""
        mine = super().unscale(scaler, grads)
        return bool(all_gather_rows(self._communicator, np.array([mine])).all())
