"""Store: ranks meet, strangers do not get in, and nobody waits longer than the deadline."""

import contextlib
import functools
import os
import re
import resource
import socket
import struct
import sys
import threading
import time

import pytest
from in_threads import free_port, outcomes
from refusals import raises

from minigrad.distributed import RendezvousError, Store
from minigrad.distributed.job import store
from minigrad.distributed.job.store_channel import Channel

SECRET = "a secret of more than sixteen bytes"
LOCAL = "127.0.0.1"


def meet(ranks, world_size: int, port: int, fn=None, **options):
    """What each rank gets, or the exception it raised; ``options`` may be functions of the rank."""

    def one(rank: int):
        chosen = {key: value(rank) if callable(value) else value for key, value in options.items()}
        with Store(rank, world_size, LOCAL, port, **{"timeout": 10.0, **chosen}) as s:
            return (fn or (lambda s: s.all_gather(b"value %d" % rank)))(s)

    return outcomes(ranks, one, 30)


@contextlib.contextmanager
def meanwhile(*functions):
    """While the block runs, and until they have ended, each of the functions runs in a thread."""
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a rank hangs"


def everywhere(world_size: int) -> dict[int, list[bytes]]:
    return {rank: [b"value %d" % r for r in range(world_size)] for rank in range(world_size)}


def connected(port: int) -> socket.socket:
    """A connection to the store, as soon as it listens."""
    deadline = time.monotonic() + 5
    while True:
        try:
            s = socket.create_connection((LOCAL, port), 5)
            if s.getsockname() != s.getpeername():
                return s
            s.close()
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.005)


def read(s: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := s.recv(size - len(data))):
        data += part
    return data


GREETING = len(store._MAGIC) + store._NONCE


# ---------------------------------------------------------------------- ranks


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_all_get_the_values_of_all_in_order(world_size):
    def fn(s: Store):
        first = s.all_gather(b"")
        return first, s.all_gather(os.urandom(0) + bytes([world_size]) * store.MAX_VALUE), s.all_gather(b"x")

    want = [b""] * world_size, [bytes([world_size]) * store.MAX_VALUE] * world_size, [b"x"] * world_size
    assert meet(range(world_size), world_size, free_port(), fn) == dict.fromkeys(range(world_size), want)
    with Store(0, 1, LOCAL, free_port()) as s, pytest.raises(ValueError, match=f"at most {store.MAX_VALUE}"):
        s.all_gather(bytes(store.MAX_VALUE + 1))


def test_ranks_come_in_any_order():
    port = free_port()

    def late(rank: int):
        time.sleep(0.1 * (3 - rank))
        return meet([rank], 4, port)[rank]

    assert outcomes(range(4), late) == everywhere(4)


def test_missing_ranks_are_named_to_all():
    began = time.monotonic()
    out = meet([0, 1, 4], 5, free_port(), timeout=0.4)
    assert time.monotonic() - began < 10
    for error in out.values():
        assert isinstance(error, RendezvousError) and error.ranks == (2, 3)
        assert "ranks 2, 3 of 5 did not come to 127.0.0.1:" in str(error) and "within 0.4 s" in str(error)


def test_those_who_give_up_first_know_who_is_missing_too():
    out = meet([0, 1], 3, free_port(), timeout=lambda rank: 2.5 if rank == 0 else 0.2)
    assert out[1].ranks == (2,) and "rank 2 of 3 did not come" in str(out[1])
    assert out[0].ranks == (1,) and "left" in str(out[0])  # and rank 0 does not wait for its own deadline


def test_a_missing_rank_0_is_named():
    (error,) = meet([1], 2, free_port(), timeout=0.3).values()
    assert error.ranks == (0,) and error.rank == 1 and "rank 0 was not found" in str(error) and "refused" in str(error)


def test_a_rank_that_sends_nothing_is_named():
    def fn(s: Store):
        return time.sleep(1.0) if s._rank == 1 else s.all_gather(b"")

    out = meet(range(3), 3, free_port(), fn, timeout=0.6)
    for rank in (0, 2):
        assert out[rank].ranks == (1,) and "rank 1 of 3 joined, but sent nothing within 0.6 s" in str(out[rank])


@pytest.mark.parametrize("gone", [0, 1])
def test_a_rank_that_leaves_is_noticed_at_once(gone):
    began = time.monotonic()
    out = meet(range(3), 3, free_port(), lambda s: s._rank != gone and s.all_gather(b""))
    assert time.monotonic() - began < 8
    for rank in {0, 1, 2} - {gone}:
        assert isinstance(out[rank], RendezvousError) and out[rank].ranks == (gone,) and "left" in str(out[rank])


def test_a_rank_that_exists_already_is_refused_and_the_others_go_on():
    port, out = free_port(), {}

    def second() -> None:
        out["second"] = meet([1], 3, port, secret=SECRET)[1]
        out.update(meet([2], 3, port, secret=SECRET))

    with meanwhile(lambda: (time.sleep(0.3), second())):
        out.update(meet([0, 1], 3, port, secret=SECRET))
    assert isinstance(out.pop("second"), RendezvousError)
    assert out == everywhere(3)


def test_another_idea_of_the_world_is_told_to_both():
    port, out = free_port(), {}
    with meanwhile(lambda: out.update(meet([2], 4, port, timeout=0.5))):
        out.update(meet([0], 2, port, timeout=0.5))
    words = "it says that there are 4 ranks, rank 0 was told 2"
    assert words in str(out[2]) and out[0].ranks == (1,) and "refused" in str(out[0]) and words in str(out[0])


def test_an_occupied_port_is_told_by_rank_0():
    with socket.socket() as s:
        s.bind((LOCAL, 0))
        s.listen()
        (error,) = meet([0], 2, s.getsockname()[1]).values()
    assert "rank 0 cannot listen" in str(error) and "choose another port" in str(error)


def test_rank_0_listens_on_the_one_interface():
    port = free_port()
    with meanwhile(lambda: meet([0], 2, port, timeout=0.5)):
        connected(port).close()
        with socket.socket() as s, pytest.raises(OSError, match="refused"):
            s.connect(("127.0.0.2", port))


# ---------------------------------------------------------------------- strangers


def test_four_ranks_join_among_junk_and_silence(monkeypatch):
    """Three hundred connections of junk, sixty silent ones, and some that announce a gigabyte: joined in five seconds,
    without memory for any of it. Those who have been silent longest are pushed out."""
    monkeypatch.setattr(store, "_PENDING", 32)
    port, stop = free_port(), threading.Event()
    out = {}
    slow: list[socket.socket] = []

    def junk(seed: int) -> None:
        shapes = (os.urandom(40), os.urandom(5000), struct.pack(">Q", 2**40) * 20, b"GET / HTTP/1.1\r\n\r\n", b"")
        for i in range(100):
            try:
                with socket.create_connection((LOCAL, port), 5) as s:
                    s.sendall(shapes[(seed + i) % len(shapes)])
            except OSError:
                if stop.is_set():
                    return

    def drip() -> None:
        while not stop.wait(0.05):
            for s in slow:
                with contextlib.suppress(OSError):
                    s.send(b"x")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with meanwhile(lambda: out.update(meet([0], 4, port, secret=SECRET))):
        silent = [connected(port) for _ in range(60)]
        slow += [connected(port) for _ in range(10)]
        for s in silent[:38]:
            s.settimeout(2)  # less than a handshake may take
            assert len(read(s, GREETING + 1)) <= GREETING
        with meanwhile(drip, *[functools.partial(junk, seed) for seed in range(3)]):
            time.sleep(0.2)
            began = time.monotonic()
            out.update(meet([1, 2, 3], 4, port, secret=SECRET))
            assert time.monotonic() - began < 15
            stop.set()
    for s in silent + slow:
        s.close()
    assert out == everywhere(4)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 10_000 * (1024 if sys.platform == "darwin" else 1)


def test_a_connection_to_itself_is_not_rank_0(monkeypatch):
    """TCP lets a client that dials a free port of its own machine meet itself."""
    port = free_port()

    def itself(*_: object) -> socket.socket:
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((LOCAL, port))
        s.connect((LOCAL, port))
        return s

    monkeypatch.setattr(socket, "create_connection", itself)
    raises(RendezvousError, "nobody listens", lambda: Store(1, 2, LOCAL, port, timeout=0.2))


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_wrong_key_does_not_get_in_and_is_counted(wrong, monkeypatch):
    connect, made = socket.create_connection, []
    monkeypatch.setattr(socket, "create_connection", lambda *a, **kw: made.append(connect(*a, **kw)) or made[-1])
    out = meet([0, 1], 2, free_port(), timeout=0.5, secret=lambda rank: SECRET + "!" * (rank == wrong))
    assert out[0].ranks == (1,) and out[1].ranks == (0,)
    said = re.search(r"rank 1 of 2 did not come .*; (\d+) connections? from 127.0.0.1 knew another secret", str(out[0]))
    assert said is not None and len(made) - 1 <= int(said[1]) <= len(made)  # the last one may not have got to its end
    assert "is the secret the same?" in str(out[1])


def test_a_name_that_means_loopback_says_what_others_need(monkeypatch):
    found = socket.getaddrinfo(LOCAL, free_port(), type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.warns(RuntimeWarning, match="node1 is this machine's loopback here .* an address that they reach"):
        raises(RendezvousError, r"node1:1 \(127.0.0.1\)", lambda: Store(0, 2, "node1", 1, timeout=0.1))


def test_who_does_not_know_the_secret_cannot_play_rank_0():
    """It accepts every proof, and answers in the right form with a key of its own."""
    with socket.create_server((LOCAL, 0)) as server:

        def impostor() -> None:
            connection, _ = server.accept()
            with connection:
                nonce = os.urandom(store._NONCE)
                connection.sendall(store._MAGIC + nonce)
                read(connection, store._PROOF)
                channel = Channel(connection, bytes(32), first=True)
                channel.send(b"J", time.monotonic() + 5)
                channel.send(b"R" + struct.pack(">I", 3) + b"bad" + struct.pack(">I", 0), time.monotonic() + 5)

        with meanwhile(impostor):
            (error,) = meet([1], 2, server.getsockname()[1], timeout=0.6, secret=SECRET).values()
        assert isinstance(error, RendezvousError)


def test_a_recorded_handshake_is_worth_nothing():
    """What rank 1 said to one meeting is said again to the next."""
    real, proxy = free_port(), socket.create_server((LOCAL, 0))
    spoken = b""

    def relay() -> None:
        nonlocal spoken
        inside, _ = proxy.accept()
        with inside, connected(real) as outside:
            inside.sendall(read(outside, GREETING))
            spoken = read(inside, store._PROOF)
            outside.sendall(spoken)
            inside.settimeout(2)
            outside.settimeout(0.05)
            deadline = time.monotonic() + 0.5
            while time.monotonic() < deadline:
                for source, target in ((outside, inside), (inside, outside)):
                    source.settimeout(0.05)
                    try:
                        if not (data := source.recv(65536)):
                            return
                        target.sendall(data)
                    except OSError:
                        pass

    out = {}
    with proxy, meanwhile(relay, lambda: out.update(meet([1], 2, proxy.getsockname()[1], secret=SECRET))):
        out.update(meet([0], 2, real, secret=SECRET))
    assert out[0] == out[1] == [b"value 0", b"value 1"] and len(spoken) == store._PROOF

    port = free_port()
    with meanwhile(lambda: out.update(meet([0], 2, port, secret=SECRET, timeout=0.5))), connected(port) as s:
        s.settimeout(5)
        read(s, GREETING)
        s.sendall(spoken)
        assert s.recv(1) == b""  # shown out
    assert out[0].ranks == (1,)


def test_messages_cannot_be_changed_repeated_or_lengthened():
    a, b = socket.socketpair()
    deadline = time.monotonic() + 5
    with a, b:
        key = os.urandom(32)
        sender, frame = Channel(a, key, first=True), b""
        frame = sender._frame(b"Vhello")
        for bad, words in (
            (frame[:-1] + b"?", "not authentic"),
            (struct.pack(">I", 2**31) + frame[4:], "2147483648 bytes was announced, at most 100"),
            (struct.pack(">I", 0) + frame[4:], "0 bytes"),
        ):
            a.sendall(bad)
            raises(ConnectionAbortedError, words, lambda: Channel(b, key, first=False).receive(100, deadline))
            b.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                b.recv(1000)
        receiver = Channel(b, key, first=False)
        a.sendall(frame + frame)
        assert receiver.receive(100, deadline) == (b"V", b"hello")
        raises(ConnectionAbortedError, "not authentic", lambda: receiver.receive(100, deadline))
        a.sendall(frame)
        turned_round = Channel(b, key, first=True)
        raises(ConnectionAbortedError, "not authentic", turned_round.receive, 100, deadline)


# ---------------------------------------------------------------------- secrets and arguments


def test_off_loopback_a_secret_is_needed():
    with pytest.raises(RendezvousError, match=r"192\.0\.2\.1.*needs a secret: set MINIGRAD_RENDEZVOUS_SECRET"):
        Store(1, 2, "192.0.2.1", 29500, timeout=0.1)
    raises(RendezvousError, "15 bytes, at least 16", lambda: Store(1, 2, LOCAL, 29500, secret="x" * 15, timeout=0.1))


def test_text_and_bytes_are_the_same_secret():
    out = meet([0, 1], 2, free_port(), secret=lambda rank: SECRET if rank else SECRET.encode())
    assert out[0] == [b"value 0", b"value 1"]


def test_wrong_arguments():
    for arguments, words in [
        *[((0, 0, LOCAL, 1), "world_size is 0"), ((2, 2, LOCAL, 1), "rank is 2"), ((0, 2, LOCAL, 0), "port is 0")],
        *[((0, 2, LOCAL, 65536), "port is 65536"), ((0, 2, "no.such.host.invalid", 1), "cannot be resolved")],
    ]:
        kind = RendezvousError if "resolved" in words else ValueError
        raises(kind, words, lambda given=arguments: Store(*given, timeout=0.1))
