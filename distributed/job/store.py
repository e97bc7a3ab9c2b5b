"""Store: all ranks of a job meet at one TCP address and exchange a few bytes, before an engine exists.

Rank 0 listens, the others connect. Nothing that arrives is unpickled, executed or allocated by its own account: every
message has a known or a bounded length. Each side proves that it knows the job's secret: HMAC-SHA256 over fresh random
numbers of both sides, so that a recorded proof is worth nothing. Every later message carries a code under a key of that
one connection. Each handshake has a thread of its own: whoever says nothing, says it slowly or talks nonsense waits
alone. Python's ``multiprocessing.connection`` is not used because there one silent peer holds up all, and messages are
unpickled.

The exchange is authenticated, not secret, and NCCL's own connections that follow it are neither: a cluster's network
must be trusted as NCCL trusts it. The secret keeps strangers and other jobs out of the rendezvous.
"""

import contextlib
import hashlib
import hmac
import ipaddress
import os
import queue
import selectors
import socket
import struct
import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from minigrad.errors import check_int
from minigrad.modes import Closing

from ..comm.calls import RENDEZVOUS_TIMEOUT, check_seconds, remaining
from ..comm.comm_errors import RendezvousError
from .store_channel import LENGTH, MAC, Channel, mac, receive

MAX_VALUE = 16384  # bytes that a rank may contribute
MAX_WORLD = 2**16
MIN_SECRET = 16  # bytes; a recorded handshake allows guessing at leisure

_MAGIC = b"minigrad store 1"
_NONCE = 32
_WHO = struct.Struct(">II")  # rank, world_size
_PROOF = _NONCE + _WHO.size + MAC
_TEXT = 2048  # bytes of a message to people
_NAMED = 128  # missing ranks that it names
_PENDING = 128  # connections that have not proved themselves; one more and the oldest is closed
_HANDSHAKE_SECONDS = 5.0
_PATIENCE = 1.0  # seconds after the deadline in which rank 0 may still say who is missing
_REPORT_SECONDS = 0.5  # how often those who have joined hear who is missing
_JOINED, _MISSING, _ERROR, _VALUE, _RESULT, _WORD = b"J", b"M", b"E", b"V", b"R", b"W"


class Store(Closing):
    """The meeting of ``world_size`` ranks at ``address``:``port``; the constructor returns when all are there.

    ``secret`` (text or bytes, at least 16 bytes) is the same on all ranks. It may be left out only where the address is
    this machine's loopback; then any user of this machine could join. ``timeout`` is one deadline in seconds over
    everything that the store does; those who have joined give rank 0 one more second to tell them who is missing.
    Rank 0 listens on the interface of ``address`` alone.

    Raises ValueError for numbers out of range, and RendezvousError, naming the missing ranks as far as rank 0 could
    still tell this one.
    """

    def __init__(
        self, rank: int, world_size: int, address: str, port: int, *, secret: str | bytes | None = None,
        timeout: float = RENDEZVOUS_TIMEOUT,
    ) -> None:  # fmt: skip
        self._deadline = time.monotonic() + check_seconds("timeout", timeout)
        self._rank, self._world_size, self._timeout = rank, world_size, timeout
        check_int("world_size", world_size, 1, MAX_WORLD)
        check_int("rank", rank, 0, world_size - 1)
        check_int("the port", port, 1, 2**16 - 1)
        self._place = f"{address}:{port}"
        self._channels: dict[int, Channel] = {}
        self._refused: list[str] = []
        self._strangers: list[str] = []  # addresses of handshakes with another secret
        self._missing: list[int] = []  # as rank 0 last told
        self._listener: socket.socket | None = None  # of rank 0, as the next two
        self._pending: deque[socket.socket] = deque()  # who has not proved itself yet, in order of arrival
        self._proved: queue.SimpleQueue[tuple[Channel, str, int, int]] = queue.SimpleQueue()  # address, rank, world
        self._whole = self._closed = False  # all are there
        try:
            found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise RendezvousError(f"the address {address!r} cannot be resolved: {error}", rank=rank) from error
        self._key = self._shared_key(secret, [str(entry[4][0]) for entry in found])
        if world_size > 1:
            try:
                self._host(address, found) if rank == 0 else self._join(address, port)
            except BaseException:
                self.close()
                raise

    # ------------------------------------------------------------------ what it is for

    def all_gather(self, value: bytes) -> list[bytes]:
        """Every rank's ``value`` (at most 16384 bytes each), in order of rank. All ranks must call it."""
        if len(value) > MAX_VALUE:
            raise ValueError(f"the value has {len(value)} bytes, at most {MAX_VALUE} are exchanged")
        if self._world_size == 1:
            return [value]
        try:
            return self._collect(value) if self._rank == 0 else self._contribute(value)
        except BaseException:
            self.close()
            raise

    def tell(self, text: str) -> None:
        """After ``all_gather``: send a short text without waiting, rank 0 to all others, and they to rank 0."""
        for channel in self._channels.values():
            channel.offer(_WORD + text.encode()[:_TEXT])

    def hear(self, timeout: float | None = None) -> Iterator[tuple[int, str | None]]:
        """Who has told something, and what; None, once, from a rank that is gone. Waits at most ``timeout`` seconds."""
        while not self._proved.empty():  # somebody comes too late
            self._admit(*self._proved.get())
        ranks = {channel.socket: rank for rank, channel in self._channels.items()}
        for connection in _readable(ranks, timeout):
            rank = ranks[connection]
            try:
                text = self._channels[rank].receive(1 + _TEXT, time.monotonic() + _HANDSHAKE_SECONDS)[1]
                yield rank, text.decode(errors="replace")
            except OSError:
                self._channels.pop(rank).socket.close()
                yield rank, None

    def close(self) -> None:
        """Close all connections. May be called twice."""
        self._closed = True
        if self._listener is not None:
            _dismiss(self._listener)
            self._welcomer.join()
        self._send_away()
        for channel in self._channels.values():
            channel.socket.close()
        self._channels.clear()

    # ------------------------------------------------------------------ rank 0

    def _host(self, address: str, found: Sequence[Any]) -> None:
        here = str(found[0][4][0])
        if address not in ("localhost", here) and ipaddress.ip_address(here).is_loopback:
            local = f"{address} is this machine's loopback here ({here}), which no other machine reaches"
            remedy = "name an address that they reach, and set MINIGRAD_RENDEZVOUS_SECRET on all"
            warnings.warn(f"{local}: if there are ranks elsewhere, {remedy}", RuntimeWarning, stacklevel=3)
        self._listener = self._listen(found)
        self._welcomer = threading.Thread(target=self._welcome, args=[self._listener], name="rendezvous", daemon=True)
        self._welcomer.start()
        report = 0.0
        while len(self._channels) < self._world_size - 1:
            now = time.monotonic()
            if now >= self._deadline:
                self._give_up(self._absent(), self._did_not_come())
            if now >= report:
                report = now + _REPORT_SECONDS
                ranks = {channel.socket: rank for rank, channel in self._channels.items()}
                for connection in _readable(ranks, 0.0):  # it says nothing until all are here
                    self._give_up([ranks[connection]], "left the rendezvous")
                self._tell(_MISSING + _packed(self._absent()))
            with contextlib.suppress(queue.Empty):
                self._admit(*self._proved.get(timeout=min(report, self._deadline) - now))
        self._whole = True
        self._tell(_JOINED)

    def _listen(self, found: Sequence[Any]) -> socket.socket:
        problems = []
        for family, _, _, _, name in found:
            try:
                listener = socket.create_server(name, family=family, backlog=4096)
            except OSError as error:
                problems.append(f"{name[0]}: {error}")
                continue
            listener.settimeout(1.0)
            if name[0] not in self._place:  # what the name means to rank 0 is worth knowing if nobody comes
                self._place += f" ({name[0]})"
            return listener
        raise self._error(f"rank 0 cannot listen at {self._place} ({'; '.join(problems)}); choose another port or host")

    def _welcome(self, listener: socket.socket) -> None:
        """In a thread: have everybody who comes prove itself, each in a thread of its own."""
        while not self._closed:
            try:
                connection, address = listener.accept()
            except TimeoutError:
                continue
            except OSError:  # it is closed; or who came is gone again, or there are no more file descriptors
                time.sleep(0.01)
                connection = None
            if self._pending and (connection is None or len(self._pending) >= _PENDING):
                _dismiss(self._pending.popleft())
            if connection is not None:
                self._pending.append(connection)
                threading.Thread(target=self._hear_proof, args=(connection, str(address[0])), daemon=True).start()

    def _hear_proof(self, connection: socket.socket, address: str) -> None:
        """In a thread: greet who came, and hear whether it knows the secret; if not, close the door."""
        nonce, deadline = os.urandom(_NONCE), time.monotonic() + _HANDSHAKE_SECONDS
        try:
            connection.settimeout(_HANDSHAKE_SECONDS)
            connection.sendall(_MAGIC + nonce)
            client, who, proof = struct.unpack(f"{_NONCE}s{_WHO.size}s{MAC}s", receive(connection, _PROOF, deadline))
            self._pending.remove(connection)
        except (OSError, ValueError):  # the latter: it was pushed out just now
            _dismiss(connection)
            with contextlib.suppress(ValueError):
                self._pending.remove(connection)
            return
        if hmac.compare_digest(proof, mac(self._key, b"proof", nonce, client, who)):
            channel = Channel(connection, mac(self._key, b"session", nonce, client, who), first=True)
            self._proved.put((channel, address, *_WHO.unpack(who)))
            if self._closed:  # meanwhile
                self._send_away()
        else:
            self._strangers.append(address)
            _dismiss(connection)

    def _send_away(self) -> None:
        for take in (self._pending.popleft, lambda: self._proved.get_nowait()[0].socket):
            with contextlib.suppress(IndexError, queue.Empty):  # threads take out theirs meanwhile
                while True:
                    _dismiss(take())

    def _admit(self, channel: Channel, address: str, rank: int, world_size: int) -> None:
        """Let a rank in that knows the secret, or tell it why not."""
        if problem := self._objection(rank, world_size):
            if len(self._refused) < 8:
                self._refused.append(f"a process at {address} was refused: {problem}")
            channel.offer(_ERROR + _packed([], problem))
            _dismiss(channel.socket)
        else:
            self._channels[rank] = channel
            channel.offer(_MISSING + _packed(self._absent()))

    def _objection(self, rank: int, world_size: int) -> str:
        if world_size != self._world_size:
            return f"it says that there are {world_size} ranks, rank 0 was told {self._world_size}"
        if not 0 < rank < world_size:
            return f"it says that it is rank {rank}; rank 0 expects ranks 1 to {world_size - 1}"
        return f"there is a rank {rank} already" if rank in self._channels or self._whole else ""

    def _collect(self, value: bytes) -> list[bytes]:
        values = {0: value}
        sockets = {channel.socket: rank for rank, channel in self._channels.items()}
        while sockets:
            if not remaining(self._deadline):
                self._give_up(sorted(sockets.values()), f"joined, but sent nothing within {self._timeout:g} s")
            for connection in _readable(sockets, min(_REPORT_SECONDS, remaining(self._deadline))):
                rank = sockets.pop(connection)
                try:
                    kind, values[rank] = self._channels[rank].receive(1 + MAX_VALUE, self._deadline)
                except OSError as error:
                    self._give_up([rank], f"left the rendezvous ({error})")
                if kind != _VALUE:
                    self._give_up([rank], "sent something else than its value")
        gathered = [values[rank] for rank in range(self._world_size)]
        message = _RESULT + b"".join(LENGTH.pack(len(v)) + v for v in gathered)
        for rank, channel in self._channels.items():
            try:
                channel.send(message, self._deadline)
            except OSError as error:
                self._give_up([rank], f"did not take the result ({error})")
        return gathered

    def _absent(self) -> list[int]:
        return [rank for rank in range(1, self._world_size) if rank not in self._channels]

    def _tell(self, message: bytes) -> None:
        for rank, channel in self._channels.items():
            if not channel.offer(message):
                self._give_up([rank], "does not listen any more")

    def _give_up(self, ranks: Sequence[int], what: str) -> NoReturn:
        """Tell the others, then raise."""
        reason = f"{_names(ranks)} of {self._world_size} {what}"
        if self._refused:
            reason += "; " + "; ".join(self._refused)
        for address, n in Counter(self._strangers).most_common(8):
            reason += f"; {n} connection{'s' * (n > 1)} from {address} knew another secret"
        for channel in self._channels.values():
            channel.offer(_ERROR + _packed(ranks, reason))
        raise self._error(reason, ranks)

    # ------------------------------------------------------------------ the other ranks

    def _join(self, address: str, port: int) -> None:
        problem, pause = "", 0.01
        while remaining(self._deadline):
            try:
                connection = socket.create_connection((address, port), min(5.0, remaining(self._deadline) + 0.001))
                if connection.getsockname() == connection.getpeername():  # TCP lets a socket meet itself
                    connection.close()
                    raise ConnectionRefusedError("nobody listens")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # rank 0's machine may be gone
                if sys.platform == "linux":  # after a minute; elsewhere the system says when
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
            except OSError as error:
                problem = f"no connection: {error}"
            else:
                try:
                    self._introduce(connection)
                    return
                except BaseException as error:
                    connection.close()
                    self._channels.clear()
                    if not isinstance(error, OSError):
                        raise
                    if isinstance(error, TimeoutError):
                        break
                    if self._missing:
                        raise RendezvousError(f"rank 0 left {self._place}", rank=self._rank, ranks=[0]) from error
                    problem = f"it closed the connection during the handshake ({error}); is the secret the same?"
            time.sleep(min(pause, remaining(self._deadline)))
            pause = min(2 * pause, 0.25)
        if self._missing:
            raise self._error(f"{_names(self._missing)} of {self._world_size} {self._did_not_come()}", self._missing)
        problem = problem or "it accepts connections, but says nothing that rank 0 would say"
        raise self._error(f"rank 0 was not found at {self._place} within {self._timeout:g} s: {problem}", [0])

    def _introduce(self, connection: socket.socket) -> None:
        magic, nonce = struct.unpack(f"16s{_NONCE}s", receive(connection, len(_MAGIC) + _NONCE, self._deadline))
        if magic != _MAGIC:
            raise self._error(f"what listens at {self._place} is not rank 0 of minigrad; choose another port", [0])
        client, who = os.urandom(_NONCE), _WHO.pack(self._rank, self._world_size)
        connection.sendall(client + who + mac(self._key, b"proof", nonce, client, who))
        channel = Channel(connection, mac(self._key, b"session", nonce, client, who), first=False)
        self._channels[0] = channel
        kind = self._next(channel, _TEXT + 1)[0]
        self._deadline += _PATIENCE
        while kind != _JOINED:
            kind = self._next(channel, _TEXT + 1)[0]

    def _contribute(self, value: bytes) -> list[bytes]:
        channel = self._channels[0]
        try:
            channel.send(_VALUE + value, self._deadline)
            kind, body = self._next(channel, 1 + self._world_size * (LENGTH.size + MAX_VALUE))
        except TimeoutError as error:
            raise self._error(f"not all ranks had answered within {self._timeout:g} s") from error
        except OSError as error:
            raise RendezvousError(f"rank 0 left the rendezvous ({error})", rank=self._rank, ranks=[0]) from error
        gathered = []
        while body:
            size = LENGTH.unpack_from(body)[0]
            gathered.append(body[LENGTH.size : LENGTH.size + size])
            body = body[LENGTH.size + size :]
        if kind != _RESULT or len(gathered) != self._world_size:
            raise self._error("rank 0 answered with something else than the values of all ranks", [0])
        return gathered

    def _next(self, channel: Channel, limit: int) -> tuple[bytes, bytes]:
        """The next message, errors raised and reports kept."""
        kind, body = channel.receive(limit, self._deadline)
        if kind == _ERROR:
            ranks, reason = _unpacked(body)
            raise self._error(f"rank 0 says: {reason}", ranks)
        if kind == _MISSING:
            self._missing = _unpacked(body)[0]
        return kind, body

    # ------------------------------------------------------------------ both

    def _shared_key(self, secret: str | bytes | None, addresses: Sequence[str]) -> bytes:
        if secret is None:
            outside = [a for a in addresses if not ipaddress.ip_address(a.partition("%")[0]).is_loopback]
            if outside:
                reached = f"{self._place} can be reached from other machines ({outside[0]}), so the job needs a secret"
                command = 'python -c "import secrets; print(secrets.token_hex(32))"'
                remedy = f"set MINIGRAD_RENDEZVOUS_SECRET on all ranks to the same output of {command}"
                raise self._error(f"{reached}: {remedy}")
            secret = "one machine, no secret"
        secret = secret.encode() if isinstance(secret, str) else secret
        if len(secret) < MIN_SECRET:
            raise self._error(f"the rendezvous secret has {len(secret)} bytes, at least {MIN_SECRET} are needed")
        return hashlib.sha256(b"minigrad rendezvous" + secret).digest()

    def _did_not_come(self) -> str:
        return f"did not come to {self._place} within {self._timeout:g} s"

    def _error(self, reason: str, ranks: Sequence[int] = ()) -> RendezvousError:
        return RendezvousError(reason, rank=self._rank, ranks=ranks)


def _dismiss(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
    connection.close()


def _readable(sockets: Iterable[socket.socket], timeout: float | None) -> list[socket.socket]:
    with selectors.DefaultSelector() as selector:
        for connection in sockets:
            selector.register(connection, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(timeout) if isinstance(key.fileobj, socket.socket)]


def _packed(ranks: Sequence[int], text: str = "") -> bytes:
    return ",".join(map(str, ranks[:_NAMED])).encode() + b"|" + text.encode()[: _TEXT // 2]


def _unpacked(body: bytes) -> tuple[list[int], str]:
    ranks, _, text = body.decode(errors="replace").partition("|")
    return [int(rank) for rank in ranks.split(",") if rank.isdecimal()], text


def _names(ranks: Sequence[int]) -> str:
    """``rank 2``, ``ranks 1, 2, 3``; of many the first ones."""
    more = " and more" if len(ranks) >= _NAMED else ""
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks[:_NAMED]))}{more}"
