"""GradAccumulator: the mean of the gradients of several micro-batches, as if they had been one batch."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import bad_value, check_float, check_int
from ..grad_arithmetic import scale_grads
from ..grad_store import GradStore, TensorId
from ..tensor import Tensor


class GradAccumulator:
    """Adds up gradients and losses over a window of ``accum_steps`` micro-batches and then returns their means.

    ::

        accumulator = GradAccumulator(4)
        for x, y in batches:
            loss = model(x, y)
            window = accumulator.accumulate(loss.backward(), loss.item())
            if window is not None:
                grads, mean_loss = window
                optimizer.step(grads)

    The sums are the accumulator's own memory, added to in place; the caller's gradients are only read. A parameter that
    has no gradient in a micro-batch counts there with zero. Raises ValueError unless accum_steps is an integer >= 1.
    """

    def __init__(self, accum_steps: int) -> None:
        self.accum_steps: int = check_int("accum_steps", accum_steps, 1)
        self.reset()

    def __repr__(self) -> str:
        return f"GradAccumulator({self.accum_steps}, {self.current_step} in the window)"

    def reset(self) -> None:
        """Drop what the present window has so far."""
        self._sums: dict[int, Tensor] = {}  # by the number of the id
        self._loss_sum = 0.0
        self.weight: float = 0.0
        """The sum of the weights of the present window's micro-batches."""
        self.current_step: int = 0
        """Micro-batches in the present window, 0 to accum_steps - 1."""

    def accumulate(
        self, grads: GradStore, loss: float, *, take: bool = False, weight: float = 1.0
    ) -> tuple[GradStore, float] | None:
        """Add a micro-batch; returns (mean gradients, mean loss) if it completes the window, else None.

        ``take=True`` says that the caller is done with ``grads``: its arrays are then kept and added to instead of
        copied, which spares a pass over memory. ``loss`` is a number or a tensor with one element. ``weight`` is what
        the micro-batch counts in the mean, such as the number of its samples; with weight 0 its loss and gradients are
        not looked at.

        Raises ValueError or TypeError for a gradient that does not fit the window's, before anything is changed.
        """
        return self.flush() if self.add(grads, loss, take=take, weight=weight) else None

    def add(self, grads: GradStore, loss: float, *, take: bool = False, weight: float = 1.0) -> bool:
        """``accumulate`` without ending the window; returns whether it is full. It may be added to all the same."""
        check_weight(weight)
        loss = float(loss)
        if not weight:
            grads = GradStore()  # of no samples: also a NaN, which times 0 would still be NaN
        arrays = [grad.data for grad in grads.values()]
        # What shares memory with another gradient, as an array or a view, must not be scaled or added to in place.
        take = take and len({*map(id, arrays)}) == len(arrays) and False not in [a.flags.owndata for a in arrays]
        new: dict[int, Tensor] = {}
        for number, grad in grads.numbered():
            total = self._sums.get(number)
            if total is None:
                new[number] = grad if take and grad.data.flags.c_contiguous else _copy(grad)
            elif (total.shape, total.dtype, total.device) != (grad.shape, grad.dtype, grad.device):
                had = f"in this window it had {total.shape}, {total.dtype}, on {total.device}"
                has = f"has shape {grad.shape}, {grad.dtype}, on {grad.device}"
                raise bad_value(f"the gradient of tensor {number} {has}; {had}")
        _scale(new.values(), weight)
        for number, total in self._sums.items():
            added = grads.get(TensorId(number))
            if added is not None:
                if weight != 1.0:
                    added = added if take else _copy(added)
                    _scale([added], weight)
                total.device.kernels.elementwise.add_into(total.data, added.data)
        self._sums.update(new)
        self._loss_sum += weight * loss if weight else 0.0
        self.weight += weight
        self.current_step += 1
        return self.current_step >= self.accum_steps

    def add_of(self, named: list[tuple[str, Tensor]], grads: GradStore, loss: float, weight: float) -> bool:
        """``add`` of a trainer, which is done with ``grads``; ``named`` are the parameters."""
        return self.add(grads, loss, take=True, weight=weight)

    def key_draws(self, step: int) -> None:
        """Called before each micro-batch of this optimizer step. A subclass may choose the random numbers of the
        micro-batch here (``TreeAccumulator`` does); this one leaves them as they are."""

    def pop(self, key: Tensor | TensorId) -> Tensor | None:
        """Take the sum of one tensor's gradients out of the window, for somebody who goes on with it, or None."""
        return self._sums.pop(key if isinstance(key, TensorId) else key._id, None)

    def flush(self) -> tuple[GradStore, float] | None:
        """End the window early: the means over the micro-batches that it has, or None if it has none.

        The gradients returned are the caller's; the next window starts empty. A window of weight 0 has no gradients,
        and the loss 0.
        """
        if self.current_step == 0:
            return None
        mean = GradStore(self._sums)
        weight = self.weight or 1.0
        _scale(self._sums.values(), 1.0 / weight)
        loss = self._loss_sum / weight
        self.reset()
        return mean, loss

    def state_dict(self, params: Iterable[Tensor | tuple[str, Tensor]]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The present window, copied: arrays for safetensors, and the rest as JSON.

        Ids mean nothing in another process, so ``params`` (tensors, or pairs (name, tensor)) tells how the gradients
        are called: by name, or by position. Raises ValueError if a gradient belongs to none of them.
        """
        names = {p._id: name for name, p in _named(params)}
        rest = [number for number in self._sums if number not in names]
        if rest:
            raise bad_value(f"the window has gradients of tensors {rest}, which are not among the {len(names)} params")
        arrays = {f"grad.{names[n]}": np.array(x.device.kernels.to_host(x.data)) for n, x in self._sums.items()}
        steps = {"accum_steps": self.accum_steps, "current_step": self.current_step}
        return arrays, {**steps, "loss_sum": self._loss_sum, "weight": self.weight}

    def load_state_dict(
        self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], params: Iterable[Tensor | tuple[str, Tensor]]
    ) -> None:
        """Go on with a window that ``state_dict`` returned.

        Raises ValueError, before anything is changed, if it does not fit.
        """
        steps = meta.get("accum_steps")
        if steps != self.accum_steps:
            raise bad_value(f"the saved window has accum_steps {steps!r}, this one {self.accum_steps}")
        count = check_int("current_step", meta.get("current_step"), 0, self.accum_steps - 1)
        for key in ("loss_sum", "weight"):
            check_float(key, meta.get(key), -math.inf)
        by_name = {f"grad.{name}": p for name, p in _named(params)}
        sums: dict[int, Tensor] = {}
        for key, array in arrays.items():
            p = by_name.get(key)
            if p is None:
                raise bad_value(f"array {key!r} belongs to none of the {len(by_name)} params")
            if array.shape != p.shape or array.dtype != p.dtype:
                raise bad_value(f"array {key!r} is {array.shape}, {array.dtype}; its parameter {p.shape}, {p.dtype}")
            sums[p._id] = Tensor.wrap(p.device.kernels.from_host(np.array(array, p.dtype, order="C")), p.device)
        self._sums, self.current_step = sums, count
        self._loss_sum, self.weight = float(meta["loss_sum"]), float(meta["weight"])


def check_weight(weight: Any) -> None:
    """Raise ValueError unless ``weight`` is a finite number >= 0."""
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise bad_value(f"weight is {weight!r}, expected a finite number >= 0, such as the number of samples")


def _copy(grad: Tensor) -> Tensor:
    return Tensor.wrap(grad.device.kernels.copy(grad.data), grad.device)


def _scale(grads: Iterable[Tensor], factor: float) -> None:
    if factor != 1.0:
        scale_grads(grads, factor)


def _named(params: Iterable[Tensor | tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    return [p if isinstance(p, tuple) else (str(i), p) for i, p in enumerate(params)]
