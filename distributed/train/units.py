"""Units of a model whose weights are whole on a rank only while they are used: stage 3 of ZeRO.

    forward      [ rest ][ block 0 ][ block 1 ][ block 2 ]
    all-gather   [ 0 ]   [ 1 ]      [ 2 ]                        the next one's, meanwhile
    backward                                   [ block 2 ][ block 1 ][ block 0 ]
    all-gather                                            [ 0 ]
    buffers      block 0 and 2 in one, block 1 in the other

Blocks take turns in two buffers, each always in the same one. So what the graph has saved of a block's weights, views
of its buffer, is right again as soon as the block is gathered again. The rest stays until the weights change.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from minigrad import Tensor, empty, full
from minigrad.autograd import Function, bump
from minigrad.nn import Module, ModuleList

from ..comm.calls import Work
from .shards import Share


class Unit:
    """Parameters that are gathered together, in the buffers of a ``slot``."""

    def __init__(self, slot: int, params: Sequence[Tensor]) -> None:
        self.slot, self.params = slot, params
        self.shares: list[Share] = []
        self.arriving: list[tuple[Share, Tensor, Work]] = []

    def show(self) -> None:
        """Let the parameters be what is being gathered, when it has arrived."""
        for share, flat, work in self.arriving:
            work.wait()
            share.show(flat)
        self.arriving.clear()

    def hide(self) -> None:
        """Let the parameters be NaN, which takes no memory, and shows if somebody uses them."""
        for _, _, work in self.arriving:
            work.wait()
        self.arriving.clear()
        for p in self.params:
            nan = full((), math.nan, dtype=p.dtype, device=p.device)
            p.data = p.device.kernels.movement.expand(nan.data, p.shape)


class Rejoin(Function):
    """y = x, the output of a unit; backward, which comes to it first, has the unit's weights gathered again."""

    is_view = True
    widens = False

    def forward(self, x: Any, *, reach: Callable[[], None]) -> Any:
        self.reach = reach
        return x

    def backward(self, dy: Any) -> Any:
        self.reach()
        return dy


class Units:
    """The blocks of ``model``, or the modules that are chosen, and the rest of its trained parameters.

    A parameter that two units use, or one and the rest, is one of the rest. ValueError for a model without blocks.
    """

    def __init__(self, model: Module, blocks: Sequence[Module] | None) -> None:
        blocks = blocks_of(model) if blocks is None else blocks
        within = {id(module) for block in blocks for module in block.modules()}
        outside = [module for module in model.modules() if id(module) not in within]
        uses = Counter(p.id for block in blocks for p in block.parameters())
        uses.update(p.id for module in outside for p in vars(module)["_parameters"].values() if p is not None)
        trained = [p for p in model.parameters() if p.requires_grad]
        alone = {p.id for p in trained if uses[p.id] == 1}
        self.blocks = [Unit(i % 2, [p for p in block.parameters() if p.id in alone]) for i, block in enumerate(blocks)]
        inner = {p.id for unit in self.blocks for p in unit.params}
        self.rest = Unit(2, [p for p in trained if p.id not in inner])
        self.buffers: dict[Any, Tensor] = {}
        self.holders: dict[int, Unit] = {}
        """By slot, the unit that is in its buffers."""
        self.whole: bool = False
        """Whether all are gathered, by ``gather``."""
        self._ahead, self._changes = 1, 0
        self._modules = blocks, outside

    @property
    def all(self) -> list[Unit]:
        """In the order in which backward ends with them."""
        return [*reversed(self.blocks), self.rest]

    def keep(self, shares: Sequence[Share]) -> None:
        """From now on a rank has only its shares of the weights."""
        for unit in self.all:
            ids = {p.id for p in unit.params}
            unit.shares = [share for share in shares if share.ids[0] in ids]
            for share in unit.shares:
                share.keep_weights()
            unit.hide()
        self._sizes = Counter[Any]()
        for unit in self.all:
            for share in unit.shares:
                key = unit.slot, share.mine.dtype
                self._sizes[key] = max(self._sizes[key], share.size)
        blocks, outside = self._modules
        for i, block in enumerate(blocks):
            block.register_forward_pre_hook(functools.partial(self._before, i))
            block.register_forward_hook(functools.partial(self._after, i))
        for module in outside:
            module.register_forward_pre_hook(self._before_rest)

    # ------------------------------------------------------------------ forward and backward

    def _before_rest(self, *call: Any) -> None:
        self._ahead = 1
        if not self.whole and self.holders.get(self.rest.slot) is not self.rest:
            self._start(self.rest)
            self.rest.show()
            if self.blocks:
                self._start(self.blocks[0])

    def _before(self, i: int, *call: Any) -> None:
        """Unit i is about to be used: have it, and begin to gather the one that comes next."""
        if not self.whole:
            self._start(self.rest)
            self.rest.show()
            self._start(self.blocks[i])
            self.blocks[i].show()
            if 0 <= i + self._ahead < len(self.blocks):
                self._start(self.blocks[i + self._ahead])

    def _after(self, i: int, module: Module, args: Any, y: Any) -> Any:
        if isinstance(y, tuple):
            return tuple(self._after(i, module, args, one) for one in y)
        if self.whole or not isinstance(y, Tensor) or not y.requires_grad:
            return y
        return Rejoin.apply(y, reach=functools.partial(self._rejoin, i, self._changes))

    def _rejoin(self, i: int, changes: int) -> None:
        if changes != self._changes:
            raise RuntimeError("backward of a loss that was computed before the weights were changed or gathered")
        self._ahead = -1
        self._before(i)

    def _start(self, unit: Unit) -> None:
        """Begin to gather a unit, if it is not there."""
        holder = self.holders.get(unit.slot)
        if holder is unit:
            return
        if holder is not None:
            holder.hide()
        self.holders[unit.slot] = unit
        for share in unit.shares:
            key = unit.slot, share.mine.dtype
            if key not in self.buffers:
                self.buffers[key] = empty((self._sizes[key],), dtype=share.mine.dtype, device=share.mine.device)
            flat = Tensor.wrap(self.buffers[key].data[: share.size], share.mine.device)
            unit.arriving.append((share, flat, share.gather_weights(flat)))

    # ------------------------------------------------------------------ between steps

    def changed(self) -> None:
        """The weights have changed: what was gathered is free."""
        self._changes += 1
        for unit in self.holders.values():
            unit.hide()
        self.holders.clear()
        self.buffers.clear()
        for unit in self.all:
            bump(unit.params)
        if self.whole:
            self.gather()

    def gather(self) -> None:
        """Have all weights whole, in memory of their own."""
        self.whole = False
        self.changed()
        for unit in self.all:
            for share in unit.shares:
                flat = empty((share.size,), dtype=share.mine.dtype, device=share.mine.device)
                unit.arriving.append((share, flat, share.gather_weights(flat)))
            unit.show()
        self.whole = True

    def release(self) -> None:
        """Take over what the whole weights have become, and keep only shares of them."""
        if self.whole:
            self.whole = False
            for unit in self.all:
                for share in unit.shares:
                    share.take_weights()
                unit.hide()
            self.changed()


def blocks_of(model: Module) -> list[Module]:
    """The entries of the model's only ModuleList that is in no other; ValueError if there is none, or several."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, ModuleList)}
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(outer) != 1:
        raise ValueError(
            f"{type(model).__name__} has {len(outer)} ModuleLists ({', '.join(outer) or 'none'}), expected one, of its "
            "blocks; pass units= with the modules that are to be gathered one by one, such as [model]"
        )
    return list(lists[outer[0]].children())
