"""A model's gradients block by block (entrenar's ``BlockGradientSet`` and ``PerBlockGradientAccumulator``).

backward ->     block 2      block 1      block 0
sent in order   [block 2] -> [block 1] -> [block 0] -> [head] -> [final norm] -> [embedding]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from minigrad.autograd import no_grad
from minigrad.creation import cat
from minigrad.grad_store import GradStore
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

    def sets(self, grads: GradStore) -> list[BlockGradientSet]:
        """The gradients of a store, which they share, by group; groups without any are left out."""
        sets = [
            BlockGradientSet(name, {key: grad for key, p in named if (grad := grads.get(p)) is not None})
            for name, named in self.groups
        ]
        return [one for one in sets if one.components]


class BlockGradientSet:
    """The gradients of one block, by the parameters' names: ``components``. All methods work on the tensors' device.

    entrenar's has nine components, those of a Llama block; this one has whatever parameters the block has.
    """

    def __init__(self, name: str, components: Mapping[str, Tensor]) -> None:
        self.name = name
        self.components: dict[str, Tensor] = dict(components)

    @classmethod
    def zeroed(cls, name: str, params: Named) -> BlockGradientSet:
        """Zeros, one for each parameter."""
        return cls(name, {key: Tensor.wrap(p.device.kernels.zeros(p.shape, p.dtype), p.device) for key, p in params})

    @classmethod
    def from_flat(cls, name: str, flat: Tensor, params: Named) -> BlockGradientSet:
        """Views of ``flat`` (n,) with the parameters' shapes, in their order.

        Raises ValueError unless it has as many elements as the parameters, and their dtype and device.
        """
        sizes = [p.numel() for _, p in params]
        if flat.shape != (sum(sizes),):
            raise ValueError(f"{name}: the flat gradients have shape {flat.shape}, expected {(sum(sizes),)}: {sizes}")
        views, start = {}, 0
        for (key, p), size in zip(params, sizes):
            if (flat.dtype, flat.device) != (p.dtype, p.device):
                raise ValueError(
                    f"{name}: the flat gradients are {flat.dtype} on {flat.device}; parameter {key} is {p.dtype} on "
                    f"{p.device}"
                )
            views[key] = Tensor.wrap(flat.data[start : start + size].reshape(p.shape), flat.device)
            start += size
        return cls(name, views)

    @property
    def component_sizes(self) -> list[int]:
        """Elements of each component."""
        return [grad.numel() for grad in self.components.values()]

    @no_grad()
    def flatten(self) -> Tensor:
        """All components one after the other, (n,), copied. Raises ValueError where their dtypes differ."""
        if len({grad.dtype for grad in self.components.values()}) != 1:
            dtypes = {key: str(grad.dtype) for key, grad in self.components.items()}
            raise ValueError(f"{self.name}: components of one dtype can be flattened, not {dtypes}")
        return cat([grad.detach().reshape(-1) for grad in self.components.values()])

    def accumulate(self, other: BlockGradientSet) -> None:
        """Add another set of the same names, shapes and dtypes in place; ValueError for one that differs, before
        anything is changed.
        """
        mine, theirs = (
            {key: (grad.shape, str(grad.dtype), str(grad.device)) for key, grad in one.components.items()}
            for one in (self, other)
        )
        if mine != theirs:
            keys = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
            raise ValueError(
                f"{self.name}: {keys[0]} is {mine.get(keys[0])} here and {theirs.get(keys[0])} in what is to be added"
            )
        for key, grad in self.components.items():
            grad.device.kernels.elementwise.add_into(grad.data, other.components[key].data)

    def scale(self, factor: float) -> None:
        """Multiply all components in place."""
        for grad in self.components.values():
            grad.device.kernels.grad_norm.scale_([grad.data], factor)

    def non_finite(self) -> list[str]:
        """The names of the components that hold an infinity or NaN. One pass over the set where there is none."""
        if _finite(list(self.components.values())):
            return []
        return [key for key, grad in self.components.items() if not _finite([grad])]

    def has_non_finite(self) -> bool:
        """Whether any component holds an infinity or NaN."""
        return bool(self.non_finite())


@no_grad()
def _finite(grads: list[Tensor]) -> bool:
    """Whether all elements are finite. Squares of large float64 numbers overflow, so a sum that is not finite is only a
    reason to look at each."""
    arrays = [grad.data for grad in grads]
    if not arrays or math.isfinite(grads[0].device.kernels.grad_norm.sum_of_squares(arrays)):
        return True
    return all(bool(grad.detach().isfinite().all().item()) for grad in grads)
