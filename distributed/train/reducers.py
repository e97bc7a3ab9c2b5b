"""The reducer of reproducible steps: all ranks' micro-batches are added up by a tree, whoever made them."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from minigrad import GradStore, Tensor

from ..comm.communicator import all_gather_json
from .buckets import filled
from .grad_sync import Buckets, Window, trained_of
from .step import Named, Step
from .tree import Nodes, TreeAccumulator, insert, root


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
        comm, tree, trained = self.communicator, _tree(step), trained_of(named)
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
