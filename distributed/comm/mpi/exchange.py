"""How the collectives move large tensors between ranks by messages, as generators for ``Progress``.

Every block of a reduction has one owner: it receives all ranks' values, combines them in order of rank and sends the
result to all. So all ranks hold the same bits. These are the two halves of Rabenseifner's all-reduce (Thakur et al.
2005). Work goes block by block, so that a block is still in the cache when it is combined and scratch memory stays
small.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..calls import Call, CallKind
from ..combine import combine
from .mpi_runtime import Messages, Steps

BLOCK_BYTES = 1 << 20  # of one owner's block in a reduction
MESSAGE_BYTES = 1 << 26  # of one message elsewhere; far below the 2 GiB that an MPI count can name


@dataclass
class Mail:
    """Sends and receives raw bytes with one tag between the members of a group.

    ``wire`` is an MPI communicator; ``members`` are its ranks that form the group, in the group's order.
    """

    wire: Any
    members: Sequence[int]
    rank: int
    tag: int

    def __post_init__(self) -> None:
        self.size: int = len(self.members)
        self.peers: list[int] = [p for p in range(self.size) if p != self.rank]

    def tagged(self, tag: int) -> "Mail":
        """The same group with another tag."""
        return replace(self, tag=tag)

    def send(self, array: Any, peer: int) -> Messages:
        """Start to send a contiguous 1-D array; none if it is empty."""
        return self._begin(self.wire.Isend, array, peer)

    def recv(self, array: Any, peer: int) -> Messages:
        """Start to receive into a contiguous 1-D array; none if it is empty."""
        return self._begin(self.wire.Irecv, array, peer)

    def _begin(self, move: Callable[..., Any], array: Any, peer: int) -> Messages:
        return [(move(array.view(np.uint8), self.members[peer], self.tag), peer)] if array.size else []


def cut(size: int, parts: int) -> list[slice]:
    """``size`` elements in ``parts`` parts as equal as possible."""
    return [slice(size * i // parts, size * (i + 1) // parts) for i in range(parts)]


def rounds(array: Any, most_bytes: int) -> list[Any]:
    """Views of a 1-D array, each of at most ``most_bytes``."""
    return [array[part] for part in cut(array.size, max(1, -(-array.nbytes // most_bytes)))]


def all_reduce(mail: Mail, call: Call) -> Steps:
    """Every rank combines its block of each round and sends it to all."""
    x = call.recv.reshape(-1)
    scratch = np.empty((mail.size, BLOCK_BYTES // x.itemsize + 1), x.dtype)
    last: Messages = []
    for part in rounds(x, BLOCK_BYTES * mail.size):
        blocks = [part[where] for where in cut(part.size, mail.size)]
        mine = blocks[mail.rank]
        parts = [mine if p == mail.rank else scratch[p, : mine.size] for p in range(mail.size)]
        yield last + [m for p in mail.peers for m in mail.send(blocks[p], p) + mail.recv(parts[p], p)]
        combine(call.op, parts, [mine])
        last = [m for p in mail.peers for m in mail.send(mine, p) + mail.recv(blocks[p], p)]
    yield last


def reduce_scatter(mail: Mail, call: Call) -> Steps:
    """Every rank combines the part that it keeps."""
    x, y = call.send.reshape(mail.size, -1), call.recv.reshape(-1)
    scratch = np.empty((mail.size, BLOCK_BYTES // x.itemsize + 1), x.dtype)
    for where in cut(y.size, max(1, -(-y.nbytes // BLOCK_BYTES))):
        kept = y[where]
        parts = [x[p, where] if p == mail.rank else scratch[p, : kept.size] for p in range(mail.size)]
        yield [m for p in mail.peers for m in mail.send(x[p, where], p) + mail.recv(parts[p], p)]
        combine(call.op, parts, [kept])


def each_to_each(mail: Mail, call: Call) -> Steps:
    """Every rank sends each other rank its part; in an all-gather that is all it has."""
    x, y = call.send.reshape(-1), call.recv.reshape(mail.size, -1)
    x = [x] * mail.size if call.kind is CallKind.ALL_GATHER else x.reshape(mail.size, -1)
    if call.own:
        y[mail.rank] = x[mail.rank]
    for where in cut(x[0].size, max(1, -(-x[0].nbytes // MESSAGE_BYTES))):
        yield [m for p in mail.peers for m in mail.send(x[p][where], p) + mail.recv(y[p, where], p)]


def broadcast(mail: Mail, call: Call) -> Steps:
    """The root sends each rank one block, and all pass theirs on (van de Geijn): no rank sends more than two copies."""
    x, root = call.recv.reshape(-1), call.peer
    for part in rounds(x, BLOCK_BYTES * mail.size):
        blocks = [part[where] for where in cut(part.size, mail.size)]
        if mail.rank == root:
            yield [m for p in mail.peers for m in mail.send(blocks[p], p) + mail.send(blocks[root], p)]
        else:
            mine = blocks[mail.rank]
            yield mail.recv(mine, root) + mail.recv(blocks[root], root)
            others = [p for p in mail.peers if p != root]
            yield [m for p in others for m in mail.send(mine, p) + mail.recv(blocks[p], p)]


def message(mail: Mail, call: Call) -> Steps:
    """To or from rank ``call.peer``."""
    move = mail.send if call.kind is CallKind.SEND else mail.recv
    for part in rounds(call.array.reshape(-1), MESSAGE_BYTES):
        yield move(part, call.peer)


PAYLOAD = {
    CallKind.ALL_REDUCE: all_reduce,
    CallKind.REDUCE_SCATTER: reduce_scatter,
    CallKind.ALL_GATHER: each_to_each,
    CallKind.ALL_TO_ALL: each_to_each,
    CallKind.BROADCAST: broadcast,
    CallKind.SEND: message,
    CallKind.RECV: message,
}
