"""Units of a model whose weights are whole on a rank only while they are used: stage 3 of ZeRO.

    forward      [ rest ][ block 0 ][ block 1 ][ block 2 ]
    all-gather   [ 0 ]   [ 1 ]      [ 2 ]                        the next one's, meanwhile
    backward                                   [ block 2 ][ block 1 ][ block 0 ]
    all-gather                                            [ 0 ]
    buffers      block 0 and 2 in one, block 1 in the other

Blocks take turns in two buffers, each always in the same one. So what the graph has saved of a block's weights, views
of its buffer, is right again as soon as the block is gathered again. The rest stays until the weights change. What is
whole in this rank's share is used there, and copied into no buffer.
"""

import functools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from minigrad import Tensor, TensorId, full
from minigrad.autograd import Function, bump, is_grad_enabled
from minigrad.engine import reachable
from minigrad.nn import Module
from minigrad.optim import GradAccumulator

from ..comm.calls import Work
from .blocks import blocks_of
from .shards import Share, ShareManager


class Unit:
    """Parameters that are gathered together, in the buffers of a ``slot``."""

    def __init__(self, slot: int, params: Sequence[Tensor]) -> None:
        self.slot = slot
        self.params = params
        self.shares: list[Share] = []
        self.hidden: Any = [full((), math.nan, dtype=p.dtype, device=p.device).expand(p.shape).data for p in params]
        self.arriving: list[tuple[Share, dict[TensorId, Any], Work]] = []

    def gather(self, share: Share, flat: Tensor, whole: bool) -> None:
        """Begin to gather one of its shares into ``flat`` (size,). Unless it must be ``whole``, parameters that are in
        this rank's part are used there, and not copied."""
        views, first = share.views_of(flat), share.communicator.rank * share.mine.numel()
        for piece in [] if whole else share.pieces:
            if piece.tensor.numel() == piece.p.numel():
                views[piece.p.id] = piece.tensor.data.reshape(piece.p.shape)
            else:
                flat.device.kernels.elementwise.assign(flat.data[first:][piece.place], piece.tensor.data)
        work = share.communicator.all_gather(share.weights, flat, async_op=True, of=share.of, own=whole)
        self.arriving.append((share, views, work))

    def show(self) -> None:
        """Let the parameters be what is being gathered, when it has arrived."""
        for share, views, work in self.arriving:
            work.wait()
            for p in share.params:
                p.data = views[p.id]
        self.arriving.clear()

    def hide(self) -> None:
        """Let the parameters be NaN, which takes no memory, and shows if somebody uses them."""
        self.show()  # nothing may still arrive
        for p, nan in zip(self.params, self.hidden):
            p.data = nan


class Rejoin(Function):
    """y = x, an output of unit i; backward, which comes to it first, has the unit's weights gathered again."""

    __slots__ = ("changes", "i", "units")
    is_view = True
    widens = False
    changes: int
    i: int
    units: "Units"

    def forward(self, x: Any, *, units: "Units", i: int) -> Any:
        self.units, self.i, self.changes = units, i, units.changes
        return x

    def backward(self, dy: Any) -> Any:
        self.units.rejoin(self)
        return dy


class Units:
    """The rest of a model's trained parameters (number 0), and its blocks, or other modules that are chosen (1 and on).

    A parameter that two units use is one of the rest. Raises ValueError for a model without blocks.
    """

    def __init__(self, model: Module, blocks: Sequence[Module] | None) -> None:
        if blocks is None:
            blocks = list(blocks_of(model, None, "the modules to gather one by one, such as [model]")[1])
        within = {id(module) for block in blocks for module in block.modules()}
        outside = [module for module in model.modules() if id(module) not in within]
        self._modules = [*enumerate(blocks, 1), *((0, module) for module in outside)]
        uses = Counter(p.id for block in blocks for p in block.parameters())
        uses.update(p.id for module in outside for p in vars(module)["_parameters"].values() if p is not None)
        alone = [[p for p in block.parameters() if p.requires_grad and uses[p.id] == 1] for block in blocks]
        known = {p.id for params in alone for p in params}
        rest = Unit(2, [p for p in model.parameters() if p.requires_grad and p.id not in known])
        self.all: list[Unit] = [rest, *(Unit(i % 2, params) for i, params in enumerate(alone))]
        self.buffers: dict[Any, Tensor] = {}
        self.holders: dict[int, Unit] = {}  # by slot, the unit that is in its buffers
        self.whole: bool = False  # whether all are gathered, by ``gather``
        self.changes: int = 0
        self._ahead = 1
        # By the order of a Rejoin, how many buckets must be sent when backward is there.
        self._over: dict[int, int] = {}

    def keep(self, manager: ShareManager) -> None:
        """From now on a rank has only its shares of the weights."""
        self._manager = manager
        for i, unit in enumerate(self.all):
            unit.shares = [share for share in manager.buckets if share.ids[0] in {p.id for p in unit.params}]
            for share in unit.shares:
                share.weights = share.new_zeros(share.mine.numel())
                share.of = f"block {i - 1}" if i else "the weights outside of blocks"
                for piece in share.pieces:
                    piece.move(share.weights)
                    piece.take()
            unit.hide()
        for i, module in self._modules:
            module.register_forward_pre_hook(functools.partial(self._before, i))
            if i:
                module.register_forward_hook(functools.partial(self._after, i))

    # ------------------------------------------------------------------ forward and backward

    def _before(self, i: int, *call: Any) -> None:
        """Unit i is about to be used: have it and the rest, and begin to gather the one that comes next."""
        if self.whole:
            return
        first = self.holders.get(2) is None
        for unit in (self.all[0], self.all[i]):
            self._start(unit)
            unit.show()
        self._ahead = self._ahead if i else 1
        if (i or first) and 0 < i + self._ahead < len(self.all):
            self._start(self.all[i + self._ahead])

    def _after(self, i: int, module: Module, args: Any, y: Any) -> Any:
        if self.whole or not is_grad_enabled() or isinstance(y, str | int | float | None):
            return y
        if isinstance(y, Tensor):
            return Rejoin.apply(y, units=self, i=i) if y.requires_grad else y
        again = functools.partial(self._after, i, module, args)
        if isinstance(y, dict):
            return type(y)(zip(y, map(again, y.values())))
        if isinstance(y, tuple | list):
            return getattr(type(y), "_make", type(y))(map(again, y))
        told = f"block {i - 1}, a {type(module).__name__}, returns a {type(y).__name__}"
        raise TypeError(f"stage 3: {told}; expected tensors, or tuples, lists and dicts of them")

    def expect(self, loss: Tensor, window: GradAccumulator | None) -> None:
        """See where the backward of ``loss`` will be over with each unit: in this order gradients are sent, with the
        sums of ``window``; None: they stay here.

        RuntimeError if it needs weights that are not there then.
        """
        nodes, parts = reachable(loss.node)[0], [] if self.whole else list(enumerate(self.all))[1:]
        visits = [node for node in nodes if isinstance(node, Rejoin)]
        last = {node.i: node.order for node in reversed(visits)}  # where backward comes to a unit for the last time
        ends = sorted(range(len(self.all)), key=lambda i: (-last.get(i, 0), -i))
        self._manager.buckets = [share for i in ends for share in self.all[i].shares]
        self._window = window
        over = {at.order: sum(len(self.all[i].shares) for i, end in last.items() if end > at.order) for at in visits}
        self._over = {} if window is None else over
        unit_of: dict[Any, int] = {p: i for i, unit in parts for p in unit.params}
        there = {i for i, unit in parts if unit in self.holders.values() and not unit.arriving}
        for node in reversed(nodes):
            if isinstance(node, Rejoin):
                there = {node.i}
            elif lost := {unit_of[edge] for edge in node.edges if edge in unit_of} - there:
                text = f"stage 3: backward comes to weights of block {min(lost) - 1} by another way than its forward"
                raise RuntimeError(f"{text}, or after they were released; use them in its forward alone")

    def rejoin(self, node: Rejoin) -> None:
        """Backward is about to be in a unit."""
        if node.changes != self.changes:
            raise RuntimeError("backward of a loss that was computed before the weights were changed or gathered")
        self._ahead = -1
        n = self._over.get(node.order, 0)  # what comes after this unit is over, also where a rank lacks gradients of it
        for id in [id for share in self._manager.buckets[:n] for id in share.ids if id not in share.ready]:
            if self._window is not None and (grad := self._window.pop(id)) is not None:
                self._manager.mark_grad_ready(id, grad)
        self._manager.launch_rest(n)
        self._before(node.i)

    def _start(self, unit: Unit) -> None:
        """Begin to gather a unit, if it is not there."""
        if (holder := self.holders.get(unit.slot)) is unit:
            return
        if holder is not None:
            holder.hide()
        self.holders[unit.slot] = unit
        for share in unit.shares:
            key = unit.slot, share.mine.dtype
            if key not in self.buffers:
                others = [other for at in self.all if at.slot == unit.slot for other in at.shares]
                size = max(other.size for other in others if other.mine.dtype == share.mine.dtype)
                self.buffers[key] = share.mine.new_empty((size,))
            unit.gather(share, Tensor.wrap(self.buffers[key].data[: share.size], share.mine.device), whole=False)

    # ------------------------------------------------------------------ between steps

    def changed(self) -> None:
        """The weights have changed: what was gathered is free, or gathered again."""
        self.changes += 1
        self.holders.clear()
        self.buffers.clear()
        for unit in self.all:
            unit.hide()
            bump(unit.params)
            for share in unit.shares if self.whole else []:
                unit.gather(share, share.mine.new_empty((share.size,)), whole=True)
            unit.show()

    def gather(self) -> None:
        """Have all weights whole, in memory of their own."""
        if not self.whole:
            self.whole = True
            self.changed()

    def release(self) -> None:
        """Take over what the whole weights have become, and keep only shares of them."""
        if self.whole:
            for piece in self._manager.pieces:
                piece.take()
            self.whole = False
            self.changed()
