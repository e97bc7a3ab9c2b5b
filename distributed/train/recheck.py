"""A step whose gradient's norm is suspect is computed again from the batches it was made of.

The same batches give the same bits. If they do, batch or weights are the reason, and the fault is persistent: the step
is made. If they do not, a processor or memory failed for a moment: the second gradients are taken.

All ranks decide alike, by all ranks' norms and bits: one of them alone would wait for the others in a collective.
"""

import math
import statistics
import warnings
from collections import deque
from collections.abc import Iterable
from typing import Any

import minigrad
from minigrad.grad_store import GradStore
from minigrad.optim import grad_norm
from minigrad.tensor import Tensor

from ..comm.communicator import all_gather_json
from ..comm.place import on_host
from .step import Gradients, Loss, Named, Step, merged

SUSPECT = 10.0  # times the usual norm, the median of the steps before
STEPS = 20  # before, of which the norm is known; a quarter of them is enough


class Recheck(Gradients):
    """Keeps what computes the losses of a window's micro-batches, and calls it again where the norm is suspect.

    Not of a window that was loaded unfinished: its first micro-batches were made elsewhere.
    """

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=STEPS)
        self._kept: list[tuple[Loss | None, float, bool, dict[str, int]]] = []

    def keep(self, step: Step, loss: Loss | None, weight: float) -> None:
        """Remember a micro-batch, and what else its loss depends on. ValueError for one that cannot be made again."""
        if isinstance(loss, Tensor) or (loss is None and weight):
            told = "calls what computes the loss again: backward_and_step(lambda: model.loss(x, y), params) works"
            raise ValueError(f"{step.name}: recheck=True {told}")
        state = minigrad.default_generator.state_dict()
        self._kept[step.accumulator.current_step :] = [(loss, weight, step.holding, state)]

    def of_window(self, step: Step, named: Named) -> tuple[Iterable[GradStore], float] | None:
        """As the base's, of which the second ones count if the first ones are suspect."""
        del self._kept[step.accumulator.current_step :]
        whole = len(self._kept) == step.accumulator.current_step
        if (means := super().of_window(step, named)) is None:
            return None
        grads, usual = merged(means[0]), statistics.median(self._norms or [0.0])
        wholes, norms = map(list, zip(*_of_all_ranks(step, [whole, grad_norm(grads)])))
        suspect = [norm for norm in norms if not norm <= SUSPECT * usual]
        overflow = step.precision.can_leave_out() and not any(map(math.isfinite, norms))
        if all(wholes) and len(self._norms) >= STEPS // 4 and suspect and not overflow:
            first = _bits(grads)
            if (again := self._computed_again(step, named)) is None:
                return None
            grads, means = merged(again[0]), again
            same, norms = all(_of_all_ranks(step, first == _bits(grads))), _of_all_ranks(step, grad_norm(grads))
            told = f"step {step.global_step + 1}: the gradient's norm was {suspect[0]:.3g}, usual is {usual:.3g}; "
            told += f"computed again it is {norms[0]:.3g}: the fault is {'persistent' if same else 'transient'}"
            warnings.warn(told, RuntimeWarning, stacklevel=5)  # the call of backward_and_step
        self._norms.extend([max(norms)] if all(map(math.isfinite, norms)) else [])
        return [grads], means[1]

    def _computed_again(self, step: Step, named: Named) -> tuple[Iterable[GradStore], float] | None:
        """The means of the kept micro-batches, after which all else is as it was."""
        generator, before = minigrad.default_generator, minigrad.default_generator.state_dict()
        unit, holding = step.reducer.unit, step.holding
        try:
            for loss, weight, step.holding, state in self._kept:
                generator.load_state_dict(state)
                if loss is None:
                    step.add(named, GradStore(), 0.0, weight)
                else:
                    step.compute(named, loss, weight)
            return super().of_window(step, named)
        finally:
            step.accumulator.reset()  # which has something where a loss failed
            generator.load_state_dict(before)
            step.reducer.unit, step.holding = unit, holding


def _bits(grads: GradStore) -> dict[Any, bytes]:
    return {id: on_host(grad).tobytes() for id, grad in grads.items()}


def _of_all_ranks(step: Step, value: Any) -> list[Any]:
    comm = step.reducer.communicator
    return [value] if comm is None else all_gather_json(comm, value)
