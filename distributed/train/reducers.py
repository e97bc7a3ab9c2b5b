"""The reducer of reproducible steps: all ranks' micro-batches are added up by a tree, whoever made them."""

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from minigrad import GradStore, Tensor

from .buckets import Bucket, GradientBucketManager
from .grad_sync import Buckets, Window, trained_of
from .step import Named, Step
from .tree import Nodes, TreeAccumulator, insert, root


class Trees(Buckets):
    """Adds up all ranks' micro-batches by the tree of ``tree.py``, so that their number does not matter.

    Of each bucket a rank gets its part of all nodes, adds these up, and gives the result to all: twice the bytes of a
    bucket are sent for each node, as an all-reduce sends. First nodes travel while the ranks tell each other what else
    there is. The sum of a bucket travels while the next one is added up.
    """

    capturable = False

    def settings(self, step: Step) -> dict[str, Any]:
        """What must be the same on all ranks, by name."""
        return {**super().settings(step), "the seed of the default generator": _tree(step).seed}

    def new_buckets(self, trained: list[Tensor]) -> GradientBucketManager:
        """Buckets of as many equal parts as there are ranks."""
        parts = functools.partial(Bucket, parts=self.world_size)
        return GradientBucketManager(trained, self.communicator, self.bucket_size_bytes, bucket=parts)

    def reduce(self, step: Step, named: Named) -> tuple[Iterable[GradStore], float] | None:
        """Tell each other what the leaves are, and add up their nodes."""
        tree, trained = _tree(step), trained_of(named)
        mean = tree._loss_sum / tree.weight if tree.weight else 0.0
        present, sums = [p._id in tree.present for p in trained], [*tree.nodes.values()]
        mine = Window(mean, tree.weight, tree.current_step, 0.0, 0.0, present, 0, [], tree.losses, tree.weights)
        tree.reset()
        exchanged = [(bucket, [self._exchange(bucket, sums[:1])]) for bucket in self.buckets(trained).buckets]
        windows = self.windows(step, trained, mine)
        if windows is None:
            return None
        leaves = [leaf for window in windows for leaf in zip(window.losses, window.weights) if leaf[1]]
        total = math.fsum(weight for _, weight in leaves)
        loss = math.fsum(loss * weight for loss, weight in leaves) / total
        absent = [p for i, p in enumerate(trained) if not any(window.present[i] for window in windows)]
        places = [tree.places(rank, window.weights) for rank, window in enumerate(windows)]
        for i in range(1, max(map(len, places))):
            for bucket, parts in exchanged:
                parts.append(self._exchange(bucket, sums[i : i + 1]))
        return self._added(exchanged, places, total, absent), loss

    def _exchange(self, bucket: Bucket, node: list[dict[int, Tensor]]) -> Tensor:
        """Begin to exchange a node of each rank, which may have none; returns the memory for the parts of all."""
        flat, kernels = bucket.flat, bucket.flat.device.kernels
        bucket.wait()
        for sums in node:
            for id, view in bucket.views.items():
                kernels.elementwise.assign(view, sums.pop(id).data)
        received = Tensor.wrap(kernels.empty((flat.numel(),), flat.dtype), flat.device)
        bucket.work = self.communicator.all_to_all(flat, received, async_op=True)
        return received

    def _added(
        self, exchanged: list[tuple[Bucket, list[Tensor]]], places: list[Nodes], total: float, absent: list[Tensor]
    ) -> Iterator[GradStore]:
        """Each bucket's mean gradients, of what was received and the places of all ranks' nodes in the tree."""
        for bucket, parts in exchanged:
            flat, kernels = bucket.flat, bucket.flat.device.kernels
            size = flat.numel() // self.world_size
            bucket.wait()
            nodes: Nodes = {}
            for rank, keys in enumerate(places):
                for key, part in zip(keys, parts):
                    mine = part.data[rank * size : (rank + 1) * size]
                    insert(nodes, *key, mine, kernels.elementwise.add_into)
            sum_ = root(nodes, kernels.elementwise.add_into)
            kernels.grad_norm.scale_([sum_], 1.0 / total)
            bucket.work = self.communicator.all_gather(Tensor.wrap(sum_, flat.device), flat, async_op=True)
            parts.clear()
        for bucket, _ in exchanged:
            bucket.wait()
            yield bucket.grads(absent)


def _tree(step: Step) -> TreeAccumulator:
    assert isinstance(step.accumulator, TreeAccumulator)
    return step.accumulator
