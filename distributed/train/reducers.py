"""How the gradients of several ranks become one: in buckets, after backward or beside it.

All ranks start from the same weights, reduce the gradients of a window once, and make the same update, so their weights
stay equal to the last bit. A mean over ranks is taken over samples: the mean of the ranks' means would be another
number wherever they do not have equally many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from minigrad.grad_store import GradStore, TensorId
from minigrad.optim import GradAccumulator
from minigrad.optim.optimizer_state import options_of
from minigrad.tensor import Tensor

from ..comm.communicator import Communicator
from ..comm.gather import all_gather_json
from .buckets import CommHook, GradientBucketManager, filled
from .config import NonFiniteLossError
from .grad_sync import (
    LATER,
    Window,
    agree_on_settings,
    agree_on_values,
    digest_of,
    exchange_window,
    mean_over_ranks,
    mismatch,
    moments,
)
from .params import Named, Params, has_float16, named_params, power_of_two
from .step import Reducer, Step, no_weight
from .tree import Nodes, TreeAccumulator, insert, root


class Buckets(Reducer):
    """Averages the gradients over the ranks in flat buffers, when the window is full."""

    def __init__(self, communicator: Communicator, bucket_size_bytes: int, hook: CommHook) -> None:
        self.communicator: Communicator = communicator
        self.world_size: int = communicator.world_size
        self.bucket_size_bytes: int = bucket_size_bytes
        self.hook: CommHook = hook
        self.manager: GradientBucketManager | None = None
        self.unit: float = 1.0
        self.num_buckets: int = 0
        self._agreed: tuple[list[tuple[str, int, bool]], Named] | None = None

    def begin(self, step: Step, params: Params, weight: float) -> Named:
        """Where the parameters are new, the ranks compare them, their values, and the trainers' settings.

        The first micro-batch's weight decides the unit: with float16, what gradients are multiplied by stays near 1.
        """
        comm = self.communicator
        comm.step = step.global_step + 1
        named = named_params(params)
        key = sorted((name, p._id, p.requires_grad) for name, p in named)
        if self._agreed is None or self._agreed[0] != key:
            agree_on_settings(comm, self.settings(step))
            agreed = agree_on_values(comm, named)
            first = self._agreed is None and not step.global_step and not step.accumulator.current_step
            if first and has_float16(agreed):
                self.unit = power_of_two(mean_over_ranks(comm, {"weight": weight})["weight"])
            self._agreed, self.manager = (key, agreed), None
        return step.named(self._agreed[1])

    def settings(self, step: Step) -> dict[str, Any]:
        """What must be the same on all ranks, by name."""
        optimizer = step.optimizer
        return {
            "the trainer": step.name,
            "the configuration": step.config,
            "the optimizer": type(optimizer).__name__,
            "the optimizer's options": [options_of(o) for o in (optimizer.defaults, *optimizer.param_groups)],
            "the optimizer's state (its hash)": digest_of(optimizer.state_dict()[0]),
            "bucket_size_bytes": self.bucket_size_bytes,
            "the hook": getattr(self.hook, "__name__", type(self.hook).__name__),
            "the global step": step.global_step,
            "the unit of weights": self.unit,
            **step.precision.settings(),
        }

    @property
    def trained(self) -> list[Tensor]:
        """The trained parameters, in the order of all ranks."""
        return [] if self._agreed is None else _trained(self._agreed[1])

    def reduce(self, step: Step, named: Named) -> tuple[Iterable[GradStore], float] | None:
        """Put the window's sums into buckets, and divide by the weight that all ranks have together; None if no rank
        has a window. Where a graph is captured, all ranks' windows are alike.
        """
        comm, accumulator, trained = self.communicator, step.accumulator, _trained(named)
        manager = self.buckets(trained)
        try:
            sums = {p.id: grad for p in reversed(trained) if (grad := accumulator.pop(p)) is not None}
            self.send(step, manager, sums)
            weight, count = accumulator.weight, accumulator.current_step
            _, loss = accumulator.flush() or (None, 0.0)
        except Exception:
            accumulator.reset()
            raise
        present = [manager.is_ready(p.id) for p in trained]
        manager.launch_rest()
        windows = self.windows(step, trained, Window(loss, weight, count, 0.0, 0.0, present))
        if windows is None:
            return None
        total = sum(window.weight for window in windows)
        if has_float16(named):
            self.unit *= power_of_two(total / sum(window.count for window in windows))
        mean_loss = sum(window.weight * window.loss for window in windows if window.weight) / total
        absent = [p for i, p in enumerate(trained) if not any(window.present[i] for window in windows)]
        return manager.wait_each(absent, comm.world_size / total), mean_loss

    def windows(self, step: Step, trained: list[Tensor], mine: Window) -> list[Window] | None:
        """All ranks' windows, checked, of what this rank has; None if no rank has one."""
        lr = step.optimizer.lr if step.schedule is None else step.schedule.get_lr(step.global_step)
        mine = self.completed(replace(mine, lr=lr, step=step.global_step + 1), trained)
        ranks = self.communicator.world_size
        windows = [mine] * ranks if step.recorder.on_device else exchange_window(self.communicator, mine)
        if not any(window.count for window in windows):
            return None
        self.check(step, windows)
        return windows

    def buckets(self, trained: list[Tensor]) -> GradientBucketManager:
        """The buckets of these parameters, which stay for later windows."""
        if self.manager is None:
            self.manager = self.new_buckets(trained)
            self.num_buckets = self.manager.num_buckets
        return self.manager

    def new_buckets(self, trained: list[Tensor]) -> GradientBucketManager:
        """Which parameters share a bucket."""
        return GradientBucketManager(trained, self.communicator, self.bucket_size_bytes, self.hook)

    def send(self, step: Step, manager: GradientBucketManager, sums: dict[TensorId, Tensor]) -> None:
        """Put this rank's sums, from the last to the first, into the buckets."""
        for id, grad in sums.items():
            manager.mark_grad_ready(id, grad)

    def completed(self, window: Window, trained: list[Tensor]) -> Window:
        """What the ranks tell each other of their windows, with what this reducer wants to know beside the rest."""
        return window

    def check(self, step: Step, windows: list[Window]) -> None:
        """Raise, on all ranks alike, for windows that give no step. Gradients are checked when they are clipped."""
        number, first = step.global_step + 1, windows[0]
        for rank, window in enumerate(windows):
            for what, here, there in (
                ("number of the step", window.step, first.step),
                ("learning rate", window.lr, first.lr),
            ):
                if here != there:
                    text = f"the {what} is {here} on rank {rank}, {there} on rank 0; no weight changed"
                    raise mismatch(self.communicator, text, "step", [rank])
        if not sum(window.weight for window in windows):
            raise no_weight(step)
        bad = [
            f"{window.loss} on rank {rank}"
            for rank, window in enumerate(windows)
            if window.weight and not math.isfinite(window.loss)
        ]
        if bad:
            raise NonFiniteLossError.of(", ".join(bad), number)

    def reset(self) -> None:
        """Drop what is in the buckets, after waiting for what is under way."""
        if self.manager is not None:
            self.manager.reset()

    def compare(self, step: Step, named: Named) -> None:
        """After every ``compare_every`` steps, but not while a graph is captured. Raises ReplicaMismatchError."""
        every = step.config.compare_every
        if every and step.global_step % every == 0 and not step.recorder.on_device:
            agree_on_values(self.communicator, [*named, *moments(step.optimizer, named)], LATER)

    def restart(self, unit: float) -> None:
        """Compare at the next step what the ranks have."""
        self.unit, self._agreed = unit, None

    def memory(self, named: Named) -> GradientBucketManager:
        """The buckets, whose addresses are in a graph."""
        self.communicator._check_usable("a captured step")
        return self.buckets(_trained(named))


class Overlapped(Buckets):
    """Buckets that are sent while backward still computes."""

    def backward(self, step: Step, named: Named, loss: Tensor, weight: float) -> GradStore:
        """In the last micro-batch of a window each gradient is added to the window's sum and goes into its bucket as
        soon as it is final. The micro-batches before that only add up.
        """
        accumulator = step.accumulator
        if step.holding or accumulator.current_step + 1 < step.config.grad_accum_steps:
            return super().backward(step, named, loss, weight)
        try:
            step.backward(loss, _Filler(self.buckets(_trained(named)), accumulator, weight))
        except Exception:
            accumulator.reset()
            self.reset()
            raise
        return GradStore()


class _Filler:
    """Told by ``backward`` about each finished gradient: adds the window's earlier ones, and fills the buckets."""

    def __init__(self, manager: GradientBucketManager, accumulator: GradAccumulator, weight: float) -> None:
        self._manager, self._accumulator, self._weight = manager, accumulator, weight

    def on_leaf_grad_ready(self, id: TensorId, grad: Tensor) -> None:
        if id not in self._manager or not self._weight:
            return
        kernels = grad.device.kernels
        if self._weight != 1.0:
            kernels.grad_norm.scale_([grad.data], self._weight)
        earlier = self._accumulator.pop(id)
        if earlier is not None:
            kernels.elementwise.add_into(grad.data, earlier.data)
        self._manager.mark_grad_ready(id, grad)


class Trees(Buckets):
    """Adds up all ranks' micro-batches by the tree of ``tree.py``, so that their number does not matter.

    Of each bucket a rank gets its part of all nodes, adds these up, and gives the result to all: twice the bytes of a
    bucket are sent for each node, as an all-reduce sends.
    """

    capturable = False

    def settings(self, step: Step) -> dict[str, Any]:
        """What must be the same on all ranks, by name."""
        return {**super().settings(step), "the seed of the default generator": _tree(step).seed}

    def reduce(self, step: Step, named: Named) -> tuple[Iterable[GradStore], float] | None:
        """Tell each other what the leaves are, and add up their nodes."""
        comm, tree, trained = self.communicator, _tree(step), _trained(named)
        mean = tree._loss_sum / tree.weight if tree.weight else 0.0
        mine = Window(mean, tree.weight, tree.current_step, 0.0, 0.0, [p._id in tree.present for p in trained])
        nodes, leaves = tree.nodes, all_gather_json(comm, tree.leaves)
        tree.reset()
        windows = self.windows(step, trained, mine)
        if windows is None:
            return None
        total = math.fsum(weight for rank in leaves for _, weight in rank)
        loss = math.fsum(loss * weight for rank in leaves for loss, weight in rank if weight) / total
        absent = [p for i, p in enumerate(trained) if not any(window.present[i] for window in windows)]
        places = [tree.places(rank, weights) for rank, weights in enumerate(leaves)]
        return self._added(trained, nodes, places, total, absent), loss

    def _added(
        self, trained: list[Tensor], mine: Nodes, places: list[Nodes], total: float, absent: list[Tensor]
    ) -> Iterator[GradStore]:
        """Each bucket's mean gradients, of this rank's nodes and the places of all ranks' nodes in the tree."""
        comm, sums = self.communicator, list(mine.values())
        for bucket in filled(trained, self.bucket_size_bytes, comm.world_size):
            flat, kernels = bucket.flat, bucket.flat.device.kernels
            size = flat.numel() // comm.world_size
            received = []
            for i in range(max(map(len, places))):
                for id, view in bucket.views.items():
                    if i < len(sums):
                        kernels.elementwise.assign(view, sums[i][id].data)
                received.append(Tensor.wrap(kernels.empty((flat.numel(),), flat.dtype), flat.device))
                comm.all_to_all(flat, received[-1])

            nodes: Nodes = {}
            for rank, keys in enumerate(places):
                for i, key in enumerate(keys):
                    part = received[i].data[rank * size : (rank + 1) * size]
                    insert(nodes, *key, part, kernels.elementwise.add_into)
            sum_ = root(nodes, kernels.elementwise.add_into)
            kernels.grad_norm.scale_([sum_], 1.0 / total)
            comm.all_gather(Tensor.wrap(sum_, flat.device), flat)
            grads = bucket.grads()
            for p in absent:
                grads.remove(p)
            yield grads


def _tree(step: Step) -> TreeAccumulator:
    assert isinstance(step.accumulator, TreeAccumulator)
    return step.accumulator


def _trained(named: Named) -> list[Tensor]:
    return [p for _, p in named if p.requires_grad]
