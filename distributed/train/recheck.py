"""A step whose gradient's norm is suspect is computed again from the batches it was made of.

The same batches give the same bits. If they do, batch or weights are the reason, and the fault is persistent: the step
is made. If they do not, a processor or memory failed for a moment: the second gradients are taken.

All ranks decide alike, by all ranks' norms and bits: one of them alone would wait for the others in a collective.
"""

import math
import statistics
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import minigrad
from minigrad.grad_store import GradStore
from minigrad.optim import grad_norm
from minigrad.tensor import Tensor

from ..comm.communicator import all_gather_json
from ..comm.place import on_host
from .step import Named, Step, Updater, merged, wanted_grads

SUSPECT = 10.0  # times the usual norm, the median of the steps before
STEPS = 20  # before, of which the norm is known; a quarter of them is enough


class Recheck(Updater):
    """Before ``updater`` gets gradients of a suspect norm, computes them again by ``loss_of(buffers, *batch)``."""

    def __init__(self, updater: Updater, loss_of: Callable[..., Tensor]) -> None:
        self.updater: Updater = updater
        self.loss_of: Callable[..., Tensor] = loss_of
        self._norms: deque[float] = deque(maxlen=STEPS)
        self._kept: list[tuple[Any, list[Tensor], float, dict[str, int]]] = []

    def keep(self, buffers: Any, batch: list[Tensor], weight: float, first: bool) -> None:
        """Remember a micro-batch, the ``first`` of its window or not, and what else its loss depends on."""
        one = (buffers, batch, weight, minigrad.default_generator.state_dict())
        self._kept = [*([] if first else self._kept), one]

    def clip_and_update(self, step: Step, named: Named, parts: Iterable[GradStore]) -> float | None:
        """As the updater's."""
        grads = merged(parts)
        norms, usual = _of_all_ranks(step, grad_norm(grads)), statistics.median(self._norms or [0.0])
        suspect = [norm for norm in norms if not norm <= SUSPECT * usual]
        overflow = step.precision.scaler is not None and not any(map(math.isfinite, norms))  # leaves the step out
        if len(self._norms) >= STEPS // 4 and suspect and not overflow:
            first = {id: on_host(grad).tobytes() for id, grad in grads.items()}
            grads = self._computed_again(step, named)
            equal = first == {id: on_host(grad).tobytes() for id, grad in grads.items()}
            same, norms = all(_of_all_ranks(step, equal)), _of_all_ranks(step, grad_norm(grads))
            warnings.warn(
                f"step {step.global_step + 1}: the gradient's norm was {suspect[0]:.3g}, usual is {usual:.3g}; "
                f"computed again it is {norms[0]:.3g}: the fault is {'persistent' if same else 'transient'}",
                RuntimeWarning,
                stacklevel=2,
            )
        reported = self.updater.clip_and_update(step, named, [grads])
        self._norms.extend([max(norms)] if all(map(math.isfinite, norms)) else [])
        return reported

    def _computed_again(self, step: Step, named: Named) -> GradStore:
        for buffers, batch, weight, before in self._kept:
            minigrad.default_generator.load_state_dict(before)
            loss = self.loss_of(buffers, *batch) if weight else None
            grads = GradStore() if loss is None else wanted_grads(step.backward(loss), named)
            step.accumulator.add(grads, 0.0 if loss is None else loss.item(), take=True, weight=weight)
        reduced = step.reducer.reduce(step, named)
        assert reduced is not None
        return merged(step.precision.unscale(reduced[0], step.recorder) or [])


def _of_all_ranks(step: Step, value: Any) -> list[Any]:
    comm = step.reducer.communicator
    return [value] if comm is None else all_gather_json(comm, value)
