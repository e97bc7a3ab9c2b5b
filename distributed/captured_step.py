"""A training step as one CUDA graph: ``SimpleTrainer.capture``.

    first call of some shapes    the trainer's own step, eagerly
    second                       capture: forward, backward, window, clipping and update become one graph
    from then on                 inputs are copied into the graph's tensors, one launch; the host does not wait

The device itself decides whether the update is made: ``decide`` looks at the losses, the flag of the unscaled
gradients and their norm, and the optimizer's kernels find empty tensors where it says no. Counts and learning rates are
the host's, computed before each launch as if all launches before it had made their step. A loss or norm that is not
finite, or an index out of range, therefore stops the device: launches after it change nothing until the host has seen
it. An overflow of scaled gradients is no error, so with a loss scale the host waits for the last launch before the
next one.
"""

from __future__ import annotations

import collections
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minigrad import capturing, cuda_graph
from minigrad.device import Device
from minigrad.grad_store import GradStore
from minigrad.optim import NonFiniteGradientError
from minigrad.optim.clip import clip_grad_norm_async
from minigrad.optim.grad_scaler import MIN_SCALE
from minigrad.tensor import Tensor

from .captured_ranks import MARKS, CapturedRanks
from .comm_errors import CommError
from .params import Named, Params, named_params

if TYPE_CHECKING:
    from .simple_trainer import SimpleTrainer, TrainingMetrics

AHEAD = 4  # launches whose results the host may not know yet
END_SECONDS = 10.0  # for launches to end after an abort
LOSS, RANGE, OVERFLOW = 1, 3, 4  # why an update is left out, as in cuda_kernels/graphs.py


class PendingMetrics:
    """What a step of ``CapturedStep`` did: ``result()`` waits for it."""

    def __init__(self, owner: CapturedStep | None, metrics: TrainingMetrics | None = None) -> None:
        self._owner = owner
        self._metrics = metrics
        self._error: Exception | None = None
        self._raised = False

    def result(self) -> TrainingMetrics | None:
        """The step's metrics, None if it was left out because scaled gradients overflowed.

        Raises what ``trainer.step`` would have: NonFiniteLossError, NonFiniteGradientError; IndexError for an index out
        of range; and RuntimeError for a step that was left out after one of these.
        """
        if self._owner is not None:
            self._owner._settle_until(self)
        if self._error is not None:
            self._raised = True
            raise self._error
        return self._metrics

    def _done(self, metrics: TrainingMetrics | None, error: Exception | None = None) -> None:
        self._owner, self._metrics, self._error = None, metrics, error


class _Launched:
    """A launch whose results are on their way."""

    def __init__(
        self, pending: PendingMetrics, graph: cuda_graph.Graph, results: Tensor, trainer: SimpleTrainer, before: float
    ) -> None:
        kernels = results.device.kernels
        self.pending, self.graph, self.trainer, self.lr_before = pending, graph, trainer, before
        self.step, self.lr = trainer._global_step, trainer._optimizer.lr
        self.host: np.ndarray = kernels.to_host(results.data, wait=False)
        self.event = kernels.streams.Event()
        self.event.record()

    def take_back(self) -> None:
        """Its update was left out: the counts and the learning rate are those before it."""
        self.graph.uncount()
        if self.trainer._schedule is not None:
            self.trainer._optimizer.set_lr(self.lr_before)


class CapturedStep:
    """What ``SimpleTrainer.capture`` returns: ``step(*inputs)`` is one optimizer step."""

    def __init__(
        self, trainer: SimpleTrainer, function: Callable[..., Tensor], params: Params, max_graphs: int
    ) -> None:
        self._trainer = trainer
        self._function = function
        self._params: Named = [(name, p) for name, p in named_params(params)]
        devices = {p.device for _, p in self._params}
        if len(devices) != 1:
            raise ValueError(f"the parameters are on {len(devices)} devices; a captured step is of one")
        self._device: Device = devices.pop()
        communicator: Any = getattr(trainer, "_communicator", None)
        several = communicator is not None and communicator.world_size > 1
        self._ranks: CapturedRanks | None = CapturedRanks(communicator) if several else None
        self._new: dict[str, Any] | None = None  # what the ranks have to compare of a new graph
        self._graphed = cuda_graph.Graphed(self._record, self._device, max_graphs)
        self._launched: collections.deque[_Launched] = collections.deque()
        self._failed: PendingMetrics | None = None
        self._stopped: Any = None  # int32 (1,) on the device: an error was found
        self._losses: list[Tensor] = []
        self._present: list[str] = []  # the parameters with a gradient, while it is captured
        self._captures = 0
        self._outputs: Tensor | None = None
        self.overflow: Any = None
        """While it is captured: the device's flag that says whether scaled gradients overflowed, or None."""

    def __call__(self, *inputs: Tensor) -> PendingMetrics:
        """One step; with ``grad_accum_steps`` n > 1 the inputs' first dimension is n, the window's micro-batches.

        The inputs may be on the CPU; those in pinned memory are copied while the host goes on. On the CPU, and for the
        first inputs of some shapes, this is the trainer's own step, whose errors it raises at once.

        Raises ValueError within an unfinished window, and an error that an earlier launch found and nobody has seen.
        """
        trainer = self._trainer
        named = trainer._prepared(self._params)
        count = trainer.config.grad_accum_steps
        for i, x in enumerate(inputs):
            if count > 1 and isinstance(x, Tensor) and x.shape[:1] != (count,):
                raise ValueError(
                    f"input {i} is {x.shape}; with grad_accum_steps={count} its first dimension is {count}"
                )
        if trainer._accumulator.current_step:
            raise ValueError("the window has micro-batches of other steps; call flush first")
        scaled = getattr(trainer, "scaler", None) is not None
        trainer._settle(but=self)
        self.settle(0 if scaled else AHEAD - 1)
        static = self._graphed.static(inputs, self.settle)
        if static is None:
            self.settle()
            if self._ranks is not None:
                self._ranks.compare({"the inputs of a captured step": _shapes(inputs)})
            return PendingMetrics(None, self._eager(named, inputs))
        self._compare_new()
        before = trainer._optimizer.lr
        static(inputs)
        pending = PendingMetrics(self)
        self._launched.append(_Launched(pending, static.graph, static.outputs, trainer, before))
        return pending

    @property
    def graphs(self) -> int:
        """How many graphs there are: one for each combination of shapes that came twice."""
        return self._graphed.graphs

    def clear(self) -> None:
        """Close the graphs, whose memory is then free."""
        self.settle()
        self._graphed.clear()

    def _eager(self, named: Named, inputs: tuple[Tensor, ...]) -> TrainingMetrics | None:
        trainer, metrics = self._trainer, None
        for batch in self._batches([x.to(device=self._device) for x in inputs]):
            loss = self._function(*batch)
            if not isinstance(loss, Tensor):
                kind = type(loss).__name__
                raise TypeError(f"the function of a captured step returned {kind}; expected the loss, a tensor")
            metrics = trainer.step(named, trainer._backward(loss), loss.item())
        return metrics

    def _batches(self, inputs: list[Tensor]) -> list[list[Tensor]]:
        count = self._trainer.config.grad_accum_steps
        return [inputs] if count == 1 else [[x[i] for x in inputs] for i in range(count)]

    def _compare_new(self) -> None:
        """What was captured just now must be the same on all ranks, else nobody keeps it."""
        new, self._new = self._new, None
        if new is None or self._ranks is None:
            return
        try:
            self._ranks.compare(new)
        except Exception:
            self._graphed.clear()
            raise

    # ------------------------------------------------------------------ the capture

    def _record(self, *inputs: Tensor) -> Tensor:
        """What is captured; the results of its launches."""
        graph, trainer = capturing.current(), self._trainer
        assert graph is not None
        named, memory = trainer._prepared(self._params), trainer._captured_memory()
        shapes, self._new, self._present = _shapes(inputs), None, []
        trainer._recorder, self._losses, self._outputs, self.overflow = self, [], None, None
        graph.before(self._set_lr)
        try:
            for batch in self._batches(list(inputs)):
                loss = self._function(*batch)
                self._losses.append(loss.detach().reshape(1))
                trainer._record_micro_batch(named, loss)
        finally:
            graph.raw.allowed = trainer._recorder = self.overflow = None
            trainer._accumulator.reset()
            self._losses = []
        assert self._outputs is not None
        self._new = {"the inputs of a captured step": shapes, "the parameters with a gradient": self._present}
        graph.count(self._count)
        optimizer, settings = trainer._optimizer, trainer.config
        trained = [p.requires_grad for _, p in self._params]
        graph.valid_while(
            lambda: (
                trainer._optimizer is optimizer
                and trainer.config is settings
                and trainer._captured_memory() is memory
                and [p.requires_grad for _, p in self._params] == trained
            )
        )
        return self._outputs

    def clip(self, grads: GradStore, max_norm: float, params: list[Tensor]) -> float:
        """What the trainer calls instead of its own clipping: capture that, and the decision on the update, which the
        optimizer's kernels then follow. The norm is not known before a launch: NaN."""
        graph, kernels = capturing.current(), self._device.kernels
        assert graph is not None
        norm = clip_grad_norm_async(grads, max_norm, params)
        if norm.device is not self._device:
            raise ValueError("none of the parameters has a gradient, so nothing would be trained")
        count, ranks, marks = len(self._losses), 1, 0
        losses = kernels.empty((count,), np.float64)
        for i, loss in enumerate(self._losses):
            kernels.elementwise.assign(losses[i : i + 1], loss.data)
        with graph.paused():
            if self._stopped is None:
                self._stopped = kernels.zeros((1,), np.int32)
            never = kernels.zeros((1,), np.int32)
        allowed = kernels.empty((1,), np.int32)
        graph.raw.keep += [self._stopped, never]
        graph.stopped = self._stopped
        outside = never if graph.raw.outside_range is None else graph.raw.outside_range
        overflow = never if self.overflow is None else self.overflow.reshape(1)
        if self._ranks is not None:
            self._present = [name for name, p in self._params if p in grads]
            self._captures += 1
            losses = self._ranks.gather(losses, functools.partial(self._marks, self._captures))
            outside = self._ranks.any(outside)
            ranks, marks = self._ranks.communicator.world_size, len(MARKS)
        results = kernels.empty((2 + losses.size,), np.float64)
        kernels.elementwise.assign(results[2:], losses)
        kernels.graphs.decide.launch(
            1, results, ranks, count, marks, norm.data.reshape(1), overflow, outside, self._stopped, allowed
        )
        graph.raw.allowed = allowed
        self._outputs = Tensor.wrap(results, self._device)
        return math.nan

    def _set_lr(self) -> None:
        trainer = self._trainer
        if trainer._schedule is not None:
            trainer._optimizer.set_lr(trainer._schedule.get_lr(trainer._global_step))

    def _marks(self, capture: int) -> tuple[float, ...]:
        """What must be the same on all ranks in a launch: ``MARKS``."""
        return self._trainer._global_step + 1, self._trainer._optimizer.lr, capture

    def _count(self, steps: int) -> None:
        self._trainer._global_step += steps

    # ------------------------------------------------------------------ results

    def settle(self, ahead: int = 0) -> None:
        """Wait until at most ``ahead`` launches are under way; raise an error that was found and nobody has seen."""
        while len(self._launched) > ahead:
            self._settle_first()
        failed = self._failed
        if failed is not None and not failed._raised and failed._error is not None:
            failed._raised = True
            raise failed._error

    def _settle_until(self, pending: PendingMetrics) -> None:
        while pending._owner is not None:
            self._settle_first()

    def _settle_first(self) -> None:
        from .simple_trainer import TrainingMetrics

        done, trainer = self._launched.popleft(), self._trainer
        scaler = getattr(trainer, "scaler", None)
        at_least = scaler is not None and scaler.adapts and scaler.get_scale() <= MIN_SCALE
        try:
            losses = self._wait(done)
            code, norm = int(done.host[0]), float(done.host[1])
            left_out = code == OVERFLOW and not at_least
            if code and not left_out:
                for after in self._launched:  # which the device has left out
                    self._wait(after)
        except CommError as error:
            self._broken(done, error)
            return
        if not code:
            count = len(losses[0])
            means = [sum(each, 0.0) / count for each in losses]  # over a window, then over the ranks
            loss = means[0] if len(means) == 1 else sum(count * x for x in means) / (count * len(means))
            shown = None if trainer.config.max_grad_norm is None else norm
            done.pending._done(TrainingMetrics(done.step, loss, shown, done.lr))
            if scaler is not None:
                scaler.update_scale(overflow=False)
        elif left_out:
            done.take_back()
            trainer._overflowed()
            done.pending._done(None)
        else:
            self._fail(done, code, norm, losses)

    def _wait(self, launched: _Launched) -> list[list[float]]:
        """Each rank's losses, when the launch is over."""
        if self._ranks is not None:
            return self._ranks.result(launched.event, launched.host[2:])
        launched.event.synchronize()
        return [launched.host[2:].tolist()]

    def _broken(self, done: _Launched, error: CommError) -> None:
        """The ranks have lost each other: take back the launches that did not come to their update."""
        launches = [done, *self._launched]
        self._launched.clear()
        deadline = time.monotonic() + END_SECONDS  # the abort ends the kernels that wait for other ranks
        for one in reversed(launches):
            while not one.event.query() and time.monotonic() < deadline:
                time.sleep(1e-3)
            if not one.event.query() or one.host[0]:
                one.take_back()
            one.pending._done(None, error)
        self._failed = done.pending

    def _fail(self, done: _Launched, code: int, norm: float, losses: list[list[float]]) -> None:
        """The device has stopped at this launch: take back it and those after it, all over, and let it go on."""
        kernels = self._device.kernels
        for flag in (self._stopped, done.graph.raw.outside_range):
            if flag is not None:
                kernels.memory.clear(flag.pointer, flag.nbytes)
        error: Exception
        if code == LOSS:
            bad = [(x, rank) for rank, each in enumerate(losses) for x in each if not math.isfinite(x)]
            error = self._trainer._loss_error(bad[0][0], done.step, bad[0][1] if self._ranks else None)
        elif code == RANGE:
            error = IndexError(f"step {done.step}: an index or a class target is out of range; no weight was changed")
        else:
            error = NonFiniteGradientError(f"step {done.step}: the gradient norm is {norm}; nothing was changed", norm)
        done.pending._done(None, error)
        self._failed = done.pending
        while self._launched:
            after = self._launched.pop()
            after.take_back()
            after.pending._done(None, RuntimeError(f"the step was left out, because step {done.step} failed: {error}"))
        done.take_back()


class CapturedPass:
    """A function of tensors that is captured at once: ``SimpleTrainer.capture_forward_pass`` and its sibling.

    ``after``: the pass whose outputs are the function's arguments, as they are; else its inputs are copied.
    """

    def __init__(
        self, function: Callable[..., Any], inputs: tuple[Any, ...], device: Device, after: CapturedPass | None
    ) -> None:
        self._after = after
        self._of_inputs = function
        self._static: cuda_graph.Static | None = None
        self.outputs: Any = None
        if device.type == "cuda":
            self._static = cuda_graph.Static(self._call, inputs, device)
            self.outputs = self._static.outputs
        self.device = device

    def __call__(self, *inputs: Any) -> Any:
        """Launch it, or on the CPU call the function."""
        self.outputs = self._call(*inputs) if self._static is None else self._static(inputs)
        return self.outputs

    def _call(self, *inputs: Any) -> Any:
        return self._of_inputs(*inputs) if self._after is None else self._of_inputs(self._after.outputs)

    def close(self) -> None:
        """Give the graph's memory back."""
        if self._static is not None:
            self._static.graph.close()


def _shapes(inputs: Sequence[Any]) -> str:
    return ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in inputs)
