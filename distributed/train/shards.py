"""Shares of flat buckets: which elements of gradients and moments a rank holds, whatever parameters they belong to.

    bucket     [ weight a | weight b             | c  ]-      flat, filled up to a multiple of the ranks
    share      [ rank 0        | rank 1               ]       equal ranges of elements, one for each rank
    piece      [ a        | b  ][ b              | c  ]       what of each parameter is in a share

A rank's optimizer updates the pieces in its share, each with the options of its parameter.

Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models" (2020).
"""

from collections.abc import Sequence
from typing import Any

from minigrad import GradStore, Tensor, TensorId, empty_like, zeros
from minigrad.autograd import Version, bump
from minigrad.optim import Optimizer
from minigrad.optim.optimizer_state import ParamState, options_of

from ..comm.calls import ReduceOp, Work
from ..comm.communicator import Communicator, all_gather_json
from .buckets import Bucket, GradientBucketManager


class Piece:
    """Elements ``where`` of a parameter, which are elements ``place`` of a share; ``tensor`` (n,) is a view of them."""

    tensor: Tensor
    own: Tensor
    """What the optimizer updates: ``tensor``, or its copy in host memory."""

    def __init__(self, p: Tensor, where: slice, place: slice) -> None:
        self.p = p
        self.where = where
        self.place = place
        self._copied = -1  # the version of ``tensor`` that the copy is of

    def move(self, weights: Tensor, version: Version | None = None) -> None:
        """View a share's memory (n,) from now on."""
        self.tensor = self.own = Tensor.wrap(weights.data[self.place], weights.device)
        if version is not None:
            self.tensor._version = version

    def take(self) -> None:
        """Copy the parameter's values to the share's memory."""
        self.p.device.kernels.elementwise.assign(self.tensor.data, self.p.data.reshape(-1)[self.where])
        bump([self.tensor])

    def to_host(self) -> None:
        """Let ``own`` be a copy in host memory, made anew where anybody else has changed the values."""
        if self._copied != self.tensor._version.count:
            copy = self.tensor.cpu()
            self.own = copy if self.own is self.tensor else self.own
            self.own.data, self._copied = copy.data, self.tensor._version.count
            bump([self.own])

    def from_host(self) -> None:
        """Take over what the optimizer has made of the copy."""
        self.p.device.kernels.elementwise.assign(self.tensor.data, self.own.data)
        bump([self.tensor])
        self._copied = self.tensor._version.count


class Share(Bucket):
    """A bucket of which each rank reduces one part, and this rank's part.

    In stage 1 the gradients' buffer stays. Later a share has memory of its own, and the bucket has some only while it
    is filled and sent. Until stage 3 the parameters are views of one buffer, which is gathered in place.
    """

    work: Work | None

    def __init__(self, params: Sequence[Tensor], communicator: Communicator, stage: int) -> None:
        super().__init__(params, communicator.world_size)
        n = self.size // communicator.world_size
        first = communicator.rank * n
        self.keeps_whole: bool = stage == 1
        self.of: str = ""  # what, in stage 3
        self.communicator = communicator
        self.mine: Tensor = self.flat.detach()[first : first + n] if self.keeps_whole else self.new_zeros(n)
        """This rank's part (n,) of the gradients."""
        self.pieces: list[Piece] = []
        start = -first  # of a parameter, in the share
        for p in params:
            a, b = max(start, 0), min(start + p.numel(), n)
            if a < b:
                self.pieces.append(Piece(p, slice(a - start, b - start), slice(a, b)))
            start += p.numel()
        self.weights: Tensor  # this rank's part of them (n,), of which the pieces are views
        self.places: dict[TensorId, Any] = {}  # of the parameters, where all weights are in one buffer
        if stage < 3:
            self.all_weights: Tensor = self.new_zeros(self.size)
            self.weights = self.all_weights.detach()[first : first + n]
            self.places = self.views_of(self.all_weights)
            for piece in self.pieces:
                piece.move(self.weights, piece.p._version)
            self.adopt()
        self.came: set[TensorId] = set()  # the parameters that had a gradient in the window
        self._received: Tensor | None = None

    @property
    def reduced(self) -> Tensor:
        """This rank's part."""
        return self.mine

    def grads(self, absent: Sequence[Tensor] = ()) -> GradStore:
        """The gradients of its pieces, as views, without those of the ``absent`` parameters."""
        without = {p.id for p in absent}
        views = [(piece.tensor, self.mine.data[piece.place]) for piece in self.pieces if piece.p.id not in without]
        return GradStore({tensor.id: Tensor.wrap(view, self.mine.device) for tensor, view in views})

    def scatter(self, add: bool) -> None:
        """Begin to reduce this rank's part, which may have to be added to what is there."""
        self._received = empty_like(self.mine) if add else self.mine
        self.work = self.communicator.reduce_scatter(self.flat, self._received, ReduceOp.AVG, async_op=True, of=self.of)

    def wait(self) -> None:
        """Until it is reduced, if it was sent, and added."""
        super().wait()
        received, self._received = self._received, None
        if received is not None and received is not self.mine:
            self.mine.device.kernels.elementwise.add_into(self.mine.data, received.data)
        self.free()

    def adopt(self) -> None:
        """Copy parameters to the buffer that are not in it."""
        for p in self.params:
            if (place := self.places.get(p.id, p.data)) is not p.data:
                p.device.kernels.elementwise.assign(place, p.data)
                p.data = place
                bump([p])

    def free(self) -> None:
        """Give the bucket's memory back, if it is not kept."""
        for name in () if self.keeps_whole else ("flat", "views"):
            vars(self).pop(name, None)


class ShareManager(GradientBucketManager):
    """Buckets that are reduced to shares. Those that are not kept whole are reduced in each micro-batch, and at most
    two of them are whole at a time."""

    buckets: list[Share]  # type: ignore[assignment]  # of the base, Buckets
    _bucket_of: dict[TensorId, Share]  # type: ignore[assignment]
    _adds: bool = False  # whether there are sums of micro-batches before

    @property
    def pieces(self) -> list[Piece]:
        """What this rank has of all parameters."""
        return [piece for share in self.buckets for piece in share.pieces]

    def is_ready(self, id: TensorId) -> bool:
        """Whether the parameter had a gradient in this window."""
        return id in self._bucket_of[id].came

    def mark_grad_ready(self, id: TensorId, grad: Tensor) -> None:
        """As the base's; but where the bucket's memory is given back, ``grad`` is empty afterwards."""
        super().mark_grad_ready(id, grad)
        share = self._bucket_of[id]
        share.came.add(id)
        if not share.keeps_whole:
            grad.data = grad.device.kernels.empty((0,), grad.dtype)

    def send(self, bucket: Bucket) -> None:
        """Begin to reduce a bucket, when the one before has arrived if no more than two are to be whole."""
        share = self.buckets[self._launched]
        if self._launched and not share.keeps_whole:
            self.buckets[self._launched - 1].wait()
        share.scatter(self._adds)

    def end_micro_batch(self) -> None:
        """Reduce the gradients of a micro-batch that does not end the window."""
        self.launch_rest()
        for share in self.buckets:
            share.wait()
            share.ready.clear()
        self._launched, self._adds = 0, True

    def reset(self) -> None:
        """Drop the window and begin a new one, after waiting for what is under way."""
        super().reset()
        self._adds = False
        for share in self.buckets:
            share.came.clear()
            share.free()

    def adopt(self) -> None:
        """Have the parameters in the buffers, also where the program has given some other memory. That may be another
        one's place, so it is copied before any place is written."""
        moved = [p for share in self.buckets for p in share.params if share.places.get(p.id, p.data) is not p.data]
        for p in moved:
            p.data = p.device.kernels.copy(p.data)
        for share in self.buckets if moved else []:
            share.adopt()

    def spread(self) -> None:
        """Give all ranks the values of all pieces."""
        for share in self.buckets:
            share.work = share.communicator.all_gather(share.weights, share.all_weights, async_op=True)
        for share in self.buckets:
            share.wait()
            here = {piece.p.id for piece in share.pieces}  # whose change the optimizer has counted
            bump([p for p in share.params if p.id not in here])


def cut(whole: Optimizer, shares: ShareManager) -> Optimizer:
    """The optimizer of this rank's pieces, with the options of ``whole``, whose states it takes over."""
    pieces = {piece.p.id: piece for piece in shares.pieces}
    own = whole.without_params()
    for group in whole.param_groups:
        mine = [(whole.name_of(p), pieces[p.id].own) for p in group["params"] if p.id in pieces]
        own.add_param_group({**options_of(group), "params": mine})
    for p in (p for share in shares.buckets for p in share.params):
        state, piece = whole.state.pop(p.id, None), pieces.get(p.id)
        if state is not None and piece is not None:
            k = state.device.kernels
            arrays = {kind: k.copy(array.reshape(-1)[piece.where]) for kind, array in state.arrays.items()}
            own.state[piece.own.id] = ParamState(state.device, state.step, arrays)
    own.timestep = whole.timestep
    return own


def join(own: Optimizer, whole: Optimizer, shares: ShareManager) -> None:
    """Give ``whole`` the states of all ranks' pieces; a collective of all ranks."""
    states = {whole.name_of(piece.p): own.state.get(piece.own.id) for piece in shares.pieces}
    mine = {name: [state.step, sorted(state.arrays)] for name, state in states.items() if state is not None}
    known = {name: entry for one in all_gather_json(shares._communicator, mine) for name, entry in one.items()}
    for share in shares.buckets:
        entries = [(p, *known.get(whole.name_of(p), (0, []))) for p in share.params]
        for kind in sorted({kind for _, _, kinds in entries for kind in kinds}):
            dtype, device = whole.dtype_of(share.params[0], kind), share.mine.device
            part = zeros(share.mine.numel(), dtype=dtype, device=device)
            for piece in share.pieces:
                state = own.state.get(piece.own.id)
                if state is not None and kind in state.arrays:
                    device.kernels.elementwise.assign(part.data[piece.place], state.arrays[kind])
            gathered = zeros(share.size, dtype=dtype, device=device)
            share.communicator.all_gather(part, gathered)
            views = share.views_of(gathered)
            for p, step, kinds in entries:
                if kind in kinds:
                    home = whole.keeps_on or device
                    array = Tensor.wrap(views[p.id], device).clone().to(home).data
                    whole.state.setdefault(p.id, ParamState(home, step)).arrays[kind] = array
    whole.timestep = own.timestep
