"""The sum over a step's micro-batches that does not depend on how many ranks made them.

Floating-point sums depend on their order. Here it is that of a fixed tree: micro-batch i of all ranks' is leaf i. The
nodes 2 j and 2 j + 1 of a level make node j of the next one; where one of the two is missing, it is the other.

    leaf     0   1   2   3   4   5         rank 0 of two has the leaves 0, 1, 2, and so the nodes 0+1 and 2,
             └─+─┘   └─+─┘   └─+─┘         rank 1 has 3 and 4+5
               └───+───┘       |
                   └─────+─────┘

So a rank adds up what is complete within its own leaves, and sends the roots of these parts.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import minigrad
from minigrad.errors import check_int
from minigrad.grad_store import GradStore
from minigrad.optim import GradAccumulator
from minigrad.tensor import Tensor

MICRO_BATCHES, DRAWS = 2**20, 2**20  # at most, of a step, and of random arrays of a micro-batch

Nodes = dict[tuple[int, int], Any]  # what is added up, by level (0 is that of the leaves) and number in it
Add = Callable[[Any, Any], object]  # adds the second to the first, in place


def insert(nodes: Nodes, level: int, number: int, content: Any, add: Add) -> None:
    """Add a node; it and the one beside it become the one above both."""
    while (beside := nodes.pop((level, number ^ 1), None)) is not None:
        left, right = (beside, content) if number % 2 else (content, beside)
        add(left, right)
        level, number, content = level + 1, number // 2, left
    if (level, number) in nodes:
        raise RuntimeError(f"node {number} of level {level} of the sum over micro-batches is there already")
    nodes[level, number] = content


def root(nodes: Nodes, add: Add) -> Any:
    """The whole tree's sum."""
    *rest, content = [nodes[key] for key in sorted(nodes, key=lambda key: key[1] << key[0])]
    for left in reversed(rest):
        add(left, content)
        content = left
    return content


class TreeAccumulator(GradAccumulator):
    """Adds up the window of one rank, whose micro-batches are the leaves ``rank * accum_steps`` and on.

    A micro-batch of weight 0 is no leaf. ``seed`` is that of the default generator's random numbers.
    """

    def __init__(self, accum_steps: int, rank: int = 0) -> None:
        super().__init__(check_int("accum_steps", accum_steps, 1, MICRO_BATCHES // (rank + 1)))
        self.rank = rank
        self.seed: int = minigrad.default_generator.seed

    def reset(self) -> None:
        """Drop what the present window has so far."""
        super().reset()
        self.nodes: Nodes = {}
        self.losses: list[float] = [0.0] * self.accum_steps
        self.weights: list[float] = [0.0] * self.accum_steps
        """Of each micro-batch, as is its loss."""
        self.present: set[int] = set()
        """The numbers of the tensors that have a gradient in any of them."""

    @property
    def leaf(self) -> int:
        """The number of the next micro-batch."""
        return self.rank * self.accum_steps + self.current_step

    def key_draws(self, step: int) -> None:
        """Make the default generator's next draws those of the step's next micro-batch, whichever rank has it."""
        offset = (step * MICRO_BATCHES + self.leaf) * DRAWS
        minigrad.default_generator.load_state_dict({"seed": self.seed, "offset": offset})

    def add_of(self, named: list[tuple[str, Tensor]], grads: GradStore, loss: float, weight: float) -> bool:
        """As the base's; a gradient that is missing is 0. RuntimeError in a full window."""
        if self.current_step == self.accum_steps:
            raise RuntimeError(f"the window has its {self.accum_steps} micro-batches: the next leaf is another rank's")
        self.present |= set(grads.numbers()) if weight else set()
        for _, p in named:
            if p.requires_grad and weight and grads.get(p) is None:
                grads.insert(p, Tensor.wrap(p.device.kernels.zeros(p.shape, p.dtype), p.device))
        one = GradAccumulator(1)
        one.add(grads, loss, take=True, weight=weight)
        if weight:
            insert(self.nodes, 0, self.leaf, one._sums, _add_into)
        self.losses[self.current_step], self.weights[self.current_step] = loss, weight
        self.weight: float = math.fsum(self.weights)
        self._loss_sum = math.fsum(x * w for x, w in zip(self.losses, self.weights) if w)
        self.current_step += 1
        return self.current_step >= self.accum_steps

    def places(self, rank: int, weights: list[float]) -> Nodes:
        """Where in the tree the nodes of a rank are whose leaves have these weights."""
        nodes: Nodes = {}
        for i, weight in enumerate(weights):
            if weight:
                insert(nodes, 0, rank * self.accum_steps + i, True, lambda left, right: None)
        return nodes

    def flush(self) -> tuple[GradStore, float] | None:
        """End the window: the means over the micro-batches that it has, or None if it has none."""
        sums = root(self.nodes, _add_into) if self.nodes else {}
        self._sums = {number: grad for number, grad in sums.items() if number in self.present}
        return super().flush()

    def state_dict(self, params: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The seed: between two steps there is no more, so that any number of ranks can go on. RuntimeError within."""
        if self.current_step:
            held = f"{self.current_step} of {self.accum_steps} micro-batches"
            raise RuntimeError(f"the window has {held}: save after its last")
        return {}, {"seed": self.seed}

    def load_state_dict(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], params: Any) -> None:
        """Go on with the draws of this seed. ValueError for the state of a trainer that is not reproducible."""
        if arrays or "seed" not in meta:
            raise ValueError("the state is not that of a trainer with reproducible=True, at the end of a step")
        self.reset()
        self.seed = check_int("seed", meta["seed"], 0, 2**64 - 1)


def _add_into(left: dict[int, Tensor], right: dict[int, Tensor]) -> None:
    for number, total in left.items():
        total.device.kernels.elementwise.add_into(total.data, right[number].data)
