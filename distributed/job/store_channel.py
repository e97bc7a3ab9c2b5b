"""Authenticated messages on a TCP connection, for ``store``: every one has a bounded length and a deadline."""

import hashlib
import hmac
import socket
import struct

from ..comm.calls import remaining

MAC = hashlib.sha256().digest_size
LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(f">I{MAC}s")


class Channel:
    """Messages on a connection whose two ends share ``key``: length, code, kind and body.

    The code covers the direction and the message's number, so nothing can be repeated, reordered or turned round.
    """

    __slots__ = ("_incoming", "_key", "_outgoing", "_received", "_sent", "socket")

    def __init__(self, connection: socket.socket, key: bytes, first: bool) -> None:
        self.socket: socket.socket = connection
        self._key = key
        self._outgoing, self._incoming = (b"down", b"up") if first else (b"up", b"down")
        self._sent = self._received = 0

    def _frame(self, message: bytes) -> bytes:
        self._sent += 1
        code = mac(self._key, self._outgoing, LENGTH.pack(self._sent), message)
        return _HEAD.pack(len(message), code) + message

    def offer(self, message: bytes) -> bool:
        """Send a short message without waiting; False if that is not possible."""
        frame = self._frame(message)
        self.socket.setblocking(False)
        try:
            return self.socket.send(frame) == len(frame)
        except OSError:
            return False

    def send(self, message: bytes, deadline: float) -> None:
        """Send a message of any length. Raises OSError."""
        self.socket.settimeout(remaining(deadline) or 0.001)
        self.socket.sendall(self._frame(message))

    def receive(self, limit: int, deadline: float) -> tuple[bytes, bytes]:
        """The next message, as (kind, body). Raises OSError, also for a message that is too long or not authentic."""
        length, code = _HEAD.unpack(receive(self.socket, _HEAD.size, deadline))
        if not 0 < length <= limit:
            raise ConnectionAbortedError(f"a message of {length} bytes was announced, at most {limit} are expected")
        message = receive(self.socket, length, deadline)
        self._received += 1
        if not hmac.compare_digest(code, mac(self._key, self._incoming, LENGTH.pack(self._received), message)):
            raise ConnectionAbortedError("a message is not authentic")
        return message[:1], message[1:]


def mac(key: bytes, *pieces: bytes) -> bytes:
    """The code of the pieces, one after the other: HMAC-SHA256."""
    return hmac.new(key, b"".join(pieces), hashlib.sha256).digest()


def receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    """The next ``size`` bytes. Raises OSError."""
    data = bytearray()
    while len(data) < size:
        left = remaining(deadline)
        if not left:
            raise TimeoutError("the time is up")
        connection.settimeout(left)
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the connection was closed")
        data += part
    return bytes(data)
