"""A Step as one graph: ``SimpleTrainer.capture``.

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

import collections
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad import Device, GradStore, Tensor
from minigrad.cuda import cuda_graph
from minigrad.modes import current_graph
from minigrad.optim import GradScaler, NonFiniteGradientError
from minigrad.optim.clip_more import clip_grad_norm_async

from ..comm.calls import ReduceOp
from ..comm.comm_errors import CommError
from ..comm.communicator import Communicator
from .config import NonFiniteLossError, TrainingMetrics
from .grad_sync import agree_on_settings, mismatch
from .step import Named, Params, Recorder, Step, named_params

AHEAD = 4  # launches whose results the host may not know yet
END_SECONDS = 10.0  # for launches to end after an abort
CALLS_CAPTURED = True  # for minigrad.capturing.explain
LOSS, RANGE, OVERFLOW = 1, 3, 4  # why an update is left out, as in cuda_kernels/platform/graphs.py
MARKS = "step", "learning rate", "number of the capture"
"""What a rank sends with its losses in each launch, as float64; the device makes no update where the ranks' differ."""


def gathered(comm: Communicator, losses: Any, marks: Callable[[], Sequence[float]]) -> Any:
    """Captured: this rank's marks, then each rank's n losses, float64, and its marks.

    ``marks()`` is called before each launch.
    """
    graph = current_graph()
    kernels, n, count = comm.device.kernels, len(losses), len(MARKS)
    numbers = graph.number(lambda: np.array(marks(), np.float64))
    mine = kernels.empty((n + count,), np.float64)
    found = kernels.empty((count + comm.world_size * (n + count),), np.float64)
    kernels.elementwise.assign(mine[:n], losses)
    kernels.elementwise.assign(mine[n:], numbers.data)
    kernels.elementwise.assign(found[:count], numbers.data)
    comm.all_gather(Tensor.wrap(mine, comm.device), Tensor.wrap(found[count:], comm.device))
    return found


def losses_of(comm: Any, event: Any, found: np.ndarray) -> list[list[float]]:
    """Each rank's losses, of what ``gathered`` has made for the host when ``event`` has happened.

    Raises, and aborts the communicator, after its timeout, and CollectiveMismatchError if the ranks' marks differ.
    """
    count = len(MARKS)
    rows = found[count:].reshape(comm.world_size, -1)

    def check_marks() -> None:
        own, marks = found[:count].tolist(), rows[:, -count:].tolist()
        odd = [rank for rank in range(comm.world_size) if marks[rank] != own]
        if odd:
            here = f"{dict(zip(MARKS, own))} on this rank, {comm.rank}"
            there = f"{dict(zip(MARKS, marks[odd[0]]))} on rank {odd[0]}"
            text = "the ranks did not launch the same step of the same graph, and no weight was changed"
            raise mismatch(comm, f"{text}: {here}, {there}", "the launch of a graph", odd)

    comm.wait_for(event, check_marks)
    return rows[:, :-count].tolist()


class PendingMetrics:
    """What a step of ``CapturedStep`` did: ``result()`` waits for it."""

    def __init__(self, owner: "CapturedStep | None", metrics: TrainingMetrics | None = None) -> None:
        self._owner, self._metrics = owner, metrics
        self._error: Exception | None = None
        self._raised = False

    def result(self) -> TrainingMetrics | None:
        """The step's metrics, None if it was left out because scaled gradients overflowed.

        Raises what ``trainer.step`` would have: NonFiniteLossError, NonFiniteGradientError; IndexError for an index out
        of range; and RuntimeError for a step that was left out after one of these.
        """
        while self._owner is not None:
            self._owner._settle_first()
        if self._error is not None:
            self._raised = True
            raise self._error
        return self._metrics

    def _done(self, metrics: TrainingMetrics | None, error: Exception | None = None) -> None:
        self._owner, self._metrics, self._error = None, metrics, error


class _Launched(PendingMetrics):
    """A launch whose results are on their way."""

    def __init__(
        self, owner: "CapturedStep", step: Step, graph: cuda_graph.Graph, results: Tensor, lr_before: float
    ) -> None:
        super().__init__(owner)
        kernels = results.device.kernels
        self.graph, self._step, self._lr_before = graph, step, lr_before
        self.number, self.lr = step.global_step, step.optimizer.lr
        self.host: np.ndarray = kernels.to_host(results.data, wait=False)
        self.event = kernels.graphs.Event()
        self.event.record()

    def take_back(self) -> None:
        """Its update was left out: the counts and the learning rate are those before it."""
        self.graph.uncount()
        if self._step.schedule is not None:
            self._step.optimizer.set_lr(self._lr_before)


class GraphRecorder(Recorder):
    """Leaves the decision on the update to the device, and counting to the launches. One for all graphs of a step."""

    on_device = True

    def __init__(self, step: Step, device: Device, params: Named) -> None:
        super().__init__()
        self._step, self._device, self._params = step, device, params
        self._captures = 0
        self._overflow: Any = None  # the device's flag: scaled gradients overflowed
        self.stopped: Any = None
        """int32 (1,) on the device: an error was found."""
        self.losses: list[Tensor] = []
        """Those of the micro-batches, while a graph is captured."""
        self.present: list[str] = []
        """The parameters with a gradient in the graph that was captured last."""
        self.outputs: Tensor | None = None
        """What a launch of that graph tells the host."""

    def begin(self) -> None:
        """A graph is captured from now on."""
        self.losses, self.present, self.outputs, self._overflow = [], [], None, None

    def unscale(self, scaler: GradScaler, grads: GradStore) -> bool:
        """Capture it. Whether all are finite is not known before a launch: True."""
        flags = scaler.unscale_on_device(grads)
        self._overflow = flags[0][1] if flags else None
        return True

    def clip(self, grads: GradStore, max_norm: float, params: list[Tensor]) -> float:
        """Capture it, and the decision on the update, which the optimizer's kernels then follow. The norm is not known
        before a launch: NaN."""
        graph, kernels = current_graph(), self._device.kernels
        norm = clip_grad_norm_async(grads, max_norm, params)
        if norm.device is not self._device:
            raise ValueError("none of the parameters has a gradient, so nothing would be trained")
        count, ranks, marks = len(self.losses), 1, 0
        losses = kernels.empty((count,), np.float64)
        for i, loss in enumerate(self.losses):
            kernels.elementwise.assign(losses[i : i + 1], loss.data)
        with graph.paused():
            if self.stopped is None:
                self.stopped = kernels.zeros((1,), np.int32)
            never = kernels.zeros((1,), np.int32)
        allowed = kernels.empty((1,), np.int32)
        graph.raw.keep += [self.stopped, never]
        graph.stopped = self.stopped
        outside = never if graph.raw.outside_range is None else graph.raw.outside_range
        overflow = never if self._overflow is None else self._overflow.reshape(1)
        step, comm = self._step, self._step.reducer.communicator
        if comm is not None:
            self.present = [name for name, p in self._params if p in grads]
            self._captures += 1
            number = self._captures
            losses = gathered(comm, losses, lambda: (step.global_step + 1, step.optimizer.lr, number))
            mine, outside = outside, kernels.empty((1,), np.int32)  # whether it is not 0 on any rank
            kernels.elementwise.assign(outside, mine)
            comm.all_reduce(Tensor.wrap(outside, comm.device), ReduceOp.MAX)
            ranks, marks = comm.world_size, len(MARKS)
        results = kernels.empty((2 + losses.size,), np.float64)
        kernels.elementwise.assign(results[2:], losses)
        kernels.graphs.decide.launch(
            1, results, ranks, count, marks, norm.data.reshape(1), overflow, outside, self.stopped, allowed
        )
        graph.raw.allowed = allowed
        self.outputs = Tensor.wrap(results, self._device)
        return math.nan

    def count(self, step: Step, loss: float, norm: float | None) -> None:
        """Nothing: each launch counts."""


class CapturedStep:
    """What ``SimpleTrainer.capture`` returns: ``step(*inputs)`` is one optimizer step."""

    def __init__(self, step: Step, function: Callable[..., Tensor], params: Params, max_graphs: int) -> None:
        self._step, self._function = step, function
        self._params: Named = named_params(params)
        devices = {p.device for _, p in self._params}
        if len(devices) != 1:
            raise ValueError(f"the parameters are on {len(devices)} devices; a captured step is of one")
        self._device: Device = devices.pop()
        self._comm: Communicator | None = step.reducer.communicator  # of several ranks
        self._recorder = GraphRecorder(step, self._device, self._params)
        self._memory: Any = None  # of the reducer
        self._new: dict[str, Any] | None = None  # what the ranks have to compare of a new graph
        self._graphed = cuda_graph.Graphed(self._record, self._device, max_graphs)
        self._launched: collections.deque[_Launched] = collections.deque()
        self._failed: PendingMetrics | None = None

    def __call__(self, *inputs: Tensor) -> PendingMetrics:
        """One step; with ``grad_accum_steps`` n > 1 the inputs' first dimension is n, the window's micro-batches.

        The inputs may be on the CPU; those in pinned memory are copied while the host goes on. For the first inputs of
        some shapes this is the trainer's own step. Errors of that, and of all steps on the CPU, are raised at once. So
        is what the ranks' comparison after every ``compare_every`` steps finds; for it the host waits.

        Raises ValueError within an unfinished window, ReplicaMismatchError where ranks differ, and an error that an
        earlier launch found and nobody has seen.
        """
        step = self._step
        named = step.reducer.begin(step, self._params, 0.0)
        self._memory = step.reducer.memory(named)
        count = step.config.grad_accum_steps
        for i, x in enumerate(inputs):
            if count > 1 and isinstance(x, Tensor) and x.shape[:1] != (count,):
                first = f"with grad_accum_steps={count} its first dimension is {count}"
                raise ValueError(f"input {i} is {x.shape}: {first}")
        if step.accumulator.current_step:
            raise ValueError("the window has micro-batches of other steps; call flush first")
        step.recorder.wait_for_captures(but=self)
        self.settle(AHEAD - 1 if step.precision.scaler is None else 0)
        static = self._graphed.static(inputs, self.settle)
        if static is None:
            self.settle()
            if self._comm is not None:
                agree_on_settings(self._comm, {"the inputs of a captured step": _shapes(inputs)})
            return PendingMetrics(None, self._eager(named, inputs))
        self._compare_new()
        before = step.optimizer.lr
        static(inputs)
        launched = _Launched(self, step, static.graph, static.outputs, before)
        self._launched.append(launched)
        if self._device.type == "cpu" or step.reducer.compares(step):  # the CPU has done it
            self.settle()
            step.reducer.compare(step, named)
        return launched

    @property
    def graphs(self) -> int:
        """How many graphs there are: one for each combination of shapes that came twice."""
        return self._graphed.graphs

    def clear(self) -> None:
        """Close the graphs, whose memory is then free."""
        self.settle()
        self._graphed.clear()

    def _eager(self, named: Named, inputs: tuple[Tensor, ...]) -> TrainingMetrics | None:
        step, metrics = self._step, None
        for batch in self._batches([x.to(device=self._device) for x in inputs]):
            loss = self._function(*batch)
            if not isinstance(loss, Tensor):
                kind = type(loss).__name__
                raise TypeError(f"the function of a captured step returned {kind}; expected the loss, a tensor")
            metrics = step.take(named, step.backward(loss), loss.item())
        return metrics

    def _batches(self, inputs: list[Tensor]) -> list[list[Tensor]]:
        count = self._step.config.grad_accum_steps
        return [inputs] if count == 1 else [[x[i] for x in inputs] for i in range(count)]

    def _compare_new(self) -> None:
        """What was captured just now must be the same on all ranks, else nobody keeps it."""
        new, self._new = self._new, None
        if new is None or self._comm is None:
            return
        try:
            agree_on_settings(self._comm, new)
        except Exception:
            self._graphed.clear()
            raise

    def _record(self, *inputs: Tensor) -> Tensor:
        """What is captured; the results of its launches."""
        graph, step, recorder = current_graph(), self._step, self._recorder
        named = step.reducer.begin(step, self._params, 0.0)
        shapes, self._new = _shapes(inputs), None
        recorder.begin()
        eager, step.recorder = step.recorder, recorder
        graph.before(step.set_scheduled_lr)
        try:
            for batch in self._batches(list(inputs)):
                loss = self._function(*batch)
                recorder.losses.append(loss.detach().reshape(1))
                step.accumulate(named, step.reducer.backward(step, named, loss, 1.0), 0.0)
        finally:
            graph.raw.allowed = None
            step.recorder = eager
            step.accumulator.reset()
            recorder.losses = []
        assert recorder.outputs is not None
        self._new = {"the inputs of a captured step": shapes, "the parameters with a gradient": recorder.present}
        graph.count(self._count)

        def used() -> tuple[Any, ...]:
            return step.optimizer, step.config, self._memory, [p.requires_grad for _, p in self._params]

        captured = used()
        graph.valid_while(lambda: used() == captured)
        return recorder.outputs

    def _count(self, steps: int) -> None:
        self._step.global_step += steps

    # ------------------------------------------------------------------ results

    def settle(self, ahead: int = 0) -> None:
        """Wait until at most ``ahead`` launches are under way; raise an error that was found and nobody has seen."""
        while len(self._launched) > ahead:
            self._settle_first()
        if self._failed is not None and not self._failed._raised:
            self._failed.result()

    def _settle_first(self) -> None:
        done, step = self._launched.popleft(), self._step
        try:
            losses = self._wait(done)
            code, norm = int(done.host[0]), float(done.host[1])
            left_out = code == OVERFLOW and step.precision.leave_out()
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
            shown = None if step.config.max_grad_norm is None else norm
            done._done(TrainingMetrics(done.number, loss, shown, done.lr))
            step.precision.adapt()
        elif left_out:
            done.take_back()
            done._done(None)
        else:
            self._fail(done, code, norm, losses)

    def _wait(self, launched: _Launched) -> list[list[float]]:
        """Each rank's losses, when the launch is over."""
        if self._comm is not None:
            return losses_of(self._comm, launched.event, launched.host[2:])
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
            one._done(None, error)
        self._failed = done

    def _fail(self, done: _Launched, code: int, norm: float, losses: list[list[float]]) -> None:
        """The device has stopped at this launch: take back it and those after it, all over, and let it go on."""
        kernels = self._device.kernels
        for flag in (self._recorder.stopped, done.graph.raw.outside_range):
            if flag is not None:
                kernels.graphs.clear(flag)
        error: Exception
        if code == LOSS:
            bad = [(x, rank) for rank, each in enumerate(losses) for x in each if not math.isfinite(x)]
            error = NonFiniteLossError.of(bad[0][0], done.number, bad[0][1] if self._comm else None)
        elif code == RANGE:
            error = IndexError(f"step {done.number}: an index or a class target is out of range; no weight was changed")
        else:
            error = NonFiniteGradientError(f"step {done.number}: the gradient norm is {norm}; no weight changed", norm)
        done._done(None, error)
        self._failed = done
        while self._launched:
            after = self._launched.pop()
            after.take_back()
            after._done(None, RuntimeError(f"the step was left out, because step {done.number} failed: {error}"))
        done.take_back()


def _shapes(inputs: Sequence[Any]) -> str:
    return ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in inputs)
