"""A model's gradients block by block: a bucket for each block, sent when its backward has ended.

    backward      [ head ][ block 2 ][ block 1 ][ block 0 ][ embedding ]
    all-reduce                     [ block 2 ][ block 1 ][ block 0 ][ head ][ final norm ][ embedding ]
    AdamW                                                                                              [ all ]

What is not finite is named by rank, block and parameter.
"""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from minigrad import GradStore, Tensor
from minigrad.grad_arithmetic import norm_of
from minigrad.nn import Module, ModuleList
from minigrad.optim import NonFiniteGradientError

from ..comm.communicator import Communicator
from .buckets import CommHook, GradientBucketManager
from .grad_sync import Overlapped, Window
from .step import Named, Step, Updater, merged


@dataclass(frozen=True)
class BlockLayout:
    """Which parameters belong together, in the order in which their gradients are reduced.

    ``groups``: (name, parameters with their names in the model). The blocks come first, from the last to the first.
    Then comes what follows the blocks in the model, the last first, then what precedes them, as ``embedding``.
    """

    groups: tuple[tuple[str, Named], ...]
    num_blocks: int

    @classmethod
    def of(cls, model: Module, blocks: str | None = None) -> "BlockLayout":
        """The layout of a model whose blocks are in the ModuleList of that name; None: in its only one.

        A shared parameter, such as a tied head's, belongs where the model names it first. Raises ValueError if there is
        no such list, or several to choose from.
        """
        blocks, modules = blocks_of(model, blocks, "the name of the one that holds the blocks")
        found: dict[str, Named] = {f"block {i}": [] for i in reversed(range(len(modules)))}
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
        return cls(tuple((name, named) for name, named in groups if named), len(modules))

    @property
    def names(self) -> list[str]:
        """The groups' names, in order."""
        return [name for name, _ in self.groups]


def blocks_of(model: Module, name: str | None, advice: str) -> tuple[str, ModuleList]:
    """The model's ModuleList of that name (None: the only one that is in no other), with its name.

    Raises ValueError, with ``advice``, if there is none, or several to choose from.
    """
    lists = {name: module for name, module in model.named_modules() if isinstance(module, ModuleList)}
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if name is None and len(outer) != 1:
        found = f"{len(outer)} ModuleLists ({', '.join(outer) or 'none'})"
        raise ValueError(f"{type(model).__name__} has {found}, expected one; pass blocks= with {advice}")
    name = outer[0] if name is None else name
    if name not in lists:
        raise ValueError(f"blocks is {name!r}; {type(model).__name__} has the ModuleLists {', '.join(lists)}")
    return name, lists[name]


class NonFiniteBlockGradientError(NonFiniteGradientError):
    """A gradient holds an infinity or NaN; no weight was changed, on any rank.

    ``step`` is the number of the step. ``where`` has, for each rank concerned, block -> names of parameters; rank None
    stands for the ranks' sum, where each rank's own gradient is finite.
    """

    def __init__(self, message: str, norm: float, step: int, where: Mapping[int | None, dict[str, list[str]]]) -> None:
        super().__init__(message, norm)
        self.step = step
        self.where: dict[int | None, dict[str, list[str]]] = dict(where)


class BlockBuckets(Overlapped):
    """Buckets by block. ``more`` are further settings that must be the same on all ranks."""

    capturable = False

    def __init__(self, communicator: Communicator, hook: CommHook, layout: BlockLayout, more: dict[str, Any]) -> None:
        super().__init__(communicator, sys.maxsize, hook)
        self._layout, self._more = layout, {"the blocks": layout.names, **more}
        self._names = {p.id: key for _, named in layout.groups for key, p in named}
        self._spoiled: set[str] = set()

    def settings(self, step: Step) -> dict[str, Any]:
        """With the blocks."""
        return {**super().settings(step), **self._more}

    def new_buckets(self, trained: list[Tensor]) -> GradientBucketManager:
        """No bucket holds parameters of two blocks."""
        wanted = {p.id for p in trained}
        groups = [[p for _, p in named if p.id in wanted] for _, named in self._layout.groups]
        return GradientBucketManager(
            trained, self.communicator, self.bucket_size_bytes, self.hook, groups=groups, inspect=self._inspect
        )

    def _inspect(self, grads: GradStore) -> None:
        """Note what is not finite in a block before it is sent: in the sum nobody can tell whose it was."""
        self._spoiled.update(non_finite({self._names[id]: grad for id, grad in grads.items()}))

    def non_finite(self, trained: list[Tensor]) -> list[bool]:
        """What was noted."""
        return [self._names[p.id] in self._spoiled for p in trained]

    def check(self, step: Step, trained: list[Tensor], windows: list[Window]) -> None:
        """Raise NonFiniteBlockGradientError too."""
        if step.precision.scaler is not None:
            super().check(step, trained, windows)  # first: a loss that is not finite is no overflow of its gradients
        names = [self._names[p.id] for p in trained]
        bad = {rank: {name for name, spoiled in zip(names, w.non_finite) if spoiled} for rank, w in enumerate(windows)}
        refuse(self._layout, step, {rank: keys for rank, keys in bad.items() if keys})
        if step.precision.scaler is None:
            super().check(step, trained, windows)

    def reset(self) -> None:
        """Forget what was not finite, too."""
        super().reset()
        self._spoiled.clear()


class BlockUpdater(Updater):
    """Names the blocks whose gradients' sum over the ranks is not finite."""

    def __init__(self, layout: BlockLayout) -> None:
        self._layout = layout

    def clip_and_update(self, step: Step, named: Named, parts: Iterable[GradStore]) -> float | None:
        """Raises NonFiniteBlockGradientError."""
        grads = merged(parts)
        try:
            return super().clip_and_update(step, named, [grads])
        except NonFiniteGradientError as error:
            bad = {*non_finite({key: grad for key, p in named if (grad := grads.get(p)) is not None})}
            rank = 0 if step.reducer.world_size == 1 else None
            refuse(self._layout, step, {rank: bad} if bad else {}, error.norm)
            raise


def refuse(layout: BlockLayout, step: Step, found: Mapping[int | None, set[str]], norm: float = float("nan")) -> None:
    """Raise NonFiniteBlockGradientError for parameters whose gradients are not finite, by rank."""
    where = {
        rank: {group: bad for group, named in layout.groups if (bad := [key for key, _ in named if key in keys])}
        for rank, keys in found.items()
    }
    if not where:
        return
    number = step.global_step + 1
    places = {rank: "the ranks' sum" if rank is None else f"rank {rank}" for rank in where}
    words = [
        ", ".join([places[rank], *(f"{group} ({_some(keys)})" for group, keys in groups.items())])
        for rank, groups in where.items()
    ]
    text = f"step {number}: gradients are infinite or NaN on {'; '.join(words)}; no weight was changed"
    raise NonFiniteBlockGradientError(text, norm, number, where)


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:2]) + (f" and {len(keys) - 2} more" if len(keys) > 2 else "")


def non_finite(grads: Mapping[str, Tensor]) -> list[str]:
    """The names of the gradients that hold an infinity or NaN. One pass over them where there is none."""
    if math.isfinite(norm_of(list(grads.values()))):
        return []
    # Squares of large float64 numbers overflow, so a norm that is not finite is only a reason to look at each.
    return [key for key, grad in grads.items() if not grad.detach().isfinite().all().item()]
