"""A model's gradients block by block.

backward ->     block 2      block 1      block 0
sent in order   [block 2] -> [block 1] -> [block 0] -> [head] -> [final norm] -> [embedding]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from minigrad.autograd import no_grad
from minigrad.nn import Module, ModuleList
from minigrad.tensor import Tensor

from .params import Named


@dataclass(frozen=True)
class BlockLayout:
    """Which parameters belong together, in the order in which their gradients are reduced.

    ``groups``: (name, parameters with their names in the model). The blocks come first, from the last to the first,
    then what follows the blocks in the model, the last first, then what precedes them, as ``embedding``.
    """

    groups: tuple[tuple[str, Named], ...]
    num_blocks: int

    @classmethod
    def of(cls, model: Module, blocks: str | None = None) -> BlockLayout:
        """The layout of a model whose blocks are in the ModuleList of that name; None: in its only one.

        A shared parameter, such as a tied head's, belongs where the model names it first. Raises ValueError if there is
        no such list, or several to choose from.
        """
        lists = {name: module for name, module in model.named_modules() if isinstance(module, ModuleList)}
        outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
        if blocks is None:
            if len(outer) != 1:
                found_lists = ", ".join(outer) or "none"
                raise ValueError(
                    f"{type(model).__name__} has {len(outer)} ModuleLists ({found_lists}), expected one; pass "
                    "blocks= with the name of the one that holds the blocks"
                )
            blocks = outer[0]
        elif blocks not in lists:
            raise ValueError(f"blocks is {blocks!r}; {type(model).__name__} has the ModuleLists {', '.join(lists)}")
        found: dict[str, Named] = {f"block {i}": [] for i in reversed(range(len(lists[blocks])))}
        after: dict[str, Named] = {}
        embedding: Named = []
        seen = False
        for name, p in model.named_parameters():
            if name.startswith(f"{blocks}."):
                seen = True
                found[f"block {name[len(blocks) + 1 :].partition('.')[0]}"].append((name, p))
            elif seen:
                after.setdefault(name.partition(".")[0], []).append((name, p))
            else:
                embedding.append((name, p))
        groups = [*found.items(), *reversed(after.items()), ("embedding", embedding)]
        return cls(tuple((name, named) for name, named in groups if named), len(lists[blocks]))

    @property
    def names(self) -> list[str]:
        """The groups' names, in order."""
        return [name for name, _ in self.groups]


def non_finite(grads: Mapping[str, Tensor]) -> list[str]:
    """The names of the gradients that hold an infinity or NaN. One pass over them where there is none."""
    if _finite(list(grads.values())):
        return []
    return [key for key, grad in grads.items() if not _finite([grad])]


@no_grad()
def _finite(grads: list[Tensor]) -> bool:
    """Whether all elements are finite. Squares of large float64 numbers overflow, so a sum that is not finite is only a
    reason to look at each."""
    arrays = [grad.data for grad in grads]
    if not arrays or math.isfinite(grads[0].device.kernels.grad_norm.sum_of_squares(arrays)):
        return True
    return all(bool(grad.detach().isfinite().all().item()) for grad in grads)
