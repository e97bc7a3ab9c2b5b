"""GradAccumulator: the mean of the gradients of several micro-batches, as if they had been one batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

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
        if isinstance(accum_steps, bool) or not isinstance(accum_steps, int) or accum_steps < 1:
            raise ValueError(f"accum_steps is {accum_steps!r}, expected an integer >= 1")
        self._accum_steps = accum_steps
        self.reset()

    def reset(self) -> None:
        """Drop what the present window has so far."""
        self._sums: dict[TensorId, Tensor] = {}
        self._loss_sum = 0.0
        self._current_step = 0

    @property
    def accum_steps(self) -> int:
        """Micro-batches of a full window."""
        return self._accum_steps

    @property
    def current_step(self) -> int:
        """Micro-batches in the present window, 0 to accum_steps - 1."""
        return self._current_step

    def accumulate(self, grads: GradStore, loss: float, *, take: bool = False) -> tuple[GradStore, float] | None:
        """Add a micro-batch; returns (mean gradients, mean loss) if it completes the window, else None.

        ``take=True`` says that the caller is done with ``grads``: its arrays are then kept and added to instead of
        copied, which spares a pass over memory. ``loss`` is a number or a tensor with one element.

        Raises ValueError or TypeError for a gradient that does not fit the window's, before anything is changed.
        """
        loss = float(loss)
        new: dict[TensorId, Tensor] = {}
        for number, grad in grads.items():
            total = self._sums.get(number)
            if total is None:
                new[number] = grad if take and grad.data.flags.c_contiguous else _copy(grad)
            elif (total.shape, total.dtype, total.device) != (grad.shape, grad.dtype, grad.device):
                raise ValueError(
                    f"the gradient of tensor {int(number)} has shape {grad.shape}, {grad.dtype}, on {grad.device}; in "
                    f"this window it had {total.shape}, {total.dtype}, on {total.device}"
                )
        for number, grad in grads.items():
            total = self._sums.get(number)
            if total is not None:
                total.device.kernels.elementwise.add_into(total.data, grad.data)
        self._sums.update(new)
        self._loss_sum += loss
        self._current_step += 1
        return self.flush() if self._current_step == self._accum_steps else None

    def flush(self) -> tuple[GradStore, float] | None:
        """End the window early: the means over the micro-batches that it has, or None if it has none.

        The gradients returned are the caller's; the next window starts empty.
        """
        n = self._current_step
        if n == 0:
            return None
        mean = GradStore()
        for number, total in self._sums.items():
            mean.insert(number, total)
        if n > 1:
            for device in {total.device for total in self._sums.values()}:
                arrays = [total.data for total in self._sums.values() if total.device is device]
                device.kernels.grad_norm.scale_(arrays, 1.0 / n)
        loss = self._loss_sum / n
        self.reset()
        return mean, loss

    def state_dict(self, params: Iterable[Tensor | tuple[str, Tensor]]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The present window, copied: arrays for safetensors, and the rest as JSON.

        Ids mean nothing in another process, so ``params`` (tensors, or pairs (name, tensor)) tells how the gradients
        are called: by name, or by position. Raises ValueError if a gradient belongs to none of them.
        """
        names = {p.id: name for name, p in _named(params)}
        unknown = [int(number) for number in self._sums if number not in names]
        if unknown:
            raise ValueError(
                f"the window has gradients of tensors {unknown}, which are not among the {len(names)} params"
            )
        arrays = {
            f"grad.{names[number]}": np.array(total.device.kernels.to_host(total.data))
            for number, total in self._sums.items()
        }
        return arrays, {
            "accum_steps": self._accum_steps,
            "current_step": self._current_step,
            "loss_sum": self._loss_sum,
        }

    def load_state_dict(
        self,
        arrays: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
        params: Iterable[Tensor | tuple[str, Tensor]],
    ) -> None:
        """Go on with a window that ``state_dict`` returned.

        Raises ValueError, before anything is changed, if it does not fit.
        """
        count = meta.get("current_step")
        if meta.get("accum_steps") != self._accum_steps:
            raise ValueError(
                f"the saved window has accum_steps {meta.get('accum_steps')!r}, this one {self._accum_steps}"
            )
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < self._accum_steps:
            raise ValueError(f"current_step is {count!r}, expected an integer from 0 to {self._accum_steps - 1}")
        if not isinstance(meta.get("loss_sum"), int | float):
            raise ValueError(f"loss_sum is {meta.get('loss_sum')!r}, expected a number")
        by_name = {f"grad.{name}": p for name, p in _named(params)}
        sums = {}
        for key, array in arrays.items():
            p = by_name.get(key)
            if p is None:
                raise ValueError(f"array {key!r} belongs to none of the {len(by_name)} params")
            if array.shape != p.shape or array.dtype != p.dtype:
                raise ValueError(
                    f"array {key!r} has shape {array.shape}, {array.dtype}; its parameter has {p.shape}, {p.dtype}"
                )
            sums[p.id] = Tensor.wrap(p.device.kernels.from_host(np.array(array, p.dtype, order="C")), p.device)
        self._sums, self._loss_sum, self._current_step = sums, float(meta["loss_sum"]), count


def _copy(grad: Tensor) -> Tensor:
    return Tensor.wrap(grad.device.kernels.copy(grad.data), grad.device)


def _named(params: Iterable[Tensor | tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    return [p if isinstance(p, tuple) else (str(i), p) for i, p in enumerate(params)]
